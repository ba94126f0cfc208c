"""Rows that came in are those of published blocks: each counts once, whenever its block is published."""

from __future__ import annotations

from dataclasses import replace

from strandline.core.types import BlockId
from strandline.ledger.ingest import blocks
from strandline.ledger.ingest.arrivals import Arrivals, count_arrivals
from tests.ledger.conftest import LakeState


class Watch:
    def __init__(self, lake: LakeState) -> None:
        self.lake = lake
        self.last: Arrivals | None = None

    def rows(self) -> int:
        """That came in since it was last asked."""
        before = 0 if self.last is None else self.last.rows
        with self.lake.ledger.read_consistent() as connection:
            self.last = count_arrivals(connection, self.last)
        return self.last.rows - before


def test_neither_an_open_block_nor_an_abandoned_one_brings_rows(lake: LakeState) -> None:
    watch = Watch(lake)
    lake.publish(lake.reserve("before", 5))
    assert watch.rows() == 0, "what was there before nobody counts"
    held, lost = lake.reserve("held", 10), lake.reserve("lost", 1000)
    assert watch.rows() == 0
    assert blocks.abandon(lake.ledger, lake.witness, lost, "a test")
    assert watch.rows() == 0
    lake.publish(held)
    assert watch.rows() == 10 and watch.rows() == 0


def test_each_row_counts_once_though_an_older_block_stays_open(lake: LakeState) -> None:
    old = lake.reserve("old", 3)
    lake.publish(lake.reserve("above it", 4))
    watch = Watch(lake)
    watch.rows()
    counted = []
    for n in range(3):
        lake.publish(lake.reserve(f"batch {n}", 7))
        counted += [watch.rows(), watch.rows()]
    assert counted == [7, 0] * 3
    lake.publish(old)
    assert watch.rows() == 3 and watch.rows() == 0
    assert watch.last is not None and watch.last.settled_rows == watch.last.rows, "the past is not read again"


def test_after_a_restore_it_begins_anew(lake: LakeState) -> None:
    watch = Watch(lake)
    lake.publish(lake.reserve("one", 5))
    watch.rows()
    assert watch.last is not None
    watch.last = replace(watch.last, rows=50, settled_rows=50, settled_up_to=BlockId(10**6))
    watch.rows()
    assert watch.last.rows == 0
    lake.publish(lake.reserve("two", 6))
    assert watch.rows() == 6
