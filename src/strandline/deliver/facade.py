"""Delivery as a lake offers it: sinks, ticks, and the loop of the daemon."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from strandline.core.delivery_types import Intent, SinkRecord
from strandline.core.errors import RefusedError
from strandline.core.records.audit_events import Event
from strandline.core.types import BlockId, BlockKind, Dataset, Reserved, Seq
from strandline.deliver.context import DeliverContext
from strandline.deliver.manage_sinks import SinkReset, add_sink, plan_reset, remove_sink, reset_sink, update_sink
from strandline.deliver.quarantine import rows as quarantined_rows
from strandline.deliver.quarantine.replay import ReplayReport, replay
from strandline.deliver.quarantine.rows import OnQuarantinedRows, QuarantinedRow
from strandline.deliver.recover_sink import SinkRecovered, recover_sink
from strandline.deliver.sink_session import DeliverProgress, no_progress
from strandline.deliver.tick import Deliverer, TickReport, dataset_of
from strandline.iceberg.metadata.identifier import full_name, in_spark
from strandline.jobs.loop import LoopControl
from strandline.ledger import audit
from strandline.ledger.deliver import delivery_report, intents, sinks
from strandline.ledger.engine import utc_now
from strandline.ledger.ingest import blocks, datasets
from strandline.ledger.maintain import floors
from strandline.ledger.recovery import Recovery
from strandline.ledger.replicate import sites

if TYPE_CHECKING:
    from strandline.deliver.plan.preview import LanePreview
    from strandline.deliver.verify.verdict import VerifyProgress, VerifyReport
    from strandline.iceberg.schema.columns import Column
    from strandline.ledger.deliver.quarantine import Quarantined

_CATCH_UP_SECONDS = 60.0  # how often the daemon checks whether its ledger was restored


@dataclass(frozen=True)
class Delivery:
    """`lake.delivery`. Ticks may run beside each other, in this process and in others."""

    context: DeliverContext
    recovery: Recovery

    def _columns(self, dataset: Dataset) -> Sequence[Column]:
        return self.context.tables.catalog.columns(dataset.name)

    # Sinks.

    def add(
        self,
        name: str,
        dataset: str,
        kind: str,
        options: Mapping[str, str],
        *,
        from_now: bool = False,
        may_skip: bool = True,
    ) -> SinkRecord:
        """`from_now` is for a new place. At one that was ours before, it leaves rows out only if nobody knows where the
        place was, and with `may_skip`. A follower delivers nothing, and refuses it."""
        self._check_leads()
        target = self.context.ledger.query(datasets.get, full_name(dataset))
        self._check_where(target, options.get("where"))
        columns = self._columns(target)
        return add_sink(
            self.context, target, columns, name=name, kind=kind, options=options, from_now=from_now, may_skip=may_skip
        )

    def _check_leads(self) -> None:
        """Raises NotLeader: sinks belong to the site that leads. At another one they can be paused and removed, and
        quarantined rows can be discarded: that changes nothing for the leader."""
        self.context.ledger.query(sites.check_leads)

    def update(self, name: str, options: Mapping[str, str], unset: Sequence[str] = ()) -> SinkRecord:
        self._check_leads()
        target = self._of_sink(name)
        self._check_where(target, options.get("where"))
        return update_sink(self.context, target, self._columns(target), name, options, unset)

    def destination(self, record: SinkRecord, options: Mapping[str, str]) -> str:
        """Where the sink would deliver to with these options. Asks nobody."""
        from strandline.deliver.sink_session import open_sink

        sink = open_sink(self.context, record, self._dataset_of(record), options)
        try:
            return sink.destination
        finally:
            sink.close()

    def list_sinks(self) -> list[SinkRecord]:
        return self.context.ledger.query(sinks.list_sinks)

    def get(self, name: str) -> SinkRecord:
        return self.context.ledger.query(sinks.get, name)

    def dataset_name(self, record: SinkRecord) -> str:
        return self.context.ledger.query(delivery_report.dataset_name, record)

    def floor(self, record: SinkRecord) -> Seq | None:
        """Rows at or below it may be gone from the lake."""
        return self.context.ledger.query(floors.get, record.dataset)

    def open_intents(self, record: SinkRecord) -> list[Intent]:
        return self.context.ledger.query(intents.open_of, record)

    def pause(self, name: str) -> SinkRecord:
        """Stop delivering to the sink; open intents are finished after `resume`. A stopped sink can be paused, too: a
        retention rule may ignore paused sinks."""
        return self._switch(name, paused=True)

    def resume(self, name: str) -> SinkRecord:
        return self._switch(name, paused=False)

    def _switch(self, name: str, *, paused: bool) -> SinkRecord:
        with self.context.ledger.write() as connection:
            record = sinks.get(connection, name)
            changed = sinks.pause(connection, record.id) if paused else sinks.resume(connection, record.id)
            if changed:
                audit.record(connection, Event.SINK_PAUSED if paused else Event.SINK_RESUMED, sink=name)
            return sinks.get(connection, name)

    def remove(self, name: str) -> SinkRecord:
        return remove_sink(self.context, name)

    def reset(self, name: str, *, to: str | None = None) -> SinkRecord:
        """Begin a new generation after the row of a continuation token, or at the beginning."""
        self._check_leads()
        return reset_sink(self.context, self._of_sink(name), name, to)

    def plan_reset(self, name: str, *, to: str | None = None) -> SinkReset:
        """What `reset` would do; changes nothing."""
        self._check_leads()
        return plan_reset(self.context, self._of_sink(name), self.get(name), to)

    def recover_sink(
        self, name: str, *, resend: bool = False, accept_loss: bool = False, dry_run: bool = False
    ) -> SinkRecovered:
        self._check_leads()
        how = {"resend": resend, "accept_loss": accept_loss, "dry_run": dry_run}
        return recover_sink(self.context, self._of_sink(name), name, **how)

    # Rows that a sink refused.

    def quarantined(
        self, name: str | None = None, *, settled_too: bool = False, contents_max: int = 0
    ) -> list[QuarantinedRow]:
        """Quarantined rows by sink and sequence number; the first `contents_max` with their content. `settled_too`
        includes rows that were replayed or discarded since."""
        found: list[QuarantinedRow] = []
        for record in self._chosen(name):
            left = contents_max - len(found)
            found += quarantined_rows.list_rows(self.context, record, settled_too=settled_too, contents_max=left)
        return found

    def quarantined_page(
        self, names: Sequence[str], *, settled_too: bool = False, after: int | None = None, rows_max: int = 100
    ) -> list[QuarantinedRow]:
        """Rows of these sinks, without their content; `after` is the id of the last row of the previous page."""
        records = [self.get(name) for name in names]
        return quarantined_rows.list_page(
            self.context, records, settled_too=settled_too, after=after, rows_max=rows_max
        )

    def quarantined_contents(self, page: Sequence[QuarantinedRow]) -> Iterator[QuarantinedRow]:
        """The same rows with their content, as each is read from the warehouse."""
        return quarantined_rows.read_contents(self.context, page)

    def replay(
        self,
        name: str,
        numbers: Sequence[int] | None = None,
        *,
        on_progress: OnQuarantinedRows = lambda done, total: None,
    ) -> ReplayReport:
        """Send quarantined rows again, without Spark: all of them, or those with these sequence numbers."""
        self._check_leads()
        target = self._of_sink(name)
        return replay(self.context, target, self._columns(target), name, numbers, on_progress)

    def discard(
        self,
        name: str,
        numbers: Sequence[int] | None = None,
        *,
        dry_run: bool = False,
        on_progress: OnQuarantinedRows = lambda done, total: None,
    ) -> list[Quarantined]:
        """Give up quarantined rows for good: these, or all. A dry run returns the same rows, and changes nothing."""
        if dry_run:
            return quarantined_rows.rows_to_discard(self.context, self.get(name), numbers)
        return quarantined_rows.discard(self.context, name, numbers, on_progress)

    def _check_where(self, dataset: Dataset, where: str | None) -> None:
        """Raises UsageError for a condition that does not fit or is not stable. Only Spark can check it."""
        if where is None:
            return
        from strandline.iceberg.spark.conditions import check_condition

        frame = self.context.tables.settled.spark.table(in_spark(dataset.name))
        check_condition(
            frame,
            where,
            dataset.name,
            hint="Retries and `verify` evaluate it again: use columns of the row, constants, and functions that give "
            "the same answer for the same row.",
        )

    # Ticks.

    def deliverer(
        self, *, progress: DeliverProgress = no_progress, stopping: threading.Event | None = None
    ) -> Deliverer:
        return Deliverer(self.context, ready=self.recovery.catch_up, progress=progress, stopping=stopping)

    def tick(
        self,
        only: str | None = None,
        *,
        progress: DeliverProgress = no_progress,
        stopping: threading.Event | None = None,
    ) -> TickReport:
        if self._chosen(only):
            self._check_leads()
        return self.deliverer(progress=progress, stopping=stopping).tick(only)

    def preview(self, only: str | None = None) -> list[LanePreview]:
        """What a tick would send to which sink; stores and sends nothing."""
        from strandline.deliver.plan.preview import preview

        return [p for record in self._chosen(only) for p in preview(self.context, record, self._dataset_of(record))]

    def verify(
        self,
        only: str | None = None,
        *,
        taken_is_fine: bool = False,
        progress: VerifyProgress = lambda name, what, done, total: None,
    ) -> VerifyReport:
        """Check that each sink holds what was delivered to it, and that this is what the lake has. It changes nothing.
        With `taken_is_fine`, objects that a consumer may have taken away are not missing."""
        from strandline.deliver.verify.run import verify

        chosen = [(record, self._dataset_of(record)) for record in self._chosen(only)]
        self.recovery.catch_up()
        return verify(self.context, chosen, taken_is_fine=taken_is_fine, progress=progress)

    def run(self, control: LoopControl, on_tick: Callable[[TickReport], None] = lambda report: None) -> None:
        """Until `control.stopping` is set: settle the blocks of dead writers, and deliver to every sink what is sealed.
        A tick that fails is reported and retried. Spark starts when there is work for it."""
        deliverer = self.deliverer(stopping=control.stopping)
        caught_up_at: float | None = None
        tried: frozenset[BlockId] = frozenset()
        tried_at = 0.0

        def tick() -> None:
            nonlocal caught_up_at, tried, tried_at
            if caught_up_at is None or monotonic() - caught_up_at > _CATCH_UP_SECONDS:
                self.recovery.catch_up()
                caught_up_at = monotonic()
            left = self._left_by_dead_writers()
            # Blocks that could not be settled (lease held, storage unavailable) are not retried at every tick.
            if left - tried or (left and monotonic() - tried_at > self.context.settings.retry_seconds_max):
                self.recovery.recover()
                tried, tried_at = left, monotonic()
            if self.context.ledger.query(sites.get).leads:
                on_tick(deliverer.keep_delivering())

        control.repeat(tick, name="a tick", poll_seconds=self.context.settings.poll_seconds)
        last = deliverer.close()
        if last.sinks:
            on_tick(last)

    def _left_by_dead_writers(self) -> frozenset[BlockId]:
        """Open blocks that recovery can settle. An interrupted pass of `adopt` is settled by another pass only."""
        now = utc_now()
        return frozenset(
            b.head.id
            for b in self.context.ledger.query(blocks.open_blocks)
            if not isinstance(b, Reserved) or (b.lease_until < now and b.head.kind is not BlockKind.ADOPTED)
        )

    # Looking things up.

    def _chosen(self, only: str | None) -> list[SinkRecord]:
        return self.list_sinks() if only is None else [self.get(only)]

    def _of_sink(self, name: str) -> Dataset:
        return self._dataset_of(self.get(name))

    def _dataset_of(self, record: SinkRecord) -> Dataset:
        found = dataset_of(self.context.ledger, record)
        if found is None:
            raise RefusedError(f"the dataset of sink {record.name} was dropped", hint="Remove the sink.")
        return found
