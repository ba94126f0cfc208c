"""What a resync takes from a table of a lake that was taken over: the cuts, and which numbers rows can have."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from strandline.core.errors import FailedError, LedgerUnreadable
from strandline.core.sites.takeover_cuts import NumberedCut
from strandline.core.types import Dataset, Seq, SeqRange, subtract
from strandline.iceberg.metadata.table_metadata import CUT_PREFIX, TableView
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
                hint="Set it to what it was; `strandline recover` then finishes the resync.",
            )
        found.append(NumberedCut(number, cut))
    known = {at.number for at in cuts.settled_cuts(connection).get(dataset.id, ())}
    for at in found:
        if at.number not in known:
            cuts.insert(connection, dataset.id, at.number, at.cut)
    return found


def cuts_on(view: TableView) -> list[NumberedCut]:
    """Those that the table records and that can be read, lowest first."""
    found = []
    for number, text in sorted(view.cuts.items()):
        with suppress(LedgerUnreadable):  # `take_cuts` raises for it
            _, cut = item_ranges.read(text)
            if cut is not None:
                found.append(NumberedCut(Seq(number), cut))
    return found


def is_cut_out(rows: SeqRange, recorded: Sequence[NumberedCut]) -> bool:
    """Whether a cut has removed these rows from the table. Its history still names their batch. Pure."""
    return any(at.numbers_out([rows]) == [rows] for at in recorded)


def numbers_left(gap: SeqRange, taken_back: Sequence[NumberedCut]) -> list[SeqRange]:
    """The parts of the gap in which rows can be: no cut has cut them out, and none has their number. Between two terms
    lie unused numbers, more than a follower can ask for part by part. Pure."""
    left = [gap]
    for at in taken_back:
        left = subtract(left, [SeqRange(at.number, at.number)])
        left = subtract(left, at.numbers_out(left))
    return left
