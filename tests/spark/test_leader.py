"""The leader's side on real tables: content through everything that happens to a table, and followers that hold."""

from __future__ import annotations

import io
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import strandline
from strandline.core.errors import RefusedError, TableRolledBack
from strandline.core.settings.maintain import RetainSettings
from strandline.core.sites.replication import OnLag
from strandline.core.types import SEQ_COLUMN, Seq, SeqRange, ShardId
from strandline.deliver.plan import planner
from strandline.ingest import recover
from strandline.ledger.replicate import followers
from strandline.ledger.replicate.followers import Acknowledgement
from strandline.maintain.retain import retain
from strandline.maintain.retain_result import Retained
from strandline.replicate.segment_stream import SegmentReader, encode
from tests.spark.lakes import create, in_main, new_lake, numbers, snapshots, sql
from tests.spark.sinks import rows as delivered
from tests.spark.sinks import tick
from tests.spark.upkeep import compact_as_anyone, delete_files, expire_as_anyone

if TYPE_CHECKING:
    from strandline.deliver.sink_session import SinkRun
    from strandline.lake import Lake
    from tests.conftest import MakeHome

OLD = timedelta(days=30)


@pytest.fixture
def lake(tmp_path: Path, make_home: MakeHome) -> Iterator[Lake]:
    with new_lake(tmp_path / "lake", make_home) as lake:
        create(lake, "events", {"n": "long", "at": "timestamptz"})
        yield lake


def append(lake: Lake, lo: int, hi: int) -> None:
    lake.append("events", numbers(lake, lo, hi).selectExpr("n", "CAST('2026-01-01' AS TIMESTAMP) AS at"))


def content(lake: Lake, lo: int, hi: int, **more: Any) -> list[tuple[int, int]]:
    """Over the wire, as a follower gets it."""
    rows = lake.leader.rows(lake.dataset("events"), SeqRange(Seq(lo), Seq(hi)), **more)
    body = b"".join(encode(rows.schema, rows.batches))
    found = list(SegmentReader(io.BytesIO(body), behind=more.get("behind", 0)))
    return [pair for b in found for pair in zip(b[SEQ_COLUMN].to_pylist(), b["n"].to_pylist(), strict=True)]


def tell(lake: Lake, seal: int, name: str = "east") -> None:
    dataset = lake.dataset("events")
    told = Acknowledgement(1, {dataset.uuid: Seq(seal)}, {ShardId(dataset.first_shard): Seq(seal)}, name)
    lake.ledger.change(followers.acknowledge, lake.followers.get(name), told)


def run(lake: Lake, days: float = 31, **rule: Any) -> Retained:
    """As if it were later; a person says that this is so."""
    now = datetime.now(UTC) + timedelta(days=days)
    wanted = RetainSettings(older_than=OLD, **rule)
    return retain(lake.maintenance.context, lake.dataset("events"), wanted, now=now, accept_clock=True)


def left(lake: Lake) -> list[int]:
    return [n for _, n in in_main(lake, "events")]


def test_a_segment_stays_fetchable_through_compaction_deletes_retention_and_expiry(lake: Lake) -> None:
    """It is a range, not a file: whatever happened, it is what the table has of the range now."""
    for lo in (1, 11, 21, 31):
        append(lake, lo, lo + 9)

    def same() -> None:
        table = in_main(lake, "events")
        assert content(lake, 1, 40) == [r for r in table if r[0] <= 40]
        assert content(lake, 11, 20) == [r for r in table if 11 <= r[0] <= 20]
        assert content(lake, 11, 30, behind=14) == [r for r in table if 15 <= r[0] <= 30]

    same()
    lake.maintenance.compact("events")
    same()
    compact_as_anyone(lake, "events")
    same()
    sql(lake, "ALTER TABLE lake.default.events SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    sql(lake, "DELETE FROM lake.default.events WHERE n IN (3, 12, 17, 38)")
    assert delete_files(lake, "events") == ["PARQUET"]
    same()
    sql(lake, "ALTER TABLE lake.default.events SET TBLPROPERTIES ('format-version' = '3')")
    sql(lake, "DELETE FROM lake.default.events WHERE n IN (4, 13)")
    assert "PUFFIN" in delete_files(lake, "events")
    same()
    sql(lake, "ALTER TABLE lake.default.events ADD COLUMN more string AFTER n")
    sql(lake, "ALTER TABLE lake.default.events RENAME COLUMN at TO moment")
    same()
    append_more = numbers(lake, 41, 50).selectExpr("n", "'x' AS more", "CAST(NULL AS TIMESTAMP) AS moment")
    lake.append("events", append_more)
    same()
    assert [n for _, n in content(lake, 41, 50)] == list(range(41, 51))
    lake.maintenance.compact("events")
    expire_as_anyone(lake, "events")
    same()
    assert run(lake).deleted_rows > 0
    assert content(lake, 1, 40) == []


def test_nothing_unsettled_and_no_table_that_was_rolled_back_is_sent(lake: Lake) -> None:
    append(lake, 1, 10)
    first = snapshots(lake, "events")[-1]
    append(lake, 11, 20)
    with pytest.raises(RefusedError, match="not settled"):
        content(lake, 11, 21)
    sql(lake, f"CALL lake.system.rollback_to_snapshot('default.events', {first})")
    with pytest.raises(TableRolledBack):
        content(lake, 1, 10)


def test_a_follower_holds_the_floor_until_it_has_the_rows(lake: Lake) -> None:
    append(lake, 1, 10)
    append(lake, 11, 30)
    lake.followers.add("east")
    done = run(lake)
    assert (done.deleted_rows, [(h.sink, h.rows) for h in done.held]) == (0, [("follower east", 30)])
    tell(lake, 10)
    done = run(lake)
    assert (done.deleted_rows, [(h.sink, h.rows) for h in done.held]) == (10, [("follower east", 20)])
    assert left(lake) == list(range(11, 31))
    tell(lake, 30)
    done = run(lake)
    assert (done.deleted_rows, done.held, done.released) == (20, (), ("follower east",))


def test_a_follower_that_is_away_for_longer_than_its_bound_is_passed_over_and_told_so(lake: Lake) -> None:
    append(lake, 1, 10)
    lake.followers.add("east", on_lag=OnLag.DROP, drop_after=timedelta(days=7))
    assert run(lake).deleted_rows == 0, "held for the first time"
    assert run(lake, days=31 + 6).deleted_rows == 0
    done = run(lake, days=31 + 8)
    assert (done.deleted_rows, [(x.sink, x.rows) for x in done.lost]) == (10, [("follower east", 10)])
    [progress] = lake.ledger.query(followers.list_progress, lake.dataset("events"))
    assert (progress.number, progress.dropped_upto) == (None, 10)


def test_a_removed_follower_holds_nothing(lake: Lake) -> None:
    append(lake, 1, 10)
    lake.followers.add("east")
    assert run(lake).deleted_rows == 0
    lake.followers.remove("east")
    assert run(lake).deleted_rows == 10


def test_a_reserved_block_that_a_follower_has_passed_counts_as_passed(lake: Lake) -> None:
    append(lake, 1, 10)
    dataset = lake.dataset("events")
    assert lake.ledger.query(recover.highest_passed, dataset) is None
    lake.followers.add("east")
    tell(lake, 10)
    assert lake.ledger.query(recover.highest_passed, dataset) == 10


def test_sinks_that_wait_for_followers_get_nothing_that_one_of_them_lacks(tmp_path: Path, make_home: MakeHome) -> None:
    make_home(tmp_path / "lake", {"deliver": {"wait_for": "all"}})
    with strandline.init_lake(tmp_path / "lake") as lake:
        create(lake, "events", {"n": "long", "at": "timestamptz"})
        out = tmp_path / "out"
        lake.delivery.add("out", "events", "files", {"path": str(out)})
        append(lake, 1, 10)
        assert tick(lake, "out").rows == 10, "nobody is there to wait for"
        lake.followers.add("east")
        append(lake, 11, 20)
        append(lake, 21, 30)
        assert (tick(lake, "out").did, len(delivered(out))) == ("idle", 10)
        tell(lake, 21)  # `add` took a number
        assert (tick(lake, "out").rows, len(delivered(out))) == (10, 20)
        lake.followers.remove("east")
        assert tick(lake, "out").rows == 10


def test_a_follower_that_is_added_while_a_plan_is_made_is_waited_for(
    tmp_path: Path, make_home: MakeHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_home(tmp_path / "lake", {"deliver": {"wait_for": "all"}})
    with strandline.init_lake(tmp_path / "lake") as lake:
        create(lake, "events", {"n": "long", "at": "timestamptz"})
        lake.delivery.add("out", "events", "files", {"path": str(tmp_path / "out")})
        append(lake, 1, 10)
        load_position = planner.load_position

        def added_after(run: SinkRun) -> planner.SinkPosition | None:
            found = load_position(run)
            if not lake.followers.list():
                lake.followers.add("east")
            return found

        monkeypatch.setattr(planner, "load_position", added_after)
        assert "waits for followers" in (tick(lake, "out").reason or "")
        assert delivered(tmp_path / "out") == [] and tick(lake, "out").did == "idle"
        tell(lake, 10)
        assert tick(lake, "out").rows == 10


def test_a_purge_names_the_followers_that_still_have_the_rows(lake: Lake) -> None:
    append(lake, 1, 10)
    lake.followers.add("east")
    assert lake.maintenance.purge("events", "n = 3").result.followers == ("east",)
    assert lake.maintenance.purge("events", "n = 300").result.followers == ()
