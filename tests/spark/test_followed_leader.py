"""A leader that has followers: its ledger is lost or restored, it purges, and others expire its history."""

from __future__ import annotations

from typing import Any

import pytest

from strandline import Lake
from strandline.core.types import Reserved
from strandline.iceberg.spark import row_delete
from strandline.lake import open_lake
from strandline.lake_admin import rebuild_ledger
from strandline.ledger.ingest import blocks
from strandline.ledger.replicate import followers
from tests.spark.followed import Pair, assert_same, follow, restarted, table
from tests.spark.lakes import open_blocks
from tests.spark.protocol import (
    audit_events,
    branches,
    copy_ledger,
    crash_at,
    frame,
    ids,
    outlive_lease,
    restore_ledger,
)


def test_a_purge_of_the_leader_deletes_the_rows_at_its_followers_too(pair: Pair) -> None:
    leader, follower = pair
    leader.append("events", frame(leader, 0, 6), batch_id="purged")
    follow(follower)
    assert ids(follower) == [0, 1, 2, 3, 4, 5]
    done = leader.maintenance.purge("events", "id IN (1, 4)").result
    assert done.deleted_rows == 2
    leader.append("events", frame(leader, 6, 2), batch_id="after the purge")
    before = follower.sealed("events")
    follow(follower)
    assert before is not None and follower.sealed("events") == leader.sealed("events")
    assert_same(leader, follower)
    assert ids(follower) == [0, 2, 3, 5, 6, 7]
    shown = [s.id for s in follower.work.tables.view("default.events").snapshots.values()]
    assert all(follower.work.tables.read("default.events", s).where("id IN (1, 4)").isEmpty() for s in shown)
    assert "follow.purged" in audit_events(follower)


def test_a_purge_of_many_rows_is_not_compared_with_each_row_of_its_files(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a nested loop, 30,000 rows take many minutes."""
    leader, follower = pair
    plans: list[str] = []
    write = row_delete.write

    def noted(tables: Any, group: Any, rows: Any) -> Any:
        plans.append(rows._jdf.queryExecution().executedPlan().toString())
        return write(tables, group, rows)

    leader.append("events", frame(leader, 400, 10), batch_id="half of it is purged")
    follow(follower)
    leader.maintenance.purge("events", "id >= 400 AND id % 2 = 0")
    monkeypatch.setattr(row_delete, "write", noted)
    follow(follower)
    assert [id for id in ids(follower) if id >= 400] == [401, 403, 405, 407, 409]
    assert len(plans) == 1 and "Join" in plans[0] and "NestedLoop" not in plans[0]


def test_a_block_that_was_given_up_after_the_copy_does_not_come_back_below_a_followers_bound(pair: Pair) -> None:
    leader, follower = pair
    crash_at(leader, "stage.after_commit", lambda: leader.append("events", frame(leader, 100, 3), batch_id="given up"))
    [held] = open_blocks(leader, "events")
    assert isinstance(held, Reserved) and branches(leader) == [held.branch]
    copy = copy_ledger(leader, "given-up.db")
    assert blocks.abandon(leader.ledger, leader.witness, held, "its writer is gone")
    leader.append("events", frame(leader, 200, 2), batch_id="passes it")
    follow(follower)
    assert_seals_agree(leader, follower)
    restore_ledger(leader, copy)
    outlive_lease(leader)
    leader.recover()
    assert branches(leader) == [] and open_blocks(leader, "events") == []
    assert not {100, 101, 102} & set(ids(leader)) and {200, 201} <= set(ids(leader))
    restarted(follower)
    follow(follower)
    assert_same(leader, follower)
    again = leader.append("events", frame(leader, 100, 3), batch_id="given up")
    assert not again.duplicate
    follow(follower)
    assert_same(leader, follower)


def assert_seals_agree(leader: Lake, follower: Lake) -> None:
    assert follower.sealed("events") == leader.sealed("events")


def test_a_leader_whose_ledger_is_made_anew_keeps_everything_for_its_followers(pair: Pair) -> None:
    leader, follower = pair
    leader.followers.add("east")
    crash_at(leader, "stage.after_mark", lambda: leader.append("events", frame(leader, 300, 3), batch_id="staged"))
    follow(follower)
    made = rebuild_ledger(leader.config, force=True)
    assert made.followers_forgotten == ("east",)
    with open_lake(leader.config.home) as again:
        [found] = again.followers.list()
        assert (found.name, found.token) == ("east", None)
        assert again.ledger.query(followers.watermarks_by_title, again.dataset("events")) == {"follower east": None}
        assert not {300, 301, 302} & set(ids(again)), "nothing is rolled forward, and nothing of it was acknowledged"
        restarted(follower)
        follow(follower)
        assert table(follower) == table(again) and follower.sealed("events") == again.sealed("events")
        again.append("events", frame(again, 300, 3), batch_id="staged")
        follow(follower)
        assert table(follower) == table(again)
        again.followers.remove("east")


def test_a_leader_whose_ledger_is_from_before_a_follower_was_added_finds_it_on_the_tables(pair: Pair) -> None:
    """Though nothing else happened since: sinks and retention wait for it, and nobody takes it for unknown."""
    leader, follower = pair
    copy = copy_ledger(leader, "before-it-was-added.db")
    leader.followers.add("late")
    restore_ledger(leader, copy)
    leader.append("events", frame(leader, 500, 3), batch_id="after the restore")
    found = {f.name: f.token for f in leader.followers.list()}
    assert "late" in found and found["late"] is None
    restarted(follower)
    follow(follower)
    assert_same(leader, follower)


def test_a_table_whose_history_pyiceberg_expired_is_read_and_written_as_before(pair: Pair) -> None:
    leader, follower = pair
    with open_lake(leader.config.home) as lake:
        for n in (400, 410):
            lake.append("events", frame(lake, n, 2), batch_id=f"before-{n}")
        lake.spark.sql("DELETE FROM lake.default.events WHERE id = 400")  # above our tag
        lake.spark.sql("DELETE FROM lake.default.events WHERE id = 401")
        expected = [r["id"] for r, _ in lake.read_since("events")]
        loaded = lake.catalog.load("default.events")
        kept = {r.snapshot_id for r in loaded.metadata.refs.values()}
        gone = [s.snapshot_id for s in loaded.metadata.snapshots if s.snapshot_id not in kept]
        assert gone
        loaded.maintenance.expire_snapshots().by_ids(gone).commit()
        assert [r["id"] for r, _ in lake.read_since("events")] == expected
        lake.append("events", frame(lake, 420, 2), batch_id="after")
        assert [r["id"] for r, _ in lake.read_since("events")] == [*expected, 420, 421]
        restarted(follower)
        follow(follower)
        follower.spark.sql("DELETE FROM lake.default.events WHERE id IN (400, 401)")
        assert table(follower) == table(lake)
