"""A lake on a real REST catalog, without a JVM of its own: what the reconciler and PyIceberg do there, and what becomes
of a commit whose answer is lost on the way."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

import strandline
from strandline.cli.main import run as cli
from strandline.core.errors import ConfigError, RefusedError, StorageError
from strandline.core.records.reconcile_records import AbortReason, SweptState
from strandline.iceberg.schema.alteration import AddColumn
from strandline.iceberg.schema.columns import Primitive
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.reconcile.model import Finding, FindingKind, Protection
from tests.reconcile.buckets import put_object
from tests.reconcile.whole_lakes import ACT, COLUMNS, REPORT, WholeLake, write_settings
from tests.rest_catalog import RestCatalog, RestCatalogs
from tests.servers import S3, free_port
from tests.sinks.http_faults import Answer, Cut, Fault, FaultyStore, Twice, faulty_store

COMMIT = "/v1/namespaces/default/tables/events"
FAULTS = {
    "cut after": Cut(after=True),
    "cut before": Cut(after=False),
    "504 after": Answer(504, "gateway", after=True),
    "429 after": Answer(429, "slow down", after=True),
    "a page after": Answer(200, "welcome", after=True),
    "503": Answer(503, "busy"),
    "twice": Twice(),
}
named = pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())


class Between(WholeLake):
    """A lake in a bucket whose way to the catalog can be made faulty."""

    def __init__(self, home: Path, catalog: RestCatalog, s3: S3, way: FaultyStore) -> None:
        super().__init__(home, catalog.settings(way.port), deletes_max_share=1.0)
        self.way, self.s3, self.bucket = way, s3, catalog.warehouse["url"].split("/")[2]

    def stray(self, name: str) -> Path:
        return self.on_disk(put_object(self.s3, self.bucket, f"lake/default/events/data/{name}", b"orphan"))

    def on_disk(self, path: str) -> Path:
        return self.s3.server.folder / "data" / path.removeprefix("s3://")

    def live(self) -> list[Path]:
        return [self.on_disk(path) for path in self.data_files()]


@pytest.fixture(scope="module")
def lake(rest_catalogs: RestCatalogs, s3: S3, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Between]:
    catalog = rest_catalogs.take(bucket=True)
    with faulty_store(catalog.port) as way:
        made = Between(tmp_path_factory.mktemp("between"), catalog, s3, way)
        yield made
        made.lake.close()


@pytest.fixture(autouse=True)
def _healed(lake: Between) -> Iterator[None]:
    yield
    lake.way.heal()


def test_drift_in_a_bucket_is_found_repaired_and_undone_and_what_others_have_there_is_left_alone(
    lake: Between,
) -> None:
    for _ in range(3):
        lake.append()
    before = lake.count()
    theirs = load_catalog("theirs", **lake.lake.catalog._catalog.properties)
    theirs.create_namespace_if_not_exists("other")
    other = theirs.create_table("other.table", pa.schema([("v", pa.int64())]))
    other.append(pa.table({"v": [1, 2, 3]}))
    gone, *kept = lake.live()
    stray = lake.stray("stray.parquet")
    time.sleep(1.1)  # a bucket's times are whole seconds
    found: list[Finding] = []
    lake.way.seen.clear()
    report = lake.run(REPORT, on_finding=found.append)
    assert lake.way.seen and not any(asked.startswith(("POST", "DELETE")) for asked in lake.way.seen)
    assert report.aborted is None and not report.outcome.partial and stray.exists()
    assert [(f.kind, lake.on_disk(f.path), f.protected) for f in found] == [(FindingKind.ORPHAN, stray, None)]
    run = lake.run(ACT)
    assert (run.aborted, run.outcome.done.missing, run.outcome.done.orphans) == (None, 0, 1)
    gone.unlink()
    dropped = lake.run(ACT)
    assert (dropped.aborted, dropped.outcome.done.missing) == (None, 1)
    assert lake.count() == before - 3 and not stray.exists() and all(path.exists() for path in kept)
    assert theirs.load_table("other.table").scan().to_arrow().num_rows == 3
    assert lake.lake.reconciler.restore(run.id).restored == 1 and stray.read_bytes() == b"orphan"
    stray.unlink()


@pytest.mark.parametrize(
    "fault", [Cut(after=True), Cut(after=False), Twice()], ids=["cut after", "cut before", "twice"]
)
def test_entries_are_dropped_once_whatever_becomes_of_the_answer(lake: Between, fault: Fault) -> None:
    lake.append()
    lake.append()
    before, [gone, *kept] = lake.count(), lake.live()
    gone.unlink()
    lake.way.fail(fault, "POST", COMMIT)
    run = lake.run(ACT)
    assert lake.way.fired == 1
    if run.aborted is not None:
        assert run.aborted is AbortReason.COMMIT_FAILED and run.outcome.done.missing == 0
        assert "unknown whether" in (run.why or ""), run
        lake.run(ACT)
    after = lake.run(REPORT)
    assert after.outcome.planned.missing == 0 and not after.outcome.partial, (
        "it is in history only, and all of it is read"
    )
    assert lake.count() == before - 3 and all(path.exists() for path in kept)


def test_a_catalog_that_goes_away_ends_a_run_with_a_reason_and_nothing_is_touched(
    lake: Between, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.append()
    stray = lake.stray("left.parquet")
    gone = lake.live()[0]
    away = gone.rename(gone.with_name("away.bin"))
    time.sleep(1.1)
    monkeypatch.chdir(lake.home)
    lake.way.fail(Cut(after=False), "GET", times=1000)
    assert cli(["reconcile", "--act", "--yes", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["aborted"] is not None and "cannot be reached" in told["why"], told
    lake.way.heal()
    lake.way.fail(Answer(503, "busy"), "GET", COMMIT, times=1000)  # tables are listed, and none can be loaded
    assert cli(["reconcile", "--act", "--yes", "--json"]) in (1, 3, 4)
    told = json.loads(capsys.readouterr().out)
    assert told["partial"] or told["aborted"], told
    lake.way.heal()
    assert stray.exists() and lake.live()[0] == gone
    away.rename(gone)
    stray.unlink()


@named
def test_a_change_of_the_schema_is_made_once_whatever_becomes_of_the_answer(lake: Between, fault: Fault) -> None:
    names = [field.name for field in lake.table().schema().fields]
    added = f"c{len(names)}"
    lake.way.fail(fault, "POST", COMMIT)
    lake.lake.catalog.alter("default.events", [AddColumn(added, Primitive("string"))])
    assert lake.way.fired == 1
    assert [field.name for field in lake.table().schema().fields] == [*names, added]


@pytest.mark.parametrize("after", [True, False])
def test_a_dataset_whose_creation_was_not_answered_is_created_again_as_the_same(
    rest_catalogs: RestCatalogs, tmp_path: Path, after: bool
) -> None:
    catalog = rest_catalogs.take()
    with faulty_store(catalog.port) as way:
        write_settings(tmp_path, catalog.settings(way.port))
        with strandline.init_lake(tmp_path) as lake:
            way.fail(Cut(after=after), "POST", "/tables")
            with pytest.raises(StorageError) as lost:
                lake.create_dataset("events", parse_columns(COLUMNS))
            assert way.fired == 1 and lost.value.retryable and "catalog.uri" in (lost.value.hint or "")
            made = lake.create_dataset("events", parse_columns(COLUMNS))
            assert str(lake.catalog.load("events").metadata.table_uuid) == made.table_uuid


def test_on_a_disk_of_its_own_a_machine_acts_on_the_files_of_tables_that_are_there(
    rest_catalogs: RestCatalogs, tmp_path: Path
) -> None:
    lake = WholeLake(tmp_path / "lake", rest_catalogs.take().settings(), deletes_max_share=1.0, delete_foreign=True)
    lake.append()
    lake.append()
    stray, gone = Path(lake.put("stray.parquet")), Path(lake.data_files()[0])
    unknown = Path(lake.put("../../left/data/stray.parquet")).resolve()
    found: list[Finding] = []
    run = lake.run(ACT, on_finding=found.append)
    assert run.aborted is None and run.outcome.done.orphans == 1 and not stray.exists(), run
    assert {f.path: f.protected for f in found}[str(unknown)] is Protection.ORIGIN and unknown.exists()

    # Another machine, which has nothing of it: neither its runs nor its files are anybody's there.
    mark = lake.warehouse / "_strandline" / "folder-id"
    own = mark.read_text()
    away = lake.warehouse.rename(tmp_path / "away")
    not_there = shutil.ignore_patterns("folder-id", "quarantine")
    shutil.copytree(away / "_strandline", lake.warehouse / "_strandline", ignore=not_there)
    other = Path(lake.put("stray.parquet"))
    there = lake.run(ACT)
    assert there.aborted is None and there.outcome.done.orphans == 0 and other.exists(), there
    assert mark.read_text() != own and set(lake.states(run.id).values()) == {SweptState.HELD}
    with pytest.raises(RefusedError, match="this machine does not have"):
        lake.lake.reconciler.restore(run.id)
    shutil.rmtree(lake.warehouse)
    away.rename(lake.warehouse)

    assert lake.lake.reconciler.restore(run.id).restored == 1 and stray.exists()
    gone.unlink()
    found.clear()
    run = lake.run(ACT, on_finding=found.append)
    assert {f.protected for f in found if f.kind is FindingKind.MISSING} == {Protection.ORIGIN}
    assert run.outcome.done.missing == run.outcome.done.orphans == 0 and str(gone) in lake.data_files()
    [told] = lake.lake.status().datasets
    assert (told.rows, told.sealed, told.problem) == (6, 6, None)
    lake.lake.close()


def test_an_address_where_no_catalog_answers_is_said_so(tmp_path: Path, s3: S3) -> None:
    def opened(uri: str) -> Any:
        write_settings(tmp_path, {"catalog": {"kind": "rest", "uri": uri}})
        return strandline.open(tmp_path)

    with strandline.init_lake(tmp_path):
        pass
    with pytest.raises(ConfigError, match=r"begins with http://"):
        opened("localhost:8181")
    for uri, said in ((f"http://127.0.0.1:{free_port()}", "cannot be reached"), (s3.endpoint, "catalog")):
        with opened(uri) as lake:
            with pytest.raises(StorageError, match=said) as away:
                lake.create_dataset("events", parse_columns(COLUMNS))
            assert "\n" not in away.value.message and "catalog" in (away.value.hint or "")
