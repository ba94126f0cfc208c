"""What a resync takes from a table of a lake that was taken over: the cuts, and which numbers anyone can have taken."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.core.cuts import NumberedCut
from strandline.core.errors import FailedError, LedgerUnreadable
from strandline.core.types import Dataset, SeqRange, subtract
from strandline.iceberg.metadata.table_metadata import CUT_PREFIX
from strandline.ingest.context import IngestContext
from strandline.ledger.engine import Connection
from strandline.ledger.replicate import cuts, item_ranges


def take_cuts(work: IngestContext, connection: Connection, dataset: Dataset, gap: SeqRange) -> list[NumberedCut]:
    """Stores the cuts in the gap again, and returns them, lowest first. Without them a follower that has not recorded
    them yet could not tell which of its rows the leader has given up. Raises FailedError for one that cannot be
    read."""
    found = []
    for number, text in sorted(work.tables.view(dataset.name).cuts.items()):
        if number not in gap:
            continue
        try:
            _, cut = item_ranges.read(text)
        except LedgerUnreadable:
            cut = None
        if cut is None:
            raise FailedError(
                f"{dataset.name}: its table's property {CUT_PREFIX}{number} does not say what a take-over left",
                hint="Set it to what it was; `strandline recover` then goes on.",
            )
        found.append(NumberedCut(number, cut))
    known = {at.number for at in cuts.settled_cuts(connection).get(dataset.id, ())}
    for at in found:
        if at.number not in known:
            cuts.insert(connection, dataset.id, at.number, at.cut)
    return found


def numbers_left(gap: SeqRange, taken_back: Sequence[NumberedCut]) -> list[SeqRange]:
    """The parts of the gap in which rows can be: no cut has cut them out, and none has their number. Between two terms
    lie numbers that nobody ever took, more than a follower can ask for part by part. Pure."""
    left = [gap]
    for at in taken_back:
        left = subtract(left, [SeqRange(at.number, at.number)])
        left = subtract(left, at.numbers_out(left))
    return left
