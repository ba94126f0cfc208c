"""Checks how many rejected rows a batch may have, and writes them to a file."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strandline.core.errors import InputRefused, StorageError
from strandline.core.text.wording import plural
from strandline.core.types import Dataset
from strandline.ingest.sources.identify import SourceFile
from strandline.storage.durable import make_folders, whole_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    Reads = Sequence[tuple[SourceFile, DataFrame]]  # the files of a batch, and the frames that read them

REASONS_SHOWN = 3
_NAME_CHARS_MAX = 60


def check_rejects(dataset: Dataset, reads: Reads, count: int, *, allowed: int, strict: bool) -> None:
    """Raises InputRefused if the batch has more rejected rows than are allowed."""
    if not strict and count <= allowed:
        return
    why = "--strict allows none" if strict else f"more than {allowed:,} are not allowed"
    raise InputRefused(
        f"{plural(count, 'row', 'does')} not fit {dataset.name}, and {why}: {first_reasons(reads)}",
        hint="Correct them. Without --strict, they are written to a reject file."
        if strict
        else "Is this the right file? ingest.rejects_max in the settings limits how many rows may be rejected.",
    )


def first_reasons(reads: Reads) -> str:
    """The lines and reasons of the first rejected rows."""
    reasons: list[str] = []
    for source, frame in reads:
        where = f"{source.path.name}, line" if len(reads) > 1 else "line"
        rows = rejected_rows(frame, REASONS_SHOWN - len(reasons))
        reasons += [f"{where} {r['line']}: {r['reason']}" for r in rows]
        if len(reasons) >= REASONS_SHOWN:
            break
    return "; ".join(reasons)


def rejects_path(folder: Path, dataset: Dataset, batch_id: str, paths: Sequence[Path]) -> Path:
    """The path of a batch's reject file. It is named after the input, or after the batch id that a person chose. The
    end of the name is unique for the batch."""
    named = paths[0].name if batch_id.startswith("file-") else batch_id
    readable = re.sub(r"[^\w.+=@-]+", "_", named).lstrip(".")[:_NAME_CHARS_MAX] or "batch"
    return folder / dataset.name / f"{readable}-{_ending(batch_id)}"


def find_rejects(folder: Path, dataset: Dataset, batch_id: str) -> Path | None:
    """The reject file of an earlier batch with this id, even if its name begins otherwise."""
    return next((folder / dataset.name).glob(f"*-{_ending(batch_id)}"), None)


def _ending(batch_id: str) -> str:
    return f"{hashlib.sha256(batch_id.encode()).hexdigest()[:12]}.jsonl"


def rejected_rows(df: DataFrame, limit: int) -> Iterator[dict[str, Any]]:
    """The first `limit` rejected rows, by line. They pass through the driver, so `limit` and `RAW_CHARS_MAX` bound
    them."""
    from strandline.ingest.sources.blocks import LINE, RAW, REJECT

    rejected = df.where(f"{REJECT} IS NOT NULL").select(LINE, REJECT, RAW).orderBy(LINE).limit(limit)
    for row in rejected.toLocalIterator():
        yield {"line": row[0], "reason": row[1], "raw": row[2]}


def write_reject_file(reads: Reads, path: Path, expected: int) -> None:
    """Writes one file for the batch, as a whole or not at all. Each line names its input file. Raises StorageError."""
    try:
        make_folders(path.parent)
        with whole_file(path) as out:
            written = 0
            for source, frame in reads:
                for row in rejected_rows(frame, expected):
                    out.write(json.dumps({"file": str(source.path)} | row, ensure_ascii=False).encode() + b"\n")
                    written += 1
            if written != expected:
                raise StorageError(
                    f"{reads[0][0].path} changed while it was read "
                    f"({plural(expected, 'rejected row')}, then {written:,})",
                    hint="Ingest a file only when it is complete.",
                )
    except OSError as e:
        raise StorageError(f"the reject file {path} cannot be written: {e.strerror or e}") from e
