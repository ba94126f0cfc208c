"""What a ledger says of a migration of its lake to another place."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from strandline.core.errors import LedgerMoved


class MoveState(StrEnum):
    LEAVING = "leaving"  # the lake is being copied from here; `migrate --abort` opens the ledger again
    LEFT = "left"  # the lake is elsewhere, for good
    ARRIVING = "arriving"  # a copy that is not in use yet


@dataclass(frozen=True, slots=True)
class LedgerMove:
    """A ledger with one takes no changes."""

    state: MoveState
    id: str  # at random, and a digest of all places that it goes from and to
    place: str  # where the lake goes, or where it comes from, without secrets

    def refusal(self) -> LedgerMoved:
        match self.state:
            case MoveState.LEAVING:
                return LedgerMoved(
                    f"the lake is being moved to {self.place}",
                    hint="Repeat the same `strandline migrate --to FILE` to finish the move, or go on here with "
                    "`strandline migrate --abort`.",
                )
            case MoveState.LEFT:
                return LedgerMoved(
                    f"the lake was moved to {self.place}",
                    hint="Use the settings that name the new place. If the migration was interrupted, repeat the same "
                    "`strandline migrate --to FILE` to finish it.",
                )
            case _:
                return LedgerMoved(
                    f"a migration is filling this ledger with what is in {self.place}",
                    hint="Repeat the same `strandline migrate --to FILE` with the settings of the old place.",
                )
