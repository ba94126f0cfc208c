"""Parses the body of a request into rows that fit their table exactly, or raises why they do not. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from strandline.core import forward_protocol
from strandline.core.errors import BadRow
from strandline.core.text.wording import plural
from strandline.core.types import SEQ_COLUMN, SeqRange
from strandline.iceberg.schema.columns import Column, Primitive
from strandline.receive.body.arrow import read_arrow
from strandline.receive.body.columns import BodyMisfit, arrow_schema, check, width_bytes
from strandline.receive.body.decompress import TooLarge, decompress_chunks, unpack
from strandline.receive.body.json_lines import ReadLines, count_lines, read_json

_NUMBER = Column(SEQ_COLUMN, Primitive("long"), required=True)
RESERVE = 4  # 1/RESERVE of `bytes_max` stays free for temporary buffers while rows are built


@dataclass(frozen=True, slots=True)
class Packed:
    """A body as it was sent."""

    data: bytes
    form: str
    encoding: str
    # From a `forward` sender: its rows carry the sender's sequence numbers, all in this range. None: any other client.
    numbers: SeqRange | None


def read_body(body: Packed, columns: tuple[Column, ...], bytes_max: int, read_lines: ReadLines) -> pa.Table:
    """The rows, with exactly these columns. Raises BadRow or TooLarge. The body as sent, the body decompressed, and its
    rows take at most twice `bytes_max` together."""
    given = (_NUMBER, *columns) if body.numbers is not None else columns
    wanted = [c.name for c in columns]
    parts: list[pa.Table] = []
    after: int | None = None
    for rows, lines in _parts(body, given, bytes_max, read_lines):
        if body.numbers is not None:
            check_numbers(rows.column(SEQ_COLUMN), body.numbers, lines, after)
            after = rows.column(SEQ_COLUMN)[-1].as_py() if rows.num_rows else after
        part = rows.select(wanted)
        if not part.schema.equals(arrow_schema(columns)):
            raise TypeError("the rows do not have the columns of their table")
        try:
            check(part, columns)
        except BodyMisfit as e:
            raise BadRow(e.row + 1 if lines is None else int(lines[e.row]), e.why) from e
        parts.append(part)
    if body.numbers is not None and after is None:
        raise BadRow(None, f"the range {body.numbers} has no rows")
    return pa.concat_tables(parts) if parts else arrow_schema(columns).empty_table()


def _parts(
    body: Packed, columns: tuple[Column, ...], bytes_max: int, read_lines: ReadLines
) -> Iterator[tuple[pa.Table, Any]]:
    """The rows, and the line number of each; None for Arrow, which has no lines."""
    sent = 0 if body.encoding == "identity" else len(body.data)
    if body.form == forward_protocol.ARROW:
        # While `unpack` runs, the decompressed bytes are in memory twice.
        data = unpack(body.data, body.encoding, bytes_max - sent // 2)
        room = 2 * bytes_max - sent - len(data) - bytes_max // RESERVE
        yield read_arrow(data, columns, bytes_max, min(bytes_max, room)), None
    else:
        room = 2 * bytes_max - len(body.data) - bytes_max // RESERVE
        if not sent and (count := count_lines(body.data)) * width_bytes(columns) > bytes_max:
            raise TooLarge(bytes_max, f"{plural(count, 'row', 'takes')} more bytes than that")
        pieces = decompress_chunks(body.data, body.encoding, bytes_max)
        yield from read_json(pieces, columns, bytes_max, room, read_lines)


def check_numbers(column: Any, within: SeqRange, lines: Any | None, after: int | None) -> None:
    """Raises BadRow unless the sequence numbers strictly increase, within the range and above `after`. The range is the
    identity of its rows. With other rows under it, the right rows would be taken for a repeat, and thrown away."""
    numbers = column.fill_null(0).to_numpy()  # 0 is in no range
    bad = (numbers < within.lo) | (numbers > within.hi)
    bad[1:] |= numbers[1:] <= numbers[:-1]
    bad[:1] |= after is not None and numbers[:1] <= after
    if bad.any():
        row = int(bad.argmax())
        why = f"{SEQ_COLUMN} {column[row].as_py()} does not strictly increase inside the range {within}"
        raise BadRow(row + 1 if lines is None else int(lines[row]), why)
