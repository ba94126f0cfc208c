"""The body of a request to rows that fit their table exactly, or to the reason why they do not. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from strandline import wire
from strandline.errors import BadRow
from strandline.receive.arrow_body import read_arrow
from strandline.receive.columns import Misfit, arrow_schema, check, width_bytes
from strandline.receive.unpack import TooLarge, unpack
from strandline.tables.schema import Column, Primitive
from strandline.types import SEQ_COLUMN, SeqRange

ReadLines = Callable[[bytes, Sequence[Column]], tuple[pa.Table, Any]]
"""JSON lines to rows, and the line of each; raises BadRow. It is ingest's: a row fits, or does not, by the same rules
whichever way it comes in."""

_NUMBER = Column(SEQ_COLUMN, Primitive("long"), required=True)


@dataclass(frozen=True, slots=True)
class Packed:
    """A body as it was sent."""

    data: bytes
    form: str
    encoding: str
    numbers: SeqRange | None
    """From a sender of Strandline's: its rows carry the numbers that they have there, all of them in this range. They
    are not ours. None: from anyone else."""


def read_body(body: Packed, columns: tuple[Column, ...], bytes_max: int, read_lines: ReadLines) -> pa.Table:
    """With exactly these columns. Raises BadRow or TooLarge."""
    given = (_NUMBER, *columns) if body.numbers is not None else columns
    data = unpack(body.data, body.encoding, bytes_max)
    if body.form == wire.ARROW:
        rows, lines = read_arrow(data, given, bytes_max), None
    else:
        # A line of two braces is a row of nulls in every column.
        if (count := data.count(b"\n")) * width_bytes(given) > bytes_max:
            raise TooLarge(bytes_max, f"{count:,} rows take more bytes than that")
        rows, lines = read_lines(data, given)
    if body.numbers is not None:
        check_numbers(rows.column(SEQ_COLUMN), body.numbers, lines)
    rows = rows.select([c.name for c in columns])
    if not rows.schema.equals(arrow_schema(columns)):
        raise TypeError("the rows do not have the columns of their table")
    try:
        check(rows, columns)
    except Misfit as e:
        raise BadRow(e.row + 1 if lines is None else int(lines[e.row]), e.why) from e
    return rows


def check_numbers(column: Any, within: SeqRange, lines: Any | None) -> None:
    """A range is the name of the rows in it: it has some, and their numbers strictly increase inside it. Anything else
    would make the rows that belong there a repeat, and they would be answered and thrown away."""
    if len(column) == 0:
        raise BadRow(None, f"the range {within} has no rows")
    numbers = column.fill_null(0).to_numpy()  # 0 is in no range
    bad = (numbers < within.lo) | (numbers > within.hi)
    bad[1:] |= numbers[1:] <= numbers[:-1]
    if bad.any():
        row = int(bad.argmax())
        why = f"{SEQ_COLUMN} {column[row].as_py()} does not strictly increase inside the range {within}"
        raise BadRow(row + 1 if lines is None else int(lines[row]), why)
