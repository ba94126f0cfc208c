"""Plans how a cut is carried out, as pure functions over what the ledger has.

A cut waits until every lower block is settled, except those that it cuts out: nobody has their content, so they never
can be. Neither can those that a later cut cuts out, so it does not wait for them either. Rows of whatever is cut out
are set aside and removed, and one transaction abandons their blocks and settles the cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from strandline.core.sites.takeover_cuts import NumberedCut
from strandline.core.types import Abandoned, Block, BlockHead, Reserved, Seq, SeqRange, Staged


@dataclass(frozen=True, slots=True)
class CutPlan:
    waits_for: tuple[SeqRange, ...]  # lower blocks that have to be settled first; none: it can be carried out
    out: tuple[BlockHead, ...]  # blocks that it cuts out, in whatever state
    staged: tuple[Staged, ...]  # those of them whose rows are on a branch
    rows: tuple[SeqRange, ...]  # sequence numbers that the table may have, and that do not stay


def plan_cut(
    at: NumberedCut, blocks: Iterable[Block], later: Sequence[NumberedCut] = (), *, behind_upto: Seq | None = None
) -> CutPlan:
    """`blocks`: all of the dataset that lie below the cut and are open, or reach above the leader's seal. `later`: the
    cuts behind this one that are recorded, too. `behind_upto`: up to there the table may have rows of blocks that the
    ledger does not know."""
    live = [b for b in blocks if not isinstance(b, Abandoned) and b.head.rows.lo < at.number]
    out = [b for b in live if at.cuts_out(b.head)]
    opened = [b.head for b in live if isinstance(b, Reserved | Staged)]
    waits_for = [h.rows for h in opened if not is_cut_out(h, [at, *later])]
    owned = [b.head.rows for b in live]
    if behind_upto is not None and behind_upto > at.cut.above:
        owned.append(SeqRange(Seq(at.cut.above + 1), behind_upto))
    return CutPlan(
        tuple(sorted(waits_for)),
        tuple(sorted((b.head for b in out), key=lambda h: h.rows)),
        tuple(b for b in out if isinstance(b, Staged)),
        tuple(at.numbers_out(owned)),
    )


def is_cut_out(block: BlockHead, cuts: Iterable[NumberedCut]) -> bool:
    """Whether one of these cuts will abandon the block: then nobody applies it any more."""
    return any(cut.cuts_out(block) for cut in cuts)
