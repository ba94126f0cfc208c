"""What the database refuses is told as an error of ours, in one line, and never as a fault of the program."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from strandline.core.errors import RefusedError, StorageError
from strandline.core.settings.lake_config import LakeConfig
from strandline.core.types import ShardId
from strandline.ledger.engine import Ledger
from strandline.ledger.ingest import datasets
from tests.ledger.conftest import LAKE, LakeState, new_lake


@pytest.fixture
def postgres_config(tmp_path: Path, make_home: Callable[..., LakeConfig], postgres_database: str) -> LakeConfig:
    return make_home(tmp_path, {"ledger": {"url": postgres_database}})


def test_a_value_that_postgresql_cannot_hold_is_said_in_one_line(postgres_config: LakeConfig) -> None:
    lake = new_lake(postgres_config)
    with pytest.raises(StorageError, match="NUL") as refused:
        lake.reserve("a\0b")
    assert "\n" not in refused.value.message and refused.value.hint
    assert lake.reserve("a").head.rows.lo, "the ledger goes on"
    lake.ledger.close()


def test_a_user_without_rights_is_told_that_permission_is_denied(
    tmp_path: Path, make_home: Callable[..., LakeConfig], postgres_config: LakeConfig, postgres_database: str
) -> None:
    ledger = Ledger(postgres_config)
    ledger.create(LAKE)
    ledger.close()
    role = f"nobody_{secrets.token_hex(4)}"
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN")  # type: ignore[call-overload]
        try:
            url = postgres_database.replace("postgres@", f"{role}@")
            poor = Ledger(make_home(tmp_path / "poor", {"ledger": {"url": url}}))
            with pytest.raises(StorageError, match="permission denied") as refused:
                poor.open()
            assert "\n" not in refused.value.message
            poor.close()
        finally:
            connection.execute(f"DROP ROLE {role}")  # type: ignore[call-overload]


def test_a_statement_that_the_database_does_not_understand_is_an_error_of_ours(lake: LakeState) -> None:
    with pytest.raises(StorageError) as refused, lake.ledger.read() as connection:
        connection.exec_driver_sql("SELECT no_such_column FROM sequence")
    assert "no_such_column" in refused.value.message and "\n" not in refused.value.message


def test_of_two_who_create_a_dataset_of_one_name_at_once_the_second_is_refused(postgres_config: LakeConfig) -> None:
    lake, inserts = new_lake(postgres_config), threading.Semaphore(0)

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("INSERT INTO dataset"):
            inserts.release()

    def add_second() -> None:
        with lake.ledger.write() as connection:
            datasets.add(connection, name="default.same", table_uuid="uuid-2", first_shard=ShardId(2))

    with ThreadPoolExecutor(1) as other:
        with lake.ledger.write() as connection:
            # With shards of their own, or the second would wait for the first before it inserts.
            datasets.add(connection, name="default.same", table_uuid="uuid-1", first_shard=ShardId(1))
            sa.event.listen(lake.ledger.engine, "before_cursor_execute", note)
            second = other.submit(add_second)
            assert inserts.acquire(timeout=60), "it has looked for the name, and found none"
        with pytest.raises(RefusedError, match=r"a dataset named default\.same already"):
            second.result(60)
    lake.ledger.close()


def test_a_name_that_is_taken_is_refused_until_it_is_dropped(lake: LakeState) -> None:
    first = lake.add_dataset("default.same")
    with pytest.raises(RefusedError, match="already"):
        lake.add_dataset("default.same")
    assert lake.ledger.change(datasets.mark_dropped, first.id)
    assert lake.add_dataset("default.same").id != first.id


def test_an_illegal_move_stays_what_it_is(lake: LakeState) -> None:
    with pytest.raises(sa.exc.IntegrityError), lake.ledger.write() as connection:
        connection.exec_driver_sql("UPDATE sequence SET epoch = 0")
