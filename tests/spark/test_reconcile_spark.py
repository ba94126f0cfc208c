"""Lakes above `references_max`: what Spark finds is what one process finds, and what is done about it is the same."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.classic.dataframe import DataFrame

from strandline.core.records.reconcile_records import AbortReason
from strandline.core.types import SEQ_COLUMN
from strandline.iceberg.session.lake_session import open_session
from strandline.reconcile.compare import findings
from strandline.reconcile.compare.compared import Survey
from strandline.reconcile.model import LedgerContext, Protection
from strandline.reconcile.on_spark import compare as spark_compare
from strandline.reconcile.on_spark import listing as spark_listing
from strandline.reconcile.on_spark import references as spark_references
from strandline.reconcile.on_spark import survey as spark_sweep
from strandline.reconcile.on_spark.survey import SparkSurveyor
from tests.reconcile.conftest import DAY_NS, SomeLake, Watching, data_files
from tests.reconcile.flipping import SEVERAL_FILES, SEVERAL_ROWS, repeat_an_entry
from tests.reconcile.test_workers import too_deep
from tests.reconcile.whole_lakes import ACT, REPORT, WholeLake
from tests.spark.stuck_job import StuckJob


@pytest.fixture(autouse=True)
def few_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """These lakes are small: more tasks would only wait for each other."""
    for module in (spark_listing, spark_references, spark_sweep):
        monkeypatch.setattr(module, "TASKS_PER_CORE", 1)


@pytest.fixture
def some_lake(tmp_path: Path) -> Iterator[SomeLake]:
    lake = SomeLake(tmp_path)
    yield lake
    lake.catalog.close()


def on_spark(lake: SomeLake, context: LedgerContext, **options: Any) -> Survey:
    surveyor = SparkSurveyor(lake.surveyor(**options))
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


def check_same(lake: SomeLake, context: LedgerContext | None = None, **options: Any) -> dict[str, Any]:
    context = context or lake.context(now_ns=lake.context().now_ns + 3 * DAY_NS, accept_loss=True)
    here, there = told(lake.survey(context, **options)), told(on_spark(lake, context, **options))
    for part, expected in here.items():
        assert there[part] == expected, part
    return here


# ---- the same findings -----------------------------------------------------------------------------------------------


def a_lake_of_spark(lake: SomeLake) -> None:
    """Delete files, a deletion vector, a branch, a tag, a snapshot that nothing leads to, statistics of its own. The
    paths of one table have escapes in them, those of the other have none."""
    spark = open_session(lake.config)
    spark.sql("CREATE NAMESPACE lake.sp")
    for version in (2, 3):
        name = f"lake.sp.v{version}"
        spark.sql(
            f"CREATE TABLE {name} (id long, k string) USING iceberg PARTITIONED BY (k) TBLPROPERTIES "
            f"('format-version' = '{version}', 'write.delete.mode' = 'merge-on-read')"
        )
        value = "k/" if version == 2 else "k"
        spark.sql(f"INSERT INTO {name} SELECT id, concat('{value}', id % 2) FROM range(0, 8, 1, 1)")
        spark.sql(f"DELETE FROM {name} WHERE id = 3")
        spark.sql(f"ALTER TABLE {name} CREATE TAG one")
        spark.sql(f"ALTER TABLE {name} CREATE BRANCH side")
        spark.sql(f"INSERT INTO {name}.branch_side VALUES (100, 'b')")
        spark.sql(f"ALTER TABLE {name} CREATE BRANCH moment")
        spark.sql(f"INSERT INTO {name}.branch_moment VALUES (101, 'staged')")
        spark.sql(f"ALTER TABLE {name} DROP BRANCH moment")
    spark.sql("CALL lake.system.compute_table_stats('sp.v2')")
    live = lake.live()
    assert all(any(f"/sp/{part}" in path for path in live) for part in ("v2/data/k=k%2F0/", "v3/data/k=staged/"))


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
    lake.put("ns/t/data/always.parquet")
    lake.put("_strandline/spool/events/stray.arrow")
    lake.put("_strandline/quarantine/x/y")
    if chance.random() < 0.4:
        lake.path(f"ns/u/link-{chance.random()}").symlink_to(lake.path("ns/t/data"))
    return kept


def test_random_lakes_have_the_same_findings_in_both_ways(some_lake: SomeLake, monkeypatch: pytest.MonkeyPatch) -> None:
    a_lake_of_spark(some_lake)
    some_lake.create("ns.t", partition_by="p")
    some_lake.create("ns.u")
    some_lake.create("ns.empty")
    # Pieces of a size that these lakes have.
    monkeypatch.setattr(spark_compare, "MISSING_AT_ONCE", 2)
    monkeypatch.setattr(findings, "SORTED_AT_ONCE", 3)
    seen: dict[str, int] = {}
    wanted = {"missing data None", "orphan data None", "orphan spool not_a_dataset"}
    for seed in range(12):  # what is chosen depends on names that are different each time
        if seed >= 2 and wanted <= seen.keys():
            break
        monkeypatch.setattr(spark_compare, "SENT_MAX", seed % 2 * 100_000)
        gone = disturb(some_lake, random.Random(seed))
        found = check_same(some_lake)
        for path, content in gone.items():
            path.write_bytes(content)
        for finding in [*found["missing"], *found["orphans"]]:
            said = f"{finding.kind} {finding.content} {finding.protected}"
            seen[said] = seen.get(said, 0) + 1
    assert wanted <= seen.keys(), seen


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
    Path(data_files(table)[0]).unlink()
    pq.write_table(listed, tmp_path / "inventory.parquet", row_group_size=2)
    found = check_same(some_lake, inventory_file=tmp_path / "inventory.parquet")
    # The inventory has the file that is gone since, and does not have the one that came.
    assert [f.path for f in found["orphans"]] == [orphan] and not found["missing"] and Path(later).exists()


# ---- trouble ---------------------------------------------------------------------------------------------------------


def one_manifest(lake: SomeLake, name: str) -> Path:
    table = lake.catalog.load(name)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return Path(snapshot.manifests(table.io)[0].manifest_path.removeprefix("file://"))


def test_every_kind_of_trouble_is_told_alike_and_leaves_alone_only_what_it_concerns(some_lake: SomeLake) -> None:
    for name in ("gone", "damaged", "whole", "away"):
        some_lake.create(f"ns.{name}")
        some_lake.append(f"ns.{name}")
        some_lake.append(f"ns.{name}")
        some_lake.put(f"ns/{name}/data/stray.parquet")
    live = data_files(some_lake.catalog.load("ns.whole"))[0]
    no_text = os.fsdecode(os.fsencode(live) + b"\xff.parquet")
    Path(no_text).write_bytes(b"x")
    Path(live.replace(".parquet", "%2Eparquet")).write_bytes(b"x")  # which looks like another name of a live file
    deep = too_deep(some_lake.path("ns/whole/data"))
    loop = some_lake.path("ns/whole/data/loop")
    loop.symlink_to("/")
    missing, damaged = one_manifest(some_lake, "ns.gone"), one_manifest(some_lake, "ns.damaged")
    missing.unlink()
    damaged.write_bytes(damaged.read_bytes()[:-40])
    some_lake.path("ns/away/data").rename(some_lake.path("data-away"))

    found = check_same(some_lake)
    assert set(found["unread"]) == {"ns.gone", "ns.damaged"}
    assert {failure.prefix for failure in found["failures"]} >= {deep, str(loop)}
    planned = [f for f in found["orphans"] if f.protected is None]
    assert [f.path for f in planned] == [str(some_lake.path("ns/whole/data/stray.parquet"))]
    assert no_text in {f.path for f in found["orphans"]} and not any("%2E" in f.path for f in found["orphans"])
    assert {f.table for f in found["missing"]} == {"ns.gone", "ns.away"}
    assert all(f.protected is not None for f in found["missing"])


def test_a_manifest_that_names_a_file_twice_stops_its_table_and_one_that_others_repeat_does_not(
    some_lake: SomeLake,
) -> None:
    for name in ("ns.damaged", "ns.rewritten"):
        some_lake.create(name, properties=SEVERAL_FILES)
        some_lake.append(name, rows=SEVERAL_ROWS)
    # History has a manifest with the same files, and the newest one says of one of them that it is deleted.
    some_lake.catalog.load("ns.rewritten").delete(f"{SEQ_COLUMN} <= {SEVERAL_ROWS + 3}")
    lost = repeat_an_entry(some_lake.catalog.load("ns.damaged"))
    found = check_same(some_lake)
    assert set(found["unread"]) == {"ns.damaged"}
    orphans = {f.path: f.protected for f in found["orphans"]}
    assert lost in orphans and set(orphans.values()) == {Protection.TABLE_UNREAD}


# ---- a whole run -----------------------------------------------------------------------------------------------------


def test_a_run_above_references_max_acts_through_spark_spares_what_is_registered_meanwhile_and_can_be_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    persist, persisted = DataFrame.persist, list[DataFrame]()

    def noted(frame: DataFrame, *args: Any) -> DataFrame:
        persisted.append(persist(frame, *args))
        return persisted[-1]

    monkeypatch.setattr(DataFrame, "persist", noted)
    lake = WholeLake(tmp_path, references_max=1, batch_size=2, share_floor_files=1_000)
    for _ in range(3):
        lake.append()
    gone = Path(lake.data_files()[0])
    content = gone.read_bytes()
    gone.unlink()
    strays = lake.puts(2)
    run = lake.run(ACT)
    assert run.aborted is None and not run.outcome.partial, run
    assert (run.outcome.done.missing, run.outcome.done.orphans) == (1, 0) and lake.count() == 6
    gone.write_bytes(content)  # history has its entry: while its file is missing, no orphan of the table goes
    live = [Path(path) for path in lake.data_files()]
    registered = lake.put("registered.parquet", content=live[0].read_bytes())
    once = threading.Event()

    def register(finding: object) -> None:
        if not once.is_set():
            once.set()
            lake.table().add_files([f"file://{registered}"], check_duplicate_files=False)

    run = lake.run(ACT, on_finding=register)
    assert run.aborted is None and not run.outcome.partial and once.is_set(), run
    assert (run.outcome.found.orphans, run.outcome.done.missing, run.outcome.done.orphans) == (3, 0, 2)
    assert not any(Path(path).exists() for path in strays)
    assert Path(registered).exists() and lake.count() == 9 and all(path.exists() for path in live)
    assert persisted and not any(f.storageLevel.useDisk or f.storageLevel.useMemory for f in persisted)
    lake.lake.reconciler.restore(run.id)
    assert all(Path(path).exists() for path in strays)
    lake.lake.close()


def test_a_run_that_is_called_off_ends_the_job_that_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = WholeLake(tmp_path, references_max=1)
    lake.append()
    lake.append()
    called_off, stuck = threading.Event(), StuckJob(lake.lake)
    monkeypatch.setattr(spark_sweep, "list_on_spark", stuck.instead_of)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(lake.run, REPORT, cancelled=called_off)
        stuck.wait_until_it_runs()
        called_off.set()
        stuck.wait_until_it_is_cancelled()
        assert running.result(60).aborted is AbortReason.CANCELLED
    lake.lake.close()
