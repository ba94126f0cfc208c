"""Which blocks a range of sequence numbers touches, and where a step of so many rows ends: found among few blocks and
among many, without reading the others."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from strandline.core.types import BlockKind, Seq, SeqRange, merge_ranges
from strandline.ledger.engine import utc_now
from strandline.ledger.ingest import published_blocks
from strandline.ledger.ingest.published_blocks import end_of_rows, owned_ranges
from strandline.ledger.schema.core import block
from tests.ledger.conftest import LakeState

BLOCKS = 5_000


def publish(lake: LakeState, ranges: Sequence[SeqRange], kind: BlockKind = BlockKind.BATCH) -> None:
    now = utc_now()
    with lake.ledger.write() as connection:
        connection.execute(
            block.insert(),
            [
                {
                    "dataset_id": lake.dataset.id, "lo": r.lo, "hi": r.hi, "kind": kind.value, "fence": 1,
                    "batch_id": f"{kind}-{r.lo}-{r.hi}", "state": "published", "reserved_at": now, "changed_at": now,
                    "shard": 0, "snapshot_id": r.lo, "row_count": None if kind is BlockKind.RECOVERED else len(r),
                }
                for r in ranges
            ],
        )  # fmt: skip


def rolled(dice: random.Random, count: int) -> list[SeqRange]:
    """Apart from each other; now and then the next one is not where the last one ends."""
    found, at = [], 0
    for _ in range(count):
        lo = at + 1 + dice.choice([0, 0, 3])
        at = lo + dice.choice([0, 4, 30])
        found.append(SeqRange(Seq(lo), Seq(at)))
    return found


def test_the_ranges_between_two_bounds_are_those_of_the_blocks_that_touch_them(
    lake: LakeState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published_blocks, "PAGE_BLOCKS", 3)
    dice = random.Random(5)
    blocks = rolled(dice, 40)
    last = blocks[-1].hi
    covered = SeqRange(blocks[10].lo, Seq(blocks[20].hi + 2))
    publish(lake, [*blocks[:12], *blocks[16:]])
    publish(lake, [covered], BlockKind.RECOVERED)
    all_of_them = [*blocks[:12], *blocks[16:], covered]
    lake.reserve("open")
    for _ in range(200):
        after, until = sorted((dice.randrange(last + 5), dice.randrange(1, last + 5)))
        wanted = merge_ranges(r for r in all_of_them if r.hi > after and r.lo <= until)
        with lake.ledger.read() as connection:
            assert owned_ranges(connection, lake.dataset.id, after=Seq(after), until=Seq(until)) == wanted
            rows_max = dice.randrange(1, 80)
            end = end_of_rows(connection, lake.dataset.id, after=Seq(after), sealed=last, rows_max=rows_max)
        step = {n for r in all_of_them for n in range(r.lo, r.hi + 1) if after < n <= end}
        assert len(step) <= rows_max and end <= last
        assert end > after or after >= last, "every step gets on"


def test_a_step_is_cut_and_its_ranges_are_found_whatever_is_published_behind_it(sqlite_lake: LakeState) -> None:
    """The work of SQLite's virtual machine, in thousands of instructions."""
    each = [SeqRange(Seq(10 * n + 1), Seq(10 * n + 10)) for n in range(BLOCKS)]
    publish(sqlite_lake, each)
    dataset, middle, end = sqlite_lake.dataset.id, Seq(10 * BLOCKS // 2), Seq(10 * BLOCKS)
    step = Seq(middle + 200)
    with sqlite_lake.ledger.read() as connection:
        with counted(connection) as work:
            assert end_of_rows(connection, dataset, after=middle, sealed=end, rows_max=200) == step
            assert owned_ranges(connection, dataset, after=middle, until=step) == [SeqRange(Seq(middle + 1), step)]
        few = work()
        with counted(connection) as work:
            owned_ranges(connection, dataset)
        with counted(connection) as last:
            newest = published_blocks.last_settled(connection, dataset)
    assert len(newest) == published_blocks.LAST_SETTLED_MAX
    assert few + last() <= 15 < BLOCKS // 200 < work(), "all blocks would be more"


@contextmanager
def counted(connection: sa.Connection) -> Iterator[Callable[[], int]]:
    driver: Any = connection.connection.driver_connection
    found = 0

    def count() -> int:
        nonlocal found
        found += 1
        return 0

    driver.set_progress_handler(count, 1000)
    yield lambda: found
    driver.set_progress_handler(None, 0)
