"""A ledger that moves to another database, and what it refuses while it is closed, on SQLite and PostgreSQL."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from strandline.core.errors import LedgerMoved, RefusedError
from strandline.core.records.ledger_moves import LedgerMove, MoveState
from strandline.core.records.maintenance_records import MaintenanceKind, MaintenanceOutcome
from strandline.core.settings.lake_config import CONFIG_NAME, LakeConfig
from strandline.core.types import SnapshotId
from strandline.ledger import closed_ledger, move_steps
from strandline.ledger.all_tables import metadata
from strandline.ledger.copy_ledger_rows import copy_rows, digest_ledger
from strandline.ledger.deliver import sinks
from strandline.ledger.engine import Ledger, utc_now
from strandline.ledger.ingest import blocks, datasets, sequence
from strandline.ledger.maintain import runs
from strandline.ledger.schema import core
from tests.campaign import scaled
from tests.conftest import MakeHome
from tests.ledger.conftest import LAKE, LakeState
from tests.ledger.delivery import add_sink

NOTHING_ELSE = move_steps.Leaving(60, files=False, catalog=None)
MOVE = LedgerMove(MoveState.LEAVING, "move-1", 'postgresql://somewhere/lake\'s "new" place, 100 %')


@pytest.fixture
def other(
    lake: LakeState, tmp_path: Path, make_home: MakeHome, request: pytest.FixtureRequest
) -> Iterator[Callable[[], Ledger]]:
    """Makes ledgers of the other kind, with nothing in them."""
    made: list[Ledger] = []

    def make() -> Ledger:
        url = request.getfixturevalue("postgres_server").create_database() if lake.ledger.is_sqlite else "new.db"
        ledger = Ledger(make_home(tmp_path / f"other{len(made)}", {"ledger": {"url": url}}))
        made.append(ledger)
        return ledger

    yield make
    for ledger in made:
        ledger.close()


def close(lake: LakeState) -> LedgerMove:
    return move_steps.close(lake.ledger, lake.witness, MOVE, NOTHING_ELSE)


def raw_rows(ledger: Ledger) -> dict[str, list[dict[str, Any]]]:
    """Every row, as the database has it."""
    with ledger.read() as connection:
        return {
            table: sorted((dict(r) for r in connection.exec_driver_sql(f"SELECT * FROM {table}").mappings()), key=repr)
            for table in sa.inspect(connection).get_table_names()
        }


def without_move(rows: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    for name in ("move_state", "move_id", "move_place"):
        rows["sequence"][0].pop(name)
    return rows


def fill(lake: LakeState) -> None:
    """Every state of a block, and texts that databases may treat differently."""
    lake.publish(lake.reserve("first"))
    lake.publish(lake.reserve("zweiter Stapel: äöü ✓ ' \" \\ %s :x $1 \n\t"))
    dead = lake.reserve("dead", lease_seconds=60)
    assert blocks.abandon(lake.ledger, lake.witness, dead, "because")
    with lake.ledger.write() as connection:
        datasets.add(connection, name="Zebra", table_uuid="z", deliver_by=("a", "b"))
        datasets.add(connection, name="apple", table_uuid="a", shards=7)


def test_every_table_and_column_of_the_database_is_copied(lake: LakeState) -> None:
    with lake.ledger.read() as connection:
        made = sa.inspect(connection)
        names = set(made.get_table_names()) - {"alembic_version"}
        assert names == set(metadata.tables)
        for name in names:
            assert {c["name"] for c in made.get_columns(name)} == set(metadata.tables[name].columns.keys()), name


def test_all_rows_move_there_and_back(lake: LakeState, other: Callable[[], Ledger]) -> None:
    fill(lake)
    before = without_move(raw_rows(lake.ledger))
    move = close(lake)
    there = other()
    copied = copy_rows(lake.ledger, there, move)
    assert without_move(raw_rows(there)) == before
    assert copied == digest_ledger(there) == digest_ledger(lake.ledger)
    assert copied["block"].rows == len(before["block"]) == 3
    move_steps.leave(lake.ledger, move)
    move_steps.reopen(there, move.id, MoveState.ARRIVING)
    there.open()
    back = LedgerMove(MoveState.LEAVING, "move-2", "back")
    with there.write() as connection:
        closed_ledger.close(connection, back)
    third = other_of_the_first_kind(lake)
    try:
        copy_rows(there, third, back)
        assert without_move(raw_rows(third)) == before
    finally:
        third.close()


def other_of_the_first_kind(lake: LakeState) -> Ledger:
    ledger = lake.config.settings.ledger
    if lake.ledger.is_sqlite:
        url = str(lake.config.home / "third.db")
    else:
        address = sa.make_url(lake.config.ledger_url)
        name = f"{address.database}_third"
        server = sa.create_engine(address, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
        with server.connect() as connection:
            connection.exec_driver_sql(f'CREATE DATABASE "{name}"')
        url = address.set(database=name, drivername="postgresql").render_as_string(hide_password=False)
    settings = lake.config.settings.model_copy(update={"ledger": ledger.model_copy(update={"url": url})})
    return Ledger(LakeConfig(settings, lake.config.home))


def test_the_moved_ledger_goes_on_with_numbers_ids_and_rules(lake: LakeState, other: Callable[[], Ledger]) -> None:
    fill(lake)
    move = close(lake)
    there = other()
    copy_rows(lake.ledger, there, move)
    move_steps.leave(lake.ledger, move)
    move_steps.reopen(there, move.id, MoveState.ARRIVING)
    moved = LakeState(there.config, there, lake.witness, lake.dataset)  # the witness stays where it is
    last = sequence_of(there)
    block = moved.publish(moved.reserve("after the move"))
    assert block.head.rows.lo == last + 1
    with there.write() as connection:
        added = datasets.add(connection, name="new", table_uuid="n")
    assert added.id != lake.dataset.id
    again = blocks.NewBlock(lake.dataset.id, 10, "first", None)
    repeated, new = blocks.reserve(there, lake.witness, again, lease_seconds=60)
    assert not new and repeated.head.rows.lo == 1
    with pytest.raises(sa.exc.IntegrityError), there.write() as connection:  # the database refuses as before
        connection.exec_driver_sql("UPDATE sequence SET last = 0")


def sequence_of(ledger: Ledger) -> int:
    with ledger.read() as connection:
        return sequence.read(connection).last


def test_a_closed_ledger_refuses_every_change_also_of_who_had_it_open(lake: LakeState) -> None:
    reserved = lake.publish(lake.reserve("before"))
    slept = Ledger(lake.config)  # a process that opened it before
    assert sequence_of(slept) == reserved.head.rows.hi
    close(lake)
    witnessed = lake.witness.read().highest
    zombie = LakeState(lake.config, slept, lake.witness, lake.dataset)
    with pytest.raises(LedgerMoved, match='being moved to postgresql://somewhere/lake\'s "new" place, 100 %'):
        zombie.reserve("after")
    assert lake.witness.read().highest == witnessed  # no number was taken
    with pytest.raises(LedgerMoved):
        slept.change(datasets.add, name="x", table_uuid="x")
    with pytest.raises(LedgerMoved):
        slept.query(sequence.read)
    for name, rows in raw_rows(slept).items():
        if name == "alembic_version" or not rows:
            continue
        column = next(iter(rows[0]))
        for change in (f"DELETE FROM {name}", f"UPDATE {name} SET {column} = {column}"):
            with pytest.raises(LedgerMoved), slept.write() as connection:
                connection.exec_driver_sql(change)
    slept.close()
    move_steps.reopen(lake.ledger, MOVE.id, MoveState.LEAVING)
    lake.publish(lake.reserve("goes on"))


def test_a_ledger_that_was_left_is_never_opened_again(lake: LakeState) -> None:
    move = close(lake)
    move_steps.leave(lake.ledger, move)
    move_steps.leave(lake.ledger, move)  # repeated after a crash
    with pytest.raises(LedgerMoved, match="was moved to"):
        move_steps.reopen(lake.ledger, move.id, MoveState.LEAVING)
    with pytest.raises(sa.exc.IntegrityError), lake.ledger.write() as connection:
        closed_ledger.reopen(connection)
    assert move_steps.find_move(lake.ledger) == LedgerMove(MoveState.LEFT, move.id, move.place)


def test_a_copy_is_not_in_use_before_it_is_opened_and_a_second_attempt_replaces_it(
    lake: LakeState, other: Callable[[], Ledger]
) -> None:
    fill(lake)
    move, there = close(lake), other()
    copy_rows(lake.ledger, there, move)
    there.open()
    with pytest.raises(LedgerMoved, match="is filling this ledger"):
        there.query(sequence.read)
    with pytest.raises(LedgerMoved, match="is filling this ledger"):
        there.change(datasets.add, name="x", table_uuid="x")
    move_steps.reopen(lake.ledger, move.id, MoveState.LEAVING)  # called off
    lake.publish(lake.reserve("in between"))
    again = close(lake)
    copy_rows(lake.ledger, there, again)
    assert digest_ledger(there) == digest_ledger(lake.ledger)


def test_a_ledger_in_use_is_never_overwritten(lake: LakeState, other: Callable[[], Ledger]) -> None:
    there = other()
    there.create(LAKE)
    with pytest.raises(RefusedError, match="there is a ledger already"):
        copy_rows(lake.ledger, there, close(lake))


def test_it_is_refused_while_a_block_is_open(lake: LakeState) -> None:
    reserved = lake.reserve("under way")
    with pytest.raises(RefusedError, match=r"block 1 to 10 of default\.events is open") as refused:
        close(lake)
    assert "it may write until" in (refused.value.hint or "")
    assert blocks.mark_staged(lake.ledger, lake.witness, reserved, SnapshotId(7))
    with pytest.raises(RefusedError, match="is open") as refused:
        close(lake)
    assert "strandline recover" in (refused.value.hint or "")
    assert move_steps.find_move(lake.ledger) is None
    assert len(move_steps.find_obstacles(lake.ledger, lake.witness, NOTHING_ELSE)) == 1


def test_it_is_refused_while_the_witness_is_ahead(lake: LakeState) -> None:
    lake.witness.raise_to(5, expected=0)
    with pytest.raises(RefusedError, match="the witness is at 5 and the ledger at 0"):
        close(lake)


@examples(max_examples=scaled(2, 20))  # a copy of the ledger for each; many texts go into one
@given(
    texts=st.lists(
        st.text(st.characters(blacklist_characters="\0", blacklist_categories=("Cs",)), min_size=1),
        min_size=20,
        max_size=30,
        unique=True,
    )
)
def test_texts_of_any_kind_arrive_as_they_were(
    texts: list[str], shared: LakeState, tmp_path_factory: pytest.TempPathFactory, make_home: MakeHome
) -> None:
    with shared.ledger.write() as connection:
        for text in texts:
            if datasets.find(connection, text) is None:
                datasets.add(connection, name=text, table_uuid=text, deliver_by=(text,))
    there = Ledger(make_home(tmp_path_factory.mktemp("there"), {}))
    copy_rows(shared.ledger, there, close(shared))
    assert without_move(raw_rows(there)) == without_move(raw_rows(shared.ledger))
    there.close()
    move_steps.reopen(shared.ledger, MOVE.id, MoveState.LEAVING)


def obstacles(lake: LakeState, *, files: bool = False) -> list[str]:
    leaving = move_steps.Leaving(60, files=files, catalog=None)
    return [o.what for o in move_steps.find_obstacles(lake.ledger, lake.witness, leaving)]


def change(lake: LakeState, statement: str) -> None:
    with lake.ledger.write() as connection:
        connection.exec_driver_sql(statement)


def micros_from_now(seconds: float) -> int:
    return core.micros(utc_now() + timedelta(seconds=seconds))


def test_it_is_refused_while_somebody_delivers_and_not_when_the_lease_is_over(lake: LakeState) -> None:
    with lake.ledger.write() as connection:
        sink = add_sink(connection, lake.dataset)
    lease = sinks.leases.take(lake.ledger, sink.id, seconds=60)
    assert lease is not None
    assert obstacles(lake) == [f'a process delivers to sink "{sink.name}"']
    with pytest.raises(RefusedError, match="a process delivers to sink") as refused:
        close(lake)
    assert "stop `strandline run`" in (refused.value.hint or "")
    change(lake, f"UPDATE sink SET lease_until = {micros_from_now(-1)}")
    assert obstacles(lake) == []
    close(lake)
    with pytest.raises(LedgerMoved):  # who slept with the lease learns that it is over
        sinks.leases.renew(lake.ledger, lease, seconds=60)


def test_it_is_refused_while_the_reconciler_maintenance_or_a_task_is_under_way(lake: LakeState) -> None:
    change(lake, f"UPDATE sweep_lease SET token = 't', fence = fence + 1, until = {micros_from_now(60)}")
    assert obstacles(lake) == ["a run of the reconciler is under way"]
    change(lake, "UPDATE sweep_lease SET token = NULL, until = NULL")
    new = runs.NewRun(lake.dataset.id, MaintenanceKind.COMPACT, "here")
    with lake.ledger.write() as connection:
        run = runs.begin(connection, new, lease_seconds=60)
    assert obstacles(lake) == ["compact is under way on here"]
    assert run is not None
    assert lake.ledger.change(runs.end, run, MaintenanceOutcome.DONE, reason=None, result=None)
    assert obstacles(lake) == []


@pytest.mark.parametrize("is_stopped", [False, True])
def test_it_is_refused_while_another_process_has_the_ledger_open(lake: LakeState, is_stopped: bool) -> None:
    """An idle daemon has no lease. One that stands still is found, too."""
    idle = subprocess.Popen(
        [sys.executable, "-c", IDLE, str(lake.config.home / CONFIG_NAME)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert idle.stdin is not None and idle.stdout is not None
    try:
        assert idle.stdout.readline() == b"open\n"
        if is_stopped:
            idle.send_signal(signal.SIGSTOP)
        [found] = obstacles(lake)
        assert f"process {idle.pid}" in found and "has the ledger open" in found
        with pytest.raises(RefusedError, match="has the ledger open"):
            close(lake)
    finally:
        idle.kill()
        idle.communicate()
    deadline = time.monotonic() + 30
    while obstacles(lake):  # PostgreSQL notices a moment later that a client is gone
        assert time.monotonic() < deadline
        time.sleep(0.05)
    close(lake)


IDLE = """
import sys
from pathlib import Path
from strandline.core.settings.lake_config import load_config
from strandline.ledger.deliver import sinks
from strandline.ledger.engine import Ledger, utc_now
from strandline.ledger.ingest import sequence

ledger = Ledger(load_config(Path(sys.argv[1])))
ledger.query(sequence.read)
print("open", flush=True)
sys.stdin.read()
"""
