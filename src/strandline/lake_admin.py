"""Making a lake, and making its ledger or its witness again when one of them is lost."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from strandline.core.audit_events import Event
from strandline.core.errors import LedgerUnreadable, RefusedError, WitnessUnreadable
from strandline.core.settings import CONFIG_NAME, LakeConfig, load_config
from strandline.core.types import BRANCH_PREFIX
from strandline.iceberg.metadata.table_metadata import LAKE_PROPERTY, WapId
from strandline.lake import Lake
from strandline.ledger import audit
from strandline.ledger.ingest import sequence
from strandline.ledger.witness import Mark

if TYPE_CHECKING:
    from strandline.ingest.resync import Resynced

SETTINGS_TEMPLATE = """\
# Settings of a Strandline lake. Everything has a default; docs/settings.md explains each.

[warehouse]
url = "{warehouse}"

[catalog]
kind = "sqlite"
path = "catalog.db"

[ledger]
url = "{ledger}"
"""


def init_lake(home: Path, *, warehouse: str = "warehouse", ledger: str = "ledger.db") -> Lake:
    """A new lake: settings, witness, ledger. What an interrupted init left is gone on with."""
    home.mkdir(parents=True, exist_ok=True)
    path = home / CONFIG_NAME
    if not path.exists():
        path.write_text(SETTINGS_TEMPLATE.format(warehouse=warehouse, ledger=ledger), "utf-8")
    lake = Lake(load_config(path))
    # The witness comes first: a ledger without one would refuse everything, a witness without a ledger is rebuilt from.
    try:
        mark = lake.witness.read()
    except WitnessUnreadable:
        if lake.ledger.exists():
            raise
        mark = Mark(str(uuid.uuid4()), 0)
        lake.witness.create(mark)
    if lake.ledger.exists():
        raise RefusedError(f"there is a lake already at {home}", hint="`strandline status` shows it.")
    if mark.highest > 0:
        raise RefusedError(
            f"the warehouse has a lake already, whose ledger is gone (highest number {mark.highest})",
            hint="`strandline ledger rebuild` makes its ledger again.",
        )
    lake.ledger.create(mark.lake)
    lake.open()
    return lake


def rebuild_ledger(
    config: LakeConfig,
    *,
    force: bool = False,
    lost_witness: bool = False,
    on_start: Callable[[str], None] | None = None,
) -> Resynced:
    """A usable ledger from tables and witness, or a new witness from a ledger that is whole.

    A ledger that is in the way is moved aside, never deleted. Where both are gone nobody can tell which numbers were
    taken, and that is refused: a number must never be used twice.
    """
    lake = Lake(config)
    lake.on_start = on_start
    if lost_witness:
        _replace_witness(lake)
    else:
        mark = lake.witness.read()
        if lake.ledger.exists():
            _move_aside(lake, force=force)
        lake.ledger.create(mark.lake)
        # One number more than the new ledger can know, so that a resync stays due until it has been done.
        lake.witness.raise_to(mark.highest + 1, expected=mark.highest)
    lake.open()
    resynced = lake.ingestion.resync_ledger(rebuild=True)
    if resynced is None:
        raise LedgerUnreadable("the rebuilt ledger could not be resynced")
    lake.recover()
    lake.close()
    return resynced


def _replace_witness(lake: Lake) -> None:
    try:
        found = lake.witness.read()
    except WitnessUnreadable:
        pass
    else:
        raise RefusedError(f"the witness is there, at {found.highest}", hint="Leave out --lost-witness.")
    lake.ledger.open()
    with lake.ledger.read() as connection:
        lake.id = sequence.read(connection).lake
    seen = highest_seen(lake)
    with lake.ledger.write() as connection:
        counter = sequence.lock(connection)
        # One number more than the ledger knows, so that a resync is due; and no fewer than the tables show, because
        # the ledger may be an old copy.
        highest = max(counter.last, seen) + 1
        lake.witness.replace(Mark(counter.lake, highest))
        audit.record(connection, Event.WITNESS_REPLACED, highest=highest, counter=counter.last, in_tables=seen)


def highest_seen(lake: Lake) -> int:
    """The highest number that the tables' own history tells of."""
    tables = lake.tables()
    found = [0]
    for name in tables.names():
        view = tables.view(name)
        if view.properties.get(LAKE_PROPERTY) == lake.id:
            found += [int(branch.removeprefix(BRANCH_PREFIX)) for branch in view.branches]
            waps = (WapId.parse(s.wap) for s in view.snapshots.values())
            found += [w.rows.hi for w in waps if w is not None and w.lake == lake.id]
    return max(found)


def _move_aside(lake: Lake, *, force: bool) -> None:
    if lake.ledger.path is None:
        raise RefusedError(
            "the PostgreSQL database has a ledger already",
            hint="Rename or drop that database yourself, make an empty one of the same name, and run this again.",
        )
    try:
        lake.ledger.open()
        usable = True
    except RefusedError:
        usable = False
    if usable and not force:
        raise RefusedError("the ledger is there and can be read", hint="Nothing to rebuild; --force does it anyway.")
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    for suffix in ("", "-wal", "-journal", "-shm"):
        part = lake.ledger.path.with_name(lake.ledger.path.name + suffix)
        if part.exists():
            part.rename(part.with_name(f"{lake.ledger.path.name}.replaced-{stamp}{suffix}"))
