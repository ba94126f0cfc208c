"""A writer that died, at every step; and people who meddle with its branch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strandline import Lake
from strandline.core.errors import BatchConflict, BlockHeld, BlockLost, FailedError, RefusedError, StorageError
from strandline.core.settings.lake_config import LakeConfig
from strandline.core.types import Reserved, Staged
from strandline.iceberg.metadata.table_metadata import SETTLED_TAG
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.iceberg.spark.tables import SparkTables
from strandline.ingest import recover, settle
from strandline.lake import open_lake
from strandline.ledger.engine import utc_now
from strandline.ledger.ingest import blocks
from tests.spark.protocol import (
    COLUMNS,
    assert_sound,
    branches,
    compact_everything,
    crash_at,
    expire_everything,
    frame,
    ids,
    new_lake,
    outlive_lease,
    states,
)
from tests.spark.writer_by_hand import WriterByHand, staged_by_hand


@pytest.fixture
def lake(tmp_path: Path, make_home: Callable[..., LakeConfig]) -> Iterator[Lake]:
    with new_lake(tmp_path, make_home) as made:
        made.append("events", frame(made, 1000), batch_id="before")
        yield made


BEFORE = list(range(1000, 1010))
BATCH = list(range(10))

# What becomes of the batch when its writer dies at a point: rolled forward, or given up.
FATES = {
    "reserve.after_commit": "abandoned",
    "stage.before_branch": "abandoned",
    "stage.after_branch": "abandoned",
    "stage.before_commit": "abandoned",
    "stage.after_commit": "published",
    "stage.before_mark": "published",
    "stage.after_mark": "published",
    "publish.before_commit": "published",
    "publish.after_commit": "published",
    "settle.before_mark": "published",
    "settle.after_mark": "published",
}


@pytest.mark.parametrize("point", FATES)
def test_a_writer_that_died_is_settled_and_its_batch_goes_in_once(lake: Lake, point: str) -> None:
    crash_at(lake, point, lambda: lake.append("events", frame(lake, 0), batch_id="a"))
    if point != "settle.after_mark":
        assert set(states(lake)) & {"reserved", "staged"}, "the crash left nothing open"
        assert lake.sealed("events") == 10, "the seal passed an open block"
    outlive_lease(lake)
    lake.recover()
    assert states(lake)[-1] == FATES[point]
    assert_sound(lake, BEFORE + (BATCH if FATES[point] == "published" else []))
    again = lake.append("events", frame(lake, 0), batch_id="a")
    assert again.duplicate == (FATES[point] == "published")
    assert_sound(lake, BEFORE + BATCH)


def test_a_batch_that_recovery_rolled_forward_is_compared_with_what_its_writer_staged(lake: Lake) -> None:
    crash_at(lake, "stage.before_mark", lambda: lake.append("events", frame(lake, 0), batch_id="a"))
    open_block = lake.ledger.query(blocks.of_batch, lake.dataset("events").id, "a")
    assert open_block is not None and open_block.head.digest is None, "the ledger learns it at the commit point"
    outlive_lease(lake)
    lake.recover()
    with pytest.raises(BatchConflict):
        lake.append("events", frame(lake, 1), batch_id="a")
    assert lake.append("events", frame(lake, 0), batch_id="a").duplicate
    assert_sound(lake, BEFORE + BATCH)


def test_a_writer_whose_branch_was_removed_stages_nothing(lake: Lake) -> None:
    writer = WriterByHand.of(lake, 0)
    held = writer.reserve("a")
    writer.make_branch(held)
    lake.recover()
    with pytest.raises(FailedError, match="abandoned"):
        writer.stage(held)
    assert branches(lake) == [] and states(lake)[-1] == "abandoned"


@pytest.mark.parametrize("point", ["reserve.before_witness", "reserve.after_witness"])
def test_a_writer_that_died_before_it_had_numbers_leaves_nothing_behind(lake: Lake, point: str) -> None:
    crash_at(lake, point, lambda: lake.append("events", frame(lake, 0), batch_id="a"))
    assert states(lake) == ["published"]
    lake.recover()
    assert_sound(lake, BEFORE)
    lake.append("events", frame(lake, 0), batch_id="a")
    assert_sound(lake, BEFORE + BATCH)


@pytest.mark.parametrize(
    "point", ["abandon.before_witness", "abandon.after_witness", "abandon.after_commit", "abandon.after_branch"]
)
def test_a_recoverer_that_died_is_recovered_from(lake: Lake, point: str) -> None:
    crash_at(lake, "stage.after_branch", lambda: lake.append("events", frame(lake, 0), batch_id="a"))
    outlive_lease(lake)
    crash_at(lake, point, lake.recover)
    outlive_lease(lake)
    lake.recover()
    assert_sound(lake, BEFORE)
    assert states(lake).count("abandoned") == 1
    lake.append("events", frame(lake, 0), batch_id="a")
    assert_sound(lake, BEFORE + BATCH)


def test_offering_the_batch_again_settles_its_dead_writer_without_a_recovery_run(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash_at(lake, "stage.after_mark", lambda: lake.append("events", frame(lake, 0), batch_id="a"))
    assert lake.append("events", frame(lake, 0), batch_id="a").duplicate
    crash_at(lake, "stage.before_commit", lambda: lake.append("events", frame(lake, 20), batch_id="b"))
    waits: list[float] = []

    def wait(seconds: float) -> None:
        assert not waits, "the lease has ended"
        waits.append(seconds)
        outlive_lease(lake)

    with monkeypatch.context() as waiting:
        waiting.setattr("strandline.ingest.append.time", SimpleNamespace(sleep=wait))
        assert not lake.append("events", frame(lake, 20), batch_id="b").duplicate
    assert waits, "until then, the writer may live"
    assert_sound(lake, BEFORE + BATCH + list(range(20, 30)))


def test_a_live_writer_is_left_alone(lake: Lake) -> None:
    dataset = lake.dataset("events")
    held, _ = blocks.reserve(lake.ledger, lake.witness, blocks.NewBlock(dataset.id, 5, "a", None), lease_seconds=60)
    lake.work.tables.create_branch(dataset.name, held.head.branch)
    report = lake.recover()
    assert report.waiting == [held.head.rows] and branches(lake) == [held.head.branch]


def test_a_zombie_that_staged_after_it_was_declared_dead_is_fenced_and_nothing_of_it_is_visible(lake: Lake) -> None:
    zombie = WriterByHand.of(lake, 0)
    held = zombie.reserve("a")
    zombie.make_branch(held)
    assert lake.recover().abandoned == [held.head.rows]
    # The zombie continues as if nothing had happened: Iceberg lets it make its branch again.
    zombie.make_branch(held)
    snapshot = zombie.stage(held)
    assert not blocks.mark_staged(lake.ledger, lake.witness, held, snapshot)
    with pytest.raises(BlockLost):
        settle.after_failed_commit(lake.work, lake.dataset("events"), held.head)
    assert_sound(lake, BEFORE)


def test_a_zombie_that_died_after_staging_leaves_a_stray_branch_that_recovery_removes(lake: Lake) -> None:
    zombie = WriterByHand.of(lake, 0)
    held = zombie.reserve("a")
    assert lake.recover().abandoned == [held.head.rows]
    zombie.make_branch(held)
    zombie.stage(held)
    assert lake.recover().branches_removed == 1
    assert_sound(lake, BEFORE)


def test_a_writer_that_was_away_after_staging_finds_its_batch_published_by_recovery(lake: Lake) -> None:
    held, snapshot = staged_by_hand(lake, "a", 0)
    outlive_lease(lake)
    assert lake.recover().published == [held.head.rows]
    assert not blocks.mark_staged(lake.ledger, lake.witness, held, snapshot)
    published = settle.after_failed_commit(lake.work, lake.dataset("events"), held.head)
    assert published.row_count == 10
    assert_sound(lake, BEFORE + BATCH)


def test_publishing_twice_or_ten_times_publishes_once(lake: Lake) -> None:
    held, snapshot = staged_by_hand(lake, "a", 0)
    blocks.mark_staged(lake.ledger, lake.witness, held, snapshot)
    staged = Staged(held.head, held.fence, snapshot, utc_now())
    for _ in range(4):
        settle.publish_staged(lake.work, lake.dataset("events"), staged)
    assert_sound(lake, BEFORE + BATCH)


def test_a_person_who_fast_forwards_our_branch_by_hand_does_no_harm(lake: Lake) -> None:
    held, snapshot = staged_by_hand(lake, "a", 0)
    lake.spark.sql(f"CALL lake.system.fast_forward('default.events', 'main', '{held.head.branch}')")
    outlive_lease(lake)
    lake.recover()
    assert_sound(lake, BEFORE + BATCH)
    held, snapshot = staged_by_hand(lake, "b", 20)
    blocks.mark_staged(lake.ledger, lake.witness, held, snapshot)
    lake.spark.sql(f"CALL lake.system.fast_forward('default.events', 'main', '{held.head.branch}')")
    lake.recover()
    assert_sound(lake, BEFORE + BATCH + list(range(20, 30)))


def test_a_person_who_cherry_picks_our_snapshot_by_hand_does_no_harm(lake: Lake) -> None:
    held, snapshot = staged_by_hand(lake, "a", 0)
    blocks.mark_staged(lake.ledger, lake.witness, held, snapshot)
    lake.append("events", frame(lake, 50), batch_id="between")
    lake.spark.sql(f"CALL lake.system.cherrypick_snapshot('default.events', {snapshot})")
    lake.recover()
    assert_sound(lake, BEFORE + BATCH + list(range(50, 60)))


def test_rows_that_came_by_hand_and_whose_history_is_gone_are_found_by_counting_them(lake: Lake) -> None:
    held, snapshot = staged_by_hand(lake, "a", 0)
    blocks.mark_staged(lake.ledger, lake.witness, held, snapshot)
    lake.spark.sql(f"CALL lake.system.fast_forward('default.events', 'main', '{held.head.branch}')")
    compact_everything(lake)
    expire_everything(lake)
    lake.recover()
    assert_sound(lake, BEFORE + BATCH)


def test_a_staged_block_whose_branch_was_dropped_by_hand_is_held_said_and_voided_by_a_person(lake: Lake) -> None:
    held, snapshot = staged_by_hand(lake, "a", 0)
    blocks.mark_staged(lake.ledger, lake.witness, held, snapshot)
    lake.spark.sql(f"ALTER TABLE lake.default.events DROP BRANCH {held.head.branch}")
    assert "cannot be published" in lake.recover().held[0]
    assert lake.sealed("events") == 10 and lake.status().datasets[0].open_blocks == 1
    with pytest.raises(BlockHeld):
        lake.append("events", frame(lake, 0), batch_id="a")
    lake.ingestion.void_block(held.head.rows.lo, "the branch is gone for good")
    lake.append("events", frame(lake, 0), batch_id="a")
    assert_sound(lake, BEFORE + BATCH)


def test_a_reserved_block_whose_branch_was_dropped_by_hand_is_abandoned(lake: Lake) -> None:
    held, _ = staged_by_hand(lake, "a", 0)
    lake.spark.sql(f"ALTER TABLE lake.default.events DROP BRANCH {held.head.branch}")
    outlive_lease(lake)
    assert lake.recover().abandoned == [held.head.rows]
    assert_sound(lake, BEFORE)


def test_expiry_by_someone_else_at_any_moment_does_not_touch_a_staged_block(lake: Lake) -> None:
    held, snapshot = staged_by_hand(lake, "a", 0)
    expire_everything(lake)
    blocks.mark_staged(lake.ledger, lake.witness, held, snapshot)
    lake.append("events", frame(lake, 50), batch_id="between")
    expire_everything(lake)
    lake.recover()
    expire_everything(lake)
    assert_sound(lake, BEFORE + BATCH + list(range(50, 60)))


def test_a_batch_that_was_published_whose_history_expired_and_whose_mark_was_lost_is_not_published_again(
    lake: Lake,
) -> None:
    crash_at(lake, "settle.before_mark", lambda: lake.append("events", frame(lake, 0), batch_id="a"))
    compact_everything(lake)
    lake.spark.sql("INSERT INTO lake.default.events VALUES (500000, 500000, 'foreign')")
    expire_everything(lake)
    lake.recover()
    assert states(lake)[-1] == "published"
    assert [i for i in ids(lake) if i < 500_000] == sorted(BEFORE + BATCH)
    assert lake.append("events", frame(lake, 0), batch_id="a").duplicate


def test_a_branch_that_someone_wrote_to_is_held_and_not_lost(lake: Lake) -> None:
    held, snapshot = staged_by_hand(lake, "a", 0)
    blocks.mark_staged(lake.ledger, lake.witness, held, snapshot)
    lake.spark.sql(f"INSERT INTO lake.default.events.branch_{held.head.branch} VALUES (99, 99, 'stranger')")
    assert "moved by someone else" in lake.recover().held[0]
    assert ids(lake) == sorted(BEFORE) and branches(lake) == [held.head.branch]


def test_a_foreign_commit_between_staging_and_publishing_is_not_lost(lake: Lake) -> None:
    held, snapshot = staged_by_hand(lake, "a", 0)
    blocks.mark_staged(lake.ledger, lake.witness, held, snapshot)
    lake.spark.sql("DELETE FROM lake.default.events WHERE id = 1000")
    lake.recover()
    assert ids(lake) == sorted([*BEFORE[1:], *BATCH])


def test_a_staged_copy_with_a_missing_row_is_not_rolled_forward(lake: Lake) -> None:
    """A writer that died between its staged commit and its own check of it."""
    block = blocks.NewBlock(lake.dataset("events").id, 10, "a", None)
    held, _ = blocks.reserve(lake.ledger, lake.witness, block, lease_seconds=0)
    assert isinstance(held, Reserved)
    writer = WriterByHand.of(lake, 0, 9)
    writer.make_branch(held)
    writer.stage(held)
    assert lake.recover().abandoned == [held.head.rows]
    assert_sound(lake, BEFORE)


def test_a_dataset_whose_table_is_gone_does_not_stop_the_recovery_of_the_others(lake: Lake) -> None:
    lake.create_dataset("doomed", parse_columns(COLUMNS))
    crash_at(lake, "stage.after_mark", lambda: lake.append("events", frame(lake, 0), batch_id="a"))
    lake.spark.sql("DROP TABLE lake.default.doomed")
    report = lake.recover()
    assert "default.doomed" in report.held[0] and len(report.published) == 1
    assert_sound(lake, BEFORE + BATCH)


def test_a_block_that_can_be_published_is_published_and_not_voided(lake: Lake) -> None:
    held, snapshot = staged_by_hand(lake, "a", 0)
    blocks.mark_staged(lake.ledger, lake.witness, held, snapshot)
    with pytest.raises(RefusedError, match="could be published"):
        lake.ingestion.void_block(held.head.rows.lo, "by mistake")
    assert_sound(lake, BEFORE + BATCH)


def test_a_publisher_on_its_way_cannot_publish_a_block_that_was_voided_meanwhile(lake: Lake) -> None:
    held, snapshot = staged_by_hand(lake, "a", 0)
    blocks.mark_staged(lake.ledger, lake.witness, held, snapshot)
    lake.spark.sql(f"INSERT INTO lake.default.events.branch_{held.head.branch} VALUES (99, 99, 'stranger')")
    lake.ingestion.void_block(held.head.rows.lo, "someone wrote to its branch")
    with pytest.raises(BlockHeld):
        settle.publish_staged(lake.work, lake.dataset("events"), Staged(held.head, held.fence, snapshot, utc_now()))
    lake.append("events", frame(lake, 0), batch_id="a")
    assert_sound(lake, BEFORE + BATCH)


def test_rows_of_an_abandoned_block_that_someone_fast_forwards_are_foreign_and_never_read(lake: Lake) -> None:
    assert lake.status().datasets[0].foreign == 0
    held, _ = staged_by_hand(lake, "a", 0)
    assert blocks.abandon(lake.ledger, lake.witness, held, "a test")
    lake.spark.sql(f"CALL lake.system.fast_forward('default.events', 'main', '{held.head.branch}')")
    lake.append("events", frame(lake, 0), batch_id="a")
    assert lake.status().datasets[0].foreign == 10
    assert sorted(r["id"] for r, _ in lake.read_since("events")) == sorted(BEFORE + BATCH)


def test_a_made_up_number_in_the_range_of_a_staged_block_does_not_pass_for_its_publication(lake: Lake) -> None:
    held, snapshot = staged_by_hand(lake, "a", 0)
    blocks.mark_staged(lake.ledger, lake.witness, held, snapshot)
    lake.spark.sql(f"INSERT INTO lake.default.events VALUES ({held.head.rows.lo}, 77, 'made up')")
    lake.spark.sql(f"ALTER TABLE lake.default.events DROP TAG `{SETTLED_TAG}`")  # with it, history tells
    expire_everything(lake)
    assert "numbers" in lake.recover().held[0]
    assert branches(lake) == [held.head.branch], "its rows were thrown away"


def test_a_damaged_table_keeps_no_other_from_being_settled_and_status_says_which(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.create_dataset("other", parse_columns(COLUMNS))
    for name in ("events", "other"):
        crash_at(lake, "stage.after_commit", lambda name=name: lake.append(name, frame(lake, 0), batch_id="a"))  # type: ignore[misc]
    outlive_lease(lake)
    real = SparkTables.count

    def count(tables: SparkTables, name: str, *args: Any) -> int:
        if name == "default.events":  # as Java says it: what was read before is cached, so a damaged file is not seen
            tables.spark._jvm.java.lang.Integer.parseInt("damaged")  # type: ignore[union-attr]
        return real(tables, name, *args)

    with monkeypatch.context() as damaged:
        damaged.setattr(SparkTables, "count", count)
        report = lake.recover()
        assert report.troubled == ["default.events"] and len(report.published) == 1
        assert_sound(lake, BATCH, "other")
        lake.append("other", frame(lake, 20), batch_id="b")
        problems = {d.name: d.problem for d in lake.status().datasets}
        assert problems["default.other"] is None and "cannot be settled" in (problems["default.events"] or "")
    outlive_lease(lake)
    assert lake.recover().troubled == []
    assert all(d.problem is None for d in lake.status().datasets)
    assert_sound(lake, BEFORE + BATCH)


def test_a_process_whose_first_recovery_failed_recovers_by_itself_later(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash_at(lake, "stage.after_mark", lambda: lake.append("events", frame(lake, 0), batch_id="a"))

    def fails(work: object) -> None:
        raise StorageError("the warehouse is away for a moment")

    with open_lake(lake.config.home) as other:
        with monkeypatch.context() as away:
            away.setattr(recover, "recover", fails)
            with pytest.raises(StorageError):
                _ = other.work
        assert states(lake)[-1] == "staged"
        _ = other.work
    assert_sound(lake, BEFORE + BATCH)
