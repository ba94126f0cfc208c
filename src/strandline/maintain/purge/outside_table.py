"""Finds rows that are not in the table: rows that sinks refused, and rejected rows of ingested files. Their stored
content is parsed as a row of the table and judged by the same condition. If the result is neither true nor false,
because a value is missing or invalid, it is unknown whether the row matches."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO, TextIO

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from strandline.core.delivery_types import RefusedRow
from strandline.core.errors import StorageError
from strandline.core.portions import portions
from strandline.core.types import SEQ_COLUMN, Dataset
from strandline.iceberg.spark.java_errors import explain
from strandline.ledger.ingest import reject_folders
from strandline.maintain.context import MaintainContext, MaintainProgress
from strandline.maintain.purge.table_rows import is_about_values
from strandline.storage.durable import sync_folder, whole_file

_AT, _TEXT, _IS_JSON = "_sl_at", "_sl_text", "_sl_is_json"
_LINES_AT_ONCE_MAX = 10_000
_BYTES_AT_ONCE_MAX = 64 << 20
_TEMPORARY_SECONDS_MAX = 3600.0  # the temporary file of a running ingest is younger, because it writes all the time


@dataclass(frozen=True, slots=True)
class RefusedFound:
    chosen: tuple[RefusedRow, ...]
    in_table: tuple[RefusedRow, ...]  # the chosen ones that are in the table, too
    not_judged: int


def judge_refused(main: DataFrame, where: str, refused: Sequence[RefusedRow]) -> RefusedFound:
    """Judges refused rows by their row in the table, or, if it is gone, by their stored content."""
    if not refused:
        return RefusedFound((), (), 0)
    numbers = main.sparkSession.createDataFrame([(int(q.number),) for q in refused], f"{SEQ_COLUMN} long")
    in_main = main.join(F.broadcast(numbers.distinct()), SEQ_COLUMN, "left_semi")
    fits = F.coalesce(F.expr(where), F.lit(False)).alias("_sl_fits")
    by_number: dict[int, bool] = {r[0]: r[1] for r in in_main.select(SEQ_COLUMN, fits).collect()}  # a line per refused
    verdicts: dict[int, bool | None] = {q.id: by_number[int(q.number)] for q in refused if int(q.number) in by_number}
    left = [q for q in refused if q.id not in verdicts]
    for portion in portions(left, lambda q: q.size, _BYTES_AT_ONCE_MAX, _LINES_AT_ONCE_MAX):
        contents = [q.read() for q in portion]
        texts = [None if content is None else json.dumps(content) for content in contents]
        verdicts.update(zip((q.id for q in portion), judge(main, where, texts), strict=True))
    chosen = tuple(q for q in refused if verdicts[q.id])
    in_table = tuple(q for q in chosen if int(q.number) in by_number)
    return RefusedFound(chosen, in_table, sum(verdicts[q.id] is None for q in refused))


def judge(main: DataFrame, where: str, texts: Sequence[str | None]) -> list[bool | None]:
    """Whether each text, parsed as a row of the table, matches; None if that is unknown. An empty row never matches."""
    if not texts:
        return []
    try:
        verdicts = _judge_all(main.sparkSession, main.schema, where, texts)
    except Exception as e:
        if not is_about_values(e):
            raise explain(e, "quarantined and rejected rows cannot be judged") from e
        verdicts = _judge_all(_lenient(main.sparkSession), main.schema, where, texts)
    return [False if text == "{}" else verdicts[n] for n, text in enumerate(texts)]


def _judge_all(
    spark: SparkSession, columns: T.StructType, where: str, texts: Sequence[str | None]
) -> dict[int, bool | None]:
    schema = T.StructType([T.StructField(f.name, f.dataType, True) for f in columns.fields])
    lines = spark.createDataFrame(list(enumerate(texts)), f"{_AT} long, {_TEXT} string")
    parsed = lines.select(
        _AT, F.from_json(_TEXT, schema, {"mode": "PERMISSIVE"}).alias("row"),
        F.from_json(_TEXT, "map<string,string>").isNotNull().alias(_IS_JSON),
    )  # fmt: skip
    fits = parsed.select(_AT, _IS_JSON, "row.*").select(_AT, F.when(F.col(_IS_JSON), F.expr(where)).alias("fits"))
    return {r[_AT]: r["fits"] for r in fits.collect()}  # a verdict per line, in bounded portions


def _lenient(spark: SparkSession) -> SparkSession:
    """A session in which an invalid cast gives NULL instead of an error."""
    session = spark.newSession()
    session.conf.set("spark.sql.ansi.enabled", "false")
    session.conf.set("spark.sql.session.timeZone", spark.conf.get("spark.sql.session.timeZone") or "UTC")
    return session


# --- reject files ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RejectFolders:
    """All folders in which `ingest` has stored rejected rows of the dataset."""

    here: tuple[Path, ...]
    elsewhere: tuple[str, ...]


def find_folders(context: MaintainContext, dataset: Dataset) -> RejectFolders:
    usual = (context.config.home / "rejects").absolute()
    noted = context.ledger.query(reject_folders.of_dataset, dataset.id)
    here = {usual} | {Path(n.folder) for n in noted if Path(n.folder).is_dir()}
    # The same path on another machine is another folder, unless both mount it, which this machine cannot know.
    away = [n for n in noted if n.node != socket.gethostname()]
    return RejectFolders(
        tuple(sorted(f / dataset.name for f in here)), tuple(f"{n.node}:{Path(n.folder) / dataset.name}" for n in away)
    )


@dataclass(frozen=True, slots=True)
class RejectsFound:
    lines: int
    not_judged: int
    under_way: tuple[Path, ...]  # folders in which an ingest writes rejected rows, or did within the last hour


@dataclass(frozen=True)
class RejectFiles:
    main: DataFrame
    where: str
    progress: MaintainProgress

    def remove_matching(self, folders: RejectFolders, *, dry_run: bool) -> RejectsFound:
        """Counts the lines that match and, unless this is a dry run, removes them."""
        paths = [p for folder in folders.here if folder.is_dir() for p in sorted(folder.glob("*.jsonl"))]
        removed, not_judged = 0, 0
        for n, path in enumerate(paths):
            self.progress("searching reject files", n, len(paths))
            removed_here, not_judged_here = self._file(path, dry_run=dry_run)
            removed, not_judged = removed + removed_here, not_judged + not_judged_here
        young = [] if dry_run else [f for f in folders.here if not _remove_temporary(f)]
        return RejectsFound(removed, not_judged, tuple(young))

    def _file(self, path: Path, *, dry_run: bool) -> tuple[int, int]:
        try:
            with path.open(encoding="utf-8", newline="\n") as lines:
                if dry_run:
                    return self._sift(lines, None)[1:]
                with suppress(_Unchanged), whole_file(path) as out:
                    kept, removed, not_judged = self._sift(lines, out)
                    if not kept or not removed:
                        raise _Unchanged
            if removed and not kept:  # the file would be empty
                path.unlink()
                sync_folder(path.parent)
        except (OSError, UnicodeError) as e:
            reason = e.strerror if isinstance(e, OSError) and e.strerror else type(e).__name__
            raise StorageError(f"the reject file {path} cannot be read or written: {reason}") from e
        return removed, not_judged

    def _sift(self, lines: TextIO, out: BinaryIO | None) -> tuple[int, int, int]:
        """Copies the lines that stay to `out`. Returns how many stay, how many go, and how many cannot be judged: those
        stay."""
        kept = removed = not_judged = 0
        while page := list(islice(lines, _LINES_AT_ONCE_MAX)):
            verdicts = judge(self.main, self.where, [_raw(line) for line in page])
            staying = [line for line, v in zip(page, verdicts, strict=True) if not v]
            if out is not None:
                out.writelines(line.encode() for line in staying)
            kept += len(staying)
            removed += len(page) - len(staying)
            not_judged += sum(v is None for v in verdicts)
        return kept, removed, not_judged


def _raw(line: str) -> str | None:
    """The text of the row, from its line in a reject file."""
    try:
        return str(json.loads(line)["raw"])
    except (ValueError, KeyError, TypeError):
        return None


class _Unchanged(Exception):
    """Raised to keep the file as it is."""


def _remove_temporary(folder: Path) -> bool:
    """Removes temporary files of killed ingests. False if an ingest may still be writing one."""
    has_young = False
    for path in folder.glob("*.jsonl.*.tmp"):
        with suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > _TEMPORARY_SECONDS_MAX:
                path.unlink()
            else:
                has_young = True
    return not has_young
