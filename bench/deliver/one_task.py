"""`python -m bench.deliver.one_task WORK WAY ROWS N`: one task as an executor runs it, in a process of its own.

It prints the bytes of a chunk and the most that Arrow held at once. `pack` makes what the tasks of `gathered` and
`spark` get.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strandline.core.types import Seq, SeqRange
from strandline.deliver.sink import Address, ChunkRows, Sender, SinkContext

if TYPE_CHECKING:
    import pyarrow as pa

CHUNKS = 5
_PIECES = 8
_ADDRESS = Address("lake", "sink", 1, "default.events", "")


def main(work: str, way: str, rows: str, n: str) -> None:
    import pyarrow as pa

    ways: dict[str, Callable[[Path, Sender, int], int]] = {"direct": _direct, "gathered": _gathered, "spark": _spark}
    if way == "pack":
        _pack(Path(work), int(rows))
        return
    largest = ways[way](Path(work), _sender(Path(work), f"out-{way}-{n}"), int(rows))
    print(json.dumps({"chunk": largest, "peak": pa.default_memory_pool().max_memory()}))


def _sender(work: Path, folder: str) -> Sender:
    from strandline.deliver.sinks.files import sink as files
    from strandline.iceberg.schema.columns import Column, Primitive

    options = {"path": str(work / folder), "format": "parquet"}
    sink = files.KIND.open(SinkContext(work, "default.events", 1, options))
    sink.prepare([Column("_ingest_seq", Primitive("long"), True)])
    sink.fence("t")
    return sink.sender("t")


def _data(work: Path) -> Path:
    return min((work / "lake" / "warehouse").rglob("data/*.parquet"))


def _schema(work: Path) -> pa.Schema:
    import pyarrow as pa
    import pyarrow.parquet as pq

    return pa.schema([f.remove_metadata() for f in pq.ParquetFile(_data(work)).schema_arrow])


def _range(index: int, rows: int) -> SeqRange:
    return SeqRange(Seq(index * rows + 1), Seq((index + 1) * rows))


def _chunk(work: Path, index: int, rows: int) -> pa.Table:
    import pyarrow as pa

    from strandline.deliver.send import data_files
    from strandline.storage.s3_settings import S3Settings

    wanted = _range(index, rows)
    here = S3Settings(None, None)
    return pa.concat_tables(data_files.parts(str(_data(work)), here, _schema(work), wanted.lo, wanted.hi))


def _send(sender: Sender, index: int, rows: int, table: pa.Table) -> None:
    outcome = sender.send(ChunkRows(_ADDRESS, _range(index, rows), table))
    if type(outcome).__name__ != "Landed":
        raise RuntimeError(str(outcome))


def _direct(work: Path, sender: Sender, rows: int) -> int:
    largest = 0
    for index in range(CHUNKS):
        table = _chunk(work, index, rows)
        largest = max(largest, table.nbytes)
        _send(sender, index, rows, table)
        del table
    return largest


def _spark(work: Path, sender: Sender, rows: int) -> int:
    from strandline.deliver.send.build_spark import by_chunk

    names = _schema(work).names
    largest = 0
    for index, table in by_chunk(_batches(work)):
        kept = table.select(names)
        largest = max(largest, kept.nbytes)
        _send(sender, index, rows, kept)
        del table, kept
    return largest


def _batches(work: Path) -> Iterator[pa.Table]:
    """As a task gets them from Spark: ten thousand rows at a time, copied out of a stream."""
    import pyarrow as pa

    with pa.OSFile(str(work / "stream")) as file, pa.ipc.open_stream(file) as stream:
        for batch in stream:
            yield pa.Table.from_batches([batch])


def _pack(work: Path, rows: int) -> None:
    """The rows of each chunk scattered over pieces, as a table in any order has them; and as a stream of batches."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from strandline.deliver.send.build_gather import _packed

    for index in range(CHUNKS):
        table = _chunk(work, index, rows)
        for piece in range(_PIECES):
            part = table.take(np.arange(piece, table.num_rows, _PIECES))
            (work / f"piece-{index}-{piece}").write_bytes(_packed(part))
    with pa.OSFile(str(work / "stream"), "wb") as out:
        writer = None
        for batch in pq.ParquetFile(_data(work)).iter_batches(10_000):
            numbers = batch.column("_ingest_seq")
            chunk = pa.array((numbers.to_numpy() - 1) // rows, pa.int32())
            whole = batch.append_column("_sl_chunk", chunk).append_column("_sl_number", numbers)
            writer = writer or pa.ipc.new_stream(out, whole.schema)
            writer.write_batch(whole)
        if writer is not None:
            writer.close()


def _gathered(work: Path, sender: Sender, rows: int) -> int:
    from strandline.deliver.send.build_gather import _Gathering
    from strandline.deliver.send.build_spark import Shipment

    largest = 0
    for index in range(CHUNKS):
        shipment = Shipment(0, _ADDRESS, _range(index, rows), rows)
        seen = _Seen(sender)
        list(_Gathering((shipment,), _schema(work), seen, ("", 0), "bench").run(_pieces(work, index)))
        largest = max(largest, seen.largest)
    return largest


def _pieces(work: Path, index: int) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    fields: list[pa.Field[Any]] = [pa.field("place", pa.int32()), pa.field("rows", pa.binary())]
    for piece in range(_PIECES):
        packed = (work / f"piece-{index}-{piece}").read_bytes()
        yield pa.RecordBatch.from_pylist([{"place": 0, "rows": packed}], schema=pa.schema(fields))


class _Seen:
    """The sender, and how large what it got was."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self.largest = 0

    def send(self, parcel: ChunkRows) -> object:
        self.largest = max(self.largest, parcel.rows.nbytes)
        outcome = self._sender.send(parcel)
        if type(outcome).__name__ != "Landed":
            raise RuntimeError(str(outcome))
        return outcome

    def close(self) -> None:
        self._sender.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
