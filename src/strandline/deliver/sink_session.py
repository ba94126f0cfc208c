"""One deliverer's run at one sink: it holds the lease and the sink's record, and opens the sink."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace

from strandline.core import failpoints
from strandline.core.calling_off import called_off_by, check_not_called_off
from strandline.core.delivery_types import SinkRecord, SinkState
from strandline.core.errors import DestinationTaken, LeaseLost, RefusedError, SinkStopped, TermPassed
from strandline.core.sites.replication import FIRST_TERM
from strandline.core.text.wording import plural
from strandline.core.types import Dataset, Lease, Seq
from strandline.deliver.context import DeliverContext
from strandline.deliver.send.core_limits import TroubledSinks, tasks_max
from strandline.deliver.sink import (
    Address,
    Claim,
    Claimed,
    HasPeer,
    NoticesLoss,
    OlderRows,
    Sink,
    SinkContext,
    term_passed,
)
from strandline.deliver.sink_kinds import find_kind, resolve
from strandline.deliver.sink_options import DeliveryOptions, own_options, parse_common
from strandline.ledger.deliver import older_generations, sinks
from strandline.ledger.replicate import sites
from strandline.read.settled_view import SettledView

DeliverProgress = Callable[[str, int, int], None]  # sink, rows handled, rows in all


def no_progress(name: str, done: int, total: int) -> None:
    return None


def open_sink(context: DeliverContext, record: SinkRecord, dataset: Dataset, options: Mapping[str, str]) -> Sink:
    kind = find_kind(record.kind)
    sink_context = SinkContext(
        context.config.home,
        dataset.name,
        record.generation,
        resolve(kind, own_options(options)),
        lake=context.lake,
        settings=context.config.settings.forward,
        given=own_options(options),
        peer=record.peer,
        builds_on=lambda: _older_rows(context, record, dataset),
        has_lanes=bool(dataset.deliver_by),
        term=context.term(),
    )
    return kind.open(sink_context)


def _older_rows(context: DeliverContext, record: SinkRecord, dataset: Dataset) -> list[OlderRows]:
    return [
        OlderRows(Address(context.lake, record.instance, x.generation, dataset.name, x.partition), x.above, x.upto)
        for x in context.ledger.query(older_generations.layers, record)
    ]


@dataclass
class SinkRun:
    context: DeliverContext
    record: SinkRecord
    dataset: Dataset
    lease: Lease
    progress: DeliverProgress = no_progress
    stopping: threading.Event = field(default_factory=threading.Event)
    # The daemon makes one plan at a time, so that a sink far behind gives up its place in between.
    plans_max: int | None = None
    is_preview: bool = False  # a preview: it changes nothing at the sink, not even its table
    _opened: dict[tuple[tuple[str, str], ...], Sink] = field(default_factory=dict)
    prepared: set[tuple[object, ...]] = field(default_factory=set)
    troubled: TroubledSinks = field(default_factory=TroubledSinks)  # shared by all runs of a deliverer
    landed_any: bool = False  # a job of this run has landed rows
    landed: bool = False  # a job of this run has landed rows without trouble

    source: SettledView | None = None  # the table as the last plan saw it; the planned rows are read from there
    passes: int = 0

    @property
    def pass_token(self) -> str:
        return f"{self.lease.token}{self.passes:04x}"

    def fence(self) -> None:
        """Make everything under way fail, of other deliverers and of our own earlier tasks. Then check the lease again:
        a deliverer that paused before it fenced must not continue after another one has fenced. Raises LeaseLost."""
        self.passes += 1
        self.sink().fence(self.pass_token)
        failpoints.hit("deliver.after_fence")
        if not self.context.ledger.query(sinks.leases.holds, self.lease):
            raise self.superseded()

    def superseded(self) -> LeaseLost:
        return LeaseLost(f"{self.record.name}: another deliverer has taken over")

    @property
    def options(self) -> DeliveryOptions:
        return parse_common(self.record.options)

    @property
    def token(self) -> Callable[[Seq | None], str]:
        return self.context.token(self.dataset)

    def sink(self, options: Mapping[str, str] | None = None) -> Sink:
        """The sink with its present options, or with those of an intent as far as an intent pins them."""
        wanted = self.record.options if options is None else self._pinned(options)
        key = tuple(sorted(wanted.items()))
        if key not in self._opened:
            self._opened[key] = open_sink(self.context, self.record, self.dataset, wanted)
        return self._opened[key]

    def _pinned(self, options: Mapping[str, str]) -> dict[str, str]:
        free = {o.name for o in find_kind(self.record.kind).options if not o.pinned}
        kept = {name: value for name, value in options.items() if name not in free}
        return kept | {name: value for name, value in self.record.options.items() if name in free}

    def stops_when_called_off(self) -> AbstractContextManager[None]:
        """Raises CalledOff if the deliverer is stopping while Spark works. What the job had sent until then is unknown:
        the next deliverer asks the sink for it, or sends it again under the same identity."""
        return called_off_by(self.stopping)

    @contextmanager
    def tasks_max(self) -> Iterator[int | None]:
        """How many tasks may send to this sink at once, so that other sinks find a free core while it hangs; None for
        any number. A sink that failed the last time waits here for its turn. Raises CalledOff."""
        active = sum(s.state is SinkState.ACTIVE for s in self.context.ledger.query(sinks.list_sinks))
        cores = self.context.tables.settled.spark.sparkContext.defaultParallelism
        share, in_trouble = self.context.settings.sink_cores_share_max, self.record.failures > 0 and not self.landed
        allowed = tasks_max(cores=cores, share=share, others=active > 1, in_trouble=in_trouble)
        with self.troubled.sending(cores, check_not_called_off) if in_trouble else nullcontext():
            yield allowed

    def address(self, partition: str) -> Address:
        return Address(self.context.lake, self.record.instance, self.record.generation, self.dataset.name, partition)

    def claim(self) -> None:
        """Raises SinkStopped if the destination belongs to another sink, is in a newer generation or lost rows, and
        TermPassed if the leader of a later term delivers there."""
        term, sink = self.context.term(), self.sink()
        mine = Claim(self.context.lake, self.record.instance, self.dataset.name, self.dataset.uuid, term)
        before = sink.claimed() if term > FIRST_TERM else None
        try:
            found = sink.claim(mine, self.record.generation)
        except DestinationTaken as e:
            # Without its name: this is stored as the sink's reason, and not all who read that may know of the other.
            raise RefusedError(f"{self.record.destination} belongs to another lake or dataset", hint=e.hint) from None
        self._note_peer(sink)
        if found.claim.instance != mine.instance or found.claim.lake != mine.lake:
            raise SinkStopped(
                f"{self.record.name}: {self.record.destination} belongs to another sink ({found.claim.instance})",
                hint="Two sinks must not deliver to one destination: give this one another place.",
            )
        self.check_term(found)
        if found.generation > self.record.generation:
            raise SinkStopped(
                f"{self.record.name}: its destination has seen generation {found.generation}, the ledger knows "
                f"{self.record.generation}: the ledger is an old copy",
                hint=f"`strandline sink recover {self.record.name}` adopts the sink's own record.",
            )
        if term > FIRST_TERM and (before is None or before.claim.term < term):
            # An old leader may have fenced between our fence and our claim. After this one it has to claim again.
            self.fence()
        self._check_loss()

    def check_term(self, found: Claimed) -> None:
        """Raises TermPassed if the leader of a later term delivers there: then this site does not lead any more."""
        term = self.context.term()
        if found.claim.term <= term:
            return
        with self.context.ledger.write() as connection:
            sites.supersede(connection, term=found.claim.term, by=None)
        raise TermPassed(
            f"{self.record.name}: {term_passed(self.record.destination, found.claim.term)}; this site led in term "
            f"{term}",
            hint="`strandline rejoin LEADER` here makes this site follow the one that leads now.",
        )

    def _note_peer(self, sink: Sink) -> None:
        """Store the kind of peer once it is known; a receiver stays a receiver. Sinks that were opened before did not
        know it, so they are closed. Raises LeaseLost."""
        if not isinstance(sink, HasPeer) or self.record.peer is sink.peer_kind():
            return
        with self.context.ledger.write() as connection:
            if not sinks.leases.holds(connection, self.lease):
                raise self.superseded()
            sinks.note_peer(connection, self.record.id, sink.peer_kind())
        self.record = replace(self.record, peer=sink.peer_kind())
        self.close()
        self._opened.clear()

    def _check_loss(self) -> None:
        """Raises SinkStopped if the destination lacks rows that it acknowledged: then a person has to decide."""
        sink = self.sink()
        if isinstance(sink, NoticesLoss) and (loss := sink.find_loss()) is not None:
            raise SinkStopped(
                f"{self.record.name}: {loss.what}; of {plural(loss.given, 'row')} that it acknowledged it has "
                f"{'none' if loss.there == 0 else f'at most {loss.there:,}'}",
                hint=f"`strandline sink recover {self.record.name} --resend` sends them again, in a new generation; "
                "`--accept-loss` continues without them. Or restore them, then `strandline sink resume "
                f"{self.record.name}`." + (f" {loss.hint.replace('NAME', self.record.name)}" if loss.hint else ""),
            )

    def close(self) -> None:
        for sink in self._opened.values():
            sink.close()
