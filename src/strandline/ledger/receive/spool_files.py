"""Spool files: those that the ledger knows, and those whose bodies it cannot record. The audit log records each change
of the latter."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

import sqlalchemy as sa

from strandline.core.records.audit_events import Event
from strandline.core.text.wording import plural
from strandline.core.types import DatasetId
from strandline.ledger import audit
from strandline.ledger.engine import Ledger, rows_with
from strandline.ledger.schema.receive import HAS_ROWS, receive_batch, received

log = logging.getLogger(__name__)

FILES_NAMED_MAX = 20


@dataclass(frozen=True, slots=True)
class LeftFile:
    """A spool file whose body cannot be recorded. Its sender may have got the answer that it is safe."""

    name: str
    dataset: str
    reason: str


@dataclass(frozen=True, slots=True)
class LeftFiles:
    by_dataset: Mapping[str, int]  # the number of files, at least one each
    first: tuple[LeftFile, ...]  # by name, at most `FILES_NAMED_MAX`

    def reason(self, dataset: str) -> str | None:
        """The reason of the dataset's first file, if that is in `first`."""
        return next((f.reason for f in self.first if f.dataset == dataset), None)


def list_spool_files(connection: sa.Connection) -> set[str]:
    """The files that belong to a recorded body and are not removed."""
    waiting = sa.select(received.c.spool).where(received.c.spool_removed_at.is_(None), HAS_ROWS)
    return set(connection.execute(waiting).scalars())


def waiting_bytes(connection: sa.Connection) -> dict[DatasetId, int]:
    """The bytes of all spool files per dataset, including published ones that are about to be removed."""
    return {DatasetId(row.dataset_id): int(row.bytes) for row in connection.execute(_WAITING_BYTES)}


# An expression: for the column itself, SQLite would scan an index of all bodies that were ever received.
_OF_DATASET = received.c.dataset_id + sa.literal_column("0")
_WAITING_BYTES = (
    sa.select(
        _OF_DATASET.label("dataset_id"), sa.cast(sa.func.sum(received.c.spool_bytes), sa.BigInteger).label("bytes")
    )
    .where(received.c.spool_removed_at.is_(None), HAS_ROWS)
    .group_by(_OF_DATASET)
)


def spooled(connection: sa.Connection, names: Iterable[str]) -> set[str]:
    """Which of these files belong to a recorded body and are not removed. Any other file belongs to a body that is
    about to be recorded, or was left by a process that was killed before that."""
    not_removed = sa.select(received.c.spool).where(received.c.spool_removed_at.is_(None))
    return {row.spool for row in rows_with(connection, not_removed, received.c.spool, names)}


def read_left(connection: sa.Connection) -> LeftFiles:
    """The files that a receiver found in its last check, and could not record."""
    event = audit.newest(connection, Event.SPOOL_FILES_LEFT)
    if event is None:
        return LeftFiles({}, ())
    return LeftFiles(dict(event.detail["datasets"]), tuple(LeftFile(**f) for f in event.detail["first"]))


def record_left(ledger: Ledger, files: Iterable[LeftFile]) -> None:
    """Logs and audits the files, unless they are the same as last time."""
    ordered = sorted(files, key=lambda f: f.name)
    left = LeftFiles(dict(sorted(Counter(f.dataset for f in ordered).items())), tuple(ordered[:FILES_NAMED_MAX]))
    with ledger.read() as connection:
        if read_left(connection) == left:
            return
    if ordered:
        log.warning(
            "%s in the spool cannot be recorded; the first: %s: %s",
            plural(len(ordered), "body"),
            ordered[0].name,
            ordered[0].reason,
        )
    with ledger.write() as connection:
        audit.record(
            connection, Event.SPOOL_FILES_LEFT, datasets=left.by_dataset, first=[asdict(f) for f in left.first]
        )


def rows_in_waiting(connection: sa.Connection, names: Iterable[str]) -> dict[str, int | None]:
    """Those of these files whose bodies are in no published batch, and how many rows each has; None for a file that
    the ledger does not know."""
    query = sa.select(received.c.spool, received.c.rows, receive_batch.c.published_at).join_from(
        received, receive_batch, receive_batch.c.id == received.c.batch, isouter=True
    )
    listed = list(names)
    by_name = {r.spool: r for r in rows_with(connection, query, received.c.spool, listed)}
    return {
        n: by_name[n].rows if n in by_name else None
        for n in listed
        if n not in by_name or by_name[n].published_at is None
    }
