"""JSON lines: one object per line."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.json as pj
from pyspark.sql import types as t

from strandline.iceberg.arrow_nested import Array
from strandline.ingest.sources.blocks import ColumnsReader, to_batches
from strandline.ingest.sources.columns import Unfit, carrier_type, from_carrier
from strandline.ingest.sources.identify import SourceFile
from strandline.ingest.sources.json_filter import JsonFilter
from strandline.ingest.sources.lines import ByteRange, LineBlock, read_blocks, split_lines
from strandline.ingest.sources.maps import rewrite_maps
from strandline.ingest.sources.misfits import Mask, convert_fitting, may_have_become_zero
from strandline.ingest.sources.rows import json_row

_BRACES = b"{}"


def read_range(source: SourceFile, span: ByteRange, fields: t.StructType) -> Iterator[pa.RecordBatch]:
    return to_batches(
        read_blocks(source, span, split_lines), fields, fitting_reader(fields), lambda line: json_row(line, fields)
    )


def fitting_reader(fields: t.StructType) -> ColumnsReader:
    """A function that reads the columns of the lines that fit. Arrow's parser stops at the first line that it cannot
    take, and does not always say which line that is. So the filter finds such lines, and a second attempt leaves them
    out."""
    schema = carrier_schema(fields)
    map_columns = [f.name for f in fields if isinstance(f.dataType, t.MapType)]
    json_filter = JsonFilter(fields)
    converts = [partial(from_carrier, dt=f.dataType) for f in fields]

    def read(block: LineBlock) -> tuple[list[Array], Mask | None]:
        plausible: Mask | None = None
        try:
            arrays = _parse(block, schema, map_columns)
        except (Unfit, pa.ArrowInvalid):
            plausible = json_filter.plausible_lines(block)
            if plausible.all() or not plausible.any():
                raise
            block = block.gathered(plausible)
            arrays = _parse(block, schema, map_columns)
        columns, fit = convert_fitting(arrays, list(fields), converts, may_have_become_zero(block, arrays, fields))
        if plausible is None:
            return columns, fit
        if fit is not None:
            plausible[np.flatnonzero(plausible)[~fit]] = False
        return columns, plausible

    return read


def carrier_schema(fields: t.StructType) -> pa.Schema:
    return pa.schema([pa.field(f.name, carrier_type(f.dataType)) for f in fields])


def read_columns(block: LineBlock, fields: t.StructType, schema: pa.Schema, map_columns: list[str]) -> list[Array]:
    """The columns of all lines. Raises Unfit or ArrowInvalid if one does not fit."""
    arrays = _parse(block, schema, map_columns)
    if may_have_become_zero(block, arrays, fields) is not None:
        raise Unfit
    return [from_carrier(array, field.dataType) for array, field in zip(arrays, fields, strict=True)]


def _parse(block: LineBlock, schema: pa.Schema, map_columns: list[str]) -> list[Array]:
    _demand_objects(block)
    if map_columns:
        text = memoryview(rewrite_maps(block, map_columns))
    else:
        text = memoryview(block.data)[block.starts[0] : block.ends[-1]]
    table = pj.read_json(
        cast("Any", pa.BufferReader(pa.py_buffer(text))),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(text) + 1),
        parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error"),
    )
    if table.num_rows != len(block):
        raise Unfit
    table = table.combine_chunks()
    table.validate(full=True)  # UTF-8, and decimals within their precision: the parser checks neither
    return [table.column(i).chunk(0) for i in range(table.num_columns)]


def _demand_objects(block: LineBlock) -> None:
    """Raises Unfit unless all lines begin and end with a brace. Arrow's parser takes values one after another and
    ignores lines. With the braces, no value spans two lines, because `}` and `{` are never adjacent inside a value. So
    if there are as many values as lines, each line has one."""
    array = np.frombuffer(block.data, np.uint8)
    if (array[block.starts] != _BRACES[0]).any() or (array[block.ends - 1] != _BRACES[1]).any():
        raise Unfit
