"""Bodies that were received, as the receiver leaves them: in the spool and in the ledger. Without HTTP."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from strandline.core.forward_protocol import BodyIdentity, KeyIdentity, LaneName, RangeIdentity
from strandline.core.types import Seq, SeqRange
from strandline.ledger.receive import received, senders, tokens
from strandline.ledger.receive.receipts import Note
from strandline.ledger.receive.received import New, UnrecordedBody
from strandline.ledger.receive.senders import SourceRecord
from strandline.receive.spool import FOLDER, open_spool

if TYPE_CHECKING:
    from strandline.lake import Lake
    from strandline.receive.intake import BatchReport

LANE = LaneName("elsewhere", "sink-1", 1, "default.there", "")


class Sender:
    """Whatever it brings was answered with 202."""

    def __init__(self, lake: Lake, dataset: str) -> None:
        self.lake = lake
        self.dataset = lake.dataset(dataset)
        self.spool = open_spool(lake.config)
        with lake.ledger.write() as connection:
            self.token, _ = tokens.create(connection, f"sender-of-{dataset}", None)
            own = {"instance": LANE.instance, "table_uuid": "u", "generation": 1, "owner": self.token.owner}
            senders.claim(connection, self.dataset.id, SourceRecord(LANE.lake, LANE.dataset, **own))
        self.sent = 0

    def bring(self, rows: Sequence[Any] | pa.Table, identity: BodyIdentity | None = None) -> str | None:
        """One body of rows `n`; a column that is given as a table is taken as it is."""
        table = rows if isinstance(rows, pa.Table) else pa.table({"n": pa.array(rows, pa.int64())})
        self.sent += 1
        key = identity or KeyIdentity(f"key-{self.sent}")
        digest = hashlib.sha256(f"{self.sent}".encode()).hexdigest()
        with self.lake.ledger.read() as connection:
            note = Note(key, tokens.fingerprint_of(connection, self.token.owner), table.num_rows, digest, 100)
        name, size = self.spool.write(self.dataset.table_uuid, table, note) if table.num_rows else (None, 0)
        body = UnrecordedBody(self.dataset.id, key, self.token.id, table.num_rows, digest, 100, name, size)
        [decided] = received.record(self.lake.ledger, [body])
        assert isinstance(decided, New)
        return name

    def ingest(self) -> list[BatchReport]:
        """Whatever is due, also for others; what became of its own."""
        return [r for r in ingest(self.lake) if r.dataset == self.dataset.name]

    def bring_range(self, lo: int, rows: Sequence[int], hi: int | None = None) -> str | None:
        last = lo + len(rows) - 1 if hi is None else hi
        return self.bring(rows, RangeIdentity(LANE, SeqRange(Seq(lo), Seq(last))))


def files(lake: Lake) -> list[Path]:
    folder = lake.config.warehouse_folder
    assert folder is not None
    return sorted((folder / FOLDER).rglob("*.arrow"))


def ingest(lake: Lake) -> list[BatchReport]:
    return lake.receiver.intake().step()


def outlive_lease(lake: Lake) -> None:
    """As if the lease of every batch and block had run out."""
    past = timedelta(hours=1)
    with lake.ledger.write() as connection:
        for table in ("receive_batch", "block"):
            connection.exec_driver_sql(
                f"UPDATE {table} SET lease_until = lease_until - {int(past.total_seconds() * 1e6)} "
                "WHERE lease_until IS NOT NULL"
            )


def be_due(lake: Lake) -> None:
    """A batch that failed is tried again at once."""
    with lake.ledger.write() as connection:
        connection.exec_driver_sql("UPDATE receive_batch SET retry_at = NULL WHERE retry_at IS NOT NULL")
