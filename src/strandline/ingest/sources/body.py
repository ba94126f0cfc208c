"""Reads JSON lines in memory, such as a request's body, by the rules for files. The first line that does not fit raises
an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import types as t

from strandline.core.errors import BadRow
from strandline.iceberg.schema.columns import Column
from strandline.iceberg.spark.spark_types import spark_schema
from strandline.ingest.sources.blocks import ROW_BY_ROW_MAX
from strandline.ingest.sources.columns import Unfit, arrow_type, required_columns
from strandline.ingest.sources.jsonl import carrier_schema, read_columns
from strandline.ingest.sources.lines import LineBlock, split_lines
from strandline.ingest.sources.rows import json_row
from strandline.ingest.sources.values import Misfit

_BOM = b"\xef\xbb\xbf"

_ROW_BY_ROW_BYTES_MAX = 1 << 20  # the text of all rows that are read one by one; one larger row is read alone
_ROW_VALUES_MAX = 200_000  # lists, objects and fields in one such row: some 200 bytes each


def read_json_lines(data: bytes, columns: Sequence[Column]) -> tuple[pa.Table, npt.NDArray[np.int64]]:
    """The rows, and the line of each. Does not check whether uuids (text) and `fixed` (bytes) fit. Raises BadRow."""
    fields, carriers, maps, schema = _schemas(tuple(columns))
    block, _, _ = split_lines(data.removeprefix(_BOM), 1, True)
    if not len(block):
        return schema.empty_table(), block.lines
    parts = list(_read(block, fields, carriers, maps, schema))
    return pa.Table.from_batches(parts, schema), block.lines


@lru_cache(maxsize=256)
def _schemas(columns: tuple[Column, ...]) -> tuple[t.StructType, pa.Schema, list[str], pa.Schema]:
    fields = spark_schema(columns)
    maps = [f.name for f in fields if isinstance(f.dataType, t.MapType)]
    return fields, carrier_schema(fields), maps, pa.schema([pa.field(f.name, arrow_type(f.dataType)) for f in fields])


def _read(
    block: LineBlock, fields: t.StructType, carriers: pa.Schema, maps: list[str], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Reads the block from its beginning, so that the first bad line is found without reading the lines after it."""
    try:
        arrays = read_columns(block, fields, carriers, maps)
        required_columns(arrays, fields)
    except (Unfit, pa.ArrowInvalid):
        text_bytes = int((block.ends - block.starts).sum())
        if len(block) == 1 or (len(block) <= ROW_BY_ROW_MAX and text_bytes <= _ROW_BY_ROW_BYTES_MAX):
            yield _read_row_by_row(block, fields, schema)
            return
        middle = len(block) // 2
        yield from _read(block.part(0, middle), fields, carriers, maps, schema)
        yield from _read(block.part(middle, len(block)), fields, carriers, maps, schema)
    else:
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _read_row_by_row(block: LineBlock, fields: t.StructType, schema: pa.Schema) -> pa.RecordBatch:
    rows = []
    for index in range(len(block)):
        # Python's lists and objects take far more memory than their text.
        if (record := block.record(index)).count(b"[") + record.count(b"{") + record.count(b":") > _ROW_VALUES_MAX:
            raise BadRow(int(block.lines[index]), "this line cannot be read, and has too many values to say why")
        try:
            rows.append(json_row(record, fields))
        except Misfit as e:
            raise BadRow(int(block.lines[index]), str(e)) from e
    return pa.RecordBatch.from_arrays(
        [pa.array([row[f.name] for row in rows], schema.field(f.name).type) for f in fields], schema=schema
    )
