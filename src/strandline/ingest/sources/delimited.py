"""CSV: commas, double quotes, a header."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.csv as pv
from pyspark.sql import types as t

from strandline.errors import InputError
from strandline.ingest.sources.blocks import to_batches
from strandline.ingest.sources.columns import Array, Unfit, arrow_type, from_text
from strandline.ingest.sources.identify import SourceFile
from strandline.ingest.sources.lines import Block, ByteRange, Bytes, Offsets, read_blocks, without_return
from strandline.ingest.sources.rows import csv_cells, csv_row, decode
from strandline.ingest.sources.values import Misfit
from strandline.types import INTERNAL_COLUMNS

_NEWLINE, _RETURN, _QUOTE, _COMMA = b'\n\r",'


def read_header(source: SourceFile, fields: t.StructType) -> tuple[str, ...] | None:
    """The column of each cell; None for a file without a line. Refuses a file that cannot fit as a whole."""
    header = next(read_blocks(source, ByteRange(0, source.size_bytes, 1), split_records), None)
    if header is None:
        return None
    try:
        names = tuple(text for text, _ in csv_cells(decode(header.record(0))))
    except Misfit as e:
        raise InputError(f"{source.path}: the header cannot be read: {e}") from e
    _check_header(source, names, fields)
    return names


def read_records(
    source: SourceFile, span: ByteRange, fields: t.StructType, header: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    return to_batches(
        _without_header(read_blocks(source, span, split_records)),
        fields,
        lambda block: read_columns(block, fields, header),
        lambda record: csv_row(record, fields, header),
    )


def read_columns(block: Block, fields: t.StructType, header: Sequence[str]) -> list[Array]:
    text = block.data[block.starts[0] : block.ends[-1]]
    table = pv.read_csv(
        io.BytesIO(text),
        read_options=pv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=list(header)),
        parse_options=pv.ParseOptions(newlines_in_values=True),
        convert_options=pv.ConvertOptions(
            column_types={name: pa.string() for name in header},
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    ).combine_chunks()
    if table.num_rows != len(block):
        raise Unfit
    return [
        from_text(table.column(f.name).chunk(0), f.dataType)
        if f.name in header
        else pa.nulls(len(block), arrow_type(f.dataType))
        for f in fields
    ]


def split_records(data: bytes, first_line: int, last: bool) -> tuple[Block, int, int]:
    """Lines, joined where the newline is inside quotes; empty ones left out."""
    array = np.frombuffer(data, np.uint8)
    newlines = np.flatnonzero(array == _NEWLINE)
    bounds, odd = _quoted(array)
    cuts = newlines[np.searchsorted(bounds, newlines) % 2 == 0]
    taken = int(cuts[-1]) + 1 if len(cuts) else 0
    ends = cuts
    if last and taken < len(data):
        ends = np.append(cuts, len(data))
        taken = len(data)
    starts = np.concatenate(([0], cuts + 1))[: len(ends)]
    lines = first_line + np.searchsorted(newlines, starts)
    suspect = None
    if len(odd) and len(ends):
        suspect = np.zeros(len(ends), bool)
        suspect[np.minimum(np.searchsorted(ends, odd), len(ends) - 1)] = True
    block = Block(data, starts, without_return(array, starts, ends), lines, suspect)
    return block.only(block.ends > block.starts), taken, first_line + int(np.searchsorted(newlines, taken))


def _quoted(array: Bytes) -> tuple[Offsets, Offsets]:
    """Where quoting begins and ends, in turn; and the quotes that stand where none should.

    In a file without the latter, quotes simply alternate: a doubled quote ends quoting and begins it again at once.
    """
    quotes = np.flatnonzero(array == _QUOTE)
    if not len(quotes):
        return quotes, quotes
    before = np.append(np.uint8(_NEWLINE), array)[quotes]
    after = np.append(array, np.uint8(_NEWLINE))[quotes + 1]
    opening = np.isin(before, (_COMMA, _NEWLINE, _QUOTE))
    closing = np.isin(after, (_COMMA, _NEWLINE, _RETURN, _QUOTE))
    if opening[::2].all() and closing[1::2].all():
        return quotes, quotes[:0]
    return _walk_quotes(quotes, before, after)


def _walk_quotes(quotes: Offsets, before: Bytes, after: Bytes) -> tuple[Offsets, Offsets]:
    """One quote after another, for the few blocks where they do not alternate: a quote inside a bare field is text."""
    bounds: list[int] = []
    odd: list[int] = []
    skip = False
    for i, at in enumerate(quotes.tolist()):
        if skip:
            skip = False
        elif len(bounds) % 2 == 0:
            if before[i] in (_COMMA, _NEWLINE):
                bounds.append(at)
            else:
                odd.append(at)
        elif after[i] == _QUOTE:
            skip = True
        else:
            bounds.append(at)
            if after[i] not in (_COMMA, _NEWLINE, _RETURN):
                odd.append(at)
    return np.array(bounds, np.int64), np.array(odd, np.int64)


def _without_header(blocks: Iterator[Block]) -> Iterator[Block]:
    first = next(blocks, None)
    if first is None:
        return
    if len(first) > 1:
        yield first.part(1, len(first))
    yield from blocks


def _check_header(source: SourceFile, names: Sequence[str], fields: t.StructType) -> None:
    known = {f.name: f for f in fields}
    own = [n for n in names if n in INTERNAL_COLUMNS]
    if own:
        raise InputError(f'{source.path}: the column "{own[0]}" is Strandline\'s own', hint="Leave it out of the file.")
    unknown = [n for n in names if n not in known]
    if unknown:
        listed = ", ".join(f'"{n}"' for n in unknown)
        raise InputError(
            f"{source.path}: the dataset has no column {listed}", hint="The first line must name the columns."
        )
    twice = [n for i, n in enumerate(names) if n in names[:i]]
    if twice:
        raise InputError(f'{source.path}: the column "{twice[0]}" occurs twice in the header')
    missing = [f.name for f in fields if not f.nullable and f.name not in names]
    if missing:
        raise InputError(f'{source.path}: the required column "{missing[0]}" is not in the header')
    nested = [n for n in names if isinstance(known[n].dataType, (t.StructType, t.ArrayType, t.MapType))]
    if nested:
        raise InputError(
            f'{source.path}: CSV has no form for the nested column "{nested[0]}"', hint="Use JSON lines or Parquet."
        )
