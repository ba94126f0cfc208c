"""Writes rows that a cut removes to files: Parquet with sequence numbers and batch ids, in the warehouse.

_strandline/cut/<dataset>/<number of the cut>/<attempt>/part-….parquet _strandline/cut/<dataset>/<number of the
cut>/<attempt>/manifest.json      written last; if it is missing, the attempt died

Spark tasks write the files, and the driver gets their names and counts. If a task ran twice, the driver removes the
file that is not among the results.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from strandline.core.types import SEQ_COLUMN, Dataset, SeqRange
from strandline.iceberg.spark.java_errors import explaining
from strandline.storage.objects import ObjectStore, explained

if TYPE_CHECKING:
    import pyarrow as pa

FOLDER = "_strandline/cut"
MANIFEST = "manifest.json"
BATCH_COLUMN = "_ingest_batch"
FILE_ROWS_MAX = 1_000_000
FILE_BYTES_MAX = 256 << 20  # of Arrow memory; a bucket gets a file in one request
_RESULT = "name string, rows long, lo long, hi long"


@dataclass(frozen=True, slots=True)
class SetAsideFile:
    name: str
    rows: int
    lo: int
    hi: int


@dataclass(frozen=True, slots=True)
class CutRowsFiles:
    place: str  # URL of the folder, for messages
    files: tuple[SetAsideFile, ...]

    @property
    def rows(self) -> int:
        return sum(f.rows for f in self.files)


def folder_of(dataset: Dataset, number: int | str) -> str:
    """Has part of the dataset's id: a dataset of the same name may be created again."""
    return f"{FOLDER}/{dataset.name}-{dataset.uuid[:8]}/{number}"


def with_batches(rows: DataFrame, batches: Sequence[tuple[SeqRange, str]]) -> DataFrame:
    """The rows with the id of their batch; NULL where it is unknown."""
    if not batches:
        return rows.withColumn(BATCH_COLUMN, F.lit(None).cast("string"))
    known = rows.sparkSession.createDataFrame(
        [(int(r.lo), int(r.hi), id) for r, id in batches], f"_sl_lo long, _sl_hi long, {BATCH_COLUMN} string"
    )
    inside = F.col(SEQ_COLUMN).between(F.col("_sl_lo"), F.col("_sl_hi"))
    return rows.join(F.broadcast(known), inside, "left").drop("_sl_lo", "_sl_hi")


def write_rows(rows: DataFrame, objects: ObjectStore, folder: str, about: Mapping[str, Any]) -> CutRowsFiles:
    """Writes the files, then the manifest with `about`. All of it is durable when it returns."""
    attempt = f"{folder}/{uuid.uuid4().hex[:12]}"
    task = _CutRowsTask(objects, attempt)
    with explaining("rows that are cut out cannot be written to files"):
        found = rows.mapInArrow(task.run, _RESULT).collect()  # one result per file
    files = tuple(sorted((SetAsideFile(*r) for r in found), key=lambda f: (f.lo, f.name)))
    with explained(f"{objects.url(attempt)} cannot be written"):
        names = [f"{attempt}/{f.name}" for f in files]
        strays = [s.name for s in objects.list_below(attempt) if s.name not in names]
        objects.remove(strays)
        objects.sync(names)
        document = {**about, "rows": sum(f.rows for f in files), "files": [asdict(f) for f in files]}
        objects.put(f"{attempt}/{MANIFEST}", json.dumps(document, indent=2).encode())
    return CutRowsFiles(objects.url(attempt), files)


@dataclass(frozen=True)
class _CutRowsTask:
    objects: ObjectStore
    folder: str

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        buffered: list[pa.RecordBatch] = []
        for batch in batches:
            if buffered and sum(b.num_rows for b in buffered) + batch.num_rows > FILE_ROWS_MAX:
                yield self._write(buffered)
                buffered = []
            buffered.append(batch)
            if sum(b.nbytes for b in buffered) > FILE_BYTES_MAX:
                yield self._write(buffered)
                buffered = []
        if any(b.num_rows for b in buffered):
            yield self._write(buffered)

    def _write(self, batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        table = pa.Table.from_batches(list(batches))
        name = f"part-{uuid.uuid4().hex}.parquet"
        with self.objects.writer(f"{self.folder}/{name}") as out:
            pq.write_table(table, out, compression="zstd")
        bounds: Any = pc.min_max(table[SEQ_COLUMN]).as_py()
        values: dict[str, list[Any]] = {"name": [name], "rows": [table.num_rows]}
        return pa.RecordBatch.from_pydict(values | {"lo": [bounds["min"]], "hi": [bounds["max"]]})
