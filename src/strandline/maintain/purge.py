"""Rows that fit a condition are deleted wherever the lake has them: a person asks to be forgotten.

Whatever could refuse it is asked first. What waits at the receiver is ingested, so that the condition reaches it. Then
the sinks' leases are taken, and kept from the count to the delete, so that what is told of a sink is true when the rows
are gone. Durable in this order: what each sink loses and between which numbers rows are missing (in the ledger, under a
number of the sequence, and in the table), the delete, rows that sinks refused, reject files, and at last the snapshots
that still show what was deleted. From the delete on nothing stops it: what cannot be done is told at the end, and every
step can be repeated. The condition itself is not kept: it may name the person.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from strandline import failpoints
from strandline.delivery import Lease, SinkRecord
from strandline.errors import LeaseLost, MarkMoved, OpeningNeeded, StrandlineError, Superseded, UsageError
from strandline.ledger import audit, blocks, floors, holders, losses, maintenance, sequence, sinks
from strandline.ledger.engine import Connection
from strandline.ledger.holders import Holder
from strandline.ledger.losses import NewLoss, Reason
from strandline.ledger.maintenance import Kind, Outcome
from strandline.maintain import rows
from strandline.maintain.bench import MaintainBench, Progress, quiet
from strandline.maintain.compact import compact
from strandline.maintain.compact_plan import options_of
from strandline.maintain.expire import ExpireOptions, expire
from strandline.maintain.expire import check as check_expirable
from strandline.maintain.leases import alone
from strandline.maintain.purge_aside import (
    RefusedFound,
    RejectFiles,
    RejectsFound,
    find_folders,
    is_about_values,
    judge_refused,
)
from strandline.maintain.purge_plan import MEANWHILE, AtSink, MayHold, Purged, at_sink, may_hold
from strandline.maintain.purge_reach import Finding, SinkSearch
from strandline.tables import floor as table_floor
from strandline.tables import upkeep
from strandline.tables.metadata import ToldPurge, check_fit
from strandline.tables.spark_tables import CATALOG, explain
from strandline.types import SEQ_COLUMN, Dataset, Seq, SeqRange

__all__ = ["AtSink", "MayHold", "Purged", "purge"]

R = TypeVar("R")

_Leases = Sequence[tuple[SinkRecord, Lease]]
_ATTEMPTS_MAX = 5
_AUDITED_MAX = 1000
"""Events that are looked through for what a run which died had named."""


def purge(
    bench: MaintainBench,
    dataset: Dataset,
    where: str,
    *,
    keep_snapshots: bool = False,
    dry_run: bool = False,
    progress: Progress = quiet,
) -> Purged:
    if not where.strip():
        raise UsageError("a condition that says nothing would delete everything", hint="Say which rows: --where EXPR.")
    return _Purge(bench, dataset, where, progress, dry_run).run(keep_snapshots=keep_snapshots)


@dataclass(frozen=True, slots=True)
class _Table:
    """What the table had, and who else."""

    sealed: Seq | None
    floor: Seq | None
    found: rows.Counted
    unnumbered: int
    above: int
    refused: RefusedFound
    findings: tuple[Finding, ...]
    meanwhile: tuple[Holder, ...] = ()

    @property
    def range(self) -> SeqRange | None:
        first, last = self.found.first, self.found.last
        return None if first is None or last is None else SeqRange(first, last)


@dataclass
class _Purge:
    bench: MaintainBench
    dataset: Dataset
    where: str
    progress: Progress
    dry_run: bool
    left: list[str] = field(default_factory=list)

    def run(self, *, keep_snapshots: bool) -> Purged:
        self._check(keep_snapshots=keep_snapshots)
        named_before = self._named_before()
        bodies = 0
        if not self.dry_run:
            self.progress("taking in what waits at the receiver", 0, None)
            bodies = self.bench.take_in(self.dataset)
            self.bench.recover()
        table = self._from_table()
        folders = find_folders(self.bench, self.dataset)
        files = RejectFiles(self._main(), self.where, self.progress)
        rejects = self._tried("reject files", lambda: files.look(folders, dry_run=self.dry_run))
        rejects = rejects or RejectsFound(0, 0, ())
        self.left += [f"{f}: an ingest gathers rejected rows there, or was killed" for f in rejects.under_way]
        failpoints.hit("purge.after_elsewhere")
        gone = None if self.dry_run or keep_snapshots else self._tried("old snapshots", self._make_it_so)
        delete_files, expired, refs = gone or (0, None, 0)
        if delete_files:
            self.left.append("another commit came before files could be written anew: they still have the rows")
        if table.above:
            self.left.append(f"{table.above} rows are not settled yet")
        current = [f for f in table.findings if f.holder.is_current]
        return Purged(
            table.found.rows + table.unnumbered,
            table.found.first,
            table.found.last,
            table.unnumbered,
            table.above,
            tuple(at_sink(f.holder, f.sent) for f in table.findings if f.sent),
            tuple(_may_hold(table)),
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
        )

    # --- what could refuse it ---

    def _check(self, *, keep_snapshots: bool) -> None:
        """Before anything is touched. A condition that Spark takes for an expression is one, whatever else is in it."""
        tables = self.bench.tables()
        check_fit(tables.view(self.dataset.name), self.dataset, self.bench.lake_id)
        hint = f"Write it as in Spark SQL, about columns of {self.dataset.name}: {', '.join(self._main().columns)}."
        try:
            kind = self._main().select(F.expr(self.where).alias("_fits")).schema["_fits"].dataType
            if kind == T.BooleanType():
                self._main().where(F.expr(self.where)).schema  # noqa: B018 - an aggregate is an expression, too
        except PySparkException as e:
            raise UsageError(f"this condition cannot be used: {explain(e, self.where).message}", hint=hint) from e
        if kind != T.BooleanType():
            raise UsageError(
                f"`{self.where}` is not a condition: it gives {kind.simpleString()}, not true or false", hint=hint
            )
        if not keep_snapshots:
            check_expirable(self.dataset, upkeep.history(tables, self.dataset.name))

    def _main(self) -> DataFrame:
        """All of it: rows that are not ours are a person's all the same."""
        return self.bench.tables().spark.table(f"{CATALOG}.{self.dataset.name}")

    def _tried(self, what: str, step: Callable[[], R]) -> R | None:
        """Rows are gone by now: the others are to go, too, and whoever holds some is to be named."""
        try:
            return step()
        except StrandlineError as e:
            if self.dry_run:
                raise
            self.left.append(f"{what}: {e.message}")
            return None

    # --- the table ---

    def _from_table(self) -> _Table:
        for attempt in range(_ATTEMPTS_MAX):
            try:
                return self._count_and_delete()
            except (OpeningNeeded, MarkMoved, LeaseLost):  # all of them before anything is recorded
                if attempt == _ATTEMPTS_MAX - 1:
                    raise
                self.bench.recover()
        raise AssertionError("unreachable")

    def _count_and_delete(self) -> _Table:
        with self._alone() as leases:
            table = self._look()
            if not self.dry_run and (table.found.rows or table.unnumbered):
                self._delete(table, leases)
                table = replace(table, meanwhile=self._meanwhile(table, leases))
            failpoints.hit("purge.after_table")
            if not self.dry_run:
                ids = {q.id for q in table.refused.chosen}
                self.left += self._tried("quarantine", lambda: self.bench.discard(self.dataset, ids)) or ()
            return table

    @contextmanager
    def _alone(self) -> Iterator[_Leases]:
        """Nobody delivers, replays or resets until the rows are gone. One that is at work is waited for a while, and
        then taken from its deliverer."""
        with ExitStack() as stack:
            with self.bench.ledger.read() as connection:
                known = [] if self.dry_run else sinks.of_dataset(connection, self.dataset.id)
            leases = []
            for n, record in enumerate(known):
                self.progress("waiting for deliverers", n, len(known))
                leases.append((record, stack.enter_context(alone(self.bench, record))))
            yield leases

    def _look(self) -> _Table:
        with self.bench.ledger.read() as connection:
            sealed = blocks.sealed(connection, self.dataset.id)
            floor = floors.get(connection, self.dataset.id)
        main, number = self._main(), F.col(SEQ_COLUMN)
        self.progress("looking for rows that fit", 0, None)
        found = self._counted(main.where(number <= (sealed or 0)))
        above = self._counted(main.where(number > (sealed or 0))).rows
        unnumbered = self._without_number(main)
        refused = judge_refused(main, self.where, self.bench.quarantined(self.dataset))
        search = SinkSearch(self.bench, self.dataset, self.where, self.progress)
        findings = search.look(sealed, floor, found.rows, refused.in_table)
        return _Table(sealed, floor, found, unnumbered, above, refused, tuple(findings))

    def _counted(self, df: DataFrame) -> rows.Counted:
        with self._on_every_row():
            return rows.count(df, self.where)

    def _without_number(self, main: DataFrame) -> int:
        """A count of numbers would not see them."""
        with self._on_every_row():
            return main.where(F.col(SEQ_COLUMN).isNull()).where(F.expr(self.where)).count()

    @contextmanager
    def _on_every_row(self) -> Iterator[None]:
        try:
            yield
        except Exception as e:
            if is_about_values(e):
                raise UsageError(
                    f"this condition fails on some row: {explain(e, 'rows cannot be counted').message}",
                    hint="Nothing was deleted. Make it one for every row, for instance with try_cast in place of cast.",
                ) from e
            if isinstance(e, StrandlineError):
                raise
            raise explain(e, "rows cannot be counted") from e

    def _delete(self, table: _Table, leases: _Leases) -> None:
        counter = self._record(table, leases)
        failpoints.hit("purge.after_record")
        tables, name = self.bench.tables(), self.dataset.name
        if table.range is not None:
            table_floor.tell_purge(tables, name, ToldPurge(table.range, table.found.rows, counter.last))
        if tables.view(name).epoch > counter.epoch:  # after it was told, as retention does
            raise Superseded(
                "another ledger took this lake over", hint="Stop using this copy of the ledger; nothing was deleted."
            )
        self.progress("deleting rows", 0, table.found.rows)
        number, sealed = f"`{SEQ_COLUMN}`", int(table.sealed or 0)
        condition = f"(\n{self.where}\n) AND ({number} <= {sealed} OR {number} IS NULL)"
        table_floor.delete(tables, name, condition)
        self.progress("deleting rows", table.found.rows, table.found.rows)

    def _record(self, table: _Table, leases: _Leases) -> sequence.Counter:
        """One transaction; sinks that are not those which were looked at end it unchanged. It takes a number: a ledger
        that is restored from before is opened, and the table tells it what is missing."""
        with self.bench.ledger.write() as connection:
            floors.lock_to_rise(connection, self.dataset.id)
            current = {(s.id, s.generation) for s in sinks.of_dataset(connection, self.dataset.id)}
            if current != {(r.id, r.generation) for r, _ in leases}:
                raise MarkMoved("a sink was added, reset or removed meanwhile", hint="Try again.")
            for record, lease in leases:
                if not sinks.holds(connection, lease):
                    raise LeaseLost(f"{record.name}: a deliverer has taken over meanwhile", hint="Try again.")
            if table.range is not None:
                floors.take_number(connection, self.bench.witness)
                losses.add_purge(connection, self.dataset.id, table.range, table.found.rows)
            self._say(connection, table)
            return sequence.read(connection)

    def _say(self, connection: Connection, table: _Table) -> None:
        for f in table.findings:
            losses.add(connection, f.holder.record, Reason.PURGED, f.owed)
            if f.lost:
                audit.record(
                    connection, "rows_lost", sink=f.holder.record.name, dataset=self.dataset.name, rows=f.lost,
                    rule="purge",
                )  # fmt: skip
        audit.record(
            connection, "purged", dataset=self.dataset.name, rows=table.found.rows, first=table.found.first,
            last=table.found.last, held_by=sorted({f.holder.record.name for f in table.findings if f.sent or f.why}),
        )  # fmt: skip

    def _meanwhile(self, table: _Table, leases: _Leases) -> tuple[Holder, ...]:
        """Sinks that were added while rows were deleted, or taken from us: they may have been sent some, and nobody
        counted what they lack."""
        with self.bench.ledger.write() as connection:
            kept = {r.id for r, lease in leases if sinks.holds(connection, lease)}
            others = [
                h for h in holders.of_dataset(connection, self.dataset.id) if h.is_current and h.record.id not in kept
            ]
            known = {r.id for r, _ in leases}
            for h in others:
                start, last = h.record.start, table.found.last
                if h.record.id not in known and last is not None and (start or 0) < last:
                    losses.add(connection, h.record, Reason.FORGOTTEN, [NewLoss("", start, last, None)])
        return tuple(others)

    def _named_before(self) -> tuple[str, ...]:
        """A run that died has told nobody whom it found, and its rows are gone: the audit knows."""
        with self.bench.ledger.read() as connection:
            runs = maintenance.latest(connection, dataset=self.dataset.id, kind=Kind.PURGE)
            since = None
            for run in (r for r in runs if r.outcome is not None and not r.dry_run):
                if run.outcome is Outcome.DONE:
                    break
                since = run.started_at
            events = [] if since is None else audit.latest(connection, events_max=_AUDITED_MAX)
        of_those = [e.detail for e in events if e.event == "purged" and since is not None and e.at >= since]
        return tuple(sorted({s for d in of_those if d["dataset"] == self.dataset.name for s in d["held_by"]}))

    # --- what still shows them ---

    def _make_it_so(self) -> tuple[int, int | None, int]:
        """Rows that a delete file hides are still in a data file, and what is deleted is still in older snapshots."""
        left = 0
        view = self.bench.tables().view(self.dataset.name)
        head = None if view.main is None else view.snapshots.get(view.main)
        if head is not None and int(head.summary.get("total-delete-files", "0")):
            self.progress("writing files anew", 0, None)
            options = options_of(self.bench.config.settings.maintain.compact)
            left = compact(self.bench, self.dataset, options).delete_files_after
        self.progress("expiring snapshots", 0, None)
        done = expire(self.bench, self.dataset, ExpireOptions(timedelta(0), 1))
        return left, done.snapshots_expired, done.branches_kept + done.tags_kept


def _may_hold(table: _Table) -> Iterator[MayHold]:
    meanwhile = {h.record.id: h for h in table.meanwhile}
    for f in table.findings:
        late = meanwhile.pop(f.holder.record.id, None) if f.holder.is_current else None
        why: Sequence[str] = f.why if late is None else (*f.why, MEANWHILE)
        if why:
            yield may_hold(f.holder, f.may or None, why)
    for holder in meanwhile.values():
        yield may_hold(holder, None, (MEANWHILE,))
