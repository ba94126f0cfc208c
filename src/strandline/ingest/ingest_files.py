"""Ingests files: finds the batch of each file, skips batches that were ingested before, and ingests the rest in
parallel.

If no batch id is given, each file is a batch, and the hash of its bytes is the batch id, so ingesting it again changes
nothing. The ledger is read before Spark starts, so a repeated ingest costs a hash and one query. For the same reason,
this module imports Spark only where it needs it.
"""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from strandline.core.actor import bind_context
from strandline.core.errors import FailedError, InputError, InputRefused, StrandlineError, UsageError
from strandline.core.text.bounded_text import BATCH_ID_BYTES_MAX, check_text
from strandline.core.types import Dataset, Published, SeqRange
from strandline.ingest.reject_file import check_rejects, find_rejects, first_reasons, rejects_path, write_reject_file
from strandline.ingest.sources.identify import SourceFile, file_batch_id, identify
from strandline.ingest.sources.positions import Positions, watch_positions
from strandline.ledger.engine import Ledger
from strandline.ledger.ingest import blocks, reject_folders
from strandline.ledger.ingest.reject_folders import RejectFolder

if TYPE_CHECKING:
    from strandline.ingest.context import IngestContext

FileProgress = Callable[[Path, str, int | None], None]  # file, current step, rows if known; called from many threads
FileBytes = Callable[[Path, int, int], None]  # file, bytes that the current step has read, bytes in total

_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class FileOutcome:
    paths: tuple[Path, ...]  # one file, or all files of a named batch
    batch_id: str | None  # None if the file could not even be read
    rows: int  # rows of the batch in the dataset, ingested now or before
    range: SeqRange | None
    rejected: int | None  # None for a duplicate, whose rejected rows are not counted again
    rejects_path: Path | None
    duplicate: bool
    seconds: float
    error: StrandlineError | None
    # Columns that no file of the batch has, so that they are null in all rows. JSON lines have a column if a row has a
    # value in it.
    absent: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        return self.paths[0]


@dataclass(frozen=True, slots=True)
class IngestOptions:
    batch_id: str | None
    again: bool
    strict: bool
    format: str | None
    rejects_folder: Path
    files_at_once_max: int
    progress: FileProgress
    on_done: Callable[[FileOutcome], None]
    on_bytes: FileBytes | None = None

    def __post_init__(self) -> None:
        if self.batch_id is not None and not self.batch_id.strip():
            raise UsageError("a batch id must not be empty")
        check_text("the batch id", self.batch_id or "", BATCH_ID_BYTES_MAX)
        if self.batch_id is not None and self.again:
            raise UsageError(
                "--again creates a new batch id, so it cannot be used with --batch-id",
                hint="Choose another batch id instead.",
            )


@dataclass(frozen=True, slots=True)
class _FileBatch:
    sources: tuple[SourceFile, ...]
    batch_id: str
    stamps: tuple[tuple[int, int], ...] = ()  # size and time of each file, taken before its bytes were hashed
    is_known: bool = False  # the ledger has its id; reading the rows shows whether they are the same

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(s.path for s in self.sources)

    def ended(self, since: float) -> FileOutcome:
        """An outcome without rows; use `replace` to add them."""
        return FileOutcome(self.paths, self.batch_id, 0, None, 0, None, False, time.monotonic() - since, None)


def ingest_files(
    context: Callable[[], IngestContext],
    ledger: Ledger,
    dataset: Dataset,
    paths: Sequence[Path],
    options: IngestOptions,
) -> list[FileOutcome]:
    """Ingests the files. Returns the outcome of each file or batch, in the order given. If one fails, the others are
    still ingested.

    `context` starts Spark. It is called once, and only if there is something to ingest."""
    if not paths:
        raise UsageError("no file to ingest")
    groups = [(p,) for p in paths] if options.batch_id is None else [tuple(paths)]
    with ThreadPoolExecutor(
        min(options.files_at_once_max, len(groups)), thread_name_prefix="strandline-ingest"
    ) as pool:
        planned = _in_parallel(pool, groups, lambda g: _plan(ledger, dataset, g, options))
        for outcome in planned:
            if isinstance(outcome, FileOutcome):
                options.on_done(outcome)
        if not (batches := [p for p in planned if isinstance(p, _FileBatch)]):
            return [p for p in planned if isinstance(p, FileOutcome)]
        work = context()

        def run(batch: _FileBatch) -> FileOutcome:
            outcome = _ingest(work, dataset, batch, options)
            options.on_done(outcome)
            return outcome

        done = iter(_in_parallel(pool, batches, run))
    return [p if isinstance(p, FileOutcome) else next(done) for p in planned]


def _stamps(paths: Sequence[Path]) -> tuple[tuple[int, int], ...]:
    """The size and modification time of each file."""
    try:
        return tuple((stat.st_size, stat.st_mtime_ns) for stat in (p.stat() for p in paths))
    except OSError as e:
        raise InputError(f"{e.filename} cannot be read: {e.strerror}") from e


def _check_unchanged(batch: _FileBatch) -> None:
    """Raises InputError if a file has changed: its rows must be those whose bytes were hashed for the batch id."""
    if _stamps(batch.paths) != batch.stamps:
        raise InputError(f"{batch.paths[0]} changed while it was read", hint="Ingest a file only when it is complete.")


def _in_parallel(pool: ThreadPoolExecutor, items: Sequence[_T], run: Callable[[_T], _R]) -> list[_R]:
    futures: list[Future[_R]] = [pool.submit(bind_context(run), item) for item in items]
    try:
        return [f.result() for f in futures]
    except BaseException:
        for future in futures:  # interrupted: do not begin further files
            future.cancel()
        raise


def _plan(
    ledger: Ledger, dataset: Dataset, paths: tuple[Path, ...], options: IngestOptions
) -> _FileBatch | FileOutcome:
    """The batch to ingest, or its outcome if Spark is not needed to know it."""
    began = time.monotonic()
    try:
        options.progress(paths[0], "checking", None)
        sources = tuple(identify(p, options.format) for p in paths)
        stamps = _stamps(paths)
        batch = _FileBatch(sources, options.batch_id or file_batch_id(paths[0]), stamps)
        if options.again:
            batch = replace(batch, batch_id=f"{batch.batch_id}-again-{uuid.uuid4().hex}")
        if all(s.size_bytes == 0 and s.format != "parquet" for s in sources):
            return batch.ended(began)
        block = ledger.query(blocks.of_batch, dataset.id, batch.batch_id)
    except StrandlineError as e:
        return FileOutcome(paths, options.batch_id, 0, None, 0, None, False, time.monotonic() - began, e)
    # A batch id that a person chose does not identify the rows: they must be read and compared.
    if not isinstance(block, Published) or options.batch_id is not None:
        options.progress(paths[0], "waiting", None)
        return replace(batch, is_known=isinstance(block, Published))
    rejects, rows = find_rejects(options.rejects_folder, dataset, batch.batch_id), block.row_count or 0
    outcome = replace(batch.ended(began), rows=rows, range=block.head.rows, duplicate=True)
    return replace(outcome, rejected=None, rejects_path=rejects)


def _ingest(work: IngestContext, dataset: Dataset, batch: _FileBatch, options: IngestOptions) -> FileOutcome:
    """Ingests the batch. Never raises: the outcome has the error."""
    from strandline.iceberg.session.job_watch import counted_tasks

    began = time.monotonic()
    rejects_files: list[Path] = []
    try:
        with (
            counted_tasks(work.tables.spark) as share,
            watch_positions(*_bytes_of(batch, options.on_bytes, share)) as positions,
        ):
            outcome = _read_and_append(work, dataset, batch, options, rejects_files, positions)
    except Exception as e:
        outcome = replace(batch.ended(began), error=_explained(e, batch))
    return replace(outcome, seconds=time.monotonic() - began, rejects_path=rejects_files[0] if rejects_files else None)


def _bytes_of(
    batch: _FileBatch, on_bytes: FileBytes | None, share: Callable[[], float]
) -> tuple[Callable[[int], None] | None, Callable[[], int]]:
    """The callback for bytes read, and a function that returns how many of them Spark has read. For Parquet files, that
    is the share of finished tasks."""
    by_spark = sum(s.size_bytes for s in batch.sources if s.format == "parquet")
    size = sum(s.size_bytes for s in batch.sources)

    def report(count: int) -> None:
        if on_bytes is not None:
            on_bytes(batch.paths[0], min(count, size), size)

    return None if on_bytes is None or not size else report, lambda: int(by_spark * share()) if by_spark else 0


def _read_and_append(
    work: IngestContext,
    dataset: Dataset,
    batch: _FileBatch,
    options: IngestOptions,
    rejects_files: list[Path],
    positions: Positions | None,
) -> FileOutcome:
    from pyspark.sql import DataFrame

    from strandline.ingest.append import column_fields, commit, prepare
    from strandline.ingest.sources.blocks import LINE, RAW, REJECT
    from strandline.ingest.sources.read import absent_columns, fit_values, read_source
    from strandline.ingest.stamp import Rejects

    began = time.monotonic()

    def progress(step: str, rows: int | None) -> None:
        if positions is not None and step in ("counting", "writing"):
            positions.clear()  # each step reads the file again
        options.progress(batch.paths[0], step, rows)

    spark, fields, view = work.tables.spark, column_fields(work, dataset), work.tables.view(dataset.name)
    contents = [read_source(spark, source, fields, positions) for source in batch.sources]
    frames = [fit_values(rows.frame, view) for rows in contents]
    df = reduce(DataFrame.unionByName, frames)
    counter = contents[0].count if df is contents[0].frame else None
    reads = list(zip(batch.sources, frames, strict=True))
    absent = [absent_columns(source, fields) for source in batch.sources]

    progress("counting", None)
    rejects = Rejects(REJECT, about=(LINE, RAW))
    prepared = prepare(work, dataset, df, batch_id=batch.batch_id, rejects=rejects, count=counter)
    if prepared.counted.rejected:
        count, folder = prepared.counted.rejected, options.rejects_folder
        check_rejects(dataset, reads, count, allowed=work.settings.rejects_max, strict=options.strict)
        if not batch.is_known:  # a known batch has its reject file, and this may be another batch with the same id
            # The folder is recorded first, so that a later purge can search its files.
            location = RejectFolder(socket.gethostname(), str(folder.absolute()))
            reject_folders.note(work.ledger, dataset.id, location)
            rejects_file = rejects_path(folder, dataset, batch.batch_id, batch.paths)
            write_reject_file(reads, rejects_file, count)
            rejects_files.append(rejects_file)
    done = commit(work, prepared, last_check=lambda: _check_unchanged(batch), progress=progress)
    empty = prepared.counted.empty if prepared.counted.rows else frozenset[str]()
    outcome = replace(
        batch.ended(began),
        rows=done.row_count,
        range=done.rows,
        rejected=done.rejected,
        duplicate=done.duplicate,
        absent=tuple(
            name
            for name in fields.fieldNames()
            if all(name in (empty if lacking is None else lacking) for lacking in absent)
        ),
    )
    if done.row_count == 0 and done.rejected:
        # The reject file stays: it shows what is in this file.
        error = InputRefused(
            f"not one row fits {dataset.name} ({done.rejected:,} rejected): {first_reasons(reads)}",
            hint="Is this the right file, and the right --format?",
        )
        return replace(outcome, error=error)
    return outcome


def _explained(error: Exception, batch: _FileBatch) -> StrandlineError:
    from strandline.iceberg.spark.java_errors import explain
    from strandline.ingest.sources.failures import translate

    if isinstance(error, StrandlineError) and type(error) is not FailedError:
        return error  # it is specific already; only general failures of Spark are translated
    text = str(error)
    source = next((s for s in batch.sources if str(s.path) in text), batch.sources[0])
    explained = translate(error, source) or explain(error, f"{source.path} cannot be ingested")
    if explained is not error:
        explained.__cause__ = error
    return explained
