"""Rows that fit a condition are deleted wherever the lake has them: a person asks to be forgotten.

What waits at the receiver is ingested first, so that the condition reaches it. Then, durable in this order: what each
sink loses and where rows are missing from now on, the delete, rows that sinks refused, reject files, and at last the
snapshots that still show what was deleted. Every step can be repeated; a run that died is simply started again. The
condition itself is not kept: it may name the person.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from strandline import failpoints
from strandline.delivery import SinkRecord
from strandline.durable import sync_folder
from strandline.errors import StorageError, UsageError
from strandline.ledger import audit, blocks, drops, floors, losses, sinks
from strandline.ledger.engine import Connection
from strandline.ledger.losses import NewLoss, Reason
from strandline.maintain import rows
from strandline.maintain.bench import MaintainBench, Progress, quiet
from strandline.maintain.compact import CompactOptions, compact
from strandline.maintain.expire import ExpireOptions, expire
from strandline.maintain.retain_plan import owed, range_or_none
from strandline.tables import floor as table_floor
from strandline.tables.spark_tables import CATALOG, explain
from strandline.types import SEQ_COLUMN, Dataset, Seq, SeqRange

_LINES_AT_ONCE_MAX = 10_000


@dataclass(frozen=True, slots=True)
class AtSink:
    """A sink, and how many of the rows are there or were on their way to it."""

    sink: str
    kind: str
    destination: str
    rows: int


@dataclass(frozen=True, slots=True)
class Purged:
    deleted_rows: int
    first: int | None
    last: int | None
    without_number: int
    """Rows that nobody had numbered; they are among those that were deleted."""
    not_settled: int
    """Rows above the seal: they stay, and a run after the blocks below them are settled takes them."""
    holding: tuple[AtSink, ...]
    """Sinks that were sent such rows: what they hold is theirs to delete."""
    undelivered: tuple[AtSink, ...]
    """Sinks that will not get such rows any more: counted as lost to them."""
    floor: int | None
    """What retention deleted before, up to here, cannot be looked for any more; sinks may hold such rows, too."""
    bodies_ingested: int
    quarantined: int
    """Rows that sinks had refused, and that were kept for them."""
    quarantined_not_judged: int
    rejects: int
    """Lines of reject files."""
    rejects_not_judged: int
    """Lines that are no JSON object: nobody can tell whether they fit the condition."""
    rejects_folder: str
    delete_files_left: int
    """Rows that they hide are still in data files: another commit came first; `compact` writes those anew."""
    snapshots_expired: int | None
    """None where snapshots were to be kept."""
    refs_kept: int
    """Branches and tags that may still show the rows."""


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
    return _Purge(bench, dataset, where, progress).run(keep_snapshots=keep_snapshots, dry_run=dry_run)


@dataclass(frozen=True, slots=True)
class _AtSink:
    record: SinkRecord
    owed: tuple[NewLoss, ...]
    held: int

    @property
    def lost(self) -> int:
        return sum(x.rows or 0 for x in self.owed)

    def told(self, count: int) -> AtSink:
        return AtSink(self.record.name, self.record.kind, self.record.destination, count)


@dataclass(frozen=True)
class _Purge:
    bench: MaintainBench
    dataset: Dataset
    where: str
    progress: Progress

    def run(self, *, keep_snapshots: bool, dry_run: bool) -> Purged:
        self._check()
        bodies = 0
        if not dry_run:
            self.progress("taking in what waits at the receiver", 0, None)
            bodies = self.bench.take_in(self.dataset)
            self.bench.recover()
        with self.bench.ledger.read() as connection:
            sealed = blocks.sealed(connection, self.dataset.id)
            floor = floors.get(connection, self.dataset.id)
        main = self._main()
        found = rows.count(main.where(F.col(SEQ_COLUMN) <= (sealed or 0)), self.where)
        above = rows.count(main.where(F.col(SEQ_COLUMN) > (sealed or 0)), self.where).rows
        unnumbered = rows.count(main.where(F.col(SEQ_COLUMN).isNull()), self.where).rows
        at_sinks = [] if sealed is None or not found.rows else self._at_sinks(sealed, found)
        refused = self._quarantined(main)
        if not dry_run and (found.rows or unnumbered):
            self._delete(sealed or Seq(0), found, at_sinks)
        failpoints.hit("purge.after_table")
        if not dry_run:
            for sink, numbers in refused.chosen.items():
                self.bench.discard(sink, numbers)
        rejects, unjudged = self._rejects(dry_run=dry_run)
        failpoints.hit("purge.after_elsewhere")
        delete_files, expired, refs = (0, None, 0) if dry_run or keep_snapshots else self._make_it_so()
        return Purged(
            found.rows + unnumbered,
            found.first,
            found.last,
            unnumbered,
            above,
            tuple(a.told(a.held) for a in at_sinks if a.held),
            tuple(a.told(a.lost) for a in at_sinks if a.lost),
            floor,
            bodies,
            refused.count,
            refused.not_judged,
            rejects,
            unjudged,
            str(self._rejects_folder),
            delete_files,
            expired,
            refs,
        )

    def _check(self) -> None:
        """Before anything is touched. A condition that Spark takes for an expression is one, whatever else is in it."""
        try:
            kind = self._main().select(F.expr(self.where).alias("_fits")).schema["_fits"].dataType
        except PySparkException as e:
            raise UsageError(f"this condition cannot be used: {explain(e, self.where).message}") from e
        if kind != T.BooleanType():
            raise UsageError(f"`{self.where}` is not a condition: it gives {kind.simpleString()}, not true or false")

    def _main(self) -> DataFrame:
        """All of it: rows that are not ours are a person's all the same."""
        return self.bench.tables().spark.table(f"{CATALOG}.{self.dataset.name}")

    # --- sinks ---

    def _at_sinks(self, sealed: Seq, found: rows.Counted) -> list[_AtSink]:
        table = rows.look(self.bench, self.dataset, sealed)
        with self.bench.ledger.read() as connection:
            known = [(s, drops.standings(connection, s)) for s in sinks.of_dataset(connection, self.dataset.id)]
        at = []
        for n, (record, standings) in enumerate(known):
            self.progress("looking which sinks have them", n, len(known))
            lanes = {s.partition: owed(s, sealed) for s in standings}
            others = range_or_none(int(record.planned or 0), int(sealed))
            where = record.options.get("where") or None
            lacking = rows.count_owed(table.df, rows.Owed(lanes, others, where), self.where)
            marks = {s.partition: s.mark for s in standings}
            losing = tuple(
                NewLoss(lane, marks.get(lane, record.planned), c.last, c.rows)
                for lane, c in lacking.items()
                if c.rows and c.last is not None
            )
            sent = table.df.where(F.col(SEQ_COLUMN) > int(record.start or 0))
            every = rows.count(sent if where is None else sent.where(F.expr(where)), self.where).rows
            at.append(_AtSink(record, losing, max(0, every - sum(x.rows or 0 for x in losing))))
        return at

    def _delete(self, sealed: Seq, found: rows.Counted, at_sinks: Sequence[_AtSink]) -> None:
        with self.bench.ledger.write() as connection:
            if found.first is not None and found.last is not None:
                losses.add_purge(connection, self.dataset.id, SeqRange(found.first, found.last), found.rows)
            self._say(connection, found, at_sinks)
        self.progress("deleting rows", 0, found.rows)
        number = f"`{SEQ_COLUMN}`"
        table_floor.delete(
            self.bench.tables(), self.dataset.name, f"(\n{self.where}\n) AND ({number} <= {sealed} OR {number} IS NULL)"
        )
        self.progress("deleting rows", found.rows, found.rows)

    def _say(self, connection: Connection, found: rows.Counted, at_sinks: Sequence[_AtSink]) -> None:
        for a in at_sinks:
            losses.add(connection, a.record, Reason.PURGED, a.owed)
            if a.lost:
                audit.record(
                    connection, "rows_lost", sink=a.record.name, dataset=self.dataset.name, rows=a.lost, rule="purge"
                )
        audit.record(
            connection, "purged", dataset=self.dataset.name, rows=found.rows, first=found.first, last=found.last,
            held_by=[a.record.name for a in at_sinks if a.held],
        )  # fmt: skip

    # --- rows that sinks refused ---

    def _quarantined(self, main: DataFrame) -> _Refused:
        """By their numbers, where the table still has them; else by what was kept of them."""
        kept = [q for q in self.bench.quarantined() if q.dataset == self.dataset.id]
        if not kept:
            return _Refused({}, 0)
        spark = main.sparkSession
        asked = spark.createDataFrame([(int(q.number),) for q in kept], f"{SEQ_COLUMN} long")
        there = main.join(F.broadcast(asked.distinct()), SEQ_COLUMN, "left_semi")
        fits = F.coalesce(F.expr(self.where), F.lit(False)).alias("_fits")
        by_number = {r[0]: r[1] for r in there.select(SEQ_COLUMN, fits).collect()}  # a line per refused row
        gone = [q for q in kept if int(q.number) not in by_number]
        judged = list(self._judge(main, [_as_json(q.content) for q in gone]))
        verdicts = {id(q): v for q, v in zip(gone, judged, strict=True)}
        chosen: dict[str, list[int]] = {}
        not_judged = 0
        for q in kept:
            verdict = by_number.get(int(q.number), verdicts.get(id(q)))
            if verdict is None:
                not_judged += 1
            elif verdict:
                chosen.setdefault(q.sink, []).append(int(q.number))
        return _Refused(chosen, not_judged)

    def _judge(self, main: DataFrame, texts: Sequence[str | None]) -> Iterator[bool | None]:
        """Whether each text, read as a row of the table, fits; None for one that is no JSON object."""
        if not texts:
            return
        spark = main.sparkSession
        schema = T.StructType([T.StructField(f.name, f.dataType, True) for f in main.schema.fields])
        lines = spark.createDataFrame(list(enumerate(texts)), "_at long, _text string")
        parsed = lines.select(
            "_at", F.from_json("_text", schema, {"mode": "PERMISSIVE"}).alias("_row"),
            F.from_json("_text", "map<string,string>").isNotNull().alias("_is_json"),
        )  # fmt: skip
        fits = parsed.select("_at", "_is_json", "_row.*").select(
            "_at", F.when(F.col("_is_json"), F.coalesce(F.expr(self.where), F.lit(False))).alias("_fits")
        )
        try:
            found = {r["_at"]: r["_fits"] for r in fits.collect()}  # a verdict per line, in bounded portions
        except Exception as e:
            raise explain(e, "what was kept aside cannot be judged") from e
        yield from (found[n] for n in range(len(texts)))

    # --- reject files ---

    @property
    def _rejects_folder(self) -> Path:
        return self.bench.config.home / "rejects" / self.dataset.name

    def _rejects(self, *, dry_run: bool) -> tuple[int, int]:
        removed, not_judged = 0, 0
        main = self._main()
        paths = sorted(self._rejects_folder.glob("*.jsonl")) if self._rejects_folder.is_dir() else []
        for n, path in enumerate(paths):
            self.progress("looking into reject files", n, len(paths))
            try:
                lines = path.read_text("utf-8").splitlines(keepends=True)
            except OSError as e:
                raise StorageError(f"{path} cannot be read: {e.strerror or e}") from e
            kept: list[str] = []
            for at in range(0, len(lines), _LINES_AT_ONCE_MAX):
                some = lines[at : at + _LINES_AT_ONCE_MAX]
                verdicts = list(self._judge(main, [_raw(line) for line in some]))
                not_judged += sum(v is None for v in verdicts)
                kept += (line for line, v in zip(some, verdicts, strict=True) if not v)
            removed += len(lines) - len(kept)
            if len(kept) < len(lines) and not dry_run:
                _replace(path, kept)
        return removed, not_judged

    # --- what still shows them ---

    def _make_it_so(self) -> tuple[int, int, int]:
        """Rows that a delete file hides are still in a data file, and what is deleted is still in older snapshots."""
        left = 0
        tables = self.bench.tables()
        view = tables.view(self.dataset.name)
        head = None if view.main is None else view.snapshots.get(view.main)
        if head is not None and int(head.summary.get("total-delete-files", "0")):
            self.progress("writing files anew", 0, None)
            s = self.bench.config.settings.maintain.compact
            options = CompactOptions(s.file_bytes_target, s.small_share, s.files_min, s.manifests_max)
            left = compact(self.bench, self.dataset, options).delete_files_after
        self.progress("expiring snapshots", 0, None)
        done = expire(self.bench, self.dataset, ExpireOptions(timedelta(0), 1))
        return left, done.snapshots_expired, done.branches_kept + done.tags_kept


@dataclass(frozen=True, slots=True)
class _Refused:
    chosen: dict[str, list[int]]
    not_judged: int

    @property
    def count(self) -> int:
        return sum(map(len, self.chosen.values()))


def _as_json(content: object) -> str | None:
    return json.dumps(content, default=str) if isinstance(content, dict) else None


def _raw(line: str) -> str | None:
    """The text of the row itself, out of a line about it."""
    try:
        return str(json.loads(line)["raw"])
    except (ValueError, KeyError, TypeError):
        return None


def _replace(path: Path, lines: Sequence[str]) -> None:
    """Whole, or as it was; a file without a line goes."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        if not lines:
            path.unlink()
        else:
            with temporary.open("x", encoding="utf-8") as out:
                out.writelines(lines)
                out.flush()
                os.fsync(out.fileno())
            temporary.replace(path)
        sync_folder(path.parent)
    except OSError as e:
        raise StorageError(f"the reject file {path} cannot be written: {e.strerror or e}") from e
    finally:
        temporary.unlink(missing_ok=True)
