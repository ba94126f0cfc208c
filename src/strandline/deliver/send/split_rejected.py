"""Handles chunks that a sink refused for good: asks for them, then splits or quarantines, each step durable.

A split is stored before its parts are sent. The content of a quarantined row is first written as an object of the
warehouse; then one transaction records the row in the ledger and settles its chunk as one without rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from strandline.core import failpoints
from strandline.core.delivery_types import Acknowledged, Chunk, ChunkId, ChunkState, Intent, IntentId
from strandline.core.errors import SinkStopped
from strandline.core.text.wording import plural
from strandline.core.types import Seq, before
from strandline.deliver.quarantine.content import object_name, open_objects
from strandline.deliver.send.find_delivered import delivered_chunks
from strandline.deliver.send.rejection import ChunkRefusal, Halves, RefusalHistory, Single, Steps, TooMany, decide
from strandline.deliver.sink_options import parse_common
from strandline.deliver.sink_session import SinkRun
from strandline.ledger.deliver import lanes, quarantine, splits
from strandline.ledger.deliver.quarantine import NOT_DELIVERED, StoredRefusedRow
from strandline.ledger.deliver.splits import Split


@dataclass(frozen=True, slots=True)
class Dealt:
    parts: Mapping[ChunkId, tuple[Chunk, Chunk]]  # the two parts of each chunk that was split
    set_aside: tuple[Acknowledged, ...]


class Refusing:
    """What one sink refuses of intents that are finished together."""

    def __init__(self, run: SinkRun, group: Sequence[Intent], options: Mapping[str, str]) -> None:
        self.run = run
        self.options = options
        self.intents = {i.id: i for i in group}
        landed = (c for i in group for c in i.chunks if c.state is ChunkState.LANDED)
        # Whether the sink took anything of these intents.
        self.takes_others = any(c.count is None or c.count > 0 for c in landed)
        # The bound is a guard, not a property of what is delivered: the option of today counts, not the planned one.
        self.rows_max = run.options.quarantine_rows_max
        self._aside: dict[IntentId, int] | None = None
        self._since_landing = 0

    def are_too_many(self, refusals: Sequence[ChunkRefusal]) -> bool:
        return bool(refusals) and isinstance(self._decide(refusals), TooMany)

    def ask(self, refusals: Sequence[ChunkRefusal]) -> list[Acknowledged]:
        """Refused chunks that the sink holds: an earlier attempt landed, and its response was lost. Raises SinkStopped
        if an earlier attempt may have landed and the destination cannot be asked."""
        sink = self.run.sink(self.options)
        filtered = parse_common(self.options).where is not None
        by_lane: dict[str, list[Chunk]] = {}
        for r in refusals:
            by_lane.setdefault(self.intents[r.intent].partition, []).append(r.chunk)
        asked = [(self.run.address(p), before(min(c.rows.lo for c in chunks))) for p, chunks in by_lane.items()]
        acks: dict[ChunkId, Acknowledged] = {}
        for (partition, chunks), held in zip(by_lane.items(), sink.held(asked), strict=True):
            doubtful = next((c for c in chunks if c.offered), None)
            if not held.known and doubtful is not None and not self._splits_in_doubt():
                raise self._in_doubt(doubtful)
            acks |= delivered_chunks(self.run, sink, partition, chunks, held, filtered=filtered)
        return list(acks.values())

    def _splits_in_doubt(self) -> bool:
        """The present option counts, as with the other guard: a person may have checked the destination."""
        return getattr(self.run.sink(), "splits_in_doubt", False)

    def _in_doubt(self, chunk: Chunk) -> SinkStopped:
        """The parts have names of their own, so a server that only knows names would take their rows a second time."""
        name = self.run.record.name
        return SinkStopped(
            f"{name}: chunk {chunk.rows} was refused, and an earlier attempt may have landed; its destination cannot "
            "be asked, so the chunk is not split",
            hint=f"Search there for the rows of {chunk.rows}, and delete those that are there. Then the chunk can be "
            f"split: `strandline sink update {name} --option in_doubt=split`, `strandline sink resume {name}`; then "
            "in_doubt=stop again, so that a person checks the next one, too. If the server answers a known key before "
            "it checks the rows, in_doubt=split can stay.",
        )

    def deal_with(self, refusals: Sequence[ChunkRefusal]) -> Dealt:
        """Splits or quarantines. Raises SinkStopped if there are too many: then the rows are not to blame."""
        match self._decide(refusals):
            case TooMany() as many:
                raise self._stopped(many)
            case Steps(split, set_aside, _):
                return Dealt(self._split(split), self._set_aside(set_aside))

    def _decide(self, refusals: Sequence[ChunkRefusal]) -> Steps | TooMany:
        if self._aside is None:
            self._aside, self._since_landing = self._count_quarantined()
        return decide(refusals, RefusalHistory(self._aside, self._since_landing, self.takes_others), self.rows_max)

    def _count_quarantined(self) -> tuple[dict[IntentId, int], int]:
        """Rows in quarantine, neither discarded nor replayed: per open intent, and above all that the sink took."""
        with self.run.context.ledger.read() as connection:
            known = lanes.unchecked(connection, self.run.record)
            rows = [
                q
                for q in quarantine.list_quarantined(connection, self.run.record, NOT_DELIVERED)
                if q.generation == self.run.record.generation
            ]
        taken = max((int(lane.last.hi) for lane in known if lane.last is not None), default=0)
        aside = {
            i.id: sum(1 for q in rows if q.lane == i.lane and q.seq > (i.after or 0)) for i in self.intents.values()
        }
        return aside, sum(1 for q in rows if q.seq > taken)

    def _stopped(self, many: TooMany) -> SinkStopped:
        name = self.run.record.name
        return SinkStopped(
            f"{name}: {describe_refusals(many, self.rows_max)}",
            hint=f"Fix the cause that it names, then `strandline sink resume {name}`. If the rows really are bad, let "
            f"more of them be quarantined: `strandline sink update {name} --option quarantine_rows_max=N`.",
        )

    def _split(self, refusals: Sequence[ChunkRefusal]) -> Mapping[ChunkId, tuple[Chunk, Chunk]]:
        if not refusals:
            return {}
        wanted = [
            Split(r.chunk.id, Seq(r.found.middle), min(r.found.before, r.chunk.expected))
            for r in refusals
            if isinstance(r.found, Halves)
        ]
        failpoints.hit("split.before_store")
        parts = splits.split(self.run.context.ledger, self.run.lease, wanted)
        if parts is None:
            raise self.run.superseded()
        failpoints.hit("split.after_store")
        return parts

    def _set_aside(self, refusals: Sequence[ChunkRefusal]) -> tuple[Acknowledged, ...]:
        if not refusals:
            return ()
        objects, form = open_objects(self.run.context.config), self.run.sink(self.options).form
        rows = []
        for r in refusals:
            if not isinstance(r.found, Single) or r.found.content is None:
                raise ValueError(f"there is no content of chunk {r.chunk.rows} to quarantine")
            intent, number, content = self.intents[r.intent], r.found.number, r.found.content
            name = object_name(self.run.address(intent.partition), number)
            failpoints.hit("quarantine.before_object")
            objects.put(name, content)
            failpoints.hit("quarantine.after_object")
            row = StoredRefusedRow(intent.lane, Seq(number), r.why, name, len(content), self.options, form)
            rows.append((r.chunk.id, row))
        if not quarantine.quarantine_rows(self.run.context.ledger, self.run.lease, rows):
            raise self.run.superseded()
        failpoints.hit("quarantine.after_record")
        self._count(refusals)
        return tuple(Acknowledged(chunk, ChunkState.EMPTY, 0, 0, None, None) for chunk, _ in rows)

    def _count(self, refusals: Sequence[ChunkRefusal]) -> None:
        self._since_landing += len(refusals)
        if self._aside is not None:
            for r in refusals:
                self._aside[r.intent] = self._aside.get(r.intent, 0) + 1


def describe_refusals(many: TooMany, rows_max: int) -> str:
    aside = f" (and {plural(many.set_aside, 'row')} quarantined before)" if many.set_aside else ""
    others = "" if many.takes_others else ", and takes nothing else"
    return (
        f"its destination refuses {plural(many.refused, 'chunk')} for good{aside}{others}; at most "
        f"{plural(rows_max, 'row', 'is')} quarantined: {many.why}"
    )
