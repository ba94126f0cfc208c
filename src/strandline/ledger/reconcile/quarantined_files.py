"""The quarantine of files: each file is recorded before a run moves it there, and after."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from strandline.core.records.reconcile_records import FindingKind, ReconcileRunId, Swept, SweptId, SweptState
from strandline.ledger.engine import from_row, rows_with, slices, utc_now
from strandline.ledger.schema.reconcile import swept_file

# The states of files that may be in quarantine; only storage can tell.
IN_QUARANTINE = (SweptState.BEGUN, SweptState.HELD, SweptState.LEFT, SweptState.PURGING)


@dataclass(frozen=True, slots=True)
class NewSwept:
    kind: FindingKind
    table: str | None
    path: str
    kept_at: str
    size: int
    modified_ns: int | None


def begin(connection: sa.Connection, run: ReconcileRunId, files: Sequence[NewSwept]) -> list[Swept]:
    """Records the files before they move. Returns the records in the order of `files`."""
    now, by_place = utc_now(), dict[str, Swept]()
    fixed = {"run_id": run, "state": SweptState.BEGUN.value, "begun_at": now, "changed_at": now}
    for part in slices(files, 10):
        values = [
            {
                **fixed,
                "kind": f.kind.value,
                "table_name": f.table,
                "path": f.path,
                "kept_at": f.kept_at,
                "size": f.size,
                "modified_ns": f.modified_ns,
            }
            for f in part
        ]
        inserted = connection.execute(swept_file.insert().values(values).returning(swept_file))
        by_place |= {row.kept_at: _swept(row) for row in inserted}
    return [by_place[f.kept_at] for f in files]


def move(connection: sa.Connection, files: Iterable[Swept], state: SweptState, why: str | None = None) -> int:
    """Changes the state of each file that is still in the state in which it was read. Returns how many were. Another
    process may have changed the others meanwhile: what it recorded stays."""
    by_state: dict[SweptState, list[SweptId]] = {}
    for file in files:
        by_state.setdefault(file.state, []).append(file.id)
    changed = 0
    for before, ids in by_state.items():
        for part in slices(ids):
            is_unchanged = (swept_file.c.id.in_(part), swept_file.c.state == before.value)
            values = {"state": state.value, "changed_at": utc_now(), "why": why}
            changed += connection.execute(swept_file.update().where(*is_unchanged).values(**values)).rowcount
    return changed


def in_state(connection: sa.Connection, state: SweptState) -> list[Swept]:
    # The databases use a partial index only if its condition is a literal in the query, not a parameter.
    wanted = swept_file.c.state == sa.literal_column(f"'{state.value}'", sa.Text)
    return [_swept(row) for row in connection.execute(sa.select(swept_file).where(wanted).order_by(swept_file.c.id))]


def of_run(connection: sa.Connection, run: ReconcileRunId, states: Sequence[SweptState] | None = None) -> list[Swept]:
    query = sa.select(swept_file).where(swept_file.c.run_id == run).order_by(swept_file.c.id)
    if states is not None:
        query = query.where(swept_file.c.state.in_([s.value for s in states]))
    return [_swept(row) for row in connection.execute(query)]


def page(connection: sa.Connection, *, run: int | None, after: int | None, files_max: int) -> list[Swept]:
    """Files in quarantine, by id; `after` is the last id of the previous page."""
    query = sa.select(swept_file).where(swept_file.c.state.in_([SweptState.HELD.value, SweptState.PURGING.value]))
    if run is not None:
        query = query.where(swept_file.c.run_id == run)
    if after is not None:
        query = query.where(swept_file.c.id > after)
    return [_swept(row) for row in connection.execute(query.order_by(swept_file.c.id).limit(files_max))]


def page_of_run(connection: sa.Connection, run: ReconcileRunId, *, after: int | None, files_max: int) -> list[Swept]:
    """Files of a run in any state, by id; `after` is the last id of the previous page."""
    query = sa.select(swept_file).where(swept_file.c.run_id == run).order_by(swept_file.c.id).limit(files_max)
    if after is not None:
        query = query.where(swept_file.c.id > after)
    return [_swept(row) for row in connection.execute(query)]


def count_of_run(connection: sa.Connection, run: ReconcileRunId) -> int:
    query = sa.select(sa.func.count()).select_from(swept_file).where(swept_file.c.run_id == run)
    return int(connection.execute(query).scalar_one())


def of_paths(connection: sa.Connection, paths: Iterable[str]) -> dict[str, list[Swept]]:
    """By path, the files that may still be in quarantine, newest first."""
    files: dict[str, list[Swept]] = {}
    states = [s.value for s in IN_QUARANTINE]
    query = sa.select(swept_file).where(swept_file.c.state.in_(states)).order_by(swept_file.c.id.desc())
    for row in rows_with(connection, query, swept_file.c.path, paths):
        files.setdefault(row.path, []).append(_swept(row))
    return files


def due_for_purge(connection: sa.Connection, *, before: datetime, run: ReconcileRunId | None) -> list[Swept]:
    """Files that were quarantined before a given time, copies that a dead run left behind, and unfinished purges."""
    states = [s.value for s in (SweptState.HELD, SweptState.LEFT, SweptState.PURGING)]
    query = sa.select(swept_file).where(swept_file.c.state.in_(states), swept_file.c.begun_at <= before)
    if run is not None:
        query = query.where(swept_file.c.run_id == run)
    return [_swept(row) for row in connection.execute(query.order_by(swept_file.c.id))]


def _swept(row: Any) -> Swept:
    kind, state = FindingKind(row.kind), SweptState(row.state)
    return from_row(Swept, row, run=row.run_id, kind=kind, table=row.table_name, state=state)
