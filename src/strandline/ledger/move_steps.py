"""The steps that a migration takes in both ledgers. Each is one transaction, and can be repeated."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from strandline.core.errors import LedgerMissing, RefusedError
from strandline.core.records.ledger_moves import LedgerMove, MoveState
from strandline.core.settings.lake_config import LakeConfig
from strandline.ledger import closed_ledger
from strandline.ledger.engine import Ledger, utc_now
from strandline.ledger.ingest import sequence
from strandline.ledger.live_writers import LiveWriter, find_live_writers, find_processes
from strandline.ledger.replicate import sites
from strandline.ledger.schema.core import sequence as sequence_table
from strandline.ledger.schema.core import sink
from strandline.ledger.witness import Witness


@dataclass(frozen=True, slots=True)
class Leaving:
    """What a migration moves besides the ledger."""

    lease_seconds: float  # a maintenance job without a heartbeat for this long is dead
    files: bool
    catalog: Path | None  # the file of the embedded catalog that the tables leave


def find_move(ledger: Ledger) -> LedgerMove | None:
    """Raises LedgerMissing if there is no ledger."""
    if not ledger.exists():
        raise LedgerMissing(f"there is no ledger at {ledger.place}")
    return ledger.query(closed_ledger.read_move)


def has_ledger(connection: sa.Connection) -> bool:
    """Whether the database has a ledger. A migration that died early may have left an empty file. Raises RefusedError
    for a SQLite file with other tables."""
    tables = sa.inspect(connection).get_table_names()
    if not tables or sequence_table.name in tables:
        return bool(tables)
    if connection.dialect.name == "sqlite":
        raise RefusedError(
            "the file of the ledger holds something else",
            hint="Check ledger.url in both settings files, and name a file that does not exist.",
        )
    return False


def find_obstacles(ledger: Ledger, witness: Witness, leaving: Leaving) -> list[LiveWriter]:
    """The obstacles for which `close` would refuse."""
    return ledger.query(_obstacles, witness, leaving, ledger.config) + find_processes(ledger)


def close(ledger: Ledger, witness: Witness, move: LedgerMove, leaving: Leaving) -> LedgerMove:
    """Closes the ledger for all changes. Returns the migration that the ledger then names: an earlier one, if that has
    begun and has not ended. Raises RefusedError while anybody writes."""
    with ledger.write() as connection:
        closed_ledger.lock_all(connection)
        if (begun := closed_ledger.read_move(connection)) is not None:
            return begun
        refuse_for(_obstacles(connection, witness, leaving, ledger.config) + find_processes(ledger))
        closed_ledger.close(connection, move)
    return move


@contextmanager
def keep_under_way(ledger: Ledger, move: LedgerMove) -> Iterator[Callable[[], None]]:
    """Keeps others from calling the migration off while the block runs. Yields a function that checks this again, for a
    process that may have been suspended. Raises RefusedError if the migration was called off."""
    with ledger.write() as connection:
        closed_ledger.lock_counter(connection)
        check_leaving(connection, move)
        yield lambda: check_leaving(connection, move)


def check_leaving(connection: sa.Connection, move: LedgerMove) -> None:
    """Raises RefusedError unless this migration is under way."""
    current = closed_ledger.read_move(connection)
    if current is None or current.id != move.id or current.state is not MoveState.LEAVING:
        raise RefusedError(
            "this migration was called off meanwhile",
            hint="Run `strandline migrate --to FILE` to begin again.",
        )


def call_off(ledger: Ledger, put_back: Callable[[LedgerMove | None], list[str]]) -> list[str]:
    """Opens the ledger for changes again. `put_back` undoes what the migration did elsewhere, while no other process
    can continue it; it gets None if there is no migration. Returns its result. Raises LedgerMoved after the commit
    point."""
    with ledger.write() as connection:
        closed_ledger.lock_counter(connection)
        move = closed_ledger.read_move(connection)
        if move is not None and move.state is not MoveState.LEAVING:
            raise move.refusal()
        done = put_back(move)
        if move is not None:
            closed_ledger.reopen(connection)
    return done


def reopen(ledger: Ledger, move_id: str, expected: MoveState) -> None:
    """Opens the ledger for changes. Does nothing if it is open."""
    with ledger.write() as connection:
        current = closed_ledger.read_move(connection)
        if current is None:
            return
        if current.id != move_id or current.state is not expected:
            raise current.refusal()
        closed_ledger.reopen(connection)


def leave(ledger: Ledger, move: LedgerMove) -> None:
    """The commit point of a migration: after it, the lake is at the new place and nowhere else."""
    with ledger.write() as connection:
        if closed_ledger.read_move(connection) == (left := LedgerMove(MoveState.LEFT, move.id, move.place)):
            return
        check_leaving(connection, move)
        closed_ledger.close(connection, left)


def refuse_for(obstacles: list[LiveWriter]) -> None:
    if obstacles:
        shown = "; ".join(o.what for o in obstacles)
        remedies = dict.fromkeys(o.remedy for o in obstacles)
        raise RefusedError(f"the lake is in use: {shown}", hint=f"Before the lake can move: {'; '.join(remedies)}.")


def _obstacles(connection: sa.Connection, witness: Witness, leaving: Leaving, config: LakeConfig) -> list[LiveWriter]:
    now = utc_now()
    obstacles = find_live_writers(connection, now, lease_seconds=leaving.lease_seconds, files_move=leaving.files)
    recorded, counter = witness.read(), sequence.read(connection)
    recorded.check_lake(counter.lake)
    this_site = sites.get(connection)
    recorded.check_follows(this_site.follows)
    recorded.check_leads(this_site.follows, this_site.claimed_term)
    if recorded.highest != counter.last:
        obstacles.append(
            LiveWriter(
                f"the witness is at {recorded.highest} and the ledger at {counter.last}",
                "bring the ledger up to the witness: `strandline ledger resync`",
            )
        )
    return obstacles + list(_sinks_into(connection, leaving, config))


def _sinks_into(connection: sa.Connection, leaving: Leaving, config: LakeConfig) -> Iterator[LiveWriter]:
    """Sinks whose destination would stay behind: a table of the old catalog, or a folder in the old warehouse. A person
    deletes both when the lake has moved."""
    folder = config.warehouse_folder if leaving.files else None
    remedy = "remove such sinks first; a sink's destination must be in a place of its own"
    for row in connection.execute(sa.select(sink.c.name, sink.c.options).where(sink.c.removed_at.is_(None))):
        options = json.loads(row.options)
        paths = [options[key] for key in ("path", "catalog", "warehouse") if options.get(key)]
        places = [(config.home / Path(p.removeprefix("file://")).expanduser()).resolve() for p in paths]
        if leaving.catalog in places:
            yield LiveWriter(f'sink "{row.name}" delivers into the catalog that the tables leave', remedy)
        elif folder is not None and any(place.is_relative_to(folder) for place in places):
            yield LiveWriter(f'sink "{row.name}" delivers into the folder that the lake leaves', remedy)
