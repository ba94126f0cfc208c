"""Reads cuts of take-overs from a table, for a resync, and which sequence numbers they leave."""

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
    """Records the cuts in the gap again, and returns them, lowest first: a follower that has not recorded them needs
    them to know which of its rows the leader has given up. Raises FailedError for one that cannot be read."""
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
                f"{dataset.name}: its table's property {CUT_PREFIX}{number}, a cut of a take-over, cannot be read",
                hint="Set it to what it was; `strandline recover` then finishes the resync.",
            )
        found.append(NumberedCut(number, cut))
    known = {one.number for one in cuts.settled_cuts(connection).get(dataset.id, ())}
    for one in found:
        if one.number not in known:
            cuts.insert(connection, dataset.id, one.number, one.cut)
    return found


def cuts_on(view: TableView) -> list[NumberedCut]:
    """The cuts that the table records and that can be read, lowest first."""
    found = []
    for number, text in sorted(view.cuts.items()):
        with suppress(LedgerUnreadable):  # `take_cuts` raises for it
            _, cut = item_ranges.read(text)
            if cut is not None:
                found.append(NumberedCut(Seq(number), cut))
    return found


def is_cut_out(rows: SeqRange, recorded: Sequence[NumberedCut]) -> bool:
    """Whether a cut has removed these rows from the table, whose history still has their batch. Pure."""
    return any(one.numbers_out([rows]) == [rows] for one in recorded)


def numbers_left(gap: SeqRange, taken_back: Sequence[NumberedCut]) -> list[SeqRange]:
    """The parts of the gap in which rows can be: without numbers that are cut out, and without the cuts' own numbers.
    Between two terms lie more unused numbers than a follower could request part by part. Pure."""
    left = [gap]
    for one in taken_back:
        left = subtract(left, [SeqRange(one.number, one.number)])
        left = subtract(left, one.numbers_out(left))
    return left
