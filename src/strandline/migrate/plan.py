"""What a migration moves, and which of its steps are left: pure functions of two settings files and two ledgers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from strandline.core.errors import RefusedError
from strandline.core.records.ledger_moves import LedgerMove, MoveState
from strandline.core.settings.lake_config import LakeConfig

_NAMES_IT = "The file of --to names the new places; a variable STRANDLINE_… would override both files."


@dataclass(frozen=True, slots=True)
class Moves:
    """The ledger always moves."""

    catalog: bool
    warehouse: bool


class Step(StrEnum):
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
    SETTINGS = "write the settings"


_OF_THE_CATALOG = frozenset({Step.REGISTER, Step.CLOSE_CATALOG})
_OF_THE_WAREHOUSE = frozenset({Step.COPY_FILES, Step.WITNESS, Step.CLOSE_WITNESS})
_AFTER_LEAVING = frozenset({Step.OPEN, Step.CLOSE_WITNESS, Step.SETTINGS})


@dataclass(frozen=True, slots=True)
class NewLedger:
    """What is at the place where the ledger goes."""

    exists: bool
    move: LedgerMove | None  # None: it is in use, if it exists


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


def remaining_steps(moves: Moves, old: LedgerMove | None, new: NewLedger) -> tuple[Step, ...]:
    """Raises RefusedError if the two ledgers are not those of one migration."""
    if old is not None and old.state is MoveState.ARRIVING:
        raise old.refusal()
    if new.exists and (new.move is None or new.move.state is not MoveState.ARRIVING):
        _check_end(old, new)
        return tuple(s for s in _steps(moves) if s in _AFTER_LEAVING and s is not Step.OPEN)
    if old is None:
        return _steps(moves)
    if old.state is MoveState.LEAVING:
        return tuple(s for s in _steps(moves) if s is not Step.CLOSE)
    if new.move is None or new.move.id != old.id:
        raise RefusedError(
            f"the lake was moved to {old.place}, and its copy is not there",
            hint="Restore that ledger from a backup, or make it from the tables with `strandline ledger rebuild`, with "
            "the settings of the new place.",
        )
    return tuple(s for s in _steps(moves) if s in _AFTER_LEAVING)


def _check_end(old: LedgerMove | None, new: NewLedger) -> None:
    """A new ledger that is in use is right only behind the commit point."""
    if old is None or old.state is not MoveState.LEFT or new.move is not None:
        raise RefusedError(
            "the new settings name a ledger that is in use already",
            hint="Name an empty database, or a file that does not exist.",
        )


def _steps(moves: Moves) -> tuple[Step, ...]:
    left_out = frozenset[Step]()
    if not moves.catalog:
        left_out |= _OF_THE_CATALOG
    if not moves.warehouse:
        left_out |= _OF_THE_WAREHOUSE
    return tuple(step for step in Step if step not in left_out)


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
