"""Suspect files: nothing references them, but they probably belong to entries with a damaged path. A run that finds one
records it. From then on no run sweeps it, whatever becomes of the entry, until a person releases it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from strandline.core.records.reconcile_records import Suspect
from strandline.ledger.engine import slices, utc_now
from strandline.ledger.schema.reconcile import suspect_file


def record(connection: sa.Connection, suspects: Sequence[Suspect]) -> int:
    """Records the suspect files that are new. Returns how many. A recorded one does not change, released or not."""
    recorded = {suspect.path for suspect in list_suspects(connection)}
    new = [suspect for suspect in suspects if suspect.path not in recorded]
    now = utc_now()
    for part in slices(new, 5):
        values = [
            {"path_hash": _hash(s.path), "path": s.path, "table_name": s.table, "entry": s.entry, "found_at": now}
            for s in part
        ]
        connection.execute(suspect_file.insert().values(values))
    return len(new)


def list_suspects(connection: sa.Connection) -> list[Suspect]:
    """All suspect files, by path."""
    return [_suspect(row) for row in connection.execute(sa.select(suspect_file).order_by(suspect_file.c.path))]


def release(connection: sa.Connection, path: str) -> Suspect | None:
    """Records that the file is an orphan file, as a person says. None if it is not a recorded suspect file."""
    row = connection.execute(
        suspect_file.update()
        .where(suspect_file.c.path_hash == _hash(path))
        .values(released_at=utc_now())
        .returning(suspect_file)
    ).one_or_none()
    return None if row is None else _suspect(row)


def forget(connection: sa.Connection, paths: Iterable[str]) -> None:
    """Deletes the records of files that a table references again."""
    for part in slices([_hash(path) for path in paths]):
        connection.execute(suspect_file.delete().where(suspect_file.c.path_hash.in_(part)))


def _hash(path: str) -> str:
    """The key of a path, which may be longer than an index allows."""
    return hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()


def _suspect(row: Any) -> Suspect:
    return Suspect(row.path, row.table_name, row.entry, row.released_at is not None)
