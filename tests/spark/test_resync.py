"""Ledgers that were lost, restored or doubled. No number is used again, and no row that was published is forgotten."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import strandline
from strandline import Lake
from strandline.core import batch_names, errors
from strandline.core.errors import (
    BlockLost,
    LedgerMissing,
    LedgerUnreadable,
    RefusedError,
    Superseded,
    WitnessUnreadable,
)
from strandline.core.settings.lake_config import LakeConfig
from strandline.core.types import SnapshotId, Staged
from strandline.iceberg.metadata.metadata_peek import read_glance
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.iceberg.spark import rewrite
from strandline.iceberg.spark.java import IcebergJava
from strandline.ingest import settle, table_peek
from strandline.ingest.resync import run
from strandline.lake_admin import rebuild_ledger
from strandline.ledger.ingest import blocks, restored_blocks
from tests.spark.protocol import (
    COLUMNS,
    assert_sound,
    audit_events,
    copy_ledger,
    crash_at,
    expire_everything,
    forget_two_batches,
    frame,
    ids,
    new_lake,
    outlive_lease,
    restore_ledger,
    rows,
    states,
    unreadable,
)
from tests.spark.writer_by_hand import WriterByHand, staged_by_hand


@pytest.fixture
def lake(tmp_path: Path, make_home: Callable[..., LakeConfig]) -> Iterator[Lake]:
    with new_lake(tmp_path / "lake", make_home) as made:
        made.append("events", frame(made, 1000), batch_id="before")
        yield made


BEFORE = list(range(1000, 1010))


def test_a_restored_ledger_forgets_no_row_and_uses_no_number_again(lake: Lake) -> None:
    copy = copy_ledger(lake, "copy.db")
    lake.append("events", frame(lake, 0), batch_id="a")
    taken = {n for n, _ in rows(lake)}
    restore_ledger(lake, copy)
    done = lake.append("events", frame(lake, 20), batch_id="b")  # the process that stayed open
    assert done.rows is not None and not any(n in done.rows for n in taken)
    assert_sound(lake, BEFORE + list(range(10)) + list(range(20, 30)))
    assert "ledger.resynced" in audit_events(lake)


def test_a_restored_ledger_does_not_call_rows_foreign_that_it_has_forgotten(lake: Lake) -> None:
    copy = copy_ledger(lake, "copy.db")
    lake.append("events", frame(lake, 0), batch_id="a")
    restore_ledger(lake, copy)
    assert lake.status().datasets[0].foreign is None and lake.status().problem is not None
    lake.recover()
    assert lake.status().datasets[0].foreign == 0 and lake.status().problem is None
    assert_sound(lake, BEFORE + list(range(10)))


def test_a_batch_from_after_the_copy_is_still_a_repeat(lake: Lake) -> None:
    copy = copy_ledger(lake, "copy.db")
    first = lake.append("events", frame(lake, 0), batch_id="a")
    restore_ledger(lake, copy)
    with strandline.open(lake.config.home) as reopened:
        reopened.recover()
        again = reopened.append("events", frame(reopened, 0), batch_id="a")
        assert again.duplicate and again.rows == first.rows
        with pytest.raises(errors.BatchConflict):
            reopened.append("events", frame(reopened, 1), batch_id="a")
    assert_sound(lake, BEFORE + list(range(10)))


def test_a_block_staged_after_the_copy_is_rolled_forward(lake: Lake) -> None:
    copy = copy_ledger(lake, "copy.db")
    crash_at(lake, "stage.after_mark", lambda: lake.append("events", frame(lake, 0), batch_id="a"))
    restore_ledger(lake, copy)
    lake.recover()
    assert_sound(lake, BEFORE + list(range(10)))
    assert lake.append("events", frame(lake, 0), batch_id="a").duplicate


def test_of_one_batch_staged_twice_only_the_highest_number_is_rolled_forward(lake: Lake) -> None:
    copy = copy_ledger(lake, "copy.db")
    low, _ = staged_by_hand(lake, "a", 0)
    # The low one was abandoned, its zombie's branch is still there, and the batch came again.
    assert blocks.abandon(lake.ledger, lake.witness, low, "a test")
    high, _ = staged_by_hand(lake, "a", 0)
    restore_ledger(lake, copy)
    lake.recover()
    assert_sound(lake, BEFORE + list(range(10)))
    assert min(n for n, i in rows(lake) if i < 10) == high.head.rows.lo


@pytest.mark.parametrize("part_is", ["published", "staged"])
def test_a_batch_of_received_rows_is_not_rolled_forward_when_a_part_of_it_came_later(lake: Lake, part_is: str) -> None:
    """After the copy the whole was given up and divided, and its branch was not removed yet."""
    copy = copy_ledger(lake, "copy.db")
    whole = batch_names.new_name()
    given_up, _ = staged_by_hand(lake, whole, 0)
    assert blocks.abandon(lake.ledger, lake.witness, given_up, "a test")
    if part_is == "published":
        lake.append("events", frame(lake, 0), batch_id=f"{whole}.0")
    else:
        staged_by_hand(lake, f"{whole}.0", 0)
    restore_ledger(lake, copy)
    lake.recover()
    assert_sound(lake, BEFORE + list(range(10)))


def test_a_writer_whose_ledger_was_restored_under_it_loses_its_block_and_nothing_of_it_is_visible(lake: Lake) -> None:
    copy = copy_ledger(lake, "copy.db")
    held, snapshot = staged_by_hand(lake, "a", 0)
    lake.work.tables.remove_branch("default.events", held.head.branch)
    restore_ledger(lake, copy)
    lake.recover()
    assert not blocks.mark_staged(lake.ledger, lake.witness, held, snapshot)
    with pytest.raises(BlockLost):
        settle.after_failed_commit(lake.work, lake.dataset("events"), held.head)
    assert_sound(lake, BEFORE)


def test_a_restore_that_undoes_an_abandonment_does_not_revive_the_zombie(lake: Lake) -> None:
    zombie = WriterByHand.of(lake, 0)
    held = zombie.reserve("a")
    copy = copy_ledger(lake, "copy.db")
    assert lake.recover().abandoned == [held.head.rows]
    restore_ledger(lake, copy)  # the zombie's block is reserved again, with its own fence
    zombie.make_branch(held)
    snapshot = zombie.stage(held)
    with pytest.raises(errors.ResyncNeeded):
        blocks.mark_staged(lake.ledger, lake.witness, held, snapshot)
    lake.append("events", frame(lake, 0), batch_id="a")
    assert_sound(lake, BEFORE + list(range(10)))


def test_a_batch_that_came_again_after_the_copy_is_not_doubled_by_its_revived_first_block(lake: Lake) -> None:
    low, _ = staged_by_hand(lake, "a", 0)
    copy = copy_ledger(lake, "copy.db")  # here the first block is reserved, and its branch complete
    assert blocks.abandon(lake.ledger, lake.witness, low, "a test")
    lake.append("events", frame(lake, 0), batch_id="a")
    restore_ledger(lake, copy)
    outlive_lease(lake)
    lake.recover()
    lake.append("events", frame(lake, 0), batch_id="a")
    assert_sound(lake, BEFORE + list(range(10)))


@pytest.mark.parametrize(
    "point",
    [
        "resync.before_epoch",
        "resync.after_epoch",
        "resync.after_roll_forward",
        "resync.before_commit",
        "resync.after_commit",
    ],
)
def test_a_crash_in_the_middle_of_the_opening_is_gone_on_from(lake: Lake, point: str) -> None:
    forget_two_batches(lake)
    crash_at(lake, point, lake.recover)
    lake.recover()
    everything = BEFORE + list(range(10)) + list(range(20, 30))
    assert_sound(lake, everything)
    for start, batch in ((0, "a"), (20, "b")):
        assert lake.append("events", frame(lake, start), batch_id=batch).duplicate
    assert_sound(lake, everything)


@pytest.mark.parametrize("point", ["postponed.after_epoch", "postponed.after_roll_forward", "postponed.after_commit"])
def test_a_crash_while_a_dataset_is_opened_later_is_gone_on_from(lake: Lake, point: str) -> None:
    lake.create_dataset("other", parse_columns(COLUMNS))
    forget_two_batches(lake)
    with unreadable(lake, "events"):
        assert lake.recover().troubled == ["default.events"]
    crash_at(lake, point, lake.recover)
    lake.recover()
    assert_sound(lake, BEFORE + list(range(10)) + list(range(20, 30)))
    assert lake.append("events", frame(lake, 20), batch_id="b").duplicate


def test_numbers_lost_between_witness_and_commit_are_never_given_out(lake: Lake) -> None:
    crash_at(lake, "reserve.after_witness", lambda: lake.append("events", frame(lake, 0), batch_id="a"))
    assert lake.witness.read().highest == 20
    done = lake.append("events", frame(lake, 0), batch_id="a")
    assert done.rows is not None and done.rows.lo > 20
    assert_sound(lake, BEFORE + list(range(10)))


def test_two_live_copies_of_a_ledger_cannot_both_publish(lake: Lake, tmp_path: Path) -> None:
    held, snapshot = staged_by_hand(lake, "a", 0)
    blocks.mark_staged(lake.ledger, lake.witness, held, snapshot)
    old_home = tmp_path / "old"
    old_home.mkdir()
    settings = (lake.config.home / "strandline.toml").read_text("utf-8")
    catalog = lake.config.home / "catalog.db"
    shared = f'[warehouse]\nurl = "{lake.config.warehouse_folder}"\n[catalog]\npath = "{catalog}"\n'
    (old_home / "strandline.toml").write_text(shared + settings, "utf-8")
    lake.ledger.backup(old_home / "ledger.db")
    lake.append("events", frame(lake, 20), batch_id="b")  # the copy is now behind
    with strandline.open(old_home) as copy:
        copy.recover()
    with pytest.raises(Superseded):
        settle.publish_staged(
            lake.work, lake.dataset("events"), Staged(held.head, held.fence, SnapshotId(snapshot), held.lease_until)
        )
    lake.recover()
    assert_sound(lake, BEFORE + list(range(10)) + list(range(20, 30)))


@pytest.mark.parametrize("damage", ["deleted", "empty", "truncated"])
def test_a_lost_ledger_is_refused_and_rebuilt_from_tables_and_witness(lake: Lake, damage: str) -> None:
    lake.append("events", frame(lake, 0), batch_id="a")
    crash_at(lake, "stage.after_mark", lambda: lake.append("events", frame(lake, 20), batch_id="b"))
    highest = lake.witness.read().highest
    path = lake.ledger.path
    assert path is not None
    if damage == "deleted":
        path.unlink()
    else:
        path.write_bytes(b"" if damage == "empty" else path.read_bytes()[:5000])
    with pytest.raises((LedgerMissing, LedgerUnreadable)):
        strandline.open(lake.config.home)
    opened = rebuild_ledger(lake.config)
    assert opened.datasets_found == ("default.events",) and opened.batches >= 2
    with strandline.open(lake.config.home) as again:
        everything = BEFORE + list(range(10)) + list(range(20, 30))
        assert_sound(again, everything)
        for start, batch in ((1000, "before"), (0, "a"), (20, "b")):
            assert again.append("events", frame(again, start), batch_id=batch).duplicate
        new = again.append("events", frame(again, 40), batch_id="c")
        assert new.rows is not None and new.rows.lo > highest
        assert_sound(again, everything + list(range(40, 50)))
        assert "ledger.rebuilt" in audit_events(again)


def test_no_number_is_used_again_after_everything_was_deleted_expired_and_the_ledger_lost(lake: Lake) -> None:
    lake.append("events", frame(lake, 0), batch_id="a")
    lake.spark.sql("DELETE FROM lake.default.events")
    expire_everything(lake)
    assert lake.ledger.path is not None
    lake.ledger.path.unlink()
    rebuild_ledger(lake.config)
    with strandline.open(lake.config.home) as again:
        assert ids(again) == []
        done = again.append("events", frame(again, 40), batch_id="c")
        assert done.rows is not None and done.rows.lo > 20


def test_a_ledger_that_is_whole_is_not_rebuilt_unless_forced(lake: Lake) -> None:
    with pytest.raises(RefusedError):
        rebuild_ledger(lake.config)
    rebuild_ledger(lake.config, force=True)
    assert list(lake.config.home.glob("ledger.db.replaced-*"))
    with strandline.open(lake.config.home) as again:
        assert_sound(again, BEFORE)


def test_a_lost_witness_refuses_stamping_and_is_made_again_from_a_whole_ledger(lake: Lake) -> None:
    folder = lake.config.warehouse_folder
    assert folder is not None
    (folder / "_strandline" / "witness").unlink()
    with pytest.raises(WitnessUnreadable):
        lake.append("events", frame(lake, 0))
    assert states(lake) == ["published"]
    rebuild_ledger(lake.config, lost_witness=True)
    lake.append("events", frame(lake, 0), batch_id="a")
    assert_sound(lake, BEFORE + list(range(10)))


def test_a_lost_witness_and_a_lost_ledger_together_are_refused(lake: Lake) -> None:
    folder = lake.config.warehouse_folder
    assert folder is not None and lake.ledger.path is not None
    (folder / "_strandline" / "witness").unlink()
    lake.ledger.path.unlink()
    for lost_witness in (False, True):
        with pytest.raises(RefusedError):
            rebuild_ledger(lake.config, lost_witness=lost_witness)


def test_a_warehouse_restored_from_an_old_copy_does_not_take_numbers_back(lake: Lake, tmp_path: Path) -> None:
    folder = lake.config.warehouse_folder
    assert folder is not None
    witness = folder / "_strandline" / "witness"
    shutil.copy(witness, tmp_path / "witness")
    lake.append("events", frame(lake, 0), batch_id="a")
    shutil.copy(tmp_path / "witness", witness)
    done = lake.append("events", frame(lake, 20), batch_id="b")
    assert done.rows is not None and done.rows.lo > 20
    assert "ledger.resynced" in audit_events(lake)
    assert_sound(lake, BEFORE + list(range(10)) + list(range(20, 30)))


def test_a_dataset_made_after_the_copy_is_found_again(lake: Lake) -> None:
    copy = copy_ledger(lake, "copy.db")
    lake.create_dataset("later", parse_columns(COLUMNS))
    lake.append("later", frame(lake, 0), batch_id="a")
    restore_ledger(lake, copy)
    lake.recover()
    assert lake.append("later", frame(lake, 0), batch_id="a").duplicate
    assert_sound(lake, list(range(10)), "later")
    assert_sound(lake, BEFORE)


def test_a_reader_whose_token_is_newer_than_the_restored_ledger_is_served_after_the_opening(lake: Lake) -> None:
    copy = copy_ledger(lake, "copy.db")
    lake.append("events", frame(lake, 0), batch_id="a")
    token = lake.read_since("events").continuation
    restore_ledger(lake, copy)
    assert list(lake.read_since("events", token)) == []  # the process that stayed open
    restore_ledger(lake, copy)
    with strandline.open(lake.config.home) as fresh:
        assert list(fresh.read_since("events", token)) == []
        fresh.append("events", frame(fresh, 20), batch_id="b")
        assert [r["id"] for r, _ in fresh.read_since("events", token)] == list(range(20, 30))


def test_a_dataset_made_after_the_copy_is_known_to_whoever_asks_for_it_first(lake: Lake) -> None:
    copy = copy_ledger(lake, "copy.db")
    lake.create_dataset("later", parse_columns(COLUMNS))
    lake.append("later", frame(lake, 0), batch_id="a")
    restore_ledger(lake, copy)
    with strandline.open(lake.config.home) as fresh:
        assert len(list(fresh.read_since("later"))) == 10


def test_a_writer_whose_branch_the_opening_rolled_forward_is_told_that_it_is_published(lake: Lake) -> None:
    copy = copy_ledger(lake, "copy.db")
    lake.append("events", frame(lake, 50), batch_id="between")
    held, snapshot = staged_by_hand(lake, "a", 0)
    restore_ledger(lake, copy)
    lake.recover()  # inserts the blocks it finds under other rows of the ledger
    assert not blocks.mark_staged(lake.ledger, lake.witness, held, SnapshotId(snapshot))
    assert settle.after_failed_commit(lake.work, lake.dataset("events"), held.head).row_count == 10
    assert_sound(lake, BEFORE + list(range(10)) + list(range(50, 60)))


def test_a_pass_of_adopt_that_a_restored_ledger_does_not_know_can_never_land(lake: Lake) -> None:
    lake.spark.sql("CREATE TABLE lake.default.old (id BIGINT, text STRING) USING iceberg")
    frame(lake, 0).writeTo("lake.default.old").append()
    lake.adopt_dataset("old")
    frame(lake, 10).selectExpr("CAST(NULL AS BIGINT) AS _ingest_seq", "*").writeTo("lake.default.old").append()
    copy = copy_ledger(lake, "copy.db")
    real, sealed = rewrite.commit, []

    def late(*arguments: Any, **options: Any) -> None:
        if not sealed:
            restore_ledger(lake, copy)
            lake.recover()  # the seal passes the numbers of the pass that is under way
            sealed.append(lake.sealed("old"))
        real(*arguments, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(rewrite, "commit", late)
        lake.adopt_dataset("old")  # its first attempt comes too late; it looks again and numbers the rows anew
    found = {i: n for n, i in rows(lake, "old")}
    assert all(found[i] > sealed[0] for i in range(10, 20)), "rows came in below the seal"
    assert_sound(lake, list(range(20)), "old")


def test_a_crash_in_the_middle_of_a_rebuild_is_gone_on_from(lake: Lake) -> None:
    lake.append("events", frame(lake, 0), batch_id="a")
    assert lake.ledger.path is not None
    lake.ledger.path.unlink()
    crash_at(lake, "resync.after_epoch", lambda: rebuild_ledger(lake.config))
    with strandline.open(lake.config.home) as again:
        assert again.append("events", frame(again, 0), batch_id="a").duplicate
        assert_sound(again, BEFORE + list(range(10)))


def test_a_crash_while_a_lost_witness_is_made_again_is_gone_on_from(lake: Lake) -> None:
    folder = lake.config.warehouse_folder
    assert folder is not None
    (folder / "_strandline" / "witness").unlink()
    crash_at(lake, "resync.after_epoch", lambda: rebuild_ledger(lake.config, lost_witness=True))
    lake.append("events", frame(lake, 0), batch_id="a")
    assert_sound(lake, BEFORE + list(range(10)))


def test_a_lost_witness_beside_an_old_copy_of_the_ledger_takes_the_tables_word(lake: Lake) -> None:
    copy = copy_ledger(lake, "copy.db")
    lake.append("events", frame(lake, 0), batch_id="a")
    restore_ledger(lake, copy)
    folder = lake.config.warehouse_folder
    assert folder is not None
    (folder / "_strandline" / "witness").unlink()
    rebuild_ledger(lake.config, lost_witness=True)
    done = lake.append("events", frame(lake, 20), batch_id="b")
    assert done.rows is not None and done.rows.lo > 20
    assert lake.append("events", frame(lake, 0), batch_id="a").duplicate
    assert_sound(lake, BEFORE + list(range(10)) + list(range(20, 30)))


def test_a_dataset_that_cannot_be_read_is_opened_later_and_keeps_no_other_waiting(lake: Lake) -> None:
    lake.create_dataset("broken", parse_columns(COLUMNS))
    lake.append("broken", frame(lake, 500), batch_id="before")
    copy = copy_ledger(lake, "copy.db")
    lake.append("events", frame(lake, 0), batch_id="a")
    lake.append("broken", frame(lake, 0), batch_id="a")
    crash_at(lake, "stage.after_mark", lambda: lake.append("broken", frame(lake, 20), batch_id="b"))
    restore_ledger(lake, copy)
    with unreadable(lake, "broken"):
        report = lake.recover()
        assert report.troubled == ["default.broken"] and any("default.broken" in line for line in report.held)
        assert lake.append("events", frame(lake, 0), batch_id="a").duplicate
        assert_sound(lake, BEFORE + list(range(10)))
        broken = next(d for d in lake.status().datasets if d.name == "default.broken")
        assert broken.problem is not None
    with lake.ledger.read() as connection:
        dataset = lake.dataset("broken").id
        sealed, waiting = blocks.sealed(connection, dataset), restored_blocks.postponed(connection, dataset)
    assert len(waiting) == 1 and sealed is not None and sealed < waiting[0].head.rows.lo
    with pytest.raises(errors.ResyncNeeded), lake.ledger.read() as connection:
        blocks.check_resynced(connection, dataset)
    lake.recover()
    assert "dataset.resynced" in audit_events(lake)
    assert lake.append("broken", frame(lake, 0), batch_id="a").duplicate, "it came in after the copy"
    assert lake.append("broken", frame(lake, 20), batch_id="b").duplicate, "it was past its commit point"
    lake.append("broken", frame(lake, 40), batch_id="c")
    assert sorted(row.id for row, _ in lake.read_since("broken")) == [
        *range(10),
        *range(20, 30),
        *range(40, 50),
        *range(500, 510),
    ]
    assert next(d for d in lake.status().datasets if d.name == "default.broken").problem is None


def test_iceberg_is_never_asked_to_load_a_table_whose_metadata_is_cut_off(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would read the file again and again for a minute and a half, and everybody else would wait."""
    lake.create_dataset("broken", parse_columns(COLUMNS))
    lake.append("broken", frame(lake, 500), batch_id="before")
    copy = copy_ledger(lake, "copy.db")
    crash_at(lake, "stage.after_mark", lambda: lake.append("broken", frame(lake, 0), batch_id="a"))
    lake.append("events", frame(lake, 0), batch_id="a")
    glance = read_glance(lake.config, "broken")
    assert glance is not None
    metadata = Path("/" + glance.metadata_location.removeprefix("file:").lstrip("/"))
    whole = metadata.read_bytes()
    metadata.write_bytes(whole[: len(whole) // 2])
    metadata.with_name(f".{metadata.name}.crc").unlink(missing_ok=True)
    loaded: list[str] = []
    locked: list[str] = []  # tables that were read while the counter was locked
    is_locked = False
    real, real_peek, real_open = IcebergJava.load_table, table_peek.peek, run._resync_locked

    def load(java: IcebergJava, name: str) -> Any:
        loaded.append(name)
        return real(java, name)

    def peek(config: LakeConfig, name: str) -> Any:
        locked.extend([name] if is_locked else [])
        return real_peek(config, name)

    def open_under_the_lock(*args: Any, **options: Any) -> Any:
        nonlocal is_locked
        is_locked = True
        try:
            return real_open(*args, **options)
        finally:
            is_locked = False

    with monkeypatch.context() as counting:
        counting.setattr(IcebergJava, "load_table", load)
        counting.setattr(table_peek, "peek", peek)
        counting.setattr(run, "_resync_locked", open_under_the_lock)
        outlive_lease(lake)
        report = lake.recover()  # a block of it is staged
        assert report.troubled == ["default.broken"] and "cannot be read" in report.held[0]
        restore_ledger(lake, copy)
        report = lake.recover()  # a resync, which postpones it
        assert report.troubled == ["default.broken"] and "cannot be read" in report.held[0]
        assert "ledger.resynced" in audit_events(lake) and locked == ["default.events"]
        assert lake.append("events", frame(lake, 0), batch_id="a").duplicate
        assert any("events" in name for name in loaded)
        assert not any("broken" in name for name in loaded)
        loaded.clear()
        lake.recover()
        assert loaded == [], "everything else is settled"
    metadata.write_bytes(whole)
    assert lake.recover().troubled == []
    assert lake.append("broken", frame(lake, 0), batch_id="a").duplicate, "it was past its commit point"
    assert sorted(row.id for row, _ in lake.read_since("broken")) == [*range(10), *range(500, 510)]


def test_a_table_of_someone_else_that_cannot_be_read_does_not_stop_the_opening(lake: Lake) -> None:
    copy = copy_ledger(lake, "copy.db")
    lake.append("events", frame(lake, 0), batch_id="a")
    lake.spark.sql("CREATE TABLE lake.default.stranger (id BIGINT) USING iceberg")
    folder = lake.config.warehouse_folder
    assert folder is not None
    for metadata in (folder / "default" / "stranger" / "metadata").glob("*.json"):
        metadata.write_bytes(metadata.read_bytes()[:100])
    restore_ledger(lake, copy)
    lake.recover()
    assert_sound(lake, BEFORE + list(range(10)))
