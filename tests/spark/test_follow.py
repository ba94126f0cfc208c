"""A follower over shared storage: whatever the leader settles is there once, with its numbers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from strandline import Lake
from strandline.core.errors import FailedError, NotLeader, RefusedError
from strandline.core.sites.terms import numbers_of
from strandline.core.types import DatasetUuid, Seq, SeqRange
from strandline.iceberg.schema.alteration import AddColumn, DropColumn, RenameColumn, WidenColumn
from strandline.iceberg.schema.columns import Primitive
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.iceberg.spark.tables import SparkTables
from strandline.ingest import stage as stage_rows
from strandline.lake import open_lake
from strandline.replicate.facade import CHECKPOINT_NAME
from strandline.replicate.follow.compare_with_leader import widened
from strandline.replicate.lead import leader as leading
from strandline.replicate.lead.offer_plan import cut_items
from tests.conftest import MakeHome
from tests.spark.followed import assert_same, follow, new_follower, new_leader, restarted, table
from tests.spark.protocol import (
    COLUMNS,
    compact_everything,
    crash_at,
    expire_everything,
    frame,
    outlive_lease,
)


@pytest.fixture
def leader(tmp_path: Path, make_home: MakeHome) -> Iterator[Lake]:
    with new_leader(tmp_path, make_home) as lake:
        lake.create_dataset("events", parse_columns(COLUMNS))
        yield lake


@pytest.fixture
def follower(tmp_path: Path, make_home: MakeHome, leader: Lake) -> Iterator[Lake]:
    with new_follower(tmp_path, make_home, leader) as lake:
        yield lake


def test_a_follower_has_the_leaders_rows_with_their_numbers_and_its_seal(leader: Lake, follower: Lake) -> None:
    leader.append("events", frame(leader, 0), batch_id="a")
    leader.append("events", frame(leader, 10, 5), batch_id="b")
    report = follow(follower)
    assert (report.made, report.recorded, len(report.applied)) == (["default.events"], 2, 2)
    assert len(table(follower)) == 15
    assert_same(leader, follower)
    idle = follow(follower)
    assert (idle.made, idle.recorded, idle.applied) == ([], 0, [])
    leader.append("events", frame(leader, 20, 3), batch_id="c")
    follow(follower)
    assert_same(leader, follower)
    assert [r["id"] for r, _ in follower.read_since("events")] == [r["id"] for r, _ in leader.read_since("events")]


def test_columns_are_added_widened_renamed_and_dropped_before_the_rows_that_need_them(
    leader: Lake, follower: Lake
) -> None:
    leader.append("events", frame(leader, 0, 3), batch_id="a")
    follow(follower)
    leader.alter_dataset("events", [AddColumn("more", Primitive("int")), RenameColumn("text", "words")])
    leader.append("events", frame(leader, 3, 3).selectExpr("id", "text AS words", "int(id) AS more"), batch_id="b")
    crash_at(follower, "follow.after_alter", lambda: follow(follower))
    outlive_lease(follower)
    follow(follower)
    assert_same(leader, follower)
    leader.alter_dataset("events", [WidenColumn("more", Primitive("long")), DropColumn("words")])
    leader.append("events", leader.spark.range(6, 8).selectExpr("id", "id * 10000000000 AS more"), batch_id="c")
    leader.alter_dataset("events", [AddColumn("words", Primitive("double"))])
    leader.append("events", leader.spark.range(8, 9).selectExpr("id", "double(1.5) AS words"), batch_id="d")
    follow(follower)
    assert_same(leader, follower)
    assert sorted(r[3] for r in table(follower) if r[3] is not None) == [1.5], (
        "the new column has values of the old one"
    )


def test_datasets_come_and_go_as_at_the_leader(leader: Lake, follower: Lake) -> None:
    leader.append("events", frame(leader, 0), batch_id="a")
    follow(follower)
    leader.drop_dataset("events")
    leader.spark.sql("DROP TABLE IF EXISTS lake.default.events")
    leader.create_dataset("others", parse_columns(COLUMNS), deliver_by=["text"])
    leader.append("others", frame(leader, 0, 4), batch_id="a")
    crash_at(follower, "follow.after_drop", lambda: follow(follower))
    restarted(follower)
    follow(follower)
    assert [d.name for d in follower.datasets()] == ["default.others"]
    assert_same(leader, follower, "others")


def test_a_table_that_is_not_ours_is_left_alone_and_the_other_datasets_go_on(leader: Lake, follower: Lake) -> None:
    follower.spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.default")
    follower.spark.sql("CREATE TABLE lake.default.events (id long) USING iceberg")
    leader.create_dataset("others", parse_columns(COLUMNS))
    leader.append("others", frame(leader, 0, 4), batch_id="a")
    report = follower.replication.follow_once()
    assert [type(e) for e in report.failed] == [RefusedError]
    follower.replication.follow_once()
    assert_same(leader, follower, "others")


def test_a_checkpoint_that_is_lost_damaged_or_of_another_time_changes_nothing(leader: Lake, follower: Lake) -> None:
    leader.append("events", frame(leader, 0), batch_id="a")
    follow(follower)
    path = follower.config.home / CHECKPOINT_NAME
    stored = path.read_bytes()
    assert json.loads(stored) == {"0": 10}
    for other in (None, b"{", b'{"0": 3}', b'{"0": 99999}'):
        path.unlink() if other is None else path.write_bytes(other)
        assert restarted(follower).state.snapshot() == {0: 10}
        follow(follower)
    leader.append("events", frame(leader, 10, 1), batch_id="b")
    path.write_bytes(b'{"0": 99999}')
    follow(follower)
    assert json.loads(path.read_bytes()) == {"0": 11}
    assert_same(leader, follower)


def test_a_follower_refuses_writes_and_names_its_leader(leader: Lake, follower: Lake, tmp_path: Path) -> None:
    follow(follower)
    file = tmp_path / "rows.jsonl"
    file.write_text('{"id": 1}\n')
    refused: list[Callable[[], object]] = [
        lambda: follower.append("events", frame(follower, 0)),
        lambda: follower.ingest("events", [file]),
        lambda: follower.create_dataset("others", parse_columns(COLUMNS)),
        lambda: follower.alter_dataset("events", [DropColumn("text")]),
        lambda: follower.drop_dataset("events"),
        lambda: follower.adopt_dataset("others"),
        lambda: follower.maintenance.purge("events", "id = 1"),
        lambda: follower.delivery.add("out", "events", "files", {"path": str(tmp_path / "out")}),
    ]
    for write in refused:
        with pytest.raises(NotLeader, match=str(leader.config.home)):
            write()


def test_an_applier_that_was_taken_for_dead_commits_nothing(leader: Lake, follower: Lake) -> None:
    follow(follower)
    leader.append("events", frame(leader, 0), batch_id="a")
    zombie, other = restarted(follower), open_lake(follower.config.home)
    stage = stage_rows.stage
    overtaken = []

    def slowly(*args: Any) -> None:
        if not overtaken:
            overtaken.append(True)
            outlive_lease(follower)
            follow(other)
            assert_same(leader, other)
        stage(*args)

    with pytest.MonkeyPatch.context() as patch, other:
        patch.setattr(stage_rows, "stage", slowly)
        assert zombie.tick().failed == []
    assert overtaken
    follower.recover()
    assert_same(leader, follower)


def test_two_appliers_share_the_work(leader: Lake, follower: Lake) -> None:
    follow(follower)
    for n in range(6):
        leader.append("events", frame(leader, n * 10, 3), batch_id=str(n))
    with open_lake(follower.config.home) as other, ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(follow, lake) for lake in (follower, other)]:
            done.result()
        follow(follower)
    assert_same(leader, follower)


def test_compaction_and_expiry_at_the_leader_do_not_disturb_a_follower_that_is_behind(
    leader: Lake, follower: Lake
) -> None:
    leader.append("events", frame(leader, 0), batch_id="a")
    leader.append("events", frame(leader, 10), batch_id="b")
    crash_at(follower, "record.after_commit", lambda: follow(follower) and follow(follower))
    compact_everything(leader)
    leader.spark.sql("DELETE FROM lake.default.events WHERE id < 4")
    leader.spark.sql("DELETE FROM lake.default.events WHERE id >= 10")
    expire_everything(leader)
    follow(follower)
    assert table(follower) == table(leader)
    assert follower.sealed("events") == 20


def test_an_item_that_fails_is_tried_again_and_does_not_hold_up_the_others(leader: Lake, follower: Lake) -> None:
    follow(follower)
    for n in range(3):
        leader.append("events", frame(leader, n * 10, 3), batch_id=str(n))
    source = restarted(follower).context.source
    content = source.content

    def broken(tables: SparkTables, dataset: DatasetUuid, rows: SeqRange) -> Any:
        if rows.lo == 1:
            raise FailedError("the network is away")
        return content(tables, dataset, rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "content", broken)
        report = follower.replication.follow_once()
    assert [e.message for e in report.failed] == ["the network is away"] and len(report.applied) == 2
    assert follower.sealed("events") is None and len(table(follower)) == 6
    follow(follower)
    assert_same(leader, follower)


def test_a_batch_that_was_never_offered_is_missing_for_verify(
    leader: Lake, follower: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n, batch in enumerate("ab"):
        leader.append("events", frame(leader, n * 10), batch_id=batch)
    with monkeypatch.context() as broken:
        broken.setattr(leading, "cut_items", lambda found, items_max: cut_items(found, items_max=items_max)[1:])
        follow(follower)
    assert len(table(follower)) == 10 and follower.sealed("events") == leader.sealed("events")
    [verdict] = follower.replication.verify()
    assert (verdict.ok, verdict.rows, verdict.missing, verdict.first) == (False, 10, 10, 1)


def test_verify_begins_where_the_leader_has_its_first_rows() -> None:
    def spans(*pairs: tuple[int, int]) -> tuple[SeqRange, ...]:
        return tuple(SeqRange(Seq(lo), Seq(hi)) for lo, hi in pairs)

    second = numbers_of(17).lo
    mine = spans((11, 20), (second + 5, second + 9))
    assert widened(mine, *spans((11, 15))) == mine
    assert widened(mine, *spans((3, 10))) == spans((3, 20), (second + 5, second + 9))
    assert widened(mine[1:], *spans((3, 10))) == (*spans((3, 10)), mine[1])
