"""Lakes above `references_max`: what Spark finds is what one process finds, and what is done about it is the same."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strandline.drift import AbortReason
from strandline.reconcile import spark_compare, spill
from strandline.reconcile.model import Context, Survey
from strandline.reconcile.paths import key
from strandline.reconcile.spark_paths import encoded, with_keys
from strandline.reconcile.spark_sweep import SparkSurveyor
from strandline.tables.session import open_session
from strandline.tables.spark_tables import SparkTables
from tests.reconcile.conftest import DAY_NS, SomeLake, Watching, data_files
from tests.reconcile.whole_lakes import ACT, REPORT, WholeLake

SPELLINGS = ("/a/b", "file:/a/b c", "file:///a/b", "file://localhost/a", "s3://b/k", "s3a://b/k", "s3n://b/k",
             "S3://b/k", "s3://b//k", "s3:///b/k", "s3://b/k/", "/a//b", "/a/./b", "/a/../b", "/a/.b", "/a/%20b",
             "/a/%2520", "/a/b/", "gs://b/k", "file:a", "a/b", "//a/b", "file:////a", "/a/ü\nb", "/", "")  # fmt: skip


@pytest.fixture
def some_lake(tmp_path: Path) -> Iterator[SomeLake]:
    lake = SomeLake(tmp_path)
    yield lake
    lake.catalog.close()


def tables_of(lake: SomeLake) -> SparkTables:
    return SparkTables(open_session(lake.config), attempts_max=3)


def on_spark(lake: SomeLake, tables: SparkTables, context: Context, **options: Any) -> Survey:
    surveyor = SparkSurveyor(lake.surveyor(**options), tables)
    survey = surveyor.survey(context, Watching())
    list(survey.drift.missing())
    surveyor.close()
    return survey


def told(survey: Survey) -> dict[str, Any]:
    drift = survey.drift
    return {
        "missing": list(drift.missing()),
        "orphans": list(drift.orphans()),
        "counts": (drift.found, drift.planned, drift.listed, len(survey.references)),
        "protected": dict(drift.protected),
        "tables": list(drift.tables),
        "failures": list(survey.failures),
        "unread": dict(survey.references.unread),
    }


def check_same(lake: SomeLake, tables: SparkTables, context: Context | None = None, **options: Any) -> dict[str, Any]:
    context = context or lake.context(now_ns=lake.context().now_ns + 3 * DAY_NS, accept_loss=True)
    here, there = told(lake.survey(context, **options)), told(on_spark(lake, tables, context, **options))
    for part, expected in here.items():
        assert there[part] == expected, part
    return here


# ---- the same findings -----------------------------------------------------------------------------------------------


def test_what_spark_compares_by_is_what_this_process_compares_by(spark: Any) -> None:
    paths = [path + more for path in SPELLINGS for more in ("", "/x.parquet")]
    frame = spark.createDataFrame([(path,) for path in paths], "path string")
    found = {row.path: bytes(row.key) for row in with_keys(frame).collect()}
    assert found == {path: encoded(key(path)) for path in paths}


def a_lake_of_spark(lake: SomeLake, tables: SparkTables) -> None:
    """Delete files, a deletion vector, a branch, a tag and statistics of its own."""
    spark = tables.spark
    spark.sql("CREATE NAMESPACE lake.sp")
    for version in (2, 3):
        name = f"lake.sp.v{version}"
        spark.sql(
            f"CREATE TABLE {name} (id long, k string) USING iceberg PARTITIONED BY (k) TBLPROPERTIES "
            f"('format-version' = '{version}', 'write.delete.mode' = 'merge-on-read')"
        )
        spark.sql(f"INSERT INTO {name} SELECT id, concat('k ', id % 2) FROM range(0, 8, 1, 1)")
        spark.sql(f"DELETE FROM {name} WHERE id = 3")
        spark.sql(f"ALTER TABLE {name} CREATE TAG one")
        spark.sql(f"ALTER TABLE {name} CREATE BRANCH side")
        spark.sql(f"INSERT INTO {name}.branch_side VALUES (100, 'b')")
    spark.sql("CALL lake.system.compute_table_stats('sp.v2')")


def disturb(lake: SomeLake, chance: random.Random) -> dict[Path, bytes]:
    """Rows, deletes and branches, then files that come and go. Those that are gone."""
    for name in ("ns.t", "ns.u"):
        for _ in range(chance.randint(1, 3)):
            lake.append(name, rows=chance.randint(1, 4), p=chance.randint(1, 3))
        table = lake.catalog.load(name)
        if chance.random() < 0.5 and "side" not in table.refs():
            with table.manage_snapshots() as manage:
                manage.create_branch(table.current_snapshot().snapshot_id, "side")  # type: ignore[union-attr]
            lake.append(name, branch="side")
        if chance.random() < 0.5:
            lake.catalog.load(name).delete("p = 1")
    files = sorted(path for path in lake.live() if Path(path).exists() and not path.endswith("metadata.json"))
    data = [path for path in files if path.endswith(".parquet")]
    gone = chance.sample(data, min(len(data), chance.randint(1, 4)))
    if chance.random() < 0.4:
        gone.append(chance.choice([path for path in files if path.endswith(".avro")]))
    kept = {Path(path): Path(path).read_bytes() for path in gone}
    for path in kept:
        path.unlink()
    places = (
        "ns/t/data",
        "ns/t/data/p=1",
        "ns/u/metadata",
        "ns/u/else",
        "ns/who/data",
        "other/deep/data",
        "ns",
        "sp/v3/data",
    )
    names = ("a.parquet", ".a.parquet.crc", "b %41.parquet", "ü.avro", "new\nline.parquet", "x.txt", "m.metadata.json")
    for _ in range(chance.randint(2, 8)):
        lake.put(f"{chance.choice(places)}/{chance.choice(names)}", days_old=chance.choice((0.0, 1.5, 10.0, -30.0)))
    lake.put("_strandline/spool/events/stray.arrow")
    lake.put("_strandline/quarantine/x/y")
    if chance.random() < 0.4:
        lake.path(f"ns/u/link-{chance.random()}").symlink_to(lake.path("ns/t/data"))
    return kept


def test_random_lakes_have_the_same_findings_in_both_ways(some_lake: SomeLake, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = tables_of(some_lake)
    a_lake_of_spark(some_lake, tables)
    some_lake.create("ns.t", partition_by="p")
    some_lake.create("ns.u")
    some_lake.create("ns.empty")
    # Pieces of a size that these lakes have.
    monkeypatch.setattr(spark_compare, "MISSING_AT_ONCE", 2)
    monkeypatch.setattr(spill, "SORTED_AT_ONCE", 3)
    seen: dict[str, int] = {}
    for seed in range(3):
        gone = disturb(some_lake, random.Random(seed))
        found = check_same(some_lake, tables)
        for path, content in gone.items():
            path.write_bytes(content)
        for finding in [*found["missing"], *found["orphans"]]:
            said = f"{finding.kind} {finding.content} {finding.protected}"
            seen[said] = seen.get(said, 0) + 1
    assert len(seen) >= 7, seen
    assert any(said.startswith("missing data") for said in seen) and "orphan data None" in seen


def test_a_name_that_is_no_text_and_one_that_only_looks_like_another_are_told_alike(some_lake: SomeLake) -> None:
    some_lake.create()
    table = some_lake.append()
    (live,) = data_files(table)
    Path(os.fsdecode(os.fsencode(live) + b"\xff.parquet")).write_bytes(b"x")
    Path(live.replace(".parquet", "%2Eparquet")).write_bytes(b"x")
    found = check_same(some_lake, tables_of(some_lake))
    assert [f.path.endswith("\udcff.parquet") for f in found["orphans"]] == [True]


def test_a_table_whose_storage_is_away_is_told_alike(some_lake: SomeLake) -> None:
    some_lake.create()
    some_lake.create("ns.kept")
    some_lake.append()
    some_lake.append("ns.kept")
    tables = tables_of(some_lake)
    some_lake.path("ns/t/data").rename(some_lake.path("ns/data-away"))
    assert check_same(some_lake, tables)["missing"]


def test_a_listing_can_come_from_an_inventory(some_lake: SomeLake, tmp_path: Path) -> None:
    some_lake.create()
    table = some_lake.append()
    orphan, later = some_lake.put("ns/t/data/stray.parquet"), some_lake.put("ns/t/data/later.parquet")
    paths = [*some_lake.live(), orphan]
    stats = [Path(path).stat() for path in paths]
    listed = pa.table(
        {
            "Key": [str(Path(path).relative_to(some_lake.warehouse)) for path in paths],
            "Size": [stat.st_size for stat in stats],
            "Last-Modified": pa.array([stat.st_mtime_ns for stat in stats], pa.timestamp("ns", "UTC")),
        }
    )
    tables = tables_of(some_lake)
    Path(data_files(table)[0]).unlink()
    pq.write_table(listed, tmp_path / "inventory.parquet", row_group_size=2)
    found = check_same(some_lake, tables, inventory_file=tmp_path / "inventory.parquet")
    # The inventory has the file that is gone since, and does not have the one that came.
    assert [f.path for f in found["orphans"]] == [orphan] and not found["missing"] and Path(later).exists()
    rows = zip(listed["Key"].to_pylist(), stats, strict=True)
    lines = [f'"{path}",{stat.st_size},{stat.st_mtime_ns // 10**6}' for path, stat in rows]
    (tmp_path / "inventory.csv").write_text("\n".join(["key,size,last_modified", *lines]), "utf-8")
    found = check_same(some_lake, tables, inventory_file=tmp_path / "inventory.csv")
    assert [f.path for f in found["orphans"]] == [orphan]


# ---- trouble ---------------------------------------------------------------------------------------------------------


def too_deep(folder: Path) -> str:
    """A folder whose path is longer than the system takes: listing it fails, for root as well. The last that can be."""
    name = "d" * 250
    at = os.open(folder, os.O_RDONLY)
    path, longest = str(folder), ""
    for _ in range(18):
        os.mkdir(name, dir_fd=at)
        inner = os.open(name, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at, path = inner, f"{path}/{name}"
        longest = longest or (path if len(path) >= 4096 else "")
    os.close(at)
    return longest


def test_a_prefix_that_cannot_be_listed_is_a_failure_and_nothing_under_it_is_touched(some_lake: SomeLake) -> None:
    some_lake.create()
    some_lake.append()
    orphan = some_lake.put("ns/t/data/stray.parquet")
    deep = too_deep(some_lake.path("ns/t/data"))
    some_lake.path("ns/t/data/loop").symlink_to("/")
    found = check_same(some_lake, tables_of(some_lake))
    assert {failure.prefix for failure in found["failures"]} == {deep, str(some_lake.path("ns/t/data/loop"))}
    assert [(f.path, f.protected) for f in found["orphans"]] == [(orphan, None)]


def test_a_manifest_that_is_gone_or_damaged_leaves_its_table_alone_and_no_other(some_lake: SomeLake) -> None:
    for name in ("ns.t", "ns.u", "ns.v"):
        some_lake.create(name)
        some_lake.append(name)
        some_lake.append(name)
    manifests = {}
    for name in ("ns.t", "ns.u"):
        table = some_lake.catalog.load(name)
        snapshot = table.current_snapshot()
        assert snapshot is not None
        manifests[name] = Path(snapshot.manifests(table.io)[0].manifest_path.removeprefix("file://"))
    manifests["ns.t"].unlink()
    manifests["ns.u"].write_bytes(manifests["ns.u"].read_bytes()[:-40])
    for name in ("t", "u", "v"):
        some_lake.put(f"ns/{name}/data/stray.parquet")
    found = check_same(some_lake, tables_of(some_lake))
    assert set(found["unread"]) == {"ns.t", "ns.u"}
    assert [f.table for f in found["orphans"] if f.protected is None] == ["ns.v"]
    assert [f.path for f in found["missing"]] == [str(manifests["ns.t"])]


# ---- a whole run -----------------------------------------------------------------------------------------------------


def test_a_run_above_references_max_acts_through_spark_and_can_be_undone(tmp_path: Path) -> None:
    lake = WholeLake(tmp_path, references_max=1, batch_size=2, share_floor_files=1_000)
    for _ in range(3):
        lake.append()
    strays = lake.puts(3)
    gone = Path(lake.data_files()[0])
    gone.unlink()
    before = {Path(path): Path(path).exists() for path in lake.data_files()}
    run = lake.run(ACT)
    assert run.aborted is None and not run.outcome.partial, run
    assert (run.outcome.done.missing, run.outcome.done.orphans, lake.count()) == (1, 3, 6)
    assert not any(Path(path).exists() for path in strays)
    assert all(path.exists() for path, was_there in before.items() if was_there)
    assert not lake.lake.spark.sparkContext._jsc.getPersistentRDDs()  # type: ignore[attr-defined]
    lake.lake.reconciler.restore(run.id)
    assert all(Path(path).exists() for path in strays)
    assert lake.run(REPORT).outcome.found.orphans == 3
    lake.lake.close()


def test_a_file_that_is_registered_after_the_survey_is_not_touched(tmp_path: Path) -> None:
    lake = WholeLake(tmp_path, references_max=1, share_floor_files=1_000)
    lake.append()
    lake.append()
    stray = lake.put("stray.parquet", content=Path(lake.data_files()[0]).read_bytes())
    other = lake.put("other.parquet")
    once = threading.Event()

    def register(finding: object) -> None:
        if not once.is_set():
            once.set()
            lake.table().add_files([f"file://{stray}"], check_duplicate_files=False)

    run = lake.run(ACT, on_finding=register)
    assert once.is_set() and run.aborted is None and run.outcome.done.orphans == 1
    assert Path(stray).exists() and not Path(other).exists()
    lake.lake.close()


def test_a_run_that_is_called_off_ends_its_jobs(tmp_path: Path) -> None:
    lake = WholeLake(tmp_path, references_max=1)
    lake.append()
    lake.append()
    called_off = threading.Event()
    run = lake.run(REPORT, cancelled=called_off, on_progress=lambda phase, count: called_off.set())
    assert run.aborted is AbortReason.CANCELLED
    lake.lake.close()
