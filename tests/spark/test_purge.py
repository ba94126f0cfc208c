"""A person asks to be forgotten: rows go wherever the lake has them, and whoever else has them is named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from strandline.deliver import kinds
from strandline.errors import UsageError
from strandline.failpoints import FailpointError
from strandline.ledger import audit, losses
from strandline.maintain.purge import Purged
from tests.spark.bodies import Sender, files
from tests.spark.flaky import REFUSES
from tests.spark.lakes import create, in_main, new_lake, numbers, sql
from tests.spark.sinks import armed, tick

if TYPE_CHECKING:
    from strandline.lake import Lake
    from tests.conftest import MakeHome

ALICE = "who = 'alice'"


@pytest.fixture
def lake(tmp_path: Path, make_home: MakeHome) -> Iterator[Lake]:
    with new_lake(tmp_path / "lake", make_home) as lake:
        create(lake, "events", {"n": "long", "who": "string"})
        yield lake


def append(lake: Lake, lo: int, hi: int) -> None:
    """Every fifth is Alice's."""
    who = "CASE WHEN n % 5 = 0 THEN 'alice' ELSE 'bob' END AS who"
    lake.append("events", numbers(lake, lo, hi).selectExpr("n", who))


def purge(lake: Lake, where: str = ALICE, **options: Any) -> Purged:
    return lake.maintenance.purge("events", where, **options).result


def left(lake: Lake) -> list[int]:
    return [n for _, n in in_main(lake, "events")]


def others(lo: int, hi: int) -> list[int]:
    return [n for n in range(lo, hi + 1) if n % 5]


def data_files_hold(lake: Lake, text: bytes) -> list[Path]:
    folder = lake.config.warehouse_folder
    assert folder is not None
    return [p for p in folder.rglob("*.parquet") if text in p.read_bytes()]


def test_rows_go_everywhere_and_whoever_has_them_is_named(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("has", "lacks"):
        lake.delivery.add(name, "events", "files", {"path": str(tmp_path / name), "chunk_rows_max": "10"})
    append(lake, 1, 20)
    tick(lake, "has")
    append(lake, 21, 40)
    with armed(monkeypatch, "deliver.before_send=fail@1"):
        assert tick(lake, "lacks").reason is not None
    rejects = lake.config.home / "rejects" / "default.events" / "batch.jsonl"
    rejects.parent.mkdir(parents=True)
    raws = ['{"n": "x", "who": "alice"}', '{"n": "x", "who": "bob"}', "alice;7"]
    rejects.write_text("".join(json.dumps({"line": 1, "reason": "no", "raw": r}) + "\n" for r in raws))

    rehearsed = purge(lake, dry_run=True)
    assert (rehearsed.deleted_rows, rehearsed.rejects, rehearsed.snapshots_expired) == (8, 1, None)
    assert left(lake) == list(range(1, 41)) and len(rejects.read_text().splitlines()) == 3

    done = purge(lake)
    assert (done.deleted_rows, done.first, done.last, done.not_settled) == (8, 5, 40, 0)
    assert [(x.sink, x.rows) for x in done.holding] == [("has", 4)]
    assert [(x.sink, x.rows) for x in done.undelivered] == [("has", 4), ("lacks", 8)]
    assert (done.rejects, done.rejects_not_judged) == (1, 1)
    assert [json.loads(x)["raw"] for x in rejects.read_text().splitlines()] == raws[1:]
    assert left(lake) == others(1, 40)
    assert data_files_hold(lake, b"alice") == [], "no older snapshot shows them either"
    with lake.ledger.read() as connection:
        told = audit.latest(connection)
        assert losses.lost_rows(connection, lake.delivery.get("lacks")) == 8
    assert not any("alice" in json.dumps(e.detail) for e in told), "who asked is not kept"

    lake.tick()
    append(lake, 41, 50)
    lake.tick()
    report = {s.name: s for s in lake.delivery.verify().sinks}
    assert {n: [f.detail for f in s.findings] for n, s in report.items()} == {"has": [], "lacks": []}
    assert (report["has"].rows, report["has"].gone, report["lacks"].rows) == (46, 4, 42)
    assert purge(lake, "who = 'carol'").deleted_rows == 0


def test_a_table_that_hides_deleted_rows_in_delete_files_is_written_anew(lake: Lake) -> None:
    sql(lake, "ALTER TABLE lake.default.events SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    append(lake, 1, 40)
    assert purge(lake, keep_snapshots=True).deleted_rows == 8
    assert data_files_hold(lake, b"alice") != []
    append(lake, 41, 45)
    done = purge(lake)
    assert (done.deleted_rows, done.delete_files_left) == (1, 0)
    assert data_files_hold(lake, b"alice") == [] and left(lake) == others(1, 45)


def test_a_run_that_died_is_started_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    append(lake, 1, 10)
    with armed(monkeypatch, "purge.after_table=fail"), pytest.raises(FailpointError):
        purge(lake)
    assert data_files_hold(lake, b"alice") != []
    done = purge(lake)
    assert done.deleted_rows == 0 and data_files_hold(lake, b"alice") == []


@pytest.mark.parametrize(
    "where", ["", "nobody = 1", "n + 1", "n = 1; DROP TABLE lake.default.events", "n = 1) OR (1 = 1"]
)
def test_what_is_no_condition_deletes_nothing(lake: Lake, where: str) -> None:
    append(lake, 1, 5)
    with pytest.raises(UsageError):
        purge(lake, where)
    assert left(lake) == list(range(1, 6))


def test_a_condition_that_ends_in_a_comment_deletes_no_more_than_it_says(lake: Lake) -> None:
    append(lake, 1, 10)
    assert purge(lake, "n = 3 -- ").deleted_rows == 1
    assert left(lake) == [1, 2, *range(4, 11)]


def test_it_reaches_rows_that_wait_at_the_receiver_and_rows_that_a_sink_refused(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(kinds._BUILT_IN, "flaky", "tests.spark.flaky:KIND")
    (tmp_path / REFUSES).write_text("bad 5 6")
    lake.delivery.add("out", "events", "flaky", {"path": str(tmp_path / "out"), "chunk_rows_max": "10"})
    append(lake, 1, 10)
    lake.tick()
    kept = [q.place for q in lake.delivery.quarantined("out")]
    assert sorted(int(q.row.seq) for q in lake.delivery.quarantined("out")) == [5, 6]
    sender = Sender(lake, "events")
    sender.bring(pa.table({"n": pa.array([11, 15], pa.int64()), "who": ["bob", "alice"]}))
    assert files(lake) != []

    done = purge(lake)
    assert (done.bodies_ingested, done.quarantined, done.quarantined_not_judged) == (1, 1, 0)
    assert left(lake) == [*others(1, 10), 11] and files(lake) == []
    assert [int(q.row.seq) for q in lake.delivery.quarantined("out")] == [6]
    assert sorted(Path(p).exists() for p in kept) == [False, True]
