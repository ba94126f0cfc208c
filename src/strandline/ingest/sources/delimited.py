"""CSV: commas, double quotes, a header."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.csv as pv
from pyspark.sql import types as t

from strandline.core.errors import InputError
from strandline.core.text.wording import nearest
from strandline.core.types import INTERNAL_COLUMNS
from strandline.iceberg.arrow_nested import Array
from strandline.iceberg.schema.input_files import other_delimiter, wrong_delimiter
from strandline.ingest.sources.blocks import to_batches
from strandline.ingest.sources.columns import Unfit, arrow_type, from_text
from strandline.ingest.sources.identify import SourceFile
from strandline.ingest.sources.lines import ByteRange, Bytes, LineBlock, Offsets, cut_at, read_blocks, without_return
from strandline.ingest.sources.misfits import Mask, convert_fitting
from strandline.ingest.sources.rows import csv_cells, csv_row, decode
from strandline.ingest.sources.values import Misfit

_NEWLINE, _RETURN, _QUOTE, _COMMA = b'\n\r",'
_OPENS_AFTER = np.isin(np.arange(256), (_COMMA, _NEWLINE, _QUOTE))
_CLOSES_BEFORE = np.isin(np.arange(256), (_COMMA, _NEWLINE, _RETURN, _QUOTE))


def read_header(source: SourceFile, fields: t.StructType) -> tuple[str, ...] | None:
    """The names of the columns. None for a file without a line. Raises InputError if the header does not fit."""
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


def read_columns(block: LineBlock, fields: t.StructType, header: Sequence[str]) -> tuple[list[Array], Mask | None]:
    """The columns of the records that fit, and which these are (None: all)."""
    to_parse = np.arange(len(block)) if block.suspect is None else np.flatnonzero(~block.suspect)
    if not len(to_parse):
        raise Unfit
    try:
        table, skipped = _parse(block, to_parse, header)
    except pa.ArrowInvalid:
        readable = np.setdiff1d(to_parse, block.not_utf8(), assume_unique=True)
        if len(readable) in (0, len(to_parse)):
            raise
        to_parse = readable
        table, skipped = _parse(block, to_parse, header)
    if table.num_rows + len(skipped) != len(to_parse):
        raise Unfit
    parsed = np.delete(to_parse, skipped)
    in_file = [f for f in fields if f.name in header]
    arrays = [table.column(f.name).combine_chunks() for f in in_file]
    columns, fit = convert_fitting(arrays, in_file, [partial(from_text, dt=f.dataType) for f in in_file])
    if fit is not None:
        parsed = parsed[fit]
    converted = dict(zip((f.name for f in in_file), columns, strict=True))
    all_columns = [
        converted[f.name] if f.name in converted else pa.nulls(len(parsed), arrow_type(f.dataType)) for f in fields
    ]
    if len(parsed) == len(block):
        return all_columns, None
    is_parsed = np.zeros(len(block), bool)
    is_parsed[parsed] = True
    return all_columns, is_parsed


def _parse(block: LineBlock, to_parse: Offsets, header: Sequence[str]) -> tuple[pa.Table, Offsets]:
    """The cells of these records as text. And which of the records were skipped, because they have too many or too few
    cells."""
    if len(to_parse) < len(block):
        chosen = np.zeros(len(block), bool)
        chosen[to_parse] = True
        block = block.gathered(chosen)
    text = block.data[block.starts[0] : block.ends[-1]]
    skipped: list[int] = []

    def skip(row: pv.InvalidRow) -> Literal["skip"]:
        skipped.append((row.number or 0) - 1)
        return "skip"

    table = pv.read_csv(
        io.BytesIO(text),
        read_options=pv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=list(header)),
        parse_options=pv.ParseOptions(newlines_in_values=True, invalid_row_handler=skip),
        convert_options=pv.ConvertOptions(
            column_types={name: pa.string() for name in header},
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    return table, np.array(skipped, np.int64)


def split_records(data: bytes, first_line: int, last: bool) -> tuple[LineBlock, int, int]:
    """Splits data into records. A newline inside quotes does not end a record. Empty records are left out."""
    array = np.frombuffer(data, np.uint8)
    newlines = np.flatnonzero(array == _NEWLINE)
    bounds, misplaced = _quoted(array)
    starts, ends, taken = cut_at(newlines[np.searchsorted(bounds, newlines) % 2 == 0], len(data), last)
    lines = first_line + np.searchsorted(newlines, starts)
    suspect = None
    if len(misplaced) and len(ends):
        suspect = np.zeros(len(ends), bool)
        suspect[np.minimum(np.searchsorted(ends, misplaced), len(ends) - 1)] = True
    block = LineBlock(data, starts, without_return(array, starts, ends), lines, suspect)
    return block.only(block.ends > block.starts), taken, first_line + int(np.searchsorted(newlines, taken))


def _quoted(array: Bytes) -> tuple[Offsets, Offsets]:
    """The positions where quoting begins and ends, in turn, and the quotes at places where none is allowed.

    If there are no misplaced quotes, quotes simply alternate: a doubled quote ends quoting and begins it again at
    once."""
    quotes = np.flatnonzero(array == _QUOTE)
    if not len(quotes):
        return quotes, quotes
    framed = np.pad(array, 1, constant_values=_NEWLINE)  # the data begins and ends like a line
    before, after = framed[quotes], framed[quotes + 2]
    if _OPENS_AFTER[before[::2]].all() and _CLOSES_BEFORE[after[1::2]].all():
        return quotes, quotes[:0]
    return _walk_quotes(quotes, before, after)


def _walk_quotes(quotes: Offsets, before: Bytes, after: Bytes) -> tuple[Offsets, Offsets]:
    """Like `_quoted`, one quote after another, for blocks in which quotes do not alternate: a quote inside a field that
    is not quoted is text."""
    bounds: list[int] = []
    misplaced: list[int] = []
    skip = False
    for i, at in enumerate(quotes.tolist()):
        if skip:
            skip = False
        elif len(bounds) % 2 == 0:
            if before[i] in (_COMMA, _NEWLINE):
                bounds.append(at)
            else:
                misplaced.append(at)
        elif after[i] == _QUOTE:
            skip = True
        else:
            bounds.append(at)
            if after[i] not in (_COMMA, _NEWLINE, _RETURN):
                misplaced.append(at)
    return np.array(bounds, np.int64), np.array(misplaced, np.int64)


def _without_header(blocks: Iterator[LineBlock]) -> Iterator[LineBlock]:
    if (first := next(blocks, None)) is None:
        return
    if len(first) > 1:
        yield first.part(1, len(first))
    yield from blocks


def _check_header(source: SourceFile, names: Sequence[str], fields: t.StructType) -> None:
    by_name = {f.name: f for f in fields}
    if own := [n for n in names if n in INTERNAL_COLUMNS]:
        raise InputError(f'{source.path}: the column "{own[0]}" is Strandline\'s own', hint="Leave it out of the file.")
    if unknown := [n for n in names if n not in by_name]:
        listed = ", ".join(f'"{n}"' for n in unknown)
        raise InputError(
            f"{source.path}: the dataset has no column {listed}",
            hint=_unknown_hint(source, names, unknown, list(by_name)),
        )
    if twice := [n for i, n in enumerate(names) if n in names[:i]]:
        raise InputError(f'{source.path}: the column "{twice[0]}" occurs twice in the header')
    if missing := [f.name for f in fields if not f.nullable and f.name not in names]:
        raise InputError(f'{source.path}: the required column "{missing[0]}" is not in the header')
    if nested := [n for n in names if isinstance(by_name[n].dataType, (t.StructType, t.ArrayType, t.MapType))]:
        raise InputError(
            f'{source.path}: CSV has no form for the nested column "{nested[0]}"', hint="Use JSON lines or Parquet."
        )


def _unknown_hint(source: SourceFile, names: Sequence[str], unknown: Sequence[str], columns: Sequence[str]) -> str:
    """What to do about columns of the header that the dataset does not have."""
    if len(names) == 1 and (other := other_delimiter(names[0])):
        return wrong_delimiter(source.path, other)
    if cases := [(n, c) for n in unknown for c in columns if c.lower() == n.lower() and c not in names]:
        listed = ", ".join(f'"{c}" for "{n}"' for n, c in cases)
        return f"Names are case-sensitive. Write {listed} in the first line of the file."
    if stripped := [(n, n.strip()) for n in unknown if n.strip() in columns]:
        return f'Spaces belong to a name: write "{stripped[0][1]}" without the spaces around it.'
    if not set(names) & set(columns):
        return f"The first line must name the columns: {', '.join(columns)}."
    if near := nearest(unknown[0], columns):
        return f"Is \"{near[0]}\" meant? If not, add it: strandline dataset alter DATASET --add '{unknown[0]}:TYPE'"
    return f"Leave it out, or add it: strandline dataset alter DATASET --add '{unknown[0]}:TYPE'"
