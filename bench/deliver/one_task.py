"""`python -m bench.deliver.one_task WORK WAY ROWS N`: one task as an executor runs it, in a process of its own.

It prints the bytes of a chunk and the most that Arrow held at once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path


def main(work: str, way: str, rows: str, n: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from strandline.deliver.build import _Task as SparkTask
    from strandline.deliver.build import by_chunk
    from strandline.deliver.sink import Address, Parcel, SinkContext
    from strandline.deliver.sinks import files
    from strandline.tables.schema import Column, Primitive
    from strandline.types import Seq, SeqRange

    chunk_rows = int(rows)
    data = min((Path(work) / "lake" / "warehouse").rglob("data/*.parquet"))
    options = {"path": f"{work}/out-{way}-{n}", "format": "parquet"}
    sink = files.KIND.open(SinkContext(Path(work), "default.events", 1, options))
    sink.prepare([Column("_ingest_seq", Primitive("long"), True)])
    sink.fence("t")
    sender = sink.sender("t")
    pool = pa.default_memory_pool()

    def address() -> Address:
        return Address("lake", "sink", 1, "default.events", "")

    def batches() -> Iterator[pa.RecordBatch]:
        """As Spark hands them over: ten thousand rows at a time, copied out of a stream."""
        for batch in pq.ParquetFile(data).iter_batches(10_000):
            numbers = batch.column("_ingest_seq")
            chunk = pa.array([(v.as_py() - 1) // chunk_rows for v in numbers], pa.int32())
            yield batch.append_column("_sl_chunk", chunk).append_column("_sl_number", numbers)

    largest = 0
    if way == "spark":
        names = tuple(pq.ParquetFile(data).schema_arrow.names)
        task = SparkTask({}, "rows", names, sender, ("", 0))
        for index, table in by_chunk(batches()):
            kept = table.select(list(task.names))
            largest = max(largest, kept.nbytes)
            _send(sender, Parcel(address(), _range(index, chunk_rows), kept))
            del table, kept
    else:
        from strandline.deliver import data_files
        from strandline.deliver.data_files import Reach

        schema = pq.ParquetFile(data).schema_arrow.remove_metadata()
        schema = pa.schema([f.remove_metadata() for f in schema])
        for index in range(5):
            lo, hi = index * chunk_rows + 1, (index + 1) * chunk_rows
            parts = list(data_files.parts(str(data), Reach(None, "", None, None), schema, lo, hi))
            table = pa.concat_tables(parts)
            largest = max(largest, table.nbytes)
            _send(sender, Parcel(address(), SeqRange(Seq(lo), Seq(hi)), table))
            del parts, table
    print(json.dumps({"chunk": largest, "peak": pool.max_memory()}))


def _send(sender: object, parcel: object) -> None:
    outcome = sender.send(parcel)  # type: ignore[attr-defined]
    if type(outcome).__name__ != "Landed":
        raise RuntimeError(str(outcome))


def _range(index: int, rows: int) -> object:
    from strandline.types import Seq, SeqRange

    return SeqRange(Seq(index * rows + 1), Seq((index + 1) * rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
