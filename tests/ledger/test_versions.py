"""Versions, copies and damage of the ledger."""

from __future__ import annotations

import hashlib
import re
import shutil
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.config import Config
from alembic.script import ScriptDirectory

import strandline.ledger.engine as engine_module
from strandline.core.errors import LedgerMissing, LedgerTooNew, LedgerUnreadable, StorageError, StrandlineError
from strandline.core.forward_protocol import LaneName
from strandline.core.records.audit_events import Event
from strandline.core.roles import Role
from strandline.core.settings.lake_config import LakeConfig
from strandline.ledger import audit
from strandline.ledger.backup import copy_ledger
from strandline.ledger.deliver import (
    lanes,  # noqa: F401  # all tables
    sinks,  # noqa: F401  # all tables
)
from strandline.ledger.engine import REVISIONS, Ledger
from strandline.ledger.ingest import blocks  # all tables
from strandline.ledger.receive import (
    ranges,  # all tables
    tokens,
)
from strandline.ledger.schema import (
    applied,  # noqa: F401  # all tables
    consumers,  # noqa: F401  # all tables
    maintain,  # noqa: F401  # all tables
    receive,  # noqa: F401  # all tables
    reconcile,  # noqa: F401  # all tables
    replicate,  # noqa: F401  # all tables
    serve,  # noqa: F401  # all tables
)
from strandline.ledger.schema.core import metadata
from tests.ledger.conftest import LAKE, LakeState


def test_the_list_of_revisions_is_that_of_the_migrations() -> None:
    settings = Config()
    settings.set_main_option("script_location", str(Path(engine_module.__file__).parent / "migrations"))
    found = [r.revision for r in ScriptDirectory.from_config(settings).walk_revisions()]
    assert tuple(reversed(found)) == REVISIONS


# Ledgers exist that each of these has made.
LANDED = {
    "0001_schema.sql": "c36eb3bc5ec9e3056b3b72ffc8f12ac6de5b33d05b8eab983cd2ba490bea1b4d",
    "0002_actors_roles_tasks.sql": "b42d9b4e4a03d5ec5e7897c1206c8f3c1b8711236fafc0e7b9357dbaa43c8629",
    "0003_applied_settings.sql": "3db980e689acd408126f6f131e1f21a590b648cf11b2b07bcfa83c9d3e47cb03",
    "0004_abandoned_blocks.sql": "1e5c85f388ae457856480473c9b3ae1cf36fd5a7721a5e846d8b26b206dba85f",
    "0005_runs_called_off.sql": "13b1c1d5621c4f8adb87122512e0fe5d89b9c0f9fe7f2c786bf3480dd13f2778",
    "0006_postponed_blocks.sql": "d92792250fa9dcdb3392641738ed61d6c30d909f65d1b735ff841c937f817a06",
    "0007_replication.sql": "aaa61c7eb615562d39ba21656f5b214edd6b90831466992073e5655b51fde2b4",
    "0008_takeover.sql": "a1c55c10e57e90c80dd48f4f4bb3cd43452cf0c2473e0d32c54e94406ec22160",
    "0009_cuts.sql": "ae931ed9cf4c7d08a0a1adbae299fd154af6ab3149125515199ccc00cb24a378",
    "0010_announced_bodies_and_consumers.sql": "193cfcb6c6ac94cef75352ce23b24bb5c1ce1d9942be9d6b3fd59514c2567cbf",
    "0011_moved_ledgers.sql": "269a586799e74328b0d1cf404d860c89e6f94f10c256db2352a9cafdbc8dc334",
}


def test_a_migration_that_landed_never_changes() -> None:
    found = {
        f.name: hashlib.sha256(f.read_bytes()).hexdigest()
        for f in (engine_module.MIGRATIONS / "versions").glob("0*.sql")
    }
    changed = sorted(name for name, digest in LANDED.items() if found.get(name) != digest)
    assert not changed, "A migration that landed never changes: add the next one."
    assert set(found) == set(LANDED), "Add the new migration and its SHA-256 to LANDED."


def test_the_migrations_make_the_columns_that_queries_use(lake: LakeState) -> None:
    with lake.ledger.read() as connection:
        inspector = sa.inspect(connection)
        for table in metadata.sorted_tables:
            columns = {c["name"] for c in inspector.get_columns(table.name)}
            assert columns == {c.name for c in table.columns}, table.name


def test_both_databases_get_every_check_index_and_trigger_of_the_migrations(lake: LakeState) -> None:
    """A statement that is translated wrongly would be missed only when it is needed."""
    told = "".join(f.read_text("utf-8") for f in sorted((engine_module.MIGRATIONS / "versions").glob("0*.*")))
    named = set(re.findall(r"(?:CONSTRAINT|TRIGGER|INDEX) ([a-z_]+)", told)) - {"name"}
    with lake.ledger.read() as connection:
        if connection.dialect.name == "sqlite":
            made = " ".join(connection.exec_driver_sql("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").scalars())
        else:
            places = (("conname", "pg_constraint"), ("indexname", "pg_indexes"), ("tgname", "pg_trigger"))
            asked = " UNION ".join(f"SELECT {name} FROM {place}" for name, place in places)
            made = " ".join(connection.exec_driver_sql(asked).scalars())
    assert len(named) > 100 and not [name for name in named if not re.search(rf"\b{name}\b", made)]


def test_a_newer_ledger_is_refused(lake: LakeState) -> None:
    with lake.ledger.write() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(LedgerTooNew):
        Ledger(lake.config).open()


def create_at(ledger: Ledger, revision: str, last: int = 41) -> None:
    """A ledger as the release with that schema left it."""
    if ledger.path is not None:
        ledger.path.touch()
    with ledger.write() as connection:
        _upgrade(connection, revision)
        connection.exec_driver_sql(
            f"INSERT INTO sequence (id, lake, last, epoch, created_at) VALUES (1, '{LAKE}', {last}, 1, 0)"
        )


def _upgrade(connection: sa.Connection, revision: str) -> None:
    from alembic import command

    settings = Config()
    settings.set_main_option("script_location", str(engine_module.MIGRATIONS).replace("%", "%%"))
    settings.attributes["connection"] = connection
    command.upgrade(settings, revision)


@pytest.mark.parametrize("before", REVISIONS)
def test_an_older_ledger_is_migrated_with_its_content_and_a_copy_is_kept(
    config: LakeConfig, before: str, next_release: str
) -> None:
    ledger = Ledger(config)
    create_at(ledger, before)
    migrated = ledger.open()
    assert migrated is not None and ledger.revision() == next_release
    with ledger.read() as connection:
        assert connection.exec_driver_sql("SELECT last, more FROM sequence").one() == (41, 7)
        for table in metadata.sorted_tables:
            connection.execute(sa.select(table))
    if ledger.path is not None:
        kept = ledger.path.with_name(f"{ledger.path.name}.v{before}.bak")
        assert migrated.copy == kept
        with sqlite3.connect(kept) as copy:
            assert copy.execute("SELECT version_num FROM alembic_version").fetchone() == (before,)
            assert copy.execute("SELECT last FROM sequence").fetchone() == (41,)


def test_events_and_tokens_of_the_first_release_get_their_new_names_and_roles(config: LakeConfig) -> None:
    ledger = Ledger(config)
    create_at(ledger, "0001")
    renamed = (engine_module.MIGRATIONS / "versions" / "0002_actors_roles_tasks.sql").read_text("utf-8")
    names = dict(re.findall(r"WHEN '(\w+)' THEN '([a-z_.]+)'", renamed))
    with ledger.write() as connection:
        for old in names:
            connection.exec_driver_sql(f"INSERT INTO audit (at, event, detail) VALUES (0, '{old}', '{{}}')")
        connection.exec_driver_sql("INSERT INTO api_token (name, hash, created_at) VALUES ('old', 'x', 0)")
        connection.exec_driver_sql(
            'INSERT INTO reconcile_run (fence, act, "delete", accept_loss, storage, state, outcome, started_at) '
            "VALUES (1, TRUE, FALSE, FALSE, 'local', 'running', '{}', 0)"
        )
    ledger.open()
    with ledger.read() as connection:
        found = audit.latest(connection, events_max=1000)
        [token] = tokens.list_tokens(connection)
        run = connection.exec_driver_sql('SELECT actor, "trigger" FROM reconcile_run').one()
    assert [e.event for e in reversed(found)] == list(names.values())
    new_since = {Event.DATASET_CREATED, Event.SESSION_STARTED, Event.SESSION_ENDED, Event.SETTING_APPLIED}
    new_since |= {Event.MAINTENANCE_CALLED_OFF, Event.RUN_CALLED_OFF, Event.TASK_CALLED_OFF}
    new_since |= {event for event in Event if event.startswith(("follow.", "follower.", "consumer."))}
    assert {e.event for e in found} == set(Event) - new_since, "every name is one of the list, and none is forgotten"
    assert {e.actor for e in found} == {None} and tuple(run) == (None, None), "unknown, not made up"
    assert (token.role, token.expires_at) == (Role.WRITE, None)


def test_a_migration_that_fails_leaves_the_ledger_as_it_was(config: LakeConfig, next_release: str) -> None:
    ledger = Ledger(config)
    create_at(ledger, REVISIONS[-1])
    with (engine_module.MIGRATIONS / "versions" / "next.py").open("a") as file:
        file.write('    op.execute("SELECT 1 FROM no_such_table")\n')
    with pytest.raises(StrandlineError):
        ledger.open()
    assert ledger.revision() == REVISIONS[-1]
    with ledger.read() as connection:
        found = connection.exec_driver_sql("SELECT * FROM sequence").keys()
    assert set(found) == {c.name for c in metadata.tables["sequence"].columns}


def test_the_hash_of_a_lanes_partition_is_there_and_stays(lake: LakeState) -> None:
    with lake.ledger.write() as connection:
        lane = ranges.lane_key(lake.dataset.id, LaneName("l", "i", 1, "s", "k=" + "x" * 500))
        ranges.keep_lanes(connection, {lane})
    for statement in (
        "UPDATE source_lane SET lake = 'other'",
        "UPDATE source_lane SET partition_hash = 'x'",
        "INSERT INTO source_lane (dataset_id, lake, instance, generation, source_dataset, partition, created_at) "
        f"VALUES ({lake.dataset.id}, 'l', 'i', 1, 's', 'new', 0)",
    ):
        with pytest.raises(sa.exc.IntegrityError), lake.ledger.write() as connection:
            connection.exec_driver_sql(statement)


def test_whoever_migrates_a_postgres_ledger_waits_for_another_who_does(
    tmp_path: Path, make_home: Callable[..., LakeConfig], postgres_database: str, next_release: str
) -> None:
    config = make_home(tmp_path, {"ledger": {"url": postgres_database}})
    first, second = Ledger(config), Ledger(config)
    create_at(first, REVISIONS[-1])
    failures: list[BaseException] = []

    def migrate() -> None:
        try:
            second.open()
        except BaseException as e:
            failures.append(e)

    waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    with first.write() as connection, first.read() as beside:
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({engine_module._MIGRATION_LOCK})")
        other = threading.Thread(target=migrate)
        other.start()
        while not beside.exec_driver_sql(waits).scalar_one() and other.is_alive():
            other.join(0.01)
        assert other.is_alive()
        _upgrade(connection, next_release)
    other.join(60)
    assert not other.is_alive() and not failures and first.revision() == next_release
    first.close()
    second.close()


def test_a_missing_ledger_is_said_and_not_made(tmp_path: Path, make_home: Callable[..., LakeConfig]) -> None:
    ledger = Ledger(make_home(tmp_path))
    with pytest.raises(LedgerMissing):
        ledger.open()
    assert ledger.path is not None and not ledger.path.exists()


def test_a_database_without_a_ledger_is_said(
    tmp_path: Path, make_home: Callable[..., LakeConfig], postgres_database: str
) -> None:
    with pytest.raises(LedgerMissing):
        Ledger(make_home(tmp_path, {"ledger": {"url": postgres_database}})).open()


@pytest.mark.parametrize("damage", ["empty", "truncated", "garbage"])
def test_a_damaged_ledger_is_refused_with_a_hint(
    tmp_path: Path, make_home: Callable[..., LakeConfig], damage: str
) -> None:
    ledger = Ledger(make_home(tmp_path))
    ledger.create(LAKE)
    assert ledger.path is not None
    whole = ledger.path.read_bytes()
    ledger.path.write_bytes({"empty": b"", "truncated": whole[: len(whole) // 3], "garbage": b"x" * 9000}[damage])
    with pytest.raises(LedgerMissing if damage == "empty" else LedgerUnreadable) as refused:
        ledger.open()
    assert "rebuild" in (refused.value.hint or "")


def test_a_copy_made_while_others_write_is_whole(sqlite_lake: LakeState, tmp_path: Path) -> None:
    lake = sqlite_lake
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            lake.reserve(f"batch-{number}")
            number += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for n in range(5):
            lake.ledger.backup(tmp_path / f"copy-{n}.db")
    finally:
        stop.set()
        writer.join()
    for n in range(5):
        with sqlite3.connect(tmp_path / f"copy-{n}.db") as copy:
            assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            last, top = copy.execute("SELECT last, (SELECT max(hi) FROM block) FROM sequence").fetchone()
            assert top is None or top == last


@pytest.mark.parametrize("name", ["a#b", "a?mode=memory", "a%41", "a%2Fb", "a b ü", "a&b=c;d"])
def test_a_ledger_and_its_copies_lie_exactly_where_their_paths_say(
    tmp_path: Path, make_home: Callable[..., LakeConfig], name: str, next_release: str
) -> None:
    config = make_home(tmp_path / name, {"ledger": {"url": f"{name}.db"}})
    old = Ledger(config)
    create_at(old, REVISIONS[-1])
    migrated = old.open()
    assert migrated is not None and migrated.copy == tmp_path / name / f"{name}.db.v{REVISIONS[-1]}.bak"
    old.backup(tmp_path / name / f"copy {name}.db")
    found = {f.name for f in (tmp_path / name).iterdir()} - {"strandline.toml", f"{name}.db-journal"}
    assert found == {f"{name}.db", migrated.copy.name, f"copy {name}.db"}
    assert [f.name for f in tmp_path.iterdir()] == [name], "nothing lies elsewhere"
    for copy, revision in ((migrated.copy, REVISIONS[-1]), (tmp_path / name / f"copy {name}.db", next_release)):
        with sqlite3.connect(copy) as connection_to_copy:
            assert connection_to_copy.execute("SELECT last FROM sequence").fetchone() == (41,)
            assert connection_to_copy.execute("SELECT version_num FROM alembic_version").fetchone() == (revision,)


def test_a_copy_that_is_not_what_the_ledger_is_gets_no_name(sqlite_lake: LakeState, tmp_path: Path) -> None:
    lake = sqlite_lake
    path = lake.ledger.path
    assert path is not None
    for n in range(200):
        lake.reserve(f"batch-{n}")
    with sqlite3.connect(path) as connection:
        size = connection.execute("PRAGMA page_size").fetchone()[0]
        index = "SELECT rootpage FROM sqlite_master WHERE name = 'one_block_of_a_number'"
        (page,) = connection.execute(index).fetchone()
    whole = path.read_bytes()
    path.write_bytes(whole[: (page - 1) * size + 100] + b"\xff" * 300 + whole[(page - 1) * size + 400 :])
    with pytest.raises(LedgerUnreadable, match="damaged"):
        lake.ledger.backup(tmp_path / "copy.db")
    assert {f.name for f in tmp_path.iterdir()} == {"lake"}, "neither the copy nor a part of it is left"


def test_a_copy_before_a_migration_is_never_one_of_the_migrated_ledger(sqlite_lake: LakeState, tmp_path: Path) -> None:
    assert sqlite_lake.ledger.path is not None
    copied = copy_ledger(sqlite_lake.ledger.path, tmp_path / "copy.db", busy_seconds=1, replace=True, revision="0000")
    assert not copied and not (tmp_path / "copy.db").exists()


def test_a_backup_replaces_nothing(sqlite_lake: LakeState, tmp_path: Path) -> None:
    (tmp_path / "copy.db").write_text("mine")
    with pytest.raises(StorageError, match="already"):
        sqlite_lake.ledger.backup(tmp_path / "copy.db")
    assert (tmp_path / "copy.db").read_text() == "mine"


def test_durability_is_what_the_design_asks_for(lake: LakeState) -> None:
    with lake.ledger.read() as connection:
        if connection.dialect.name == "sqlite":
            assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
            mode = connection.exec_driver_sql("PRAGMA journal_mode").scalar()
            assert mode == ("wal" if sqlite3.sqlite_version_info >= (3, 51, 3) else "persist")
        else:
            assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"


def test_a_ledger_restored_under_an_open_process_is_the_one_it_reads(sqlite_lake: LakeState, tmp_path: Path) -> None:
    lake = sqlite_lake
    assert lake.ledger.path is not None
    lake.reserve("a")
    lake.ledger.backup(tmp_path / "copy.db")
    later = lake.reserve("b")
    (tmp_path / "copy.db").replace(lake.ledger.path)
    assert blocks.find_block(lake.ledger, later.head) is None


def test_a_ledger_overwritten_in_place_under_an_open_process_is_the_one_it_reads(
    sqlite_lake: LakeState, tmp_path: Path
) -> None:
    lake = sqlite_lake
    assert lake.ledger.path is not None
    lake.reserve("a")
    lake.ledger.backup(tmp_path / "copy.db")
    later = lake.reserve("b")
    shutil.copyfile(tmp_path / "copy.db", lake.ledger.path)
    assert blocks.find_block(lake.ledger, later.head) is None
