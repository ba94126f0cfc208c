"""A follower that dies at any step, and one whose ledger is lost or from another time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from strandline import Lake
from strandline.core import failpoints
from strandline.core.errors import LedgerUnreadable, RefusedError
from strandline.core.types import Seq, SeqRange
from strandline.iceberg.schema.alteration import AddColumn, DropColumn
from strandline.iceberg.schema.columns import Primitive
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.lake import open_lake
from strandline.lake_admin import follow_lake, rebuild_ledger
from strandline.ledger.ingest import sequence
from tests.campaign import in_torture
from tests.conftest import MakeHome
from tests.spark.followed import Pair, assert_same, follow, new_pair, restarted
from tests.spark.lakes import batch
from tests.spark.protocol import (
    COLUMNS,
    audit_events,
    compact_everything,
    copy_ledger,
    crash_at,
    expire_everything,
    frame,
    outlive_lease,
    restore_ledger,
)

# In the order of a pass.
POINTS = [
    *map(in_torture, ("record.before_witness", "record.after_witness", "record.after_commit")),
    "follow.after_take", "stage.before_branch",
    "stage.after_branch", "stage.before_commit", "stage.after_commit", "stage.before_mark", "stage.after_mark",
    "publish.before_commit", "publish.after_commit", "settle.before_mark", "settle.after_mark",
    "follow.before_checkpoint", "follow.after_checkpoint", "follow.before_acknowledge", "follow.after_acknowledge",
]  # fmt: skip


@pytest.mark.parametrize("point", POINTS)
def test_a_follower_that_dies_at_any_step_goes_on_and_has_every_row_once(pair: Pair, point: str) -> None:
    leader, follower = pair
    leader.append("events", frame(leader, 0, 3).select("id"), batch_id=point)
    restarted(follower)
    crash_at(follower, point, lambda: follow(follower))
    restarted(follower)
    outlive_lease(follower)
    follow(follower)
    assert_same(leader, follower)


@pytest.mark.parametrize("point", ["follow.after_table", "follow.after_dataset"])
def test_a_follower_that_dies_while_it_makes_a_dataset_makes_it_once(pair: Pair, point: str) -> None:
    leader, follower = pair
    name = point.replace("follow.", "")
    leader.create_dataset(name, parse_columns(COLUMNS))
    leader.append(name, frame(leader, 0), batch_id="a")
    crash_at(follower, point, lambda: follow(follower))
    restarted(follower)
    follow(follower)
    assert_same(leader, follower, name)


@pytest.mark.parametrize("point", ["follow.before_drop", "follow.after_drop"])
def test_a_follower_that_dies_when_it_drops_a_dataset_goes_on(pair: Pair, point: str) -> None:
    leader, follower = pair
    leader.create_dataset("dropped", parse_columns(COLUMNS))
    follow(follower)
    leader.drop_dataset("dropped")
    crash_at(follower, point, lambda: follow(follower))
    restarted(follower)
    follow(follower)
    assert "default.dropped" not in [d.name for d in follower.datasets()]


@pytest.mark.parametrize("point", ["follow.before_alter", "follow.after_alter"])
def test_a_follower_that_dies_between_two_changes_of_columns_goes_on(pair: Pair, point: str) -> None:
    leader, follower = pair
    made, dropped = (f"{end}_{point.partition('.')[2]}" for end in ("made", "dropped"))
    leader.alter_dataset("events", [AddColumn(dropped, Primitive("long"))])
    leader.append("events", leader.spark.range(3).selectExpr("id", f"id AS {dropped}"), batch_id=f"first {point}")
    follow(follower)
    leader.alter_dataset("events", [AddColumn(made, Primitive("long")), DropColumn(dropped)])
    leader.append("events", leader.spark.range(3).selectExpr("id", f"id AS {made}"), batch_id=point)
    crash_at(follower, point, lambda: follow(follower))
    restarted(follower)
    outlive_lease(follower)
    follow(follower)
    assert_same(leader, follower)


@pytest.mark.parametrize("point", [in_torture("follow.before_settle"), "follow.after_settle"])
def test_a_follower_that_dies_when_it_settles_an_item_without_rows_goes_on(pair: Pair, point: str) -> None:
    leader, follower = pair
    leader.append("events", leader.spark.range(700, 703), batch_id=point)
    leader.spark.sql("DELETE FROM lake.default.events WHERE id BETWEEN 700 AND 702")
    crash_at(follower, point, lambda: follow(follower))
    restarted(follower)
    outlive_lease(follower)
    follow(follower)
    assert_same(leader, follower)


@pytest.mark.parametrize("point", ["follow.after_purge_record", "follow.after_purge"])
def test_a_follower_that_dies_while_it_carries_out_a_purge_deletes_the_rest(pair: Pair, point: str) -> None:
    leader, follower = pair
    leader.append("events", leader.spark.range(800, 806), batch_id=point)
    follow(follower)
    last = leader.sealed("events")
    assert last is not None
    leader.spark.sql("DELETE FROM lake.default.events WHERE id IN (801, 802, 805)")
    offer_purge(leader, SeqRange(Seq(last - 5), last))
    crash_at(follower, point, lambda: follow(follower))
    restarted(follower)
    outlive_lease(follower)
    follow(follower)
    assert_same(leader, follower)
    assert [r["id"] for r, _ in follower.read_since("events") if r["id"] >= 800] == [800, 803, 804]
    assert "follow.purged" in audit_events(follower)
    leader.spark.sql("DELETE FROM lake.default.events WHERE id >= 800")
    offer_purge(leader, SeqRange(Seq(1), last))
    follow(follower)
    assert_same(leader, follower)


def offer_purge(leader: Lake, rows: SeqRange) -> None:
    """The item of a purge whose rows are gone from the leader's table."""
    with leader.ledger.write() as connection:
        taken, _ = sequence.take(connection, leader.witness, 1, step="floor")
        of = leader.dataset("events").id
        values = f"{of}, {taken.lo}, {taken.hi}, 'batch', 'purge-{taken.lo}', 'published', 1, 0, 1, 1, 'purge'"
        connection.exec_driver_sql(
            "INSERT INTO block (dataset_id, lo, hi, kind, batch_id, state, fence, row_count, reserved_at, changed_at, "
            f"item, ranges) VALUES ({values}, '[[{rows.lo}, {rows.hi}]]')"
        )


BEHIND = [p for p in failpoints.POINTS if p.startswith("behind.")]


@pytest.mark.parametrize("point", BEHIND)
def test_a_follower_whose_ledger_was_restored_has_no_seal_until_it_knows_again_what_it_has(
    pair: Pair, point: str
) -> None:
    leader, follower = pair
    copy = copy_ledger(follower, f"{point}.db")
    before = follower.sealed("events")
    leader.append("events", leader.spark.range(3), batch_id=f"{point}-b")
    follow(follower)
    if point == BEHIND[0]:
        compact_everything(follower)
        expire_everything(follower)
    leader.append("events", leader.spark.range(2), batch_id=f"{point}-c")
    restore_ledger(follower, copy)
    restarted(follower)
    crash_at(follower, point, follower.recover)
    assert follower.sealed("events") == (None if point == "behind.after_commit" else before)
    follower.recover()
    assert follower.sealed("events") is None, "nobody knows how far it had come"
    crash_at(follower, "record.after_commit", lambda: follow(follower))
    assert follower.sealed("events") is None
    follow(follower)
    assert_same(leader, follower)
    assert "follow.caught_up" in audit_events(follower)


def test_a_restored_follower_has_no_seal_below_the_one_that_it_had_also_if_that_was_a_purge(pair: Pair) -> None:
    leader, follower = pair
    leader.append("events", leader.spark.range(900, 903), batch_id="rows below a purge")
    copy = copy_ledger(follower, "before-the-purge.db")
    follow(follower)
    offer_purge(leader, SeqRange(Seq(1), Seq(1)))
    follow(follower)
    before = follower.sealed("events")
    assert before == leader.sealed("events") is not None
    restore_ledger(follower, copy)
    source = restarted(follower).context.source
    poll = source.poll
    seals = []

    def one_by_one(*args: Any, **options: Any) -> Any:
        seals.append(follower.sealed("events"))
        return poll(*args, **options | {"items_max": 1})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "poll", one_by_one)
        follow(follower)
    assert len(seals) > 2 and all(seal is None or seal >= before for seal in seals[1:])
    assert_same(leader, follower)


def test_a_follower_whose_ledger_is_damaged_or_gone_goes_on_with_its_tables(
    tmp_path: Path, make_home: MakeHome
) -> None:
    with new_pair(tmp_path, make_home) as (leader, follower):
        leader.append("events", leader.spark.range(2), batch_id="before")
        follow(follower)
        path = follower.ledger.path
        assert path is not None
        path.rename(path.with_name("away.db"))
        path.write_bytes(b"not a ledger" * 1000)
        with pytest.raises(LedgerUnreadable):
            open_lake(follower.config.home).close()
        path.unlink()
        with pytest.raises(RefusedError, match="follows another one"):
            rebuild_ledger(follower.config)
        leader.append("events", leader.spark.range(2), batch_id="after")
        with follow_lake(follower.config.home, str(leader.config.home)) as again:
            follow(again)
            assert_same(leader, again)
            for batch_id in ("before", "after"):
                assert batch(again, "events", batch_id) is not None
