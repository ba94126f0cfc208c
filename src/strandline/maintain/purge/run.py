"""Deletes rows that match a condition everywhere in the lake, for example because a person asks to be forgotten.

Checks that could refuse the purge come first. Bodies that wait at the receiver are ingested, so that the condition
covers them. Then the run takes the sinks' leases, and holds them from the count to the delete, so that the counts per
sink are exact.

Durable steps, in this order: each sink's losses and the range of deleted rows (in the ledger, with a sequence number,
and on the table), the delete, the sequence number of the purge itself (followers then delete the rows, too), rows that
sinks refused, reject files, and finally the snapshots that still show rows.

After the delete, a failed step does not stop the run: the run reports at the end what it could not do, and every step
can be repeated. The condition itself is not stored, because it may name the person.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from strandline.core import failpoints
from strandline.core.delivery_types import SinkId, SinkRecord
from strandline.core.errors import LeaseLost, StrandlineError, UsageError, WatermarkMoved
from strandline.core.records.audit_events import Event
from strandline.core.records.maintenance_records import MaintenanceKind, MaintenanceOutcome
from strandline.core.text.wording import agreeing, plural
from strandline.core.types import Dataset, Lease, Seq, SeqRange
from strandline.iceberg.metadata.table_metadata import RecordedPurge
from strandline.iceberg.spark import floor as table_floor
from strandline.iceberg.spark.conditions import find_instability, find_other_tables
from strandline.iceberg.spark.java_errors import JAVA_ERRORS, explain
from strandline.iceberg.spark.table_change import check_epoch
from strandline.ledger import audit
from strandline.ledger.deliver import losses, sink_exposure, sinks
from strandline.ledger.deliver.losses import NewLoss, Reason
from strandline.ledger.deliver.sink_exposure import SinkGeneration
from strandline.ledger.engine import Connection
from strandline.ledger.ingest import blocks, purge_items, sequence
from strandline.ledger.maintain import floors
from strandline.ledger.maintain import runs as maintenance
from strandline.ledger.maintain.begun_purges import AUDITED_MAX, PURGE_EVENTS, list_begun
from strandline.ledger.replicate import followers, sites
from strandline.maintain.compact import compact
from strandline.maintain.context import MaintainContext, MaintainProgress, quiet, without_deliverer
from strandline.maintain.expire import check as check_expirable
from strandline.maintain.expire import expire
from strandline.maintain.expire_plan import ExpireOptions
from strandline.maintain.purge.outside_table import (
    RefusedFound,
    RejectFiles,
    RejectFolders,
    RejectsFound,
    find_folders,
    judge_refused,
)
from strandline.maintain.purge.plan import (
    MatchingRows,
    PurgeResult,
    at_sink,
    delete_condition,
    deleted_in,
)
from strandline.maintain.purge.remaining_snapshots import find_remaining
from strandline.maintain.purge.sinks import SinkExposure, SinkSearch, list_may_hold
from strandline.maintain.purge.table_rows import RowSearch, own_ranges_above, text_of_error
from strandline.read import rollback

R = TypeVar("R")

_Leases = Sequence[tuple[SinkRecord, Lease]]
_Generations = Collection[tuple[SinkId, int]]  # of sinks


def purge(
    context: MaintainContext,
    dataset: Dataset,
    where: str,
    *,
    keep_snapshots: bool = False,
    dry_run: bool = False,
    progress: MaintainProgress = quiet,
    alive: Callable[[], None] = lambda: None,
) -> PurgeResult:
    """Deletes the matching rows everywhere in the lake. Calls `alive` right before files are rewritten; it raises if
    this run was taken for dead."""
    if not where.strip():
        raise UsageError("an empty condition would delete everything", hint="Name the rows: --where EXPR.")
    return _Purge(context, dataset, where, progress, dry_run, alive).run(keep_snapshots=keep_snapshots)


@dataclass(frozen=True, slots=True)
class _PurgeFacts:
    """The matching rows that the run found in the table, in the quarantine and at sinks."""

    floor: Seq | None
    matching: MatchingRows
    refused: RefusedFound
    findings: tuple[SinkExposure, ...]
    late: tuple[SinkGeneration, ...] = ()  # sinks that may have got rows while they were deleted


@dataclass
class _Purge:
    context: MaintainContext
    dataset: Dataset
    where: str
    progress: MaintainProgress
    dry_run: bool
    alive: Callable[[], None]
    left: list[str] = field(default_factory=list)

    def run(self, *, keep_snapshots: bool) -> PurgeResult:
        self._check(keep_snapshots=keep_snapshots)
        named_before = tuple(sorted({*self._named_before(), *self._settle_dead_runs()}))
        bodies = 0
        if not self.dry_run:
            self.progress("ingesting received rows", 0, None)
            bodies = self.context.received.ingest_waiting(self.dataset)
            self.context.ingestion.recover()
        table = self.context.retried(self._count_and_delete)
        found = self._try("folders of reject files", lambda: find_folders(self.context, self.dataset))
        folders = found or RejectFolders((), ())
        files = RejectFiles(self._main(), self.where, self.progress)
        removed = self._try("reject files", lambda: files.remove_matching(folders, dry_run=self.dry_run))
        rejects = removed or RejectsFound(0, 0, ())
        self.left += [f"{f}: an ingest writes rejected rows there, or was killed" for f in rejects.under_way]
        failpoints.hit("purge.after_elsewhere")
        cleaned = None if self.dry_run or keep_snapshots else self._try("old snapshots", self._rewrite_and_expire)
        delete_files, expired, refs = cleaned or (0, None, 0)
        matching = table.matching
        if delete_files:
            self.left.append("another commit came before files could be rewritten: they still have the rows")
        if matching.waiting:
            self.left.append(f"{plural(matching.waiting, 'row', 'is')} not settled yet")
        current = [f for f in table.findings if f.holder.is_current]
        return PurgeResult(
            matching.total,
            None if matching.range is None else matching.range.lo,
            None if matching.range is None else matching.range.hi,
            matching.unnumbered,
            matching.foreign,
            matching.waiting,
            tuple(at_sink(f.holder, f.sent) for f in table.findings if f.sent),
            tuple(list_may_hold(table.findings, table.late)),
            tuple(at_sink(f.holder, f.lost) for f in current if f.lost),
            named_before,
            table.floor,
            bodies,
            len(table.refused.chosen),
            table.refused.not_judged,
            rejects.lines,
            rejects.not_judged,
            tuple(map(str, folders.here)),
            folders.elsewhere,
            delete_files,
            expired,
            refs,
            () if self.dry_run else tuple(self.left),
            self._followers() if matching.ours else (),
        )

    def _followers(self) -> tuple[str, ...]:
        return tuple(f.name for f in self.context.ledger.query(followers.of_dataset, self.dataset))

    # --- checks that could refuse the purge ---

    def _check(self, *, keep_snapshots: bool) -> None:
        """Raises UsageError for a condition that cannot be used, and what `check_expirable` raises, before any change.
        A condition is valid if Spark parses it as a boolean expression."""
        self.context.check(self.dataset)
        hint = f"Write it as in Spark SQL, about columns of {self.dataset.name}: {', '.join(self._main().columns)}."
        try:
            self._check_stable(find_other_tables(self._main(), self.where))
            kind = self._main().select(F.expr(self.where).alias("_sl_fits")).schema["_sl_fits"].dataType
            if kind == T.BooleanType():
                self._main().where(F.expr(self.where)).schema  # noqa: B018 - an aggregate is an expression, too
        except PySparkException as e:
            raise UsageError(f"this condition cannot be used: {explain(e, self.where).message}", hint=hint) from e
        if kind != T.BooleanType():
            raise UsageError(
                f"`{self.where}` is not a condition: it gives {kind.simpleString()}, not true or false", hint=hint
            )
        self._check_stable(find_instability(self._main(), self.where))
        if not keep_snapshots:
            check_expirable(self.dataset, self.context.tables.settled.view(self.dataset.name))

    def _check_stable(self, unstable: str | None) -> None:
        if unstable is not None:
            raise UsageError(
                f"the condition `{self.where}` cannot choose rows: {unstable}",
                hint="Purge evaluates it several times: to count rows, to find sinks that have them, and to delete. "
                "Use columns of the row and constants, such as timestamp'2026-01-31 00:00:00' instead of now().",
            )

    @property
    def _rows(self) -> RowSearch:
        return RowSearch(self.context, self.dataset, self.where)

    def _main(self) -> DataFrame:
        return self._rows.main()

    def _try(self, what: str, step: Callable[[], R]) -> R | None:
        """Runs a step, and records its failure instead of raising it: rows are deleted by now, so the others must
        run."""
        try:
            return step()
        except (StrandlineError, OSError, *JAVA_ERRORS) as e:
            if self.dry_run:
                raise
            self.left.append(f"{what}: {text_of_error(e)}")
            return None

    # --- the table ---

    def _count_and_delete(self) -> _PurgeFacts:
        with self._lease_sinks() as leases:
            table = self._search()
            if not self.dry_run and table.matching.total:
                self._delete(table, leases)
                late = self._try("what followers and new sinks have", lambda: self._settle(table.matching, leases))
                table = replace(table, late=late or ())
                self._try("rows that came meanwhile", self._search_again)
            failpoints.hit("purge.after_table")
            if not self.dry_run:
                ids = {q.id for q in table.refused.chosen}
                self.left += self._try("quarantine", lambda: self.context.quarantine.discard(self.dataset, ids)) or ()
            return table

    @contextmanager
    def _lease_sinks(self) -> Iterator[_Leases]:
        """Holds the leases of all sinks: nobody delivers, replays or resets until the rows are deleted. It waits a
        while for a deliverer at work, and then seizes the lease."""
        with ExitStack() as stack:
            records = [] if self.dry_run else self.context.ledger.query(sinks.of_dataset, self.dataset.id)
            leases = []
            for n, record in enumerate(records):
                self.progress("waiting for deliverers", n, len(records))
                leases.append((record, stack.enter_context(without_deliverer(self.context, record))))
            yield leases

    def _search(self) -> _PurgeFacts:
        with self.context.ledger.read() as connection:
            sealed = blocks.sealed(connection, self.dataset.id)
            floor = floors.get(connection, self.dataset.id)
        self.progress("searching for rows that match", 0, None)
        matching = self._rows.count_matching(sealed)
        refused = judge_refused(self._main(), self.where, self.context.quarantine.of_dataset(self.dataset))
        search = SinkSearch(self.context, self.dataset, self.where, self.progress)
        findings = search.find_exposed(sealed, floor, matching.ours, refused.in_table)
        return _PurgeFacts(floor, matching, refused, tuple(findings))

    def _search_again(self) -> None:
        """Reports rows that were numbered or written between the count and the delete: the next run deletes them."""
        sealed = self.context.ledger.query(blocks.sealed, self.dataset.id)
        if still := self._rows.count_matching(sealed).total:
            rows = f"{plural(still, 'row')} that {agreeing(still, 'fits')}"
            self.left.append(f"{rows} came, or got a sequence number, while others were deleted")

    def _delete(self, table: _PurgeFacts, leases: _Leases) -> None:
        # A leader that another site has superseded would delete rows here that the new leader keeps.
        self.context.ledger.write_right.obtain()
        counter, above = self._record(table, leases)
        failpoints.hit("purge.after_record")
        tables, name, matching = self.context.tables.settled, self.dataset.name, table.matching
        if matching.ranges:
            table_floor.write_purge(tables, name, RecordedPurge.of(matching.ranges, matching.rows, counter.last))
        check_epoch(tables.view(name), counter.epoch, "nothing was deleted")  # after the record on the table
        self.progress("deleting rows", 0, matching.total)
        condition = delete_condition(self.where, matching, counter.last, above)
        table_floor.delete(tables, name, condition, epoch=counter.epoch)
        self.progress("deleting rows", matching.total, matching.total)
        # The snapshot of our tag still shows the rows.
        self._try("our tag", lambda: rollback.move_tag(self.context.ledger, tables, self.dataset))

    def _record(self, table: _PurgeFacts, leases: _Leases) -> tuple[sequence.Counter, list[SeqRange]]:
        """Records the losses and the range of deleted rows, in one transaction. Raises NotLeader, and WatermarkMoved if
        the sinks are not those of the count. It takes a sequence number, so that a ledger that is restored from before
        is resynced and learns of the purge."""
        matching = table.matching
        with self.context.ledger.write() as connection:
            floors.lock_to_raise(connection, self.dataset.id)
            sites.check_leads(connection)  # it may have become a follower since it had the lease
            current = {(s.id, s.generation) for s in sinks.of_dataset(connection, self.dataset.id)}
            if current != {(r.id, r.generation) for r, _ in leases}:
                raise WatermarkMoved("a sink was added, reset or removed meanwhile", hint="Try again.")
            for record, lease in leases:
                if not sinks.leases.holds(connection, lease):
                    raise LeaseLost(f"{record.name}: a deliverer has taken over meanwhile", hint="Try again.")
            if matching.numbered:
                count = matching.to_take(sequence.read(connection).last)
                sequence.take(connection, self.context.witness, count, step="floor")
            if matching.range is not None:
                losses.add_purge(connection, self.dataset.id, matching.range, matching.rows)
            self._record_findings(connection, table, current)
            return sequence.read(connection), own_ranges_above(connection, self.dataset, matching.sealed)

    def _record_findings(self, connection: Connection, table: _PurgeFacts, known: _Generations) -> None:
        for f in table.findings:
            losses.add(connection, f.holder.record, Reason.PURGED, f.owed)
            if f.lost:
                audit.record(
                    connection, Event.ROWS_LOST, sink=f.holder.record.name, dataset=self.dataset.name, rows=f.lost,
                    rule="purge",
                )  # fmt: skip
        matching = table.matching
        first, last = (None, None) if matching.range is None else (matching.range.lo, matching.range.hi)
        audit.record(
            connection, Event.PURGED, dataset=self.dataset.name, rows=matching.rows, first=first, last=last,
            held_by=sorted({f.holder.record.name for f in table.findings if f.sent or f.why}), sinks=sorted(known),
        )  # fmt: skip

    # --- sinks that were added while rows were deleted ---

    def _settle(self, matching: MatchingRows, leases: _Leases) -> tuple[SinkGeneration, ...]:
        """Gives the purge its sequence number. Returns the sinks that were added, or whose lease was lost, while rows
        were deleted: they may have been sent some of the rows, and nobody has counted which they lack."""
        with self.context.ledger.write() as connection:
            sequence.lock(connection)
            still_held = {r.id for r, lease in leases if sinks.leases.holds(connection, lease)}
            others = [
                h
                for h in sink_exposure.of_dataset(connection, self.dataset.id)
                if h.is_current and h.record.id not in still_held
            ]
            last = None if matching.range is None else matching.range.hi
            self._record_forgotten(connection, {(r.id, r.generation) for r, _ in leases}, last)
            self._end(connection, [h.record.name for h in others], [matching.ranges])
        failpoints.hit("purge.after_number")
        return tuple(others)

    def _end(self, connection: Connection, late: Collection[str], purges: Sequence[tuple[SeqRange, ...]]) -> None:
        """Takes a sequence number for each purge; `purges` has the ranges in which it deleted rows."""
        for ranges in purges:
            number = purge_items.take_number(connection, self.context.witness, self.dataset.id, ranges)
            audit.record(connection, Event.PURGE_SETTLED, dataset=self.dataset.name, late=sorted(late), number=number)

    def _settle_dead_runs(self) -> tuple[str, ...]:
        """Settles the purges of runs that died, and returns the names of the sinks that such a run did not know."""
        # A run that died at its delete did not check which sinks were added meanwhile: any sink that it did not know
        # may be one of them. Nor did it take the sequence number by which followers learn of it.
        if self.dry_run:
            return ()
        recorded = self.context.tables.settled.view(self.dataset.name).purged
        with self.context.ledger.write() as connection:
            sequence.lock(connection)
            begun = list_begun(connection, self.dataset)
            named: set[str] = set()
            for one in begun:
                last = None if one.rows is None else one.rows.hi
                named.update(self._record_forgotten(connection, one.sinks, last))
            self._end(connection, named, [deleted_in(recorded, one.rows) for one in begun])
        return tuple(named)

    def _record_forgotten(self, connection: Connection, known: _Generations, last: int | None) -> list[str]:
        """Records losses of the sinks that the purge did not know: nobody can count them. Returns their names."""
        others = [s for s in sinks.of_dataset(connection, self.dataset.id) if (s.id, s.generation) not in known]
        late = [s for s in others if last is not None and (s.start or 0) < last]
        for record in late:
            losses.add(connection, record, Reason.FORGOTTEN, [NewLoss("", record.start, Seq(last or 0), None)])
        return [s.name for s in late]

    def _named_before(self) -> tuple[str, ...]:
        """The sinks that a dead run had found and reported to nobody, from the audit log: the rows are gone by now."""
        with self.context.ledger.read() as connection:
            runs = maintenance.latest(connection, datasets=[self.dataset.id], kind=MaintenanceKind.PURGE)
            since = None
            for run in (r for r in runs if r.outcome is not None and not r.dry_run):
                if run.outcome is MaintenanceOutcome.DONE:
                    break
                since = run.started_at
            events = [] if since is None else audit.latest(connection, events=PURGE_EVENTS, events_max=AUDITED_MAX)
        of_dataset = (e for e in events if e.detail["dataset"] == self.dataset.name)
        details = [e.detail for e in of_dataset if since is not None and e.at >= since]
        return tuple(sorted({s for d in details for s in (*d.get("held_by", ()), *d.get("late", ()))}))

    # --- files and snapshots that still have the rows ---

    def _rewrite_and_expire(self) -> tuple[int, int | None, int]:
        """Rewrites data files in which delete files only hide the rows, and expires the snapshots that show them.
        Returns how many delete files are left, how many snapshots expired, and how many refs still show rows."""
        left = 0
        view = self.context.tables.settled.view(self.dataset.name)
        head = None if view.main is None else view.snapshots.get(view.main)
        if head is not None and int(head.summary.get("total-delete-files", "0")):
            self.progress("rewriting files", 0, None)
            left = compact(self.context, self.dataset, alive=self.alive).delete_files_after
        self.progress("expiring snapshots", 0, None)
        done = expire(self.context, self.dataset, ExpireOptions(timedelta(0), 1))
        remaining = find_remaining(self._rows, self.progress)
        self.left += remaining.messages
        return left, done.snapshots_expired, remaining.refs
