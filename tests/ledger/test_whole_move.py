"""A lake of files that moves, without Spark: who goes on with a migration, who may call it off, and what it finds at
the new place."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from strandline.core.errors import (
    ConfigError,
    LedgerMoved,
    LedgerUnreadable,
    RefusedError,
    StorageError,
    StrandlineError,
)
from strandline.core.settings.lake_config import CONFIG_NAME, load_config
from strandline.core.sites.replication import SiteRole
from strandline.iceberg.pyiceberg.catalog import open_catalog
from strandline.ledger import engine
from strandline.ledger.copy_ledger_rows import check_texts
from strandline.ledger.deliver import sinks
from strandline.ledger.engine import Ledger
from strandline.ledger.ingest import datasets, sequence
from strandline.ledger.witness import S3Witness, WitnessRecord, open_witness
from strandline.migrate.run import Migration, call_off
from tests.ledger.home_that_moves import FILES, LAKE, Home, at_point, make, to_bucket
from tests.servers import S3


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return make(tmp_path / "lake")


@pytest.mark.parametrize("point", ["move.after_close", "move.between_tables", "move.after_copy", "move.after_leave"])
def test_nobody_calls_a_migration_off_that_is_running(home: Home, point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if an editor has put another file into the place of the settings file meanwhile."""

    def edit_and_abort() -> object:
        body = home.settings.read_bytes()
        home.settings.unlink()
        home.settings.write_bytes(body)
        return call_off(home.settings)

    done = at_point(monkeypatch, point, edit_and_abort)
    home.migrate()
    [refused] = done
    assert isinstance(refused, RefusedError) and "another process migrates" in refused.message
    assert home.tables() == ["default.events"]


@pytest.mark.parametrize("point", [f"move.after_{step}" for step in ("close", "tables", "copy", "old_catalog")])
def test_a_migration_that_slept_while_it_was_called_off_changes_nothing_more(
    home: Home, tmp_path: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a process that uses a settings file in another folder, where the lock is another one."""
    apart = tmp_path / "apart"
    apart.mkdir()
    places = {
        "ledger": {"url": str(home.folder / "ledger.db")}, "catalog": {"path": str(home.folder / "catalog.db")},
        "warehouse": {"url": str(home.folder / "warehouse")},
    }  # fmt: skip
    Home(apart).write(places, CONFIG_NAME)
    done = at_point(monkeypatch, point, lambda: call_off(apart / CONFIG_NAME))
    with pytest.raises(RefusedError, match="was called off meanwhile"):
        home.migrate()
    assert done == [["default.events"] if point == "move.after_old_catalog" else []]
    assert home.is_open() and home.tables() == ["default.events"]
    assert home.publish("goes on") == 10
    assert not home.migrate().resumed
    assert home.tables() == ["default.events"]


def test_names_that_stayed_behind_after_a_migration_was_called_off_are_found_and_put_back(home: Home) -> None:
    catalog = open_catalog(home.config)
    catalog.rename("default.events", "default.events__moved_0123abcd")
    catalog.close()
    with pytest.raises(RefusedError, match="a migration that was called off"):
        home.migrate()
    [obstacle] = home.migrate(dry_run=True).obstacles
    assert "--abort" in obstacle.remedy
    assert call_off(home.settings) == ["default.events"]
    with pytest.raises(RefusedError, match="no migration is under way"):
        call_off(home.settings)
    home.migrate()
    assert home.tables() == ["default.events"]


def test_a_table_that_took_a_name_meanwhile_keeps_the_lake_closed_until_it_is_gone(home: Home) -> None:
    home.dies("move.after_old_catalog")
    home.add_table("default", "events", rows=1)
    with pytest.raises(RefusedError, match="there is another table"):
        call_off(home.settings)
    assert not home.is_open()
    catalog = open_catalog(home.config)
    catalog.drop("default.events")
    catalog.close()
    assert call_off(home.settings) == ["default.events"] and home.rows_of("default.events") == 3


@pytest.mark.parametrize("point", ["move.after_old_catalog", "move.after_leave", "move.after_reopen"])
@pytest.mark.parametrize("other", [{"catalog": {"path": "catalog-9.db"}}, {"catalog": {"path": "catalog.db"}}])
def test_a_migration_goes_on_to_the_places_that_it_began_with_only(
    home: Home, point: str, other: dict[str, dict[str, Any]]
) -> None:
    home.dies(point)
    before = home.settings.read_bytes()
    with pytest.raises(RefusedError, match="between other places"):
        home.migrate(FILES | other)
    assert home.settings.read_bytes() == before
    home.migrate()
    assert home.tables() == ["default.events"]
    assert home.publish("goes on") == 10


def test_the_settings_that_were_checked_are_those_that_are_written(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    other = FILES | {"ledger": {"url": "ledger-77.db"}}
    at_point(monkeypatch, "move.after_tables", lambda: home.write(other))
    home.migrate()
    assert home.config.ledger_file == home.folder / "ledger-2.db"
    assert home.publish("goes on") == 10


@pytest.mark.parametrize("variable", ["STRANDLINE_WAREHOUSE__URL", "STRANDLINE_CATALOG", "strandline_ledger__url"])
def test_an_environment_that_sets_the_places_is_refused(
    home: Home, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "{}")
    with pytest.raises(ConfigError, match=variable):
        home.migrate()
    monkeypatch.delenv(variable)
    assert home.is_open()


@pytest.mark.parametrize(
    "there",
    [
        WitnessRecord(LAKE, 500, SiteRole.FOLLOWER, 1), WitnessRecord(LAKE, 900), WitnessRecord(LAKE, 0),
        WitnessRecord("another", 900),
    ],
    ids=["follower", "ahead", "same", "another lake"],
)  # fmt: skip
def test_a_warehouse_with_a_witness_is_no_place_to_go(home: Home, s3: S3, there: WitnessRecord) -> None:
    settings = to_bucket(s3, 2, s3.make_bucket())
    witness = open_witness(load_config(home.write(settings)))
    witness.create(there)
    [obstacle] = home.migrate(settings, dry_run=True).obstacles
    assert "the new warehouse is in use" in obstacle.what
    with pytest.raises(RefusedError, match="the new warehouse is in use"):
        home.migrate(settings)
    assert home.is_open() and witness.read() == there


def test_a_backup_of_a_lake_that_has_moved_does_not_go_to_the_same_bucket_again(
    home: Home, s3: S3, tmp_path: Path
) -> None:
    """The numbers that the lake has taken since would be given to other rows."""
    bucket = s3.make_bucket()
    assert home.publish("before") == 10
    shutil.copytree(home.folder, tmp_path / "backup")
    home.migrate(to_bucket(s3, 2, bucket))
    moved = home.config
    assert home.publish("after") == 20
    shutil.rmtree(home.folder / "warehouse")
    shutil.copytree(tmp_path / "backup", home.folder, dirs_exist_ok=True)
    with pytest.raises(RefusedError, match="at 20"):
        home.migrate(to_bucket(s3, 3, bucket))
    assert open_witness(moved).read().highest == 20
    assert home.publish("of the lake", moved) == 30


def test_a_witness_of_an_unfinished_migration_is_no_witness_until_it_is_settled(home: Home, s3: S3) -> None:
    settings = to_bucket(s3, 2, s3.make_bucket())
    home.dies("move.after_witness", settings)
    witness = S3Witness(load_config(home.folder / "new.toml"))
    with pytest.raises(StrandlineError, match="is bringing a lake"):
        witness.read()
    with pytest.raises(RefusedError, match="is in use"):
        witness.check_free("another lake")
    home.dies("move.after_leave", settings)
    witness.write_arriving(WitnessRecord(LAKE, 0), "of an attempt that slept until now")
    home.dies("move.after_reopen", settings)
    assert witness.read() == WitnessRecord(LAKE, 0)
    home.migrate(settings)
    assert home.publish("at the new place") == 10
    assert witness.read().highest == 10


def test_what_a_migration_that_was_called_off_left_in_the_bucket_is_replaced(home: Home, s3: S3) -> None:
    settings = to_bucket(s3, 2, s3.make_bucket())
    home.dies("move.after_old_catalog", settings)
    assert call_off(home.settings) == ["default.events"]
    assert home.publish("in between") == 10
    home.migrate(settings)
    assert home.publish("at the new place") == 20


def test_two_lakes_do_not_go_to_one_ledger(home: Home, tmp_path: Path) -> None:
    two = make(tmp_path / "two", "another-lake")
    shared = FILES | {"ledger": {"url": str(tmp_path / "shared.db")}}
    assert home.publish("of the first") == 10
    home.dies("move.after_leave", shared)
    with pytest.raises(RefusedError, match="to which another lake moves"):
        two.migrate(shared)
    assert two.is_open()
    home.migrate(shared)
    assert home.publish("goes on") == 20
    with pytest.raises(RefusedError, match="in use already"):
        two.migrate(shared)


@pytest.mark.parametrize("identifier", [("default", "a.b"), ("default", "we`ird"), ("n s", "x y"), ("a.b", "c", "d")])
def test_tables_whose_names_need_quotes_move_and_come_back(home: Home, identifier: tuple[str, ...]) -> None:
    home.add_table(*identifier)
    before = home.tables()
    home.dies("move.after_old_catalog")
    assert sorted(call_off(home.settings)) == before == home.tables()
    home.migrate()
    assert home.tables() == before


def test_a_lake_that_comes_back_to_its_first_catalog_has_each_table_once(home: Home) -> None:
    home.migrate()
    home.migrate({"ledger": {"url": "ledger-3.db"}, "catalog": {"path": "catalog.db"}})
    assert home.tables() == ["default.events"] and home.rows_of("default.events") == 3


def test_tables_under_another_catalog_name_would_stay_and_are_an_obstacle(home: Home) -> None:
    with sqlite3.connect(home.folder / "catalog.db") as catalog:
        catalog.execute("UPDATE iceberg_tables SET catalog_name = 'theirs'")
    with pytest.raises(RefusedError, match="tables of another catalog"):
        home.migrate()
    assert home.is_open()


@pytest.mark.parametrize("name", ["q#1", "q?1"])
def test_a_name_that_nobody_can_read_in_a_bucket_is_found_before_anything_is_closed(
    home: Home, s3: S3, name: str
) -> None:
    home.add_table("default", name)
    with pytest.raises(StrandlineError, match="has a # or a"):
        home.migrate(to_bucket(s3, 2, s3.make_bucket()))
    assert home.is_open()


def test_a_file_that_a_bucket_does_not_take_is_found_before_anything_is_closed(home: Home, s3: S3) -> None:
    (home.folder / "warehouse" / "_strandline").mkdir(exist_ok=True)
    with (home.folder / "warehouse" / "_strandline" / "large").open("wb") as file:
        file.truncate((5 << 30) + 1)  # a hole
    settings = to_bucket(s3, 2, s3.make_bucket())
    [obstacle] = home.migrate(settings, dry_run=True).obstacles
    assert "takes at most" in obstacle.what
    with pytest.raises(StorageError, match="takes at most"):
        home.migrate(settings)
    assert home.is_open()


def test_a_death_while_a_large_ledger_is_filled_leaves_no_ledger(home: Home) -> None:
    """SQLite has written some pages by then, and nothing that is committed."""
    ledger = Ledger(home.config)
    with ledger.write() as connection:
        for number in range(300):
            datasets.add(connection, name=f"d{number}" + "x" * 10_000, table_uuid=f"u{number}")
    ledger.close()
    to = home.write(FILES)
    died = subprocess.run(
        [sys.executable, "-c", MIGRATE, str(home.settings), str(to), "move.before_copy_commit=kill"], check=False
    )
    assert died.returncode == -signal.SIGKILL
    there = home.folder / "ledger-2.db"
    assert there.stat().st_size > 0
    home.migrate(dry_run=True)
    home.migrate()
    assert home.publish("goes on") == 10


def test_a_failure_while_a_ledger_with_a_write_ahead_log_is_filled_leaves_no_ledger(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_WAL_IS_SAFE_FROM", (3, 0, 0))
    home.dies("move.before_copy_commit")
    assert (home.folder / "ledger-2.db").stat().st_size > 0
    home.migrate()
    assert home.publish("goes on") == 10


def test_a_copy_that_an_older_program_made_is_upgraded_or_refused(home: Home) -> None:
    home.dies("move.after_copy")
    with sqlite3.connect(home.folder / "ledger-2.db") as copy:
        for (name,) in copy.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            copy.execute(f"DROP TRIGGER {name}")
        copy.execute("ALTER TABLE table_state DROP COLUMN doubt")
    with pytest.raises(LedgerUnreadable, match="does not have the same columns"):
        home.migrate()
    (home.folder / "ledger-2.db").unlink()
    home.migrate()
    assert home.publish("goes on") == 10


def test_the_file_of_something_else_is_not_filled(home: Home) -> None:
    with sqlite3.connect(home.folder / "ledger-2.db") as other:
        other.execute("CREATE TABLE theirs (a)")
    with pytest.raises(RefusedError, match="holds something else"):
        home.migrate()
    assert home.is_open()


MIGRATE = """
import sys
from pathlib import Path
from strandline.core import failpoints
from strandline.migrate.run import Migration

failpoints.arm(sys.argv[3])
Migration(Path(sys.argv[1]), Path(sys.argv[2])).run()
"""


@pytest.mark.parametrize("lost", [{"replication": {"arbiter": "file:///shared"}}, {"deliver": {"wait_for": "all"}}])
def test_a_setting_that_others_rely_on_does_not_vanish_unnoticed(home: Home, lost: dict[str, dict[str, Any]]) -> None:
    home.write({"ledger": {"url": "ledger.db"}, "serve": {"port": 1234}} | lost, CONFIG_NAME)
    [(section, values)] = lost.items()
    name = f"{section}.{next(iter(values))}"
    planned = home.migrate(dry_run=True)
    assert set(planned.settings) == {name, "serve.port"}
    assert any(name in obstacle.what for obstacle in planned.obstacles)
    with pytest.raises(RefusedError, match=name):
        home.migrate()
    assert home.is_open()
    assert Migration(home.settings, home.write(FILES), accept_settings=True).run().settings == planned.settings


def add_sink(home: Home, kind: str, options: dict[str, str]) -> None:
    ledger = Ledger(home.config)
    with ledger.write() as connection:
        sinks.add(
            connection, instance="i", name="copy", kind=kind, dataset=1, options=options, destination="x", start=None
        )
    ledger.close()


@pytest.mark.parametrize("catalog", ["catalog.db", "./catalog.db", "../lake/catalog.db"])
def test_a_sink_into_the_catalog_that_is_left_is_an_obstacle_wherever_the_command_runs(
    home: Home, catalog: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_sink(home, "iceberg", {"catalog": catalog})
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RefusedError, match='sink "copy" delivers into the catalog'):
        home.migrate()


def test_a_sink_into_the_folder_that_is_left_is_an_obstacle(home: Home, s3: S3) -> None:
    add_sink(home, "files", {"path": "warehouse/out"})
    with pytest.raises(RefusedError, match='sink "copy" delivers into the folder'):
        home.migrate(to_bucket(s3, 2, s3.make_bucket()))
    home.migrate()  # which leaves the files where they are


def test_a_text_that_postgresql_cannot_have_is_found_before_anything_is_closed(home: Home) -> None:
    ledger = Ledger(home.config)
    with ledger.write() as connection:
        datasets.add(connection, name="default.x", table_uuid="a\0b")
    with pytest.raises(RefusedError, match="NUL character in table_uuid"):
        check_texts(ledger)
    ledger.close()


def test_secrets_stay_as_unreadable_as_they_were(home: Home) -> None:
    home.settings.chmod(0o640)
    home.write(FILES).chmod(0o600)
    report = Migration(home.settings, home.folder / "new.toml").run()
    assert report.settings_before is not None
    assert home.settings.stat().st_mode & 0o777 == 0o600
    assert report.settings_before.stat().st_mode & 0o777 == 0o640


def test_a_closed_lake_tells_who_has_it_still_open(home: Home) -> None:
    slept = Ledger(home.config)
    assert slept.query(sequence.read).last == 0
    home.dies("move.after_drop")
    with pytest.raises(LedgerMoved, match="was moved to"):
        slept.query(sequence.read)
    slept.close()
    home.migrate()
