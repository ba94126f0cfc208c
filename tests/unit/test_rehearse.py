"""Chunks that are built and not sent: the same answer as from the real sender, and rows compared whoever wrote them."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strandline.core.types import Seq, SeqRange
from strandline.deliver.sink import Address, ChunkRows, Conflict, Landed, Provable, SinkContext
from strandline.deliver.sinks.files.sink import KIND, FilesSink
from strandline.iceberg.schema.columns import Column, Primitive

ADDRESS = Address("lake", "instance", 1, "default.events", "")
NAMES = ("_ingest_seq", "x")


def opened(folder: Path, **options: str) -> FilesSink:
    given = {"path": str(folder), "format": "parquet"} | options
    sink = KIND.open(SinkContext(folder, "default.events", 1, given))
    assert isinstance(sink, FilesSink) and isinstance(sink, Provable)
    sink.prepare([Column(n, Primitive("long")) for n in NAMES])
    sink.fence("token")
    return sink


def parcel(form: str, *values: float | None) -> ChunkRows:
    numbers = pa.array(range(1, len(values) + 1), pa.int64())
    if form == "rows":
        table = pa.table({"_ingest_seq": numbers, "x": pa.array(values, pa.float64())})
    else:
        table = pa.table({"_ingest_seq": numbers, "line": pa.array([f"{n},{v}" for n, v in enumerate(values, 1)])})
    return ChunkRows(ADDRESS, SeqRange(Seq(1), Seq(len(values))), table)


@pytest.mark.parametrize(
    "options",
    [{}, {"format": "jsonl"}, {"format": "csv", "compression": "gz"}, {"format": "jsonl", "compression": "zst"}],
    ids=str,
)
def test_a_rehearsal_answers_as_the_sender_does_and_writes_nothing(tmp_path: Path, options: dict[str, str]) -> None:
    sink = opened(tmp_path, **options)
    chunk = parcel(sink.form, 1.5, None, 3.0)
    rehearsed = sink.rehearsal(NAMES).send(chunk)
    assert not (tmp_path / sink.name_of(ADDRESS, chunk.range)).exists()
    assert sink.sender("token").send(chunk) == rehearsed
    assert (tmp_path / sink.name_of(ADDRESS, chunk.range)).exists()
    assert isinstance(sink.comparison(NAMES).send(chunk), Landed)
    assert isinstance(sink.comparison(NAMES).send(parcel(sink.form, 1.5, None, 3.5)), Conflict)


def test_the_same_rows_written_by_another_library_are_the_same(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    chunk = parcel("rows", float("nan"), None, 3.0)
    path = tmp_path / sink.name_of(ADDRESS, chunk.range)
    path.parent.mkdir(parents=True)
    pq.write_table(chunk.rows, path, compression="gzip", row_group_size=2, use_dictionary=False)
    assert isinstance(sink.comparison(NAMES).send(chunk), Landed)
    pq.write_table(parcel("rows", 0.0, None, 3.0).rows, path)
    assert isinstance(sink.comparison(NAMES).send(chunk), Conflict)
    path.write_bytes(b"PAR1 and nothing else")
    assert isinstance(sink.comparison(NAMES).send(chunk), Conflict)


def test_the_same_lines_compressed_otherwise_are_the_same(tmp_path: Path) -> None:
    sink = opened(tmp_path, format="jsonl", compression="gz")
    chunk = parcel("jsonl", 1.0, 2.0)
    path = tmp_path / sink.name_of(ADDRESS, chunk.range)
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress(b"1,1.0\n2,2.0\n", 1))
    assert isinstance(sink.comparison(NAMES).send(chunk), Landed)
    path.write_bytes(gzip.compress(b"1,1.0\n2,9.0\n", 1))
    assert isinstance(sink.comparison(NAMES).send(chunk), Conflict)
