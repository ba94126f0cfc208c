"""The rules of a follower (docs/adr/0070) against real tables: ledgers that were restored and do not notice, appliers
that come late, and ranges of which a part is there.
"""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

from strandline import Lake
from strandline.cli.main import run
from strandline.core.errors import FailedError
from strandline.core.types import Dataset, DatasetUuid, Published, Reserved, Seq, SeqRange, Staged
from strandline.iceberg.schema.alteration import AddColumn, RenameColumn
from strandline.iceberg.schema.columns import Primitive
from strandline.iceberg.spark import floor as table_floor
from strandline.iceberg.spark.tables import SparkTables
from strandline.ingest.settle_offered import publish_offered
from strandline.ledger.ingest import blocks, sequence
from strandline.ledger.replicate import following
from strandline.ledger.replicate.following import Followed, OpenItem
from strandline.replicate.follow import apply_item as applying
from strandline.replicate.follow.apply_item import apply_item
from strandline.replicate.follow.follow_schema import follow_schema
from tests.conftest import MakeHome
from tests.reconcile.no_grace import NO_GRACE_HOURS
from tests.spark.followed import SETTINGS, Pair, assert_same, follow, new_follower, restarted, table
from tests.spark.protocol import (
    branches,
    compact_everything,
    copy_ledger,
    crash_at,
    expire_everything,
    outlive_lease,
    restore_ledger,
)


def append(leader: Lake, batch_id: str, rows: int = 3) -> SeqRange:
    made = leader.append("events", leader.spark.range(rows), batch_id=batch_id).rows
    assert made is not None
    return made


def only_open(follower: Lake) -> OpenItem:
    (found,) = follower.ledger.query(following.open_items)
    return found


def followed(lake: Lake) -> Followed:
    [found] = lake.ledger.query(following.list_followed)
    return found


def dataset(follower: Lake) -> Dataset:
    return follower.dataset("events")


def numbers(lake: Lake, rows: SeqRange) -> list[int]:
    return [r[0] for r in table(lake) if r[0] in rows]


@pytest.mark.parametrize("then", ["nothing", "compacted and expired"])
def test_a_restored_ledger_that_is_not_behind_its_witness_applies_nothing_twice(pair: Pair, then: str) -> None:
    leader, follower = pair
    append(leader, f"unnoticed-{then}")
    crash_at(follower, "record.after_commit", lambda: follow(restarted(follower) and follower))
    copy = copy_ledger(follower, f"unnoticed-{len(then)}.db")
    follow(follower)
    assert_same(leader, follower)
    if then != "nothing":
        compact_everything(follower)
        expire_everything(follower)
    restore_ledger(follower, copy)
    restarted(follower)
    assert only_open(follower), "the item is open again, and nothing shows that it was applied"
    follow(follower)
    assert_same(leader, follower)


def test_rows_that_the_followers_retention_deleted_stay_away_also_if_its_ledger_forgot_them(pair: Pair) -> None:
    leader, follower = pair
    rows = append(leader, "retained", 4)
    crash_at(follower, "record.after_commit", lambda: follow(restarted(follower) and follower))
    copy = copy_ledger(follower, "retained.db")
    follow(follower)
    floor = Seq(rows.lo + 1)
    table_floor.write_floor(follower.work.tables, dataset(follower).name, floor)
    follower.spark.sql(f"DELETE FROM lake.default.events WHERE _ingest_seq <= {floor}")
    restore_ledger(follower, copy)
    restarted(follower)
    follow(follower)
    assert [r for r in numbers(follower, SeqRange(Seq(1), rows.hi)) if r <= floor] == []
    assert len(numbers(follower, SeqRange(Seq(floor + 1), rows.hi))) == 2
    leader.spark.sql(f"DELETE FROM lake.default.events WHERE _ingest_seq <= {floor}")
    assert_same(leader, follower)


def test_an_applier_that_passed_its_commit_point_in_a_forgotten_ledger_publishes_nothing_later(pair: Pair) -> None:
    leader, follower = pair
    append(leader, "forgotten")
    crash_at(follower, "record.after_commit", lambda: follow(restarted(follower) and follower))
    copy = copy_ledger(follower, "forgotten.db")
    crash_at(follower, "stage.after_mark", lambda: follow(restarted(follower) and follower))
    zombie = only_open(follower).block
    assert isinstance(zombie, Staged) and branches(follower) == [zombie.branch]
    restore_ledger(follower, copy)
    restarted(follower)
    leader.spark.sql("DELETE FROM lake.default.events")  # what the leader has no more is not there, when it is applied
    outlive_lease(follower)
    follow(follower)
    assert branches(follower) == [], "every branch goes before the block is settled"
    with pytest.raises(Exception, match="taken over by another process"):
        publish_offered(follower.work, dataset(follower), zombie)
    follower.spark.sql("DELETE FROM lake.default.events")
    assert_same(leader, follower)


def test_a_staged_block_whose_branch_is_gone_is_applied_again_by_recovery_or_by_the_follower(pair: Pair) -> None:
    leader, follower = pair
    for by_recovery in (False, True):
        append(leader, f"gone-{by_recovery}")
        crash_at(follower, "stage.after_mark", lambda: follow(restarted(follower) and follower))
        staged = only_open(follower).block
        assert isinstance(staged, Staged)
        follower.work.tables.remove_branch("default.events", staged.branch)
        if by_recovery:
            report = follower.recover()
            assert report.held == [] and isinstance(only_open(follower).block, Reserved)
        follow(follower)
        assert_same(leader, follower)


def test_of_a_range_that_is_there_in_part_the_rest_comes(pair: Pair) -> None:
    """As after the leader has merged its records, or recovered them."""
    leader, follower = pair
    one, two = append(leader, "part-1"), append(leader, "part-2")
    crash_at(follower, "record.after_commit", lambda: follow(restarted(follower) and follower))
    copy = copy_ledger(follower, "part.db")
    restarted(follower)
    first, second = follower.ledger.query(following.open_items)
    assert apply_item(restarted(follower).context, followed(follower), first)
    restore_ledger(follower, copy)
    with follower.ledger.write() as connection:  # one item over both
        connection.exec_driver_sql("DROP TRIGGER a_block_moves_forward_only")
        connection.exec_driver_sql("DROP TRIGGER a_block_stays_the_item_that_it_is")
        connection.exec_driver_sql(f"UPDATE block SET hi = {two.hi}, offered_rows = NULL WHERE id = {first.head.id}")
        connection.exec_driver_sql(f"DELETE FROM block WHERE id = {second.head.id}")
    whole = only_open(follower)
    assert (whole.head.rows.lo, whole.head.rows.hi) == (one.lo, two.hi)
    assert apply_item(restarted(follower).context, followed(follower), whole)
    assert_same(leader, follower)


def test_rows_that_came_in_between_staging_and_publishing_are_not_published_twice(pair: Pair) -> None:
    leader, follower = pair
    rows = append(leader, "between")
    crash_at(follower, "stage.after_mark", lambda: follow(restarted(follower) and follower))
    staged = only_open(follower).block
    assert isinstance(staged, Staged)
    middle = rows.lo + 1
    follower.spark.sql(
        f"INSERT INTO lake.default.events SELECT * FROM lake.default.events.branch_{staged.branch} "
        f"WHERE _ingest_seq = {middle}"
    )
    again = publish_offered(follower.work, dataset(follower), staged)
    assert isinstance(again, Reserved) and numbers(follower, rows) == [middle]
    follow(follower)
    assert_same(leader, follower)


def test_an_applier_of_an_earlier_epoch_publishes_nothing(pair: Pair) -> None:
    leader, follower = pair
    append(leader, "epoch")
    crash_at(follower, "stage.after_mark", lambda: follow(restarted(follower) and follower))
    zombie = only_open(follower).block
    assert isinstance(zombie, Staged)
    with follower.ledger.write() as connection:  # as if it had been restored
        last = sequence.read(connection).last
        follower.witness.raise_to(last + 1, expected=last)
    follower.recover()
    opened = only_open(follower).block
    assert isinstance(opened, Reserved) and opened.fence > zombie.fence
    with pytest.raises(Exception, match="another ledger took this lake over"):
        publish_offered(follower.work, dataset(follower), zombie)
    follow(follower)
    follow(follower)
    assert_same(leader, follower)


def test_a_late_applier_does_not_touch_what_another_one_has_staged(pair: Pair) -> None:
    leader, follower = pair
    append(leader, "late")
    crash_at(follower, "follow.after_take", lambda: follow(restarted(follower) and follower))
    late = only_open(follower).block
    outlive_lease(follower)
    crash_at(follower, "stage.after_commit", lambda: follow(restarted(follower) and follower))
    held = only_open(follower).block
    assert isinstance(late, Reserved) and isinstance(held, Reserved)
    assert branches(follower) == [held.branch] and held.branch != late.branch
    from strandline.replicate.follow import apply_item as module

    began = module._begin_branch(restarted(follower).context, dataset(follower), late)
    assert held.branch in began.refs
    outlive_lease(follower)
    follow(follower)
    assert_same(leader, follower)
    found: Any = follower.ledger.query(blocks.of_number, dataset(follower).id, held.head.rows.lo)
    assert isinstance(found, Published)


def test_columns_that_exchange_their_names_while_rows_are_staged_keep_their_values(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, follower = pair
    leader.alter_dataset("events", [AddColumn(name, Primitive("long")) for name in ("one", "two")])
    leader.append("events", leader.spark.range(3).selectExpr("id", "id AS one", "-id AS two"), batch_id="exchanged")
    began, context = applying._begin_branch, restarted(follower).context

    def begin(*args: Any) -> Any:
        """Another applier follows what the leader did just now."""
        monkeypatch.setattr(applying, "_begin_branch", began)
        for name, new in (("one", "three"), ("two", "one"), ("three", "two")):
            leader.alter_dataset("events", [RenameColumn(name, new)])
        with context.source.content(context.work.tables, dataset(follower).uuid, SeqRange(Seq(1), Seq(1))) as content:
            follow_schema(context, dataset(follower), content.fields, 1)
        return began(*args)

    monkeypatch.setattr(applying, "_begin_branch", begin)
    [failed] = follower.replication.follow_once().failed
    assert "were changed while rows were staged" in failed.message
    follow(follower)
    assert_same(leader, follower)


def test_verify_tells_rows_that_another_program_wrote_from_rows_that_the_leader_has_deleted(pair: Pair) -> None:
    leader, follower = pair
    before = append(leader, "before")
    crash_at(leader, "reserve.after_commit", lambda: append(leader, "abandoned"))
    outlive_lease(leader)
    leader.recover()
    append(leader, "behind")
    follow(follower)
    made_up = before.hi + 2
    for lake, number in ((follower, made_up), (leader, made_up + 1)):
        rows = lake.spark.table("lake.default.events").limit(1)
        rows.withColumn("_ingest_seq", F.lit(number).cast("long")).writeTo("lake.default.events").append()
    leader.spark.sql(f"DELETE FROM lake.default.events WHERE _ingest_seq = {before.lo}")
    [verdict] = follower.replication.verify()
    assert (verdict.ok, verdict.missing, verdict.extra, verdict.foreign) == (True, 0, 1, 1)
    follower.spark.sql(f"DELETE FROM lake.default.events WHERE _ingest_seq IN ({made_up}, {before.hi})")
    [verdict] = follower.replication.verify()
    assert (verdict.ok, verdict.missing, verdict.first, verdict.foreign) == (False, 1, before.hi, 0)
    leader.spark.sql(f"DELETE FROM lake.default.events WHERE _ingest_seq IN ({made_up + 1}, {before.hi})")
    follower.spark.sql(f"DELETE FROM lake.default.events WHERE _ingest_seq = {before.lo}")
    assert_same(leader, follower)


# --- readers and maintenance of a follower that is catching up -------------------------------------------------------


def left_behind(leader: Lake, follower: Lake, name: str) -> SeqRange:
    """Of three batches, the first fails at the follower: the others are in its table, above its seal. Returns the
    sequence numbers of all three."""
    first, *_, last = [append(leader, f"{name}-{n}") for n in range(3)]
    source = restarted(follower).context.source
    content = source.content

    def broken(tables: SparkTables, of: DatasetUuid, rows: SeqRange) -> Any:
        if rows.lo == first.lo:
            raise FailedError("the network is away")
        return content(tables, of, rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "content", broken)
        assert len(follower.replication.follow_once().failed) == 1
    assert numbers(follower, SeqRange(first.lo, last.hi)) == list(range(first.hi + 1, last.hi + 1))
    assert (follower.sealed("events") or 0) < first.lo
    return SeqRange(first.lo, last.hi)


def test_a_consumer_of_a_follower_gets_each_row_once_and_none_above_a_batch_that_is_missing(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    leader, follower = pair

    def read(lake: Lake) -> list[int]:
        capsys.readouterr()
        assert run(["read", "events", "--consumer", "nightly", "--internal", "--config", str(lake.config.home)]) == 0
        return [json.loads(line)["_ingest_seq"] for line in capsys.readouterr().out.splitlines()]

    append(leader, "consumed")
    follow(follower)
    assert read(follower) == [n for n, *_ in table(follower)]
    new = left_behind(leader, follower, "consumed")
    assert read(follower) == []
    follow(follower)
    assert read(follower) == list(range(new.lo, new.hi + 1))
    assert read(follower) == []
    assert_same(leader, follower)


def test_compaction_and_expiry_at_a_follower_do_not_disturb_what_it_still_applies(pair: Pair) -> None:
    leader, follower = pair
    left_behind(leader, follower, "compacted")
    crash_at(follower, "stage.after_mark", lambda: follow(restarted(follower) and follower))
    assert isinstance(only_open(follower).block, Staged)
    assert follower.maintenance.compact("events").result.files_written
    follower.maintenance.expire("events", older_than=timedelta(0), keep_min=1)
    outlive_lease(follower)
    follow(restarted(follower) and follower)
    assert_same(leader, follower)
    [verdict] = follower.replication.verify()
    assert verdict.ok and not verdict.extra


def test_a_reconciler_at_a_follower_leaves_the_files_of_batches_that_it_still_applies(
    pair: Pair, tmp_path: Path, make_home: MakeHome
) -> None:
    """Without any grace: only the records of open items protect them."""
    leader, _ = pair
    append(leader, "swept")
    graceless = {"reconcile": {"grace_hours": NO_GRACE_HOURS, "clock_skew_seconds": 0, "deletes_max_share": 1.0}}
    with new_follower(tmp_path, make_home, leader, settings={**SETTINGS, **graceless}) as swept:
        follow(swept)
        left_behind(leader, swept, "swept")
        crash_at(swept, "stage.after_commit", lambda: follow(restarted(swept) and swept))
        assert branches(swept) == [only_open(swept).block.branch]
        stray = Path(swept.config.warehouse_folder or "") / "default" / "events" / "data" / "stray.parquet"
        stray.write_bytes(b"x")
        os.utime(stray, (1e9, 1e9))
        done = swept.reconcile(act=True)
        assert (done.aborted, done.outcome.done.orphans, done.outcome.done.missing) == (None, 1, 0)
        assert not stray.exists()
        outlive_lease(swept)
        follow(restarted(swept) and swept)
        assert_same(leader, swept)
        assert swept.reconcile(act=True).outcome.done.missing == 0
        assert_same(leader, swept)
    follow(pair[1])
