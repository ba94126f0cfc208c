"""Short-lived caches of a receiver: authorized callers, and the columns of datasets that receive rows.

SQLite blocks readers during a commit. A client that sends one body after another need not wait for that each time,
because the commit point checks its token and its dataset again. The table's metadata are read only every few seconds. A
body that does not fit the cached columns is parsed again with fresh ones.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from time import monotonic

from strandline.core.types import INTERNAL_COLUMNS, Dataset, DatasetId
from strandline.iceberg.schema.columns import Column
from strandline.ledger.receive.receipts import TokenFingerprint
from strandline.ledger.receive.tokens import Token
from strandline.receive.context import ReceivedTables

READ_AGAIN_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class ReceiverCaller:
    token: Token
    dataset: Dataset
    fingerprint: TokenFingerprint  # of the token's owner, for the note in the spool


@dataclass(frozen=True, slots=True)
class DatasetSchema:
    dataset: Dataset
    columns: tuple[Column, ...]  # without Strandline's own
    read_at: float


class SchemaCache:
    """Thread-safe."""

    def __init__(self, tables: ReceivedTables) -> None:
        self._tables = tables
        self._known: dict[DatasetId, DatasetSchema] = {}
        self._lock = threading.Lock()

    def of(self, dataset: Dataset, *, newer_than: DatasetSchema | None = None) -> DatasetSchema:
        found = self._fresh(dataset, newer_than)
        if found is not None:
            return found
        with self._lock:
            # A thread that waited for another thread's read uses its result.
            found = self._fresh(dataset, newer_than)
            if found is None:
                at = monotonic()
                now, columns = self._tables.schema_of(dataset.name)
                found = DatasetSchema(now, tuple(c for c in columns if c.name not in INTERNAL_COLUMNS), at)
                self._known[now.id] = found
            return found

    def _fresh(self, dataset: Dataset, newer_than: DatasetSchema | None) -> DatasetSchema | None:
        found = self._known.get(dataset.id)
        if found is None or found.dataset.table_uuid != dataset.table_uuid:
            return None
        if newer_than is not None and found.read_at <= newer_than.read_at:
            return None
        return found if monotonic() - found.read_at < READ_AGAIN_SECONDS else None
