"""Which blocks and rows a cut removes. Pure.

A cut has a sequence number n and the seal of its leader, `above`. Of the sequence numbers between the two, only those
in `keeps` stay. A block is cut out if none of its sequence numbers stays. A cut never cuts out another cut
(docs/adr/0071).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from strandline.core.sites.replication import TakeoverCut
from strandline.core.types import BlockHead, ItemKind, Seq, SeqRange, merge_ranges

REASON_PREFIX = "cut:"  # of blocks that a cut has abandoned; the ledger refuses others from `staged` and `published`


@dataclass(frozen=True, slots=True)
class NumberedCut:
    number: Seq
    cut: TakeoverCut

    @property
    def reason(self) -> str:
        return f"{REASON_PREFIX}{self.number}"

    def cuts_out(self, block: BlockHead) -> bool:
        """Whether none of the block's sequence numbers stays."""
        rows = block.rows
        if block.item is ItemKind.CUT or not self.cut.above < rows.lo <= rows.hi < self.number:
            return False
        return not any(rows.overlaps(kept) for kept in self.cut.keeps)

    def numbers_out(self, owned: Iterable[SeqRange]) -> list[SeqRange]:
        """Those of the owned sequence numbers that do not stay."""
        first, last = int(self.cut.above) + 1, int(self.number) - 1
        found = []
        for rows in merge_ranges(owned):
            at, end = max(int(rows.lo), first), min(int(rows.hi), last)
            for kept in self.cut.keeps:
                if kept.hi < at:
                    continue
                if kept.lo > end:
                    break
                if at < kept.lo:
                    found.append(SeqRange(Seq(at), Seq(kept.lo - 1)))
                at = int(kept.hi) + 1
            if at <= end:
                found.append(SeqRange(Seq(at), Seq(end)))
        return found
