"""A lake on a real REST catalog, through Spark: the whole walk, beyond one machine too, and commits whose answer is
lost on the way, or that arrive twice. Each row is there once, and no table loses a file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import strandline
from strandline import Lake
from strandline.core.errors import CommitUnknown, FailedError, RefusedError, StorageError, StrandlineError, Superseded
from strandline.core.types import BRANCH_PREFIX
from strandline.iceberg.spark import floor, maintenance, row_delete
from strandline.read.read_files import RowsOfFiles
from tests.conftest import MakeHome
from tests.reconcile.buckets import put_object
from tests.reconcile.no_grace import NO_GRACE_HOURS
from tests.rest_catalog import RestCatalogs
from tests.servers import S3, Postgres
from tests.sinks.http_faults import Answer, Cut, Fault, FaultyStore, Twice, faulty_store
from tests.spark.deliveries import in_folder, make_lake
from tests.spark.lakes import create, in_main, numbers, open_blocks, sql, status, values
from tests.spark.shore import CARE, Shore

TABLES = "/v1/namespaces/default/tables"
AT_ONCE = {"grace_hours": NO_GRACE_HOURS, "clock_skew_seconds": 0, "deletes_max_share": 1.0}


def whole(lake: Lake) -> None:
    """Everything that the tables reach is there."""
    run = lake.reconcile()
    assert run.aborted is None and not run.outcome.partial and run.outcome.found.missing == 0, run


def test_a_lake_in_a_bucket_with_its_ledger_in_postgresql_goes_the_whole_way(
    rest_catalogs: RestCatalogs, postgres_server: Postgres, s3: S3, tmp_path: Path, make_home: MakeHome
) -> None:
    """Nothing of it is bound to one machine."""
    settings: dict[str, Any] = CARE | rest_catalogs.take(bucket=True).settings() | {"reconcile": AT_ONCE}
    settings["ledger"] = {"url": postgres_server.create_database()}
    with make_lake(tmp_path / "lake", make_home, settings) as lake:
        shore = Shore(lake)
        shore.add(in_folder(tmp_path / "out"), chunk_rows_max="8")
        shore.ingest(10)
        shore.ingest(20)
        assert lake.sealed("events") == 30
        some = lake.read_since("events", limit=12)
        assert [row["n"] for row, _ in some] == list(range(1, 13))
        assert values(lake, "events", some.continuation) == list(range(13, 31))
        few = lake.read_lines("events", limit=12)
        assert isinstance(few, RowsOfFiles)  # without Spark
        assert (list(few.lines()), few.continuation) == (list(some.lines()), some.continuation)
        shore.deliver()
        shore.compact()
        shore.ingest(5)
        shore.deliver()
        shore.is_whole()
        shore.expire()
        assert [n for _, n in in_main(lake, "events")] == list(range(1, 36))
        told = status(lake, "events")
        assert (told.rows, told.sealed, told.open_blocks, told.foreign, told.problem) == (35, 35, 0, 0, None)
        whole(lake)
        _sweep(lake, s3)
        shore.retain()
        assert shore.left() == [] and lake.sealed("events") == 35


def _sweep(lake: Lake, s3: S3) -> None:
    """What Spark wrote there, and what anyone put beside it."""
    bucket = lake.config.settings.warehouse.url.split("/")[2]
    stray = s3.server.folder / "data" / put_object(s3, bucket, "lake/default/events/data/x.parquet", b"x")[5:]
    sql(lake, "CREATE NAMESPACE IF NOT EXISTS lake.other")
    sql(lake, "CREATE TABLE lake.other.theirs (v long) USING iceberg")
    sql(lake, "INSERT INTO lake.other.theirs VALUES (1)")
    time.sleep(1.1)  # a bucket's times are whole seconds
    run = lake.reconcile(act=True)
    assert (run.aborted, run.outcome.done.orphans, run.outcome.found.missing) == (None, 1, 0) and not stray.exists()
    assert sql(lake, "SELECT v FROM lake.other.theirs")[0][0] == 1
    assert lake.reconciler.restore(run.id).restored == 1 and stray.exists()


class Between:
    """A lake whose way to the catalog can be made faulty."""

    def __init__(self, lake: Lake, way: FaultyStore) -> None:
        self.lake, self.way = lake, way
        self.rows: dict[str, int] = {}

    def create(self) -> str:
        """Into an empty table a block comes by a snapshot of its own, with files that nothing else has."""
        name = f"events{len(self.rows)}"
        create(self.lake, name, {"n": "long"})
        self.rows[name] = 0
        return name

    def fail(self, fault: Fault, name: str, nth: int = 0) -> None:
        """The nth commit from here on."""
        self.way.heal()
        self.way.fail(fault, "POST", f"/tables/{name}", after=nth)

    def append(self, name: str) -> None:
        lo, self.rows[name] = self.rows[name] + 1, self.rows[name] + 10
        batch = numbers(self.lake, lo, self.rows[name])
        try:
            self.lake.append(name, batch, batch_id=f"from {lo}")
        except StorageError as e:  # it did not land, and that is known: whoever sent it comes again with the same batch
            assert e.retryable and self.way.fired == 1
            self.lake.append(name, batch, batch_id=f"from {lo}")

    def is_sound(self, *names: str) -> None:
        for name in names:
            assert sorted(n for _, n in in_main(self.lake, name)) == list(range(1, self.rows[name] + 1)), name
            assert open_blocks(self.lake, name) == [] and not self.lake.tables().view(f"default.{name}").branches
        whole(self.lake)

    def meanwhile(self, name: str, nth: int, then: Callable[[], object]) -> list[str]:
        """Before the catalog gets the nth commit. What was done is in the list."""
        commits, done = list[str](), list[str]()

        def look(method: str, path: str) -> None:
            if method == "POST" and path == f"{TABLES}/{name}":
                commits.append(path)
                if len(commits) == nth + 1:
                    self.way.before = None
                    then()
                    done.append(path)

        self.way.heal()
        self.way.before = look
        return done


@pytest.fixture(scope="module")
def between(
    rest_catalogs: RestCatalogs, tmp_path_factory: pytest.TempPathFactory, make_home: MakeHome
) -> Iterator[Between]:
    """In a folder. Nothing is reported to the catalog: what is posted to a table is a commit."""
    catalog, home = rest_catalogs.take(), tmp_path_factory.mktemp("between")
    with faulty_store(catalog.port) as way:
        settings = CARE | catalog.settings(way.port) | {"reconcile": AT_ONCE}
        settings["catalog"] |= {"options": {"rest-metrics-reporting-enabled": "false"}}
        settings["ingest"] = CARE["ingest"] | {"commit_attempts_max": 4}
        make_home(home, settings)
        with strandline.init_lake(home) as lake:
            yield Between(lake, way)


@pytest.fixture(autouse=True)
def _healed(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "between" in request.fixturenames:
        request.getfixturevalue("between").way.heal()


BRANCH, ROWS, MAIN = 0, 1, 2
"""The commits of an append."""


@pytest.mark.parametrize(
    ("fault", "commits"),
    [
        (Twice(), (BRANCH, ROWS, MAIN)),
        (Cut(after=True), (BRANCH, ROWS, MAIN)),
        (Cut(after=False), (ROWS, MAIN)),
        (Answer(504, "gateway", after=True), (MAIN,)),
        # Iceberg's client then sends the commit again by itself.
        (Answer(503, "busy", (("Retry-After", "1"),), after=True), (MAIN,)),
    ],
    ids=["twice", "cut after", "cut before", "504 after", "503 after, come again"],
)
def test_whatever_becomes_of_a_commit_on_its_way_the_rows_are_there_once_and_no_file_is_lost(
    between: Between, fault: Fault, commits: tuple[int, ...]
) -> None:
    names = [between.create() for _ in commits]
    for nth, name in zip(commits, names, strict=True):
        between.fail(fault, name, nth)
        between.append(name)
        assert between.way.fired == 1, nth
        assert not any(asked.endswith("/metrics") for asked in between.way.seen), "an option of the settings"
    between.is_sound(*names)


@pytest.mark.parametrize("fault", [Twice(), Cut(after=True)], ids=["twice", "cut after"])
def test_files_that_were_written_anew_are_in_the_table_whatever_becomes_of_the_commit(
    between: Between, fault: Fault
) -> None:
    name = between.create()
    between.append(name)
    between.append(name)
    files = len(sql(between.lake, f"SELECT * FROM lake.default.{name}.files"))
    between.fail(fault, name)
    between.lake.maintenance.compact(name)
    assert between.way.fired == 1
    assert len(sql(between.lake, f"SELECT * FROM lake.default.{name}.files")) < files
    between.fail(fault, name)
    with pytest.raises(RefusedError, match="could destroy the table"):
        maintenance.rewrite_manifests(between.lake.tables(), f"default.{name}")
    assert between.way.fired == 0
    between.is_sound(name)


def test_a_purge_of_which_every_commit_arrives_twice_takes_its_rows_and_no_live_file(between: Between) -> None:
    name = between.create()
    sql(between.lake, f"ALTER TABLE lake.default.{name} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    between.append(name)
    between.append(name)
    sql(between.lake, f"DELETE FROM lake.default.{name} WHERE n = 20")
    between.way.heal()
    between.way.fail(Twice(), "POST", f"/tables/{name}", times=1000)
    done = between.lake.maintenance.purge(name, "n = 19").result
    assert between.way.fired >= 2 and done.deleted_rows == 1
    between.way.heal()
    between.rows[name] = 18
    between.is_sound(name)


def test_a_delete_whose_epoch_is_over_before_its_commit_arrives_deletes_nothing(between: Between) -> None:
    """As a purge that a promotion gave up, by a process that stood still. The catalog compares main alone."""
    name, tables = between.create(), between.lake.tables()
    between.append(name)
    epoch = tables.view(f"default.{name}").epoch
    done = between.meanwhile(name, 0, lambda: tables.raise_epoch(f"default.{name}", epoch + 1))
    with pytest.raises(Superseded, match=f"epoch {epoch + 1}, ours is {epoch}"):
        row_delete.delete(tables, f"default.{name}", "n IN (3, 7)", epoch=epoch)
    assert len(done) == 1
    between.is_sound(name)


@pytest.mark.parametrize(
    "fault",
    [Twice(), Cut(after=True), Cut(after=False), Answer(503, "busy", (("Retry-After", "1"),), after=True)],
    ids=["twice", "cut after", "cut before", "503 after, come again"],
)
def test_a_delete_of_its_epoch_takes_its_rows_and_no_live_file_whatever_becomes_of_its_commit(
    between: Between, fault: Fault
) -> None:
    """Its own success that comes back as a conflict is read back, and is no other ledger's."""
    name, tables = between.create(), between.lake.tables()
    between.append(name)
    between.append(name)
    between.fail(fault, name)
    row_delete.delete(tables, f"default.{name}", "n = 20", epoch=tables.view(f"default.{name}").epoch)
    assert between.way.fired == 1
    between.rows[name] = 19
    between.is_sound(name)


def test_snapshots_that_were_expired_without_an_answer_are_expired_and_nothing_else_is(between: Between) -> None:
    name = between.create()
    between.append(name)
    between.append(name)
    between.fail(Cut(after=True), name)
    with pytest.raises(StorageError, match="does not answer"):
        between.lake.maintenance.expire(name, older_than=timedelta(0), keep_min=1)
    between.lake.maintenance.expire(name, older_than=timedelta(0), keep_min=1)
    assert len(sql(between.lake, f"SELECT * FROM lake.default.{name}.snapshots")) == 1
    between.is_sound(name)


def test_a_snapshot_that_main_is_set_back_to_while_it_is_expired_keeps_its_files(between: Between) -> None:
    """Nothing is compared for such a commit, and main goes with the snapshot. But not its files."""
    name = between.create()
    between.append(name)
    first = between.lake.tables().view(f"default.{name}").main
    between.append(name)
    back = f"CALL lake.system.rollback_to_snapshot('default.{name}', {first})"
    done = between.meanwhile(name, 0, lambda: sql(between.lake, back))
    files = [row[0] for row in sql(between.lake, f"SELECT file_path FROM lake.default.{name}.files")]
    with pytest.raises(FailedError, match="with them main, which somebody set back"):
        between.lake.maintenance.expire(name, older_than=timedelta(0), keep_min=1)
    assert len(done) == 1 and all(Path(file.removeprefix("file:")).exists() for file in files) and len(files) > 1


def test_a_block_that_is_published_while_snapshots_are_expired_is_no_reference_that_was_lost(between: Between) -> None:
    """With the commit that publishes it its branch goes."""
    name, tables = between.create(), between.lake.tables()
    between.append(name)
    between.append(name)
    tables.create_branch(f"default.{name}", branch := f"{BRANCH_PREFIX}0")
    done = between.meanwhile(name, 0, lambda: tables.remove_branch(f"default.{name}", branch))
    maintenance.expire_snapshots(tables, f"default.{name}", cutoff_ms=int(time.time() * 1000), keep_min=1)
    assert len(done) == 1 and len(sql(between.lake, f"SELECT * FROM lake.default.{name}.snapshots")) == 1
    between.is_sound(name)


def test_a_catalog_that_goes_away_while_a_block_is_published_leaves_it_to_be_settled(between: Between) -> None:
    name = between.create()
    between.meanwhile(name, 2, lambda: between.way.fail(Cut(after=False), "GET", times=1000))
    between.way.fail(Cut(after=True), "POST", f"/tables/{name}", after=2)
    between.rows[name] = 10
    with pytest.raises(CommitUnknown) as unknown:
        between.lake.append(name, numbers(between.lake, 1, 10), batch_id="unknown")
    assert unknown.value.retryable and len(open_blocks(between.lake, name)) == 1, "it is neither lost nor given up"
    with pytest.raises(StorageError) as away:
        between.lake.append(name, numbers(between.lake, 11, 13))
    assert "catalog.uri" in (away.value.hint or "")
    told = status(between.lake, name)
    assert told.rows is None and told.open_blocks == 1 and "cannot be reached" in (told.problem or ""), told
    between.way.heal()
    between.lake.recover()
    assert between.lake.append(name, numbers(between.lake, 1, 10), batch_id="unknown").duplicate
    between.is_sound(name)


def test_rows_that_there_were_before_get_their_numbers_though_the_commit_comes_twice(between: Between) -> None:
    lake = between.lake
    sql(lake, "CREATE TABLE lake.default.older (n long) USING iceberg")
    sql(lake, "INSERT INTO lake.default.older SELECT id + 1 FROM range(10)")
    between.rows["older"] = 10
    between.fail(Twice(), "older", nth=2)
    lake.adopt_dataset("older")
    assert between.way.fired == 1 and None not in dict(in_main(lake, "older"))
    between.is_sound("older")


def test_a_block_whose_branch_is_taken_away_before_its_commit_arrives_is_not_published(between: Between) -> None:
    """A catalog of this kind compares main alone, and that is as it was."""
    name, tables = between.create(), between.lake.tables()

    def take_away() -> None:
        [branch] = tables.view(f"default.{name}").branches
        # As another process: threads of this one commit to a table one after the other.
        sql(between.lake, f"ALTER TABLE lake.default.{name} DROP BRANCH {branch}")

    done = between.meanwhile(name, 2, take_away)
    with pytest.raises(StrandlineError):
        between.lake.append(name, numbers(between.lake, 1, 10))
    assert len(done) == 1 and in_main(between.lake, name) == []


def test_a_ledger_that_was_superseded_before_its_commit_arrives_publishes_nothing(between: Between) -> None:
    """The commit of the epoch changes a property, which a catalog of this kind does not compare."""
    name, tables = between.create(), between.lake.tables()
    epoch = tables.view(f"default.{name}").epoch
    done = between.meanwhile(name, 2, lambda: tables.raise_epoch(f"default.{name}", epoch + 1))
    with pytest.raises(Superseded):
        between.lake.append(name, numbers(between.lake, 1, 10))
    assert len(done) == 1 and in_main(between.lake, name) == []
    assert tables.view(f"default.{name}").epoch == epoch + 1


def test_what_iceberg_commits_by_itself_deletes_nothing_from_a_bucket_though_the_commit_comes_twice(
    rest_catalogs: RestCatalogs, tmp_path: Path, make_home: MakeHome
) -> None:
    catalog = rest_catalogs.take(bucket=True)
    with faulty_store(catalog.port) as way:
        settings = CARE | catalog.settings(way.port) | {"reconcile": AT_ONCE}
        settings["catalog"] |= {"options": {"rest-metrics-reporting-enabled": "false"}}
        make_home(tmp_path, settings)
        with strandline.init_lake(tmp_path) as lake:
            between = Between(lake, way)
            name = between.create()
            between.append(name)
            between.append(name)
            between.fail(Twice(), name)
            floor.delete(lake.tables(), f"default.{name}", "n = 3")
            assert way.fired == 1 and len(in_main(lake, name)) == 19
            between.fail(Twice(), name)
            with pytest.raises(CommitUnknown, match="cannot be rewritten, or the change landed"):
                maintenance.rewrite_manifests(lake.tables(), f"default.{name}")
            assert way.fired == 1 and len(in_main(lake, name)) == 19
            whole(lake)
