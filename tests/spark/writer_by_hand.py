"""A writer whose steps a test takes one by one."""

from __future__ import annotations

from dataclasses import dataclass

import strandline
from strandline.core.types import Reserved, SnapshotId
from strandline.iceberg.spark.stage import stage, write_rows
from strandline.ingest import stamp
from strandline.ledger.ingest import blocks
from tests.spark.protocol import frame

_COLUMNS = ["id", "text"]


@dataclass(frozen=True)
class WriterByHand:
    lake: strandline.Lake
    pinned: stamp.Pinned
    counted: stamp.CountedRows

    @classmethod
    def of(cls, lake: strandline.Lake, start: int, count: int = 10) -> WriterByHand:
        pinned = stamp.pin(lake.work.tables.spark, frame(lake, start, count))
        return cls(lake, pinned, stamp.count(pinned, _COLUMNS, digest=True))

    def reserve(self, batch: str, *, lease_seconds: float = 0) -> Reserved:
        block = blocks.NewBlock(self.lake.dataset("events").id, self.counted.rows, batch, self.counted.digest)
        held, _ = blocks.reserve(self.lake.ledger, self.lake.witness, block, lease_seconds=lease_seconds)
        assert isinstance(held, Reserved)
        return held

    def make_branch(self, held: Reserved) -> None:
        self.lake.work.tables.create_branch(self.lake.dataset("events").name, held.head.branch)

    def stage(self, held: Reserved) -> SnapshotId:
        """On the branch, which exists; the snapshot."""
        work, name, head = self.lake.work, self.lake.dataset("events").name, held.head
        stamped = stamp.stamp(self.pinned, _COLUMNS, head.rows, self.counted, ())
        stage(work.tables, name, head.branch, work.wap(head), write_rows(work.tables, name, stamped))
        snapshot = work.tables.own_head(name, head.branch, work.wap(head))
        assert snapshot is not None
        return snapshot


def staged_by_hand(lake: strandline.Lake, batch: str, start: int) -> tuple[Reserved, SnapshotId]:
    """A writer up to the moment before its commit point."""
    writer = WriterByHand.of(lake, start)
    held = writer.reserve(batch, lease_seconds=0.5)
    writer.make_branch(held)
    return held, writer.stage(held)
