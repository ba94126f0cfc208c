"""Tables that Spark wrote: partitioned, with delete files, with an evolved schema and spec, of format version 3. Their
entries are dropped, and Spark reads what is left."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

import strandline
from strandline import Lake
from strandline.core.records.reconcile_records import Asked, FindingKind
from strandline.core.settings.lake_config import LakeConfig
from strandline.core.types import SEQ_COLUMN, SeqRange
from strandline.iceberg.pyiceberg import drop_entries
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.iceberg.spark import drop_entries as spark_drop
from strandline.reconcile.model import FileContent, Finding, Protection
from strandline.reconcile.paths import canonical, key
from tests.campaign import scaled, seed
from tests.reconcile.flipping import FlippedLake, quick_runs
from tests.reconcile.no_grace import NO_GRACE_HOURS
from tests.reconcile.run_reports import RunReports
from tests.reconcile.test_superseded import days_later
from tests.spark.lakes import in_order
from tests.spark.protocol import COLUMNS, copy_ledger, expire_everything, frame, ids, restore_ledger
from tests.spark.sinks import tick


@pytest.fixture
def lake(tmp_path: Path, make_home: Callable[..., LakeConfig], spark_started: object) -> Iterator[Lake]:
    # A commit of a moment ago is old enough.
    make_home(tmp_path, {"reconcile": {"grace_hours": NO_GRACE_HOURS, "clock_skew_seconds": 0}})
    with strandline.init_lake(tmp_path) as made:
        made.create_dataset("events", parse_columns(COLUMNS))
        yield made


def files(lake: Lake, name: str, where: str = "content = 0") -> list[str]:
    rows = in_order(lake.spark.sql(f"SELECT file_path FROM lake.default.{name}.files WHERE {where}").collect())
    return [row.file_path for row in rows]


def count(lake: Lake, name: str) -> int:
    return lake.spark.table(f"lake.default.{name}").count()


def test_a_lake_that_spark_wrote_is_in_order_and_its_drift_is_repaired(lake: Lake) -> None:
    for n in range(3):
        lake.append("events", frame(lake, 10 * n), batch_id=f"b{n}")
    report = lake.reconcile()
    assert report.aborted is None and not report.outcome.partial
    assert (report.outcome.found.missing, report.outcome.found.orphans, report.outcome.found.foreign) == (0, 0, 0)
    live = [canonical(path) for path in files(lake, "events")]
    orphan = Path(live[0]).with_name("stray.parquet")
    orphan.write_bytes(b"x")
    os.utime(orphan, (1e9, 1e9))
    run = lake.reconcile(act=True)
    assert run.outcome.done.orphans == 1 and not orphan.exists() and len(ids(lake)) == 30
    lake.reconciler.restore(run.id)
    assert orphan.exists() and lake.reconciler.run(Asked()).outcome.found.orphans == 1


def test_a_lake_that_several_write_to_at_once_and_that_is_maintained_shows_no_drift_after_days(lake: Lake) -> None:
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda n: lake.append("events", frame(lake, 10 * n), batch_id=f"b{n}"), range(6)))
    lake.spark.sql("DELETE FROM lake.default.events WHERE id = 3")
    lake.maintenance.compact("events")
    lake.maintenance.purge("events", "id = 4", keep_snapshots=True)
    lake.maintenance.expire("events", older_than=timedelta(0), keep_min=1)
    warehouse = lake.config.warehouse_folder
    assert warehouse is not None
    days_later(warehouse)
    found: list[Finding] = []
    report = lake.reconciler.run(Asked(), listener=RunReports(on_finding=found.append))
    assert not [f for f in found if f.kind is not FindingKind.SUPERSEDED] and not report.doubts, (report, found)
    assert report.aborted is None and len(ids(lake)) == 58
    run = lake.reconcile(act=True)
    assert run.outcome.done.superseded == len(found) and len(ids(lake)) == 58


def test_entries_of_a_partitioned_table_with_delete_files_are_dropped_without_a_jvm(lake: Lake) -> None:
    spark = lake.spark
    spark.sql(
        "CREATE TABLE lake.default.parts (id long, at timestamp, kind string) USING iceberg PARTITIONED BY (days(at)) "
        "TBLPROPERTIES ('write.delete.mode' = 'merge-on-read', 'format-version' = '2')"
    )
    days = "SELECT id, timestamp '2026-01-01' + make_interval(0, 0, 0, cast(id % 3 AS int)), 'k' FROM range(30)"
    spark.sql(f"INSERT INTO lake.default.parts {days}")
    spark.sql("DELETE FROM lake.default.parts WHERE id < 3")
    spark.sql("ALTER TABLE lake.default.parts ADD COLUMN more int AFTER id")
    spark.sql("ALTER TABLE lake.default.parts ADD PARTITION FIELD kind")
    spark.sql("INSERT INTO lake.default.parts VALUES (100, 1, timestamp '2026-01-01', 'x'), (101, 1, NULL, NULL)")
    assert files(lake, "parts", "content = 1")
    before = count(lake, "parts")
    gone = files(lake, "parts", "record_count = 10")[0]
    null_one = files(lake, "parts", "content = 0 AND partition.at_day IS NULL")
    wanted = {key(gone), *(key(path) for path in null_one)}
    for path in (gone, *null_one):
        os.unlink(canonical(path))
    dropped = drop_entries.drop_data_files(
        lake.catalog, "default.parts", wanted, key, token="t", summary={"why": "gone"},
        before_commit=lambda: None,
    )  # fmt: skip
    assert dropped == 1 + len(null_one)
    spark.catalog.refreshTable("lake.default.parts")
    assert count(lake, "parts") == before - 9 - len(null_one)
    spark.sql("INSERT INTO lake.default.parts VALUES (102, 1, timestamp '2026-01-01', 'x')")
    assert count(lake, "parts") == before - 8 - len(null_one)


def test_entries_of_a_table_of_version_3_are_dropped_by_spark_once_for_a_token(lake: Lake) -> None:
    lake.spark.sql("CREATE TABLE lake.default.three (id long) USING iceberg TBLPROPERTIES ('format-version' = '3')")
    for n in range(3):
        lake.spark.sql(f"INSERT INTO lake.default.three VALUES ({n}), ({n + 10})")
    assert not drop_entries.can_drop_entries(lake.catalog, "default.three")
    gone, kept = files(lake, "three")[:1], files(lake, "three")[1:]
    os.unlink(canonical(gone[0]))

    def drop(paths: list[str], token: str, before: Callable[[], None] = lambda: None) -> int:
        return spark_drop.drop_data_files(
            lake.tables(), "default.three", [canonical(path) for path in paths], token=token, summary={"why": "gone"},
            before_commit=before,
        )  # fmt: skip

    rows = 6 - lake.spark.read.parquet(*[canonical(path) for path in kept]).count()
    assert drop(gone, "one") == 1 and drop(kept, "one") == 1
    assert count(lake, "three") == 6 - rows
    assert drop_entries.landed(lake.catalog, "default.three", "one") == 1
    asked: list[int] = []

    def beside() -> None:
        """Somebody commits in the very moment: the commit is lost, and asks again whether it may be."""
        asked.append(len(asked))
        if len(asked) < 3:
            lake.spark.sql("INSERT INTO lake.default.three VALUES (99)")

    assert drop(kept, "two", beside) == len(kept) and count(lake, "three") == 2 and len(asked) == 3
    assert all(Path(canonical(path)).exists() for path in kept), "an entry went, its file did not"


def lose(path: str) -> None:
    os.unlink(canonical(path))


def test_rows_that_are_given_up_are_lost_to_the_sink_that_lacked_them_and_nothing_else_is_wrong(
    lake: Lake, tmp_path: Path
) -> None:
    for name in ("has", "lacks"):
        lake.delivery.add(name, "events", "files", {"path": str(tmp_path / "out" / name)})
    for n in range(3):
        lake.append("events", frame(lake, 10 * n, partitions=1), batch_id=f"b{n}")
    tick(lake, "has")
    second = files(lake, "events", f"readable_metrics.{SEQ_COLUMN}.lower_bound = 11")
    lose(second[0])
    refused = lake.reconcile(act=True)
    assert refused.outcome.protected == {"undelivered": 1} and refused.outcome.done.missing == 0
    assert tick(lake, "lacks").reason is not None, "the file is gone: it cannot be delivered"
    run = lake.reconcile(act=True, accept_loss=True)
    assert run.outcome.done.missing == 1
    assert len(ids(lake)) == 20
    assert {s.name: s.lost_rows for s in lake.status().sinks} == {"has": 0, "lacks": 10}
    assert tick(lake, "lacks").reason is None
    lake.append("events", frame(lake, 90, partitions=1), batch_id="later")
    for name in ("has", "lacks"):
        assert tick(lake, name).reason is None
    for _ in range(2):
        report = lake.delivery.verify()
        verdicts = {v.name: v for v in report.sinks}
        assert all(v.ok for v in report.sinks), [v.findings for v in report.sinks]
        assert (verdicts["has"].rows, verdicts["has"].gone, verdicts["has"].lost) == (40, 10, 0)
        assert (verdicts["lacks"].rows, verdicts["lacks"].lost) == (30, 10)
        expire_everything(lake)  # nothing of the table's history tells any more that rows went


def test_of_a_table_of_version_3_data_entries_are_dropped_and_deletion_vectors_only_told(lake: Lake) -> None:
    spark = lake.spark
    properties = "'format-version' = '3', 'write.delete.mode' = 'merge-on-read'"
    spark.sql(f"ALTER TABLE lake.default.events SET TBLPROPERTIES ({properties})")
    for n in range(3):
        lake.append("events", frame(lake, 10 * n, partitions=1), batch_id=f"b{n}")
    spark.sql("DELETE FROM lake.default.events WHERE id IN (1, 2)")
    (vector,) = files(lake, "events", "content = 1")
    assert vector.endswith(".puffin")
    assert lake.reconcile().outcome.found.orphans == 0
    gone = files(lake, "events", f"content = 0 AND readable_metrics.{SEQ_COLUMN}.lower_bound = 21")[0]
    lose(gone)
    lose(vector)
    told: list[Finding] = []
    run = lake.reconciler.run(Asked(act=True), listener=RunReports(on_finding=told.append))
    by_path = {f.path: f for f in told}
    assert by_path[canonical(vector)].content is FileContent.DELETION_VECTOR
    assert by_path[canonical(vector)].protected is Protection.NOT_DATA
    assert by_path[canonical(gone)].protected is None
    assert run.outcome.done.missing == 1 and files(lake, "events", "content = 1") == [vector]
    assert gone not in files(lake, "events")


def test_a_location_with_a_literal_percent_sign_is_read_as_spark_wrote_it(lake: Lake) -> None:
    for name, written_as in (("odd%20name", "{}"), ("50%", "file:{}"), ("a%2Fb", "file://{}")):
        table = f"t{len(name)}"
        place = Path(lake.config.warehouse_folder or "") / "default" / name
        lake.spark.sql(
            f"CREATE TABLE lake.default.{table} (id long, k string) USING iceberg PARTITIONED BY (k) "
            f"LOCATION '{written_as.format(place)}'"
        )
        lake.spark.sql(f"INSERT INTO lake.default.{table} VALUES (1, 'a%41'), (2, 'b')")
        live = [path for path in place.rglob("*") if path.is_file()]
        assert any(path.name.endswith(".parquet") for path in live) and any("/metadata/" in str(path) for path in live)
        orphan = place / "data" / "k=b" / "stray%41.parquet"
        orphan.write_bytes(b"x")
        os.utime(orphan, (1e9, 1e9))
        run = lake.reconcile(act=True)
        assert (run.aborted, run.outcome.found.missing, run.outcome.done.orphans) == (None, 0, 1), (name, run)
        assert not orphan.exists() and all(path.exists() for path in live) and count(lake, table) == 2


def test_a_missing_delete_file_is_only_told(lake: Lake) -> None:
    lake.spark.sql("ALTER TABLE lake.default.events SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    lake.append("events", frame(lake, 0, partitions=1), batch_id="b")
    lake.spark.sql("DELETE FROM lake.default.events WHERE id = 1")
    (deletes,) = files(lake, "events", "content = 1")
    lose(deletes)
    run = lake.reconcile(act=True, accept_loss=True)
    (sample,) = run.outcome.samples
    assert (sample["path"], sample["content"], sample["protected"]) == (
        canonical(deletes), "position_deletes", "not_data",
    )  # fmt: skip
    assert run.outcome.done.missing == 0 and files(lake, "events", "content = 1") == [deletes]


def test_a_ledger_that_was_restored_is_opened_before_a_run_acts(lake: Lake) -> None:
    lake.append("events", frame(lake, 0), batch_id="b0")
    copy = copy_ledger(lake, "old.db")
    lake.append("events", frame(lake, 10), batch_id="b1")
    restore_ledger(lake, copy)
    orphan = Path(canonical(files(lake, "events")[0])).with_name("stray.parquet")
    orphan.write_bytes(b"x")
    os.utime(orphan, (1e9, 1e9))
    run = lake.reconcile(act=True)
    assert run.aborted is None and run.outcome.done.orphans == 1 and run.outcome.found.missing == 0
    assert len(ids(lake)) == 20 and lake.sealed("events") == 21, "the copy knew of 10, and the resync took a number"


class JavaWroteIt(FlippedLake):
    """As Iceberg's own library for Java writes it: manifests of its own make, delete files, and a checksum of Hadoop's
    beside each metadata file."""

    def append(self, rows: int = 3, *, publish: bool = True) -> SeqRange:
        values = self.lake.spark.range(0, rows, 1, 1).selectExpr("id", "'k' AS kind")
        appended = self.lake.append("events", values).rows
        assert appended is not None
        return appended

    def _make_other(self) -> None:
        spark = self.lake.spark
        spark.sql("CREATE NAMESPACE lake.other")
        spark.sql(
            "CREATE TABLE lake.other.t (p int, v string) USING iceberg PARTITIONED BY (p) "
            "TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')"
        )
        for letter in "ab":
            spark.sql(f"INSERT INTO lake.other.t SELECT id % 3, concat('{letter}', id) FROM range(0, 6, 1, 1)")
        spark.sql("ALTER TABLE lake.other.t CREATE TAG kept")
        spark.sql("DELETE FROM lake.other.t WHERE v = 'a1'")

    def without_checksums(self) -> None:
        checksums = [path for at in self.metadata if (path := Path(at).with_name(f".{Path(at).name}.crc")).exists()]
        assert len(checksums) > len(self.metadata) / 2, checksums
        for path in checksums:
            path.unlink()


def test_no_flipped_bit_in_what_spark_wrote_moves_a_live_file_or_ends_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = JavaWroteIt(tmp_path / "lake")
    dice = random.Random(seed(1453))
    with quick_runs(lake, monkeypatch):
        lake.flips(dice, scaled(20, 300))
        lake.without_checksums()
        lake.flips(dice, scaled(40, 900))
