"""Sends one chunk into a table: its rows and its range in one commit, which requires that main is as it was read.

Whatever becomes of a commit, the next attempt begins by loading the table: its record says what landed. Of two commits
with the same range at most one lands, because each requires the main that it was decided on.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from strandline.core import failpoints
from strandline.core.errors import StrandlineError
from strandline.core.types import PARTITION_COLUMN, Anchor, SnapshotId
from strandline.deliver.sink import ChunkRows, Landed, Outcome, Refused, TryLater, Unknown, term_passed
from strandline.deliver.sinks.chunk_rows import check_rows, numbers_in_order
from strandline.deliver.sinks.iceberg.columns import misfits
from strandline.deliver.sinks.iceberg.content_digest import content_digest
from strandline.deliver.sinks.iceberg.lost_rows import was_set_back
from strandline.deliver.sinks.iceberg.record import (
    HEAD,
    LANE_PREFIX,
    Head,
    LandedRange,
    LaneRecord,
    TableRecord,
    settled,
)
from strandline.iceberg.commit_retry import COMMIT_RETRY
from strandline.iceberg.schema.columns import Column

if TYPE_CHECKING:
    import pyarrow as pa

    from strandline.iceberg.pyiceberg.other_table import LoadedTable, OtherTable, WrittenFiles

SEND_SECONDS_MAX = 300.0  # for one chunk: others may commit to the table all the time
SUMMARY_PREFIX = "strandline.sink."  # of what the snapshot of a chunk says about it


def rehearse(chunk: ChunkRows) -> Landed:
    """What the record of a chunk would be."""
    return Landed(chunk.rows.num_rows, content_digest(chunk.rows), 0)


@dataclass
class _Attempts:
    """The attempts for one chunk."""

    landed: LandedRange
    files: WrittenFiles | None = None
    heads: set[SnapshotId] = field(default_factory=set)  # the snapshots of all commits that were sent
    may_have_landed: bool = False
    may_be_named: bool = False  # a commit without an answer may name the files, now or later
    why: str = ""


class IcebergSender:
    def __init__(self, table: OtherTable, columns: tuple[Column, ...], term: int) -> None:
        self._table = table
        self._columns = columns
        self._term = term

    def __repr__(self) -> str:
        return f"IcebergSender({self._table.name})"

    def close(self) -> None:
        self._table.close()

    def send(self, chunk: ChunkRows) -> Outcome:
        check_rows(chunk)
        numbers = numbers_in_order(chunk)
        made = _Attempts(LandedRange(chunk.range, len(numbers), 0, content_digest(chunk.rows)))
        for attempt in replace(COMMIT_RETRY, attempts_max=None, seconds_max=SEND_SECONDS_MAX).attempts():
            try:
                outcome = self._attempt(chunk, made)
            except StrandlineError as e:
                outcome = self._in_trouble(made, e.message)
            except OSError as e:
                outcome = self._in_trouble(made, str(e))
            if outcome is not None:
                return outcome
            if attempt.is_last:
                break
        return self._in_trouble(made, f"{self._table.name}: others commit to it all the time: {made.why}")

    def _in_trouble(self, made: _Attempts, why: str) -> Outcome:
        return Unknown(f"{made.why}; {why}") if made.may_have_landed else TryLater(why)

    def _attempt(self, chunk: ChunkRows, made: _Attempts) -> Outcome | None:
        """None: try again."""
        loaded = self._table.load()
        made.may_have_landed = False  # the record says it now, and a commit that is still under way will be refused
        if loaded is None:
            return TryLater(f"there is no table {self._table.name}")
        record = TableRecord(loaded.properties)
        lane = record.lane(chunk.address)
        there = lane.overlapping(chunk.range)
        if (known := settled(chunk.range, there, chunk.rows.num_rows)) is not None:
            return self._known(loaded, record, made, known)
        if (why := self._in_the_way(loaded, record, chunk)) is not None:
            return TryLater(why)
        if (refused := self._write(loaded, chunk, made)) is not None:
            return refused
        return self._commit(loaded, lane, chunk, made)

    def _known(self, loaded: LoadedTable, record: TableRecord, made: _Attempts, known: Outcome) -> Outcome:
        head = record.head()
        landed = made.heads & {*loaded.links, *([] if head is None else [head.anchor.snapshot])}
        if isinstance(known, Landed) and landed:
            return Landed(known.count, known.digest, known.size)  # a commit whose answer was lost
        self._discard(loaded, made)
        return known

    def _in_the_way(self, loaded: LoadedTable, record: TableRecord, chunk: ChunkRows) -> str | None:
        """Why nothing may be added to the table now."""
        address, claimed = chunk.address, record.claimed()
        if claimed is None or (claimed.claim.lake, claimed.claim.instance) != (address.lake, address.instance):
            return f"{loaded.name} does not belong to this sink any more"
        if claimed.claim.term > self._term:
            return term_passed(loaded.name, claimed.claim.term)
        if claimed.generation != address.generation:
            return f"{loaded.name} is in generation {claimed.generation}, and this deliverer in {address.generation}"
        if found := misfits(self._columns, loaded.columns):
            what = "; ".join(m.what for m in found)
            return f"{loaded.name} was altered: {what}. Repair it ({found[0].remedy}), or prepare the sink again"
        # The rows of the chunk would hide that others are gone.
        return was_set_back(loaded, record)

    def _write(self, loaded: LoadedTable, chunk: ChunkRows, made: _Attempts) -> Refused | None:
        """Writes the data files, unless they are written and still fit the table."""
        import pyarrow as pa

        from strandline.iceberg.pyiceberg.other_rows import write_rows

        files = made.files
        if files is not None and (files.schema_id, files.spec_id) == (loaded.schema_id, loaded.spec_id):
            return None
        self._discard(loaded, made)
        rows = chunk.rows
        if any(c.name == PARTITION_COLUMN for c in self._columns):
            rows = rows.append_column(PARTITION_COLUMN, pa.array([chunk.address.partition]).take(_zeros(rows)))
        try:
            made.files = write_rows(loaded, rows)
        except (ValueError, pa.ArrowException) as e:
            return Refused(f"{loaded.name} does not take the rows: {e}")
        landed = made.landed
        made.landed = LandedRange(landed.rows, landed.count, made.files.size, landed.digest)
        return None

    def _commit(self, loaded: LoadedTable, lane: LaneRecord, chunk: ChunkRows, made: _Attempts) -> Outcome | None:
        from strandline.iceberg.pyiceberg.other_table import Committed, InDoubt, NotCommitted

        with_chunk = lane.add(made.landed)

        def properties(head: Anchor) -> dict[str, str]:
            made.heads.add(head.snapshot)
            written = Head(head, lane.key, chunk.range).as_property()
            return {LANE_PREFIX + lane.key: with_chunk.as_property(), HEAD: written}

        failpoints.hit("iceberg.before_commit")
        match self._table.commit(loaded, made.files, properties, _summary(chunk)):
            case Committed():
                failpoints.hit("iceberg.after_commit")
                landed = made.landed
                return Landed(landed.count, landed.digest or "", landed.size)
            case NotCommitted(why):
                made.why = why
            case InDoubt(why):
                made.why, made.may_have_landed, made.may_be_named = why, True, True
        return None

    def _discard(self, loaded: LoadedTable, made: _Attempts) -> None:
        """Removes files of a chunk that landed otherwise. If a commit was in doubt they stay, because it might name
        them yet. They are then orphan files of the table."""
        if made.files is not None and not made.may_be_named:
            self._table.discard(loaded, made.files)
        made.files = None


def _zeros(rows: pa.Table) -> pa.Int64Array:
    import numpy as np
    import pyarrow as pa

    return pa.array(np.zeros(rows.num_rows, np.int64), pa.int64())


def _summary(chunk: ChunkRows) -> dict[str, str]:
    address = chunk.address
    return {
        f"{SUMMARY_PREFIX}lake": address.lake,
        f"{SUMMARY_PREFIX}generation": str(address.generation),
        f"{SUMMARY_PREFIX}dataset": address.dataset,
        f"{SUMMARY_PREFIX}partition": address.partition,
        f"{SUMMARY_PREFIX}range": f"{chunk.range.lo}-{chunk.range.hi}",
    }
