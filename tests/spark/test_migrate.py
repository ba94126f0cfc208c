"""A lake that moves from a folder, an embedded catalog and SQLite to a bucket, another catalog and another ledger.
Readers' tokens, consumers and deliveries go on: each row once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import strandline
from strandline.core import failpoints
from strandline.core.errors import LedgerMoved, RefusedError, StorageError, WitnessUnreadable
from strandline.core.forward_protocol import KeyIdentity
from strandline.core.settings.lake_config import CONFIG_NAME
from strandline.lake_admin import rebuild_ledger
from strandline.ledger.receive import received
from strandline.ledger.receive.received import UnrecordedBody
from strandline.migrate.plan import MigrateStep
from strandline.migrate.run import Migration, call_off
from strandline.migrate.table_copy import TableCopy
from tests.conftest import MakeHome, toml_of
from tests.rest_catalog import RestCatalogs
from tests.servers import S3, Postgres
from tests.spark import bodies
from tests.spark.deliveries import LEASE_SECONDS, in_folder, in_table, make_lake
from tests.spark.lakes import create, in_main, sql, status, values
from tests.spark.shore import CARE, Shore
from tests.spark.sinks import armed

Settings = dict[str, dict[str, Any]]


def settings_to(home: Path, settings: Mapping[str, Mapping[str, Any]], name: str = "new.toml") -> Path:
    given = {k: dict(v) for k, v in settings.items()}
    given["deliver"] = {"lease_seconds": LEASE_SECONDS}
    path = home / name
    path.write_text(toml_of(CARE | given), "utf-8")
    return path


def in_bucket(s3: S3, **catalog: Any) -> Settings:
    """Files in a bucket, and the rest in files of other names."""
    keys = {"endpoint": s3.endpoint, "access_key": s3.access_key, "secret_key": s3.secret_key}
    return {
        "warehouse": {"url": f"s3://{s3.make_bucket()}/some/lake", **keys},
        "catalog": catalog or {"path": "catalog-2.db"},
        "ledger": {"url": "ledger-2.db"},
    }


def shore_of(lake: strandline.Lake, rows: int, before: Shore | None = None) -> Shore:
    """The same lake at another place, with the sinks that it had."""
    shore = Shore(lake)
    shore.rows = rows
    if before is not None:
        shore.sinks, shore.known = before.sinks, before.known
    return shore


def snapshots_and_refs(lake: strandline.Lake) -> list[Any]:
    table = lake.catalog.load("default.events")
    refs = {name: (ref.snapshot_id, ref.snapshot_ref_type) for name, ref in table.metadata.refs.items()}
    log = [(s.snapshot_id, s.parent_snapshot_id, s.timestamp_ms, s.summary) for s in table.metadata.snapshots]
    return [table.metadata.table_uuid, refs, log, dict(table.properties), table.schema(), table.spec()]


def whole(lake: strandline.Lake) -> None:
    """Everything that the tables reach is there."""
    run = lake.reconcile()
    assert run.aborted is None and not run.outcome.partial and run.outcome.found.missing == 0, run


def test_a_lake_outgrows_one_machine_and_each_row_is_there_once(
    rest_catalogs: RestCatalogs, postgres_server: Postgres, s3: S3, tmp_path: Path, make_home: MakeHome
) -> None:
    """From files to PostgreSQL, a bucket and a REST catalog."""
    home = tmp_path / "lake"
    with make_lake(home, make_home, CARE, by_lane=True) as lake:
        shore = Shore(lake)
        shore.add(in_folder(tmp_path / "out"), chunk_rows_max="8")
        shore.add(in_table(postgres_server.create_database()), chunk_rows_max="8")
        shore.ingest(10)
        shore.ingest(20)
        shore.deliver()
        shore.compact()
        shore.ingest(5)  # which no sink has
        sql(lake, "ALTER TABLE lake.default.events CREATE TAG kept")
        sql(lake, "CREATE NAMESPACE lake.shop.deep")
        sql(lake, "CREATE TABLE lake.shop.deep.theirs (v long, p string) USING iceberg PARTITIONED BY (p)")
        sql(lake, "INSERT INTO lake.shop.deep.theirs VALUES (1, 'a b=c'), (2, 'ä/ö')")
        some = lake.read_since("events", limit=12)
        first = [row["n"] for row, _ in some]
        before = snapshots_and_refs(lake)
        catalog = rest_catalogs.take(bucket=True).settings()
        to = settings_to(home, catalog | {"ledger": {"url": postgres_server.create_database()}})

        migration = Migration(home / CONFIG_NAME, to)
        plan = migration.run(dry_run=True)
        assert plan.obstacles == () and plan.tables == ("default.events", "shop.deep.theirs") and plan.files > 10
        assert plan.steps == tuple(MigrateStep)
        done = migration.run()
        assert (done.tables, done.files, done.bytes) == (plan.tables, plan.files, plan.bytes)
        with pytest.raises(LedgerMoved, match="was moved to postgresql"):
            lake.read_since("events")
        with pytest.raises(LedgerMoved, match="was moved to postgresql"):
            lake.append("events", lake.spark.sql("SELECT 1L AS n, 'x' AS k"))
    with strandline.open(home) as lake:
        assert not lake.ledger.is_sqlite and lake.config.settings.catalog.kind == "rest"
        after = snapshots_and_refs(lake)
        assert after == before
        assert values(lake, "events", some.continuation) == [n for n in range(1, 36) if n not in first]
        moved = shore_of(lake, 35, shore)
        moved.deliver()
        moved.ingest(7)
        moved.deliver()
        moved.is_whole()
        moved.compact()
        moved.expire()
        assert [n for _, n in in_main(lake, "events")] == list(range(1, 43))
        assert sorted(tuple(r) for r in sql(lake, "SELECT v, p FROM lake.shop.deep.theirs")) == [
            (1, "a b=c"),
            (2, "ä/ö"),
        ]
        told = status(lake, "events")
        assert (told.rows, told.sealed, told.open_blocks, told.problem) == (42, 42, 0, None)
        whole(lake)
    again = Migration(home / CONFIG_NAME, to).run()
    assert again.steps == () and again.resumed


OF_A_MOVE = [point for point in failpoints.POINTS if point.startswith("move.")]
BEHIND_THE_COMMIT_POINT = OF_A_MOVE[OF_A_MOVE.index("move.after_leave") :]


@dataclass(frozen=True)
class HalfMoved:
    """A lake whose migration dies again and again, each time at a later step."""

    lake: strandline.Lake  # of the old settings, closed
    shore: Shore
    to: Path
    token: str
    before: list[Any]

    @property
    def settings(self) -> Path:
        return self.lake.config.home / CONFIG_NAME


@pytest.fixture(scope="module")
def half_moved(
    s3: S3, spark_started: object, tmp_path_factory: pytest.TempPathFactory, make_home: MakeHome
) -> HalfMoved:
    folder = tmp_path_factory.mktemp("half moved")
    with make_lake(folder / "lake", make_home, CARE) as lake:
        shore = Shore(lake)
        shore.add(in_folder(folder / "out"), chunk_rows_max="8")
        shore.ingest(10)
        shore.deliver()
        shore.ingest(5)
        some = lake.read_since("events", limit=4)
        assert len(list(some)) == 4
        before = snapshots_and_refs(lake)
    return HalfMoved(lake, shore, settings_to(folder / "lake", in_bucket(s3)), some.continuation, before)


@pytest.mark.parametrize("point", OF_A_MOVE)
def test_a_migration_that_dies_at_any_step_closes_the_lake_until_it_goes_on(
    half_moved: HalfMoved, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = half_moved.settings.read_bytes()
    with armed(monkeypatch, f"{point}=fail"), pytest.raises(failpoints.FailpointError, match=point):
        Migration(half_moved.settings, half_moved.to).run()
    if point == OF_A_MOVE[-1]:
        assert half_moved.settings.read_bytes() == half_moved.to.read_bytes()
        return
    assert half_moved.settings.read_bytes() == old
    with pytest.raises(LedgerMoved), strandline.open(half_moved.lake.config.home):  # nobody with the old settings
        pass
    if point in BEHIND_THE_COMMIT_POINT:
        with pytest.raises(LedgerMoved, match="was moved to"):
            call_off(half_moved.settings)
    with pytest.raises((LedgerMoved, WitnessUnreadable), match="moved to"):
        rebuild_ledger(half_moved.lake.config, force=True)


def test_a_migration_that_died_at_every_step_loses_and_repeats_nothing(half_moved: HalfMoved) -> None:
    Migration(half_moved.settings, half_moved.to).run()
    assert Migration(half_moved.settings, half_moved.to).run().steps == ()
    with strandline.open(half_moved.lake.config.home) as lake:
        assert snapshots_and_refs(lake) == half_moved.before
        assert values(lake, "events", half_moved.token) == list(range(5, 16))
        moved = shore_of(lake, 15, half_moved.shore)
        moved.ingest(5)
        moved.deliver()
        moved.is_whole()
        whole(lake)


@pytest.mark.parametrize("point", ["move.after_close", "move.after_tables", "move.after_old_catalog"])
def test_a_migration_that_is_called_off_leaves_the_lake_where_it_was_and_can_begin_again(
    point: str, s3: S3, tmp_path: Path, make_home: MakeHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "lake"
    with make_lake(home, make_home, CARE) as lake:
        shore = Shore(lake)
        shore.ingest(10)
    to = settings_to(home, in_bucket(s3))
    with armed(monkeypatch, f"{point}=fail"), pytest.raises(failpoints.FailpointError):
        Migration(home / CONFIG_NAME, to).run()
    tables = call_off(home / CONFIG_NAME)
    assert tables == (["default.events"] if point == "move.after_old_catalog" else [])
    with strandline.open(home) as lake:
        on = shore_of(lake, 10)
        on.ingest(5)
        on.compact()
        assert [n for _, n in in_main(lake, "events")] == list(range(1, 16))
    report = Migration(home / CONFIG_NAME, to).run()
    assert not report.resumed
    with strandline.open(home) as lake:
        assert [n for _, n in in_main(lake, "events")] == list(range(1, 16))
        shore_of(lake, 15).ingest(5)
        assert values(lake, "events") == list(range(1, 21))
        whole(lake)


def test_what_a_receiver_took_comes_along_and_its_keys_are_known(s3: S3, tmp_path: Path, make_home: MakeHome) -> None:
    """A body in the spool, and one that is in the table already."""
    home, at_once = tmp_path / "lake", {"receive": {"batch_wait_seconds_max": 0}}
    with make_lake(home, make_home, CARE | at_once) as lake:
        create(lake, "bodies", {"n": "long"})
        sender = bodies.Sender(lake, "bodies")
        sender.bring([1, 2], KeyIdentity("first"))
        assert [report.did for report in sender.ingest()] == ["ingested"]
        waiting = sender.bring([3, 4], KeyIdentity("second"))
        assert waiting is not None
    Migration(home / CONFIG_NAME, settings_to(home, in_bucket(s3) | at_once)).run()
    with strandline.open(home) as lake:
        for key in ("first", "second"):
            body = UnrecordedBody(sender.dataset.id, KeyIdentity(key), sender.token.id, 2, "other", 100, "spool", 1)
            [decided] = received.record(lake.ledger, [body])
            assert not isinstance(decided, received.New), decided
        assert [report.did for report in bodies.ingest(lake)] == ["ingested"]
        assert sorted(n for _, n in in_main(lake, "bodies")) == [1, 2, 3, 4]


def test_tables_go_to_a_rest_catalog_and_their_files_stay(
    rest_catalogs: RestCatalogs, tmp_path: Path, make_home: MakeHome
) -> None:
    home, catalog = tmp_path / "lake", rest_catalogs.take()
    settings = catalog.settings()
    with make_lake(home, make_home, CARE | {"warehouse": settings["warehouse"]}) as lake:
        shore = Shore(lake)
        shore.add(in_folder(tmp_path / "out"), chunk_rows_max="8")
        shore.ingest(10)
        shore.deliver()
        before = snapshots_and_refs(lake)
        to = settings_to(home, settings | {"ledger": {"url": "ledger-2.db"}})
        report = Migration(home / CONFIG_NAME, to).run()
        assert (report.tables, report.files, report.warehouse) == (("default.events",), 0, None)
        with pytest.raises(LedgerMoved):
            lake.read_since("events")
        with pytest.raises(Exception, match="TABLE_OR_VIEW_NOT_FOUND"):  # who asks no ledger cannot commit either
            sql(lake, "INSERT INTO lake.default.events SELECT 99L, 99L, 'x'")
    with strandline.open(home) as lake:
        assert snapshots_and_refs(lake) == before
        moved = shore_of(lake, 10, shore)
        moved.ingest(5)
        moved.deliver()
        moved.is_whole()
        whole(lake)


def test_a_program_that_does_not_ask_the_ledger_and_commits_meanwhile_is_noticed(
    s3: S3, tmp_path: Path, make_home: MakeHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the tables leave the old catalog: its rows come along. Behind that it can commit no more."""
    home = tmp_path / "lake"
    with make_lake(home, make_home, CARE) as lake:
        Shore(lake).ingest(10)
        sql(lake, "CREATE TABLE lake.default.theirs (v long) USING iceberg")
        to = settings_to(home, in_bucket(s3))
        register = TableCopy.register

        def with_a_commit(copy: TableCopy) -> None:
            register(copy)
            sql(lake, "INSERT INTO lake.default.theirs VALUES (1)")

        with monkeypatch.context() as once, pytest.raises(StorageError, match="was changed while it was") as noticed:
            once.setattr(TableCopy, "register", with_a_commit)
            Migration(home / CONFIG_NAME, to).run()
        assert noticed.value.retryable and "The lake is closed." in noticed.value.__notes__[0]
        Migration(home / CONFIG_NAME, to).run()
        with pytest.raises(Exception, match="TABLE_OR_VIEW_NOT_FOUND"):
            sql(lake, "INSERT INTO lake.default.theirs VALUES (2)")
    with strandline.open(home) as lake:
        assert [r[0] for r in sql(lake, "SELECT v FROM lake.default.theirs")] == [1]


def test_what_cannot_move_is_refused_while_the_lake_is_open(s3: S3, tmp_path: Path, make_home: MakeHome) -> None:
    home = tmp_path / "lake"
    with make_lake(home, make_home, CARE) as lake:
        Shore(lake).ingest(10)
        sql(lake, f"CREATE TABLE lake.default.outside (v long) USING iceberg LOCATION 'file://{tmp_path}/elsewhere'")
        to = settings_to(home, in_bucket(s3))
        with pytest.raises(RefusedError, match="is outside of the warehouse"):
            Migration(home / CONFIG_NAME, to).run()
        [obstacle] = Migration(home / CONFIG_NAME, to).run(dry_run=True).obstacles
        assert "is outside of the warehouse" in obstacle.what
        sql(lake, "DROP TABLE lake.default.outside")
        sql(
            lake,
            "CREATE TABLE lake.default.merged (v long) USING iceberg "
            "TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')",
        )
        sql(lake, "INSERT INTO lake.default.merged SELECT id FROM range(100)")
        sql(lake, "DELETE FROM lake.default.merged WHERE v = 7")
        with pytest.raises(RefusedError, match="position delete files"):
            Migration(home / CONFIG_NAME, to).run()
        shore_of(lake, 10).ingest(5)  # it is open
