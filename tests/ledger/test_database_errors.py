"""What the database refuses is told as an error of ours, in one line, and never as a fault of the program."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from strandline.core.errors import StorageError
from strandline.core.settings import LakeConfig
from strandline.ledger.engine import Ledger
from tests.ledger.conftest import LAKE, Bench, open_bench


@pytest.fixture
def postgres_config(tmp_path: Path, make_home: Callable[..., LakeConfig], postgres_database: str) -> LakeConfig:
    return make_home(tmp_path, {"ledger": {"url": postgres_database}})


def test_a_value_that_postgresql_cannot_hold_is_said_in_one_line(postgres_config: LakeConfig) -> None:
    bench = open_bench(postgres_config)
    with pytest.raises(StorageError, match="NUL") as refused:
        bench.reserve("a\0b")
    assert "\n" not in refused.value.message and refused.value.hint
    assert bench.reserve("a").head.rows.lo, "the ledger goes on"
    bench.ledger.close()


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


def test_a_statement_that_the_database_does_not_understand_is_an_error_of_ours(bench: Bench) -> None:
    with pytest.raises(StorageError) as refused, bench.ledger.read() as connection:
        connection.exec_driver_sql("SELECT no_such_column FROM sequence")
    assert "no_such_column" in refused.value.message and "\n" not in refused.value.message


def test_an_illegal_move_stays_what_it_is(bench: Bench) -> None:
    with pytest.raises(sa.exc.IntegrityError), bench.ledger.write() as connection:
        connection.exec_driver_sql("UPDATE sequence SET epoch = 0")
