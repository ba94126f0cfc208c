"""Nobody waits for ever for a database, a store or another process that is silent, and who it is is said."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from strandline.core.errors import ConfigError, LedgerBusy, StorageError, StrandlineError, WitnessUnreadable
from strandline.core.settings.lake_config import LakeConfig
from strandline.ledger.engine import Ledger
from strandline.ledger.ingest import sequence
from strandline.ledger.witness import LocalWitness, S3Witness, WitnessRecord, open_witness
from strandline.storage.s3_settings import witness_limits
from tests.ledger.conftest import LAKE, LakeState

MakeHome = Callable[..., LakeConfig]


@contextmanager
def silent_server() -> Iterator[int]:
    """Takes connections and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(16)
        yield listening.getsockname()[1]


def test_both_ends_of_a_connection_to_postgresql_notice_silence_within_half_a_minute(
    tmp_path: Path, make_home: MakeHome, postgres_database: str
) -> None:
    ledger = Ledger(make_home(tmp_path, {"ledger": {"url": postgres_database}}))
    with ledger.engine.connect() as connection:
        driver: Any = connection.connection.dbapi_connection
        with socket.socket(fileno=os.dup(driver.pgconn.socket)) as ours:
            assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            tcp = [
                ours.getsockopt(socket.IPPROTO_TCP, option)
                for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
            ]
        assert tcp == [10, 6, 3, 30_000]
        names = ("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count", "tcp_user_timeout")
        theirs = [connection.exec_driver_sql(f"SHOW {name}").scalar_one() for name in names]
        assert theirs == ["10", "6", "3", "30000"]
        assert connection.exec_driver_sql("SHOW statement_timeout").scalar_one() == "10min"
        assert connection.exec_driver_sql("SHOW lock_timeout").scalar_one() == "1min"
    ledger.close()


def test_what_the_address_says_itself_stays(tmp_path: Path, make_home: MakeHome, postgres_database: str) -> None:
    url = f"{postgres_database}{'&' if '?' in postgres_database else '?'}keepalives_idle=77"
    ledger = Ledger(make_home(tmp_path, {"ledger": {"url": url}}))
    with ledger.engine.connect() as connection:
        driver: Any = connection.connection.dbapi_connection
        assert driver.info.get_parameters()["keepalives_idle"] == "77"
    ledger.close()


def test_a_server_that_never_answers_is_given_up(tmp_path: Path, make_home: MakeHome) -> None:
    with silent_server() as port:
        url = f"postgresql://u:top-secret@127.0.0.1:{port}/d"
        ledger = Ledger(make_home(tmp_path, {"ledger": {"url": url, "connect_seconds_max": 2}}))
        with pytest.raises(StorageError, match="did not answer"):
            ledger.open()


def test_a_statement_that_takes_too_long_is_ended(tmp_path: Path, make_home: MakeHome, postgres_database: str) -> None:
    ledger = Ledger(make_home(tmp_path, {"ledger": {"url": postgres_database, "statement_seconds_max": 1}}))
    ledger.create(LAKE)
    with pytest.raises(LedgerBusy, match="took too long"), ledger.read() as connection:
        connection.exec_driver_sql("SELECT pg_sleep(600)")
    ledger.close()


@pytest.mark.parametrize(
    "address",
    [
        "u:top-secret@127.0.0.1:{port}/d",
        "u@127.0.0.1:{port}/d?password=top-secret",
        "u@127.0.0.1:{port}/d?sslpassword=top-secret",
        "u:x@top-secret@127.0.0.1:{port}/d",
        "u:x/top-secret@127.0.0.1:{port}/d",
        "u:x#?top-secret@127.0.0.1:{port}/d",
        "u:top-secret:x@127.0.0.1:{port}/d",
        "u:x@top-secret:nonsense/d",
    ],
)
def test_no_error_repeats_what_is_secret_in_the_address(tmp_path: Path, make_home: MakeHome, address: str) -> None:
    with socket.socket() as taken:  # nobody listens at this port
        taken.bind(("127.0.0.1", 0))
        url = "postgresql://" + address.format(port=taken.getsockname()[1])
        seen = ""
        try:
            ledger = Ledger(make_home(tmp_path, {"ledger": {"url": url}}))
            seen = ledger.place
            ledger.open()
        except (StorageError, ConfigError) as e:
            chain: BaseException | None = e
            seen += f"{e.message} {e.hint}"
            while (chain := chain.__cause__ if chain else None) is not None:
                seen += str(chain) if isinstance(chain, StrandlineError) else ""
        else:
            pytest.fail("nobody is there")
    assert "top-secret" not in seen


HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""
HOLD_WITNESS = """
import fcntl, sys
file = open(sys.argv[1], "rb+")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def holding(program: str, file: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", program, str(file), "--token", "top-secret"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        try:
            yield other
        finally:
            other.kill()


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="only Linux tells who holds a lock")
def test_a_ledger_held_by_a_stopped_process_says_which_and_what_to_do(tmp_path: Path, make_home: MakeHome) -> None:
    ledger = Ledger(make_home(tmp_path, {"ledger": {"busy_timeout_seconds": 1}}))
    ledger.create(LAKE)
    assert ledger.path is not None
    with holding(HOLD, ledger.path) as other:
        for stopped in (False, True):
            if stopped:
                other.send_signal(signal.SIGSTOP)
                while Path(f"/proc/{other.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
                    time.sleep(0.001)
            with pytest.raises(LedgerBusy, match=rf"locked by process {other.pid} \(python[^)]*\)") as busy:
                with ledger.write() as connection:
                    sequence.lock(connection)
            assert ("which is stopped" in busy.value.message) is stopped
            assert (f"kill -CONT {other.pid}" in (busy.value.hint or "")) is stopped
            assert "top-secret" not in busy.value.message
    with ledger.write() as connection:
        assert sequence.lock(connection).lake == LAKE


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="only Linux tells who holds a lock")
def test_a_witness_held_by_another_process_is_waited_for_a_while_and_not_for_ever(tmp_path: Path) -> None:
    LocalWitness(tmp_path / "witness").create(WitnessRecord(LAKE, 0))
    with holding(HOLD_WITNESS, tmp_path / "witness") as other:
        with pytest.raises(LedgerBusy, match=f"locked by process {other.pid}"):
            LocalWitness(tmp_path / "witness", lock_seconds_max=0.1).read()


def test_a_postgresql_ledger_that_is_held_says_by_whom(
    tmp_path: Path, make_home: MakeHome, postgres_database: str
) -> None:
    ledger = Ledger(make_home(tmp_path, {"ledger": {"url": postgres_database, "busy_timeout_seconds": 1}}))
    ledger.create(LAKE)
    with ledger.write() as first:
        first.execute(sequence.TAKE, {"count": 1})
        with pytest.raises(LedgerBusy, match=f"process {os.getpid()} on {socket.gethostname()[:20]}"):
            with ledger.write() as second:
                sequence.lock(second)
    ledger.close()


def test_a_bucket_that_never_answers_holds_the_ledger_no_longer_than_others_wait_for_it(
    tmp_path: Path, make_home: MakeHome
) -> None:
    with silent_server() as port:
        warehouse = {"url": "s3://b/p", "endpoint": f"http://127.0.0.1:{port}", "access_key": "a", "secret_key": "s"}
        config = make_home(tmp_path, {"warehouse": warehouse, "ledger": {"busy_timeout_seconds": 3}})
        witness, limits = open_witness(config), witness_limits(3)
        assert isinstance(witness, S3Witness) and witness._client.limits == limits
        with pytest.raises(WitnessUnreadable):
            witness.raise_to(2, expected=1)
    longest = limits.total_seconds_max + limits.connect_timeout_seconds + limits.read_timeout_seconds
    assert 3 * longest < 3, "read, write, read again: all while others wait for the lock"


def test_an_error_of_the_store_repeats_no_parameter(lake: LakeState) -> None:
    with pytest.raises(Exception, match="epoch") as refused, lake.ledger.write() as connection:
        connection.execute(sequence.sequence.update().values(lake="top-secret", epoch=0))
    assert "top-secret" not in str(refused.value)
