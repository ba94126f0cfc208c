"""Quarantined rows in a proof: replayed ones are at the sink, once, and the others are not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from strandline.core.delivery_types import Chunk, ChunkState
from strandline.core.types import Seq, SeqRange, merge_ranges
from strandline.deliver.send.rejection import REPLAY_PARTITION
from strandline.deliver.sink import Held, Inspected, covers
from strandline.deliver.verify.ranges import Fault, VerifyFinding
from strandline.ledger.deliver.quarantine import Quarantined, QuarantineState


@dataclass(frozen=True, slots=True)
class Replays:
    """Quarantined rows of the sink's generation, and the content of a sink's lane for replays."""

    rows: tuple[Quarantined, ...]
    apart: Held | None  # None if a replayed row is in its own lane

    @property
    def ranges(self) -> list[SeqRange]:
        return [] if self.apart is None else [h.rows for h in self.apart.ranges]

    def count(self, *states: QuarantineState) -> int:
        return sum(1 for q in self.rows if q.state in states)

    def set_aside(self, partition: str) -> frozenset[int]:
        return frozenset(int(q.seq) for q in self.rows if q.partition == partition)

    def in_its_place(self, partition: str) -> frozenset[int]:
        """Sequence numbers that may be found where they would have been delivered."""
        if self.apart is not None:
            return frozenset()
        gone = QuarantineState.DISCARDED
        return frozenset(int(q.seq) for q in self.rows if q.partition == partition and q.state is not gone)


def prove_replays(
    sink: str,
    replays: Replays,
    held: Mapping[str, Held],
    chunks: Mapping[str, Sequence[Chunk]],
    inspected: Mapping[SeqRange, Inspected],
    *,
    taken_is_fine: bool,
) -> Iterator[VerifyFinding]:
    """`held` and `chunks` are by lane: the sink's and the ledger's. A lane missing from `held` could not be read."""

    def finding(kind: Fault, q: Quarantined, detail: str) -> VerifyFinding:
        partition = q.partition if replays.apart is None else REPLAY_PARTITION
        return VerifyFinding(kind, sink, partition, _only(q.seq), f"row {q.seq}", detail)

    merged = {p: merge_ranges(r.rows for r in h.ranges) for p, h in held.items()}
    for q in replays.rows:
        place = held.get(q.partition) if replays.apart is None else replays.apart
        if place is None:
            continue
        ranges = merged[q.partition] if replays.apart is None else merge_ranges(replays.ranges)
        there, landed = covers(ranges, _only(q.seq)), _landed(chunks.get(q.partition, ()), q.seq)
        if q.state is QuarantineState.REPLAYED and not there and not landed and place.known and not taken_is_fine:
            yield finding(Fault.MISSING, q, "it was quarantined and replayed, and is not there")
        elif there and landed and replays.apart is not None:
            yield finding(Fault.DUPLICATE_ROW, q, "it was replayed, and delivered in its own place, too")
        elif there and q.state is QuarantineState.HELD:
            yield finding(Fault.NOTE, q, "it is in quarantine, and at the sink already: a replay of it will find that")
        elif there and q.state is QuarantineState.DISCARDED and replays.apart is not None:
            yield finding(Fault.EXTRA, q, "it was discarded, and the sink has it")
    yield from _apart(sink, replays, inspected)


def _apart(sink: str, replays: Replays, inspected: Mapping[SeqRange, Inspected]) -> Iterator[VerifyFinding]:
    known = {int(q.seq) for q in replays.rows}
    for rows in replays.ranges:
        seen = inspected.get(rows)
        problem = None if seen is None else seen.problem
        kind = Fault.CORRUPT
        if rows.lo not in known:
            kind, problem = Fault.EXTRA, "the sink has it as a replay, and the ledger knows of no replay"
        elif seen is not None and problem is None and seen.count not in (None, 1):
            kind, problem = Fault.COUNT, f"it is one row, and {seen.count} are there"
        if problem is not None:
            yield VerifyFinding(kind, sink, REPLAY_PARTITION, rows, f"row {rows.lo}", problem)


def _only(number: int) -> SeqRange:
    return SeqRange(Seq(number), Seq(number))


def _landed(chunks: Sequence[Chunk], number: int) -> bool:
    return any(c.state is ChunkState.LANDED and number in c.rows for c in chunks)
