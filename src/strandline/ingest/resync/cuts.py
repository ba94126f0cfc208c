"""Reads the cuts of take-overs from a table, for a resync, and finds the sequence numbers that they leave."""

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


def restore_cuts(work: IngestContext, connection: Connection, dataset: Dataset, gap: SeqRange) -> list[NumberedCut]:
    """Records the table's cuts in the gap again. Returns them, lowest first. A follower that has not recorded them
    needs them to know which of its rows the leader has given up. Raises FailedError for a cut that cannot be read."""
    restored = []
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
                hint="Set the property to its earlier value. Then `strandline recover` finishes the resync.",
            )
        restored.append(NumberedCut(number, cut))
    recorded = {one.number for one in cuts.settled_cuts(connection).get(dataset.id, ())}
    for one in restored:
        if one.number not in recorded:
            cuts.insert(connection, dataset.id, one.number, one.cut)
    return restored


def cuts_on(view: TableView) -> list[NumberedCut]:
    """The cuts that the table records and that can be read, lowest first."""
    readable = []
    for number, text in sorted(view.cuts.items()):
        with suppress(LedgerUnreadable):  # `restore_cuts` raises for it
            _, cut = item_ranges.read(text)
            if cut is not None:
                readable.append(NumberedCut(Seq(number), cut))
    return readable


def is_cut_out(rows: SeqRange, numbered: Sequence[NumberedCut]) -> bool:
    """Whether a cut has removed these rows from the table. The table's history may still have their batch. Pure."""
    return any(one.numbers_out([rows]) == [rows] for one in numbered)


def numbers_left(gap: SeqRange, numbered: Sequence[NumberedCut]) -> list[SeqRange]:
    """The parts of the gap in which rows can be: without the numbers that are cut out, and without the cuts' own
    numbers. Between two terms lie more unused numbers than a follower could request part by part. Pure."""
    left = [gap]
    for one in numbered:
        left = subtract(left, [SeqRange(one.number, one.number)])
        left = subtract(left, one.numbers_out(left))
    return left
