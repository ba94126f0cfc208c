"""Infers the columns of a data file (`--like FILE`): Parquet has a schema; JSON lines and CSV are sampled.

The sample is parsed here and not with Arrow's readers. Those take `007` for a number, drop digits of a timestamp that
are finer than the unit that they guess, and fail on a mixed column without naming the line.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

import zstandard

from strandline.core.errors import InputError, SchemaError
from strandline.core.text.wording import nearest, plural
from strandline.iceberg.schema.columns import Column, ColumnType, ListOf, MapOf, Primitive, Struct, check_columns
from strandline.iceberg.schema.input_files import (
    HEAD_BYTES,
    check_text,
    folder_error,
    format_of,
    how_to_convert,
    other_delimiter,
    unpacked,
    wrong_delimiter,
)
from strandline.iceberg.schema.parquet_columns import parquet_columns

SAMPLE_ROWS_MAX = 10_000
LINE_BYTES_MAX = 64 << 20  # a longer line is not a row, but a file without line ends

_LONG_MIN, _LONG_MAX = -(2**63), 2**63 - 1
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d{1,6})?(Z|[+-]\d\d:\d\d)?")
_INTEGER = re.compile(r"0|-?[1-9]\d*")
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
_EXAMPLES_MAX, _EXAMPLE_CHARS_MAX = 3, 40
_SPECIAL = ("NaN", "Infinity", "-Infinity")  # not numbers of JSON, so they are written as text


@dataclass(frozen=True, slots=True)
class Guess:
    """A column that became text, although most of its values have another type."""

    column: str  # the whole path of a nested field, such as `address.zip` or `tags.element`
    likely: str  # the type of most of its values
    values: int
    misfits: int  # how many values do not have that type
    examples: tuple[tuple[int, str], ...]  # the first misfits: line and text


@dataclass(frozen=True, slots=True)
class Inferred:
    columns: tuple[Column, ...]
    guesses: tuple[Guess, ...] = ()
    empty: tuple[str, ...] = ()  # columns and nested fields without a value in the sample; they became text
    empty_objects: tuple[str, ...] = ()  # columns and nested fields with only empty objects; they became maps
    sampled_rows: int | None = None  # None if the sample is the whole file


def infer(path: Path, types: Mapping[str, ColumnType] = MappingProxyType({})) -> Inferred:
    """The file's columns. Columns in `types` get that type, whatever their values. All columns are optional: a sample
    does not show whether later rows have a value. Raises InputError and SchemaError."""
    if path.is_dir():
        raise folder_error(path)
    kind = _kind(path)
    try:
        if kind == "parquet":
            inferred = Inferred(parquet_columns(path))
        else:
            with path.open("rb") as file:
                check_text(path, kind, unpacked(path, file.read(HEAD_BYTES)))
            with _open_text(path) as lines:
                inferred = _from_jsonl(path, lines, types) if kind == "jsonl" else _from_csv(path, lines, types)
    except UnicodeDecodeError as e:
        hint = how_to_convert(path, "iconv -f ENCODING -t UTF-8", "NEW")
        raise InputError(f"{path} is not UTF-8 text: {e.reason}", hint=hint) from e
    except (OSError, EOFError, zstandard.ZstdError) as e:
        raise InputError(f"{path} cannot be read: {e}") from e
    columns = inferred.columns
    if unknown := [name for name in types if name not in {c.name for c in columns}]:
        near = nearest(unknown[0], [c.name for c in columns]) or [c.name for c in columns]
        raise SchemaError(f"{path} has no column {unknown[0]}", hint=f"It has {', '.join(near)}.")
    columns = tuple(replace(c, type=types[c.name]) if c.name in types else c for c in columns)
    try:
        check_columns(columns)
    except SchemaError as e:
        raise SchemaError(f"{path}: {e.message}", hint=e.hint or "Write a schema file and use --schema.") from e
    return replace(inferred, columns=columns)


def _kind(path: Path) -> str:
    kind, packed = format_of(path)
    if kind is None or (kind == "parquet" and packed):
        raise SchemaError(
            f"{path}: the file's name does not show its format",
            hint="Use .jsonl or .csv (also with .gz or .zst), or .parquet.",
        )
    return kind


@contextmanager
def _open_text(path: Path) -> Iterator[IO[str]]:
    openers: dict[str, Callable[[Path, str], Any]] = {".gz": gzip.open, ".zst": zstandard.open}
    with openers.get(path.suffix.lower(), open)(path, "rb") as raw:
        yield io.TextIOWrapper(raw, encoding="utf-8-sig", newline="")


# ---- the values of a column so far ---------------------------------------------------------------------------------


@dataclass(slots=True)
class _Sampled:
    """What the sampled values of a column are. `kind` becomes wider as values are added; it is None as long as all
    values are null."""

    kind: str | None = None
    fields: dict[str, _Sampled] = field(default_factory=dict)
    element: _Sampled | None = None
    counts: Counter[str] = field(default_factory=Counter)
    # the first values of each kind, with their lines
    examples: dict[str, list[tuple[int, str]]] = field(default_factory=dict)

    def type(self) -> ColumnType:
        match self.kind:
            case "struct" if self.fields:
                return Struct(tuple(Column(name, sampled.type()) for name, sampled in self.fields.items()))
            case "list" if self.element is not None:
                return ListOf(self.element.type())
            case "struct":
                # All objects were empty. A struct without fields cannot be written; a map can hold them.
                return MapOf(Primitive("string"), Primitive("string"))
            case None | "special":
                return Primitive("string")
            case kind:
                return Primitive(kind)

    def count(self, kind: str, line: int, text: str) -> None:
        """Counts a value of this kind, and stores it if it is one of the first."""
        self.counts[kind] += 1
        if len(examples := self.examples.setdefault(kind, [])) < _EXAMPLES_MAX:
            examples.append((line, text if len(text) <= _EXAMPLE_CHARS_MAX else text[:_EXAMPLE_CHARS_MAX] + "…"))

    def guess(self, column: str) -> Guess | None:
        """The guess to report if the column became text although at least half of its values have another type."""
        if self.kind != "string":
            return None
        groups: dict[str, int] = {}
        for kind, count in self.counts.items():
            if kind not in ("string", "special"):
                name = "number" if kind in _NUMBERS else kind
                groups[name] = groups.get(name, 0) + count
        values = self.counts.total()
        best = max(groups, key=lambda g: groups[g], default=None)
        if best is None or groups[best] * 2 < values:
            return None
        kinds = [k for k in self.counts if k == best or (best == "number" and k in _NUMBERS)]
        likely = kinds[0]
        for kind in kinds[1:]:
            likely = _merge(likely, kind) or likely
        examples = sorted(e for k, of_kind in self.examples.items() if k not in kinds for e in of_kind)
        return Guess(column, likely, values, values - groups[best], tuple(examples[:_EXAMPLES_MAX]))

    def with_nested(self, name: str) -> Iterator[tuple[str, _Sampled]]:
        """This column and its nested fields, by path."""
        yield name, self
        for field_name, sampled in self.fields.items():
            yield from sampled.with_nested(f"{name}.{field_name}")
        if self.element is not None:
            yield from self.element.with_nested(f"{name}.element")

    def widen(self, kind: str, where: str) -> None:
        """Widens the kind so that it can also store this one. Raises SchemaError if no kind can store both."""
        if (merged := _merge(self.kind, kind)) is None:
            before = _WORDS.get(self.kind or "", "text")
            raise SchemaError(
                f"{where} has {_WORDS.get(kind, 'text')}, and rows before it have {before}",
                hint="Choose a type for a mixed column: --types NAME:TYPE, and rows that do not fit are rejected; or "
                "--schema FILE.",
            )
        self.kind = merged


_WORDS = {
    "boolean": "true or false", "long": "a number", "double": "a number", "decimal(38,0)": "a number",
    "struct": "an object", "list": "a list",
}  # fmt: skip
_TEXTS = frozenset({"date", "timestamp", "timestamptz", "string", "special"})
_NUMBERS = ("long", "decimal(38,0)", "double")


def _merge(old: str | None, new: str) -> str | None:
    """The kind that can store both, or None if there is none."""
    if old is None or old == new:
        return new
    if {old, new} & {"special"} and {old, new} & set(_NUMBERS):
        return "double"
    if old in _TEXTS and new in _TEXTS:
        return "string"
    if old in _NUMBERS and new in _NUMBERS:
        return max(old, new, key=_NUMBERS.index)
    return None


def _text_kind(text: str) -> str:
    """The kind of a text. It is a date or timestamp only if that type stores the text without loss: a timestamp has no
    more than microseconds."""
    try:
        if _DATE.fullmatch(text):
            date.fromisoformat(text)
            return "date"
        if match := _TIMESTAMP.fullmatch(text):
            datetime.fromisoformat(text)
            return "timestamptz" if match[1] else "timestamp"
    except ValueError:
        pass
    return "string"


def _integer_kind(value: int) -> str:
    if _LONG_MIN <= value <= _LONG_MAX:
        return "long"
    return "decimal(38,0)" if abs(value) < 10**38 else "double"


# ---- JSON lines ----------------------------------------------------------------------------------------------------


def _from_jsonl(path: Path, lines: IO[str], types: Mapping[str, ColumnType]) -> Inferred:
    columns: dict[str, _Sampled] = {}
    rows = 0
    for number, line in _rows(path, lines):
        rows += 1
        try:
            row = json.loads(line, parse_constant=_refuse_special_number)
        except (ValueError, RecursionError) as e:
            raise InputError(f"{path}, line {number}: not JSON: {e}") from e
        if not isinstance(row, dict):
            raise InputError(
                f"{path}, line {number}: not an object", hint="JSON lines are one object a line, not one large array."
            )
        for name, value in row.items():
            sampled = columns.setdefault(name, _Sampled())
            if name not in types:
                _add_value(sampled, value, f"{path}, line {number}: column {name}", number)
    if not columns:
        raise InputError(f"{path} has no rows to infer columns from")
    return _inferred(columns, types, rows if lines.read(1) else None)


def _inferred(columns: Mapping[str, _Sampled], types: Mapping[str, ColumnType], sampled_rows: int | None) -> Inferred:
    guessed = [path for name, sampled in columns.items() if name not in types for path in sampled.with_nested(name)]
    return Inferred(
        tuple(Column(name, sampled.type()) for name, sampled in columns.items()),
        tuple(guess for name, sampled in guessed if (guess := sampled.guess(name)) is not None),
        tuple(name for name, sampled in guessed if sampled.kind is None),
        tuple(name for name, sampled in guessed if sampled.kind == "struct" and not sampled.fields),
        sampled_rows,
    )


def _rows(path: Path, lines: IO[str]) -> Iterator[tuple[int, str]]:
    """The lines that are not empty, with their numbers, up to the size of the sample."""
    number = rows = 0
    while rows < SAMPLE_ROWS_MAX and (line := lines.readline(LINE_BYTES_MAX)):
        number += 1
        if len(line) >= LINE_BYTES_MAX:
            raise InputError(f"{path}, line {number} is longer than {LINE_BYTES_MAX} characters")
        if line.strip():
            rows += 1
            yield number, line


def _refuse_special_number(text: str) -> None:
    raise ValueError(f"{text} is not a JSON number; write it in quotes")


def _add_value(sampled: _Sampled, value: Any, where: str, line: int) -> None:
    match value:
        case None:
            return
        case bool():
            sampled.widen("boolean", where)
        case int():
            sampled.widen(_integer_kind(value), where)
        case float():
            sampled.widen("double", where)
        case str():
            kind = "special" if value in _SPECIAL else _text_kind(value)
            sampled.widen(kind, where)
            sampled.count(kind, line, value)
        case list():
            sampled.widen("list", where)
            sampled.element = sampled.element or _Sampled()
            for item in value:
                _add_value(sampled.element, item, f"{where}.element", line)
        case dict():
            sampled.widen("struct", where)
            for name, item in value.items():
                _add_value(sampled.fields.setdefault(name, _Sampled()), item, f"{where}.{name}", line)


# ---- CSV -----------------------------------------------------------------------------------------------------------


def _from_csv(path: Path, lines: IO[str], types: Mapping[str, ColumnType]) -> Inferred:
    csv.field_size_limit(LINE_BYTES_MAX)
    reader = csv.reader(lines, strict=True)
    try:
        if not (header := next(reader, None)):
            raise InputError(f"{path} has no header to infer columns from")
        if len(header) == 1 and (other := other_delimiter(header[0])):
            raise InputError(f"{path}: its columns are not separated by commas", hint=wrong_delimiter(path, other))
        columns = [_Sampled() for _ in header]
        rows = 0
        for row in islice(reader, SAMPLE_ROWS_MAX):
            rows += 1
            if row and len(row) != len(header):
                raise InputError(
                    f"{path}, line {reader.line_num}: {plural(len(row), 'value')}, and the header has {len(header)}"
                )
            for sampled, text in zip(columns, row, strict=False):
                if text:
                    kind = _cell_kind(text)
                    sampled.kind = _merge(sampled.kind, kind) or "string"  # text can store any cell of a CSV file
                    sampled.count(kind, reader.line_num, text)
        has_more = next(reader, None) is not None
    except csv.Error as e:
        raise InputError(f"{path}, line {reader.line_num}: not CSV: {e}") from e
    check_columns([Column(name, Primitive("string")) for name in header])  # a duplicate name would hide a column below
    return _inferred(dict(zip(header, columns, strict=True)), types, rows if has_more else None)


def _cell_kind(text: str) -> str:
    if text.lower() in ("true", "false"):
        return "boolean"
    if _INTEGER.fullmatch(text):
        return _integer_kind(int(text))
    # 007 is an identifier and not a number, and 1e999 does not fit into a double.
    if _NUMBER.fullmatch(text) and math.isfinite(float(text)) and (float(text) or not re.match("-?[0.]*[1-9]", text)):
        return "double"
    return "special" if text in _SPECIAL else _text_kind(text)
