"""What a migration moves, and which of its steps are left: pure functions of two settings files and two ledgers."""

from __future__ import annotations

import hashlib
import json
import uuid
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from strandline.core.errors import RefusedError
from strandline.core.records.ledger_moves import LedgerMove, MoveState
from strandline.core.settings.lake_config import LakeConfig

_EMPTY = "Name an empty database, or a file that does not exist."
_NAMES_IT = "The file of --to names the new places; a variable STRANDLINE_… would override both files."


@dataclass(frozen=True, slots=True)
class Moves:
    """The ledger always moves."""

    catalog: bool
    warehouse: bool


class MigrateStep(StrEnum):
    """In this order. Each can be repeated."""

    CLOSE = "close the old ledger"
    COPY_FILES = "copy the files"
    REGISTER = "register the tables"
    COPY_LEDGER = "copy the ledger"
    WITNESS = "write the new witness"
    CLOSE_CATALOG = "take the tables out of the old catalog"
    LEAVE = "leave the old ledger"  # the commit point
    OPEN = "open the new ledger"
    CLOSE_WITNESS = "close the old witness"
    DROP_OLD = "drop the tables from the old catalog"
    SETTINGS = "write the settings"


_PLACES = frozenset({"ledger.url", "catalog.kind", "catalog.path", "catalog.uri", "catalog.options"})
_PROMISES = frozenset({"replication.arbiter", "deliver.wait_for"})
_OF_THE_CATALOG = frozenset({MigrateStep.REGISTER, MigrateStep.CLOSE_CATALOG, MigrateStep.DROP_OLD})
_OF_THE_WAREHOUSE = frozenset({MigrateStep.COPY_FILES, MigrateStep.WITNESS, MigrateStep.CLOSE_WITNESS})
BEFORE_LEAVING = frozenset(
    {
        MigrateStep.COPY_FILES,
        MigrateStep.REGISTER,
        MigrateStep.COPY_LEDGER,
        MigrateStep.WITNESS,
        MigrateStep.CLOSE_CATALOG,
    }
)
_AFTER_LEAVING = frozenset({MigrateStep.OPEN, MigrateStep.CLOSE_WITNESS, MigrateStep.DROP_OLD, MigrateStep.SETTINGS})


@dataclass(frozen=True, slots=True)
class FoundLedger:
    """What is at the place that the ledger leaves, or where it goes."""

    exists: bool
    move: LedgerMove | None  # None: it is in use, if it exists
    lake: str | None = None
    place: str = ""


@dataclass(frozen=True, slots=True)
class MigrationPlaces:
    """The ledger, catalog and warehouse that a migration leaves, and those it goes to. An interrupted migration
    continues only with the same ones."""

    digest: str

    @classmethod
    def of(cls, old: LakeConfig, old_ledger: str, new: LakeConfig, new_ledger: str) -> MigrationPlaces:
        """The ledgers are named without their passwords, which may change meanwhile."""
        named = [[place, *_catalog(c), *_warehouse(c)] for c, place in ((old, old_ledger), (new, new_ledger))]
        return cls(hashlib.sha256(json.dumps(named).encode()).hexdigest()[:32])

    def new_id(self) -> str:
        return f"{uuid.uuid4().hex[:16]}-{self.digest}"

    def check(self, move: LedgerMove) -> None:
        """Raises RefusedError for a migration that goes elsewhere, or comes from elsewhere."""
        if move.id.partition("-")[2] != self.digest:
            raise RefusedError(
                f"{move.refusal().message}, by a migration between other places than these settings name",
                hint="Repeat `strandline migrate --to FILE` with the ledger, catalog and warehouse that it began with, "
                "in both files.",
            )


def find_moves(old: LakeConfig, new: LakeConfig) -> Moves:
    """Raises RefusedError for what cannot move, or not safely."""
    if _ledger(old) == _ledger(new):
        raise RefusedError(
            "the new settings name the same ledger as the present ones",
            hint='A migration always goes to a new ledger, for example `ledger.url = "ledger-2.db"`: the old one is '
            f"closed, so that a process with the old settings can change nothing. {_NAMES_IT}",
        )
    moves = Moves(catalog=_catalog(old) != _catalog(new), warehouse=_warehouse(old) != _warehouse(new))
    if moves.warehouse and not moves.catalog:
        raise RefusedError(
            "the warehouse moves, and the catalog would stay",
            hint="Name a new catalog, too, such as a REST catalog or another catalog.path: the tables are in the old "
            "one until everything is copied.",
        )
    if moves.warehouse and (old.settings.warehouse.is_s3 or not new.settings.warehouse.is_s3):
        raise RefusedError(
            f"a warehouse moves from a folder to a bucket, and not from {old.warehouse_url} to {new.warehouse_url}",
            hint="Set up the new warehouse as a site that follows this one (docs/replication.md), and promote it.",
        )
    if moves.catalog and old.settings.catalog.kind != "sqlite":
        raise RefusedError(
            "tables move out of an embedded catalog only, and this lake has a REST catalog",
            hint="Set up the new catalog with a site that follows this one (docs/replication.md), and promote it.",
        )
    return moves


def changed_settings(old: LakeConfig, new: LakeConfig) -> tuple[str, ...]:
    """The dotted names of all settings that differ, besides those of the places."""
    before, after = (config.settings.model_dump() for config in (old, new))
    names = (f"{section}.{name}" for section, values in before.items() for name in values)
    changed = (name for name in names if _of(before, name) != _of(after, name))
    return tuple(name for name in changed if name not in _PLACES and not name.startswith("warehouse."))


def check_settings(changed: tuple[str, ...]) -> None:
    """Raises RefusedError for a change after which the lake would promise less."""
    if promises := [name for name in changed if name in _PROMISES]:
        raise RefusedError(
            f"the new settings change {' and '.join(promises)}, which another site may rely on",
            hint="FILE is the complete settings file of the new place: copy what the present one says, or confirm the "
            "change with --accept-settings.",
        )


def _of(settings: dict[str, Any], name: str) -> object:
    section, _, last = name.partition(".")
    return settings[section][last]


def remaining_steps(moves: Moves, left: FoundLedger, new: FoundLedger) -> tuple[MigrateStep, ...]:
    """Raises RefusedError if the two ledgers are not those of one migration."""
    move = left.move
    if move is not None and move.state is MoveState.ARRIVING:
        raise move.refusal()
    if new.exists and (new.move is None or new.move.state is not MoveState.ARRIVING):
        _check_end(left, new)
        return tuple(s for s in _steps(moves) if s in _AFTER_LEAVING and s is not MigrateStep.OPEN)
    if new.move is not None and (new.lake != left.lake or new.move.place != left.place):
        raise RefusedError(
            f"the new settings name a ledger to which another lake moves, from {new.move.place}",
            hint=_EMPTY,
        )
    if move is None:
        return _steps(moves)
    if move.state is MoveState.LEAVING:
        return tuple(s for s in _steps(moves) if s is not MigrateStep.CLOSE)
    if new.move is None or new.move.id != move.id:
        raise RefusedError(
            f"the lake was moved to {move.place}, and its copy is not there",
            hint="Restore that ledger from a backup, or make it from the tables with `strandline ledger rebuild`, with "
            "the settings of the new place.",
        )
    return tuple(s for s in _steps(moves) if s in _AFTER_LEAVING)


def _check_end(left: FoundLedger, new: FoundLedger) -> None:
    """A new ledger that is in use is right only behind the commit point."""
    if new.move is not None and new.move.state is MoveState.LEFT:
        raise RefusedError(
            f"the new settings name a ledger that a lake has left, for {new.move.place}",
            hint=f"{_EMPTY} A ledger that was left is never used again.",
        )
    if left.move is None or left.move.state is not MoveState.LEFT or new.move is not None or new.lake != left.lake:
        raise RefusedError("the new settings name a ledger that is in use already", hint=_EMPTY)


def _steps(moves: Moves) -> tuple[MigrateStep, ...]:
    left_out = frozenset[MigrateStep]()
    if not moves.catalog:
        left_out |= _OF_THE_CATALOG
    if not moves.warehouse:
        left_out |= _OF_THE_WAREHOUSE
    return tuple(step for step in MigrateStep if step not in left_out)


def _ledger(config: LakeConfig) -> str:
    return str(config.ledger_file) if config.ledger_file is not None else config.ledger_url


def _catalog(config: LakeConfig) -> tuple[str, str]:
    catalog = config.settings.catalog
    if catalog.kind == "sqlite":
        return catalog.kind, str(config.path(catalog.path))
    return catalog.kind, f"{(catalog.uri or '').rstrip('/')} {catalog.options.get('warehouse', '')}"


def _warehouse(config: LakeConfig) -> tuple[str, str]:
    """A bucket of the same name may be in another store."""
    endpoint = config.settings.warehouse.endpoint or "" if config.settings.warehouse.is_s3 else ""
    return config.warehouse_url, endpoint.rstrip("/")
