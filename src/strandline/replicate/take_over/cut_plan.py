"""Plans how a cut is carried out, as pure functions over what the ledger has.

A cut waits until all lower blocks are settled, except those that it or a later cut cuts out: nobody has their content,
so they can never be settled. Rows of blocks that are cut out are set aside and removed, and one transaction abandons
the blocks and settles the cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from strandline.core.sites.takeover_cuts import NumberedCut
from strandline.core.types import Abandoned, Block, BlockHead, Reserved, Seq, SeqRange, Staged


@dataclass(frozen=True, slots=True)
class CutPlan:
    waits_for: tuple[SeqRange, ...]  # lower blocks that must be settled first; empty: the cut can be carried out
    out: tuple[BlockHead, ...]  # blocks that it cuts out, in any state
    staged: tuple[Staged, ...]  # those of them whose rows are on a branch
    rows: tuple[SeqRange, ...]  # sequence numbers that the table may have, and that must go


def plan_cut(
    numbered: NumberedCut, blocks: Iterable[Block], later: Sequence[NumberedCut] = (), *, behind_upto: Seq | None = None
) -> CutPlan:
    """`blocks`: the dataset's blocks below the cut that are open, or end above the leader's seal. `later`: recorded
    cuts with higher numbers. `behind_upto`: up to there, the table may have rows of blocks that the ledger does not
    know."""
    live = [b for b in blocks if not isinstance(b, Abandoned) and b.head.rows.lo < numbered.number]
    out = [b for b in live if numbered.cuts_out(b.head)]
    opened = [b.head for b in live if isinstance(b, Reserved | Staged)]
    waits_for = [h.rows for h in opened if not is_cut_out(h, [numbered, *later])]
    owned = [b.head.rows for b in live]
    if behind_upto is not None and behind_upto > numbered.cut.above:
        owned.append(SeqRange(Seq(numbered.cut.above + 1), behind_upto))
    return CutPlan(
        tuple(sorted(waits_for)),
        tuple(sorted((b.head for b in out), key=lambda h: h.rows)),
        tuple(b for b in out if isinstance(b, Staged)),
        tuple(numbered.numbers_out(owned)),
    )


def is_cut_out(block: BlockHead, cuts: Iterable[NumberedCut]) -> bool:
    """Whether one of these cuts abandons the block. Such a block is not applied."""
    return any(cut.cuts_out(block) for cut in cuts)
