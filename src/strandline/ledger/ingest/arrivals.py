"""Counts the rows that arrive while a command watches: the rows of published blocks. Not reserved sequence numbers:
some of those never get a row."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from strandline.core.types import BlockId
from strandline.ledger.schema.core import block


@dataclass(frozen=True, slots=True)
class Arrivals:
    rows: int  # grows by one for each row that arrives
    settled_up_to: BlockId  # no block up to here changes any more
    settled_rows: int  # of the blocks up to here


def count_arrivals(connection: sa.Connection, last: Arrivals | None) -> Arrivals:
    """Reads only blocks that are new, or were open the last time. Starts again if the ledger was restored since.
    `connection` must be one of `read_consistent`."""
    first_open, newest = connection.execute(_ENDS).one()
    up_to = BlockId((newest or 0) if first_open is None else first_open - 1)
    before = Arrivals(0, up_to, 0) if last is None or up_to < last.settled_up_to else last
    rows = connection.execute(_ROWS, {"after": before.settled_up_to, "up_to": up_to}).one()
    settled_rows = before.settled_rows + int(rows.settled)
    return Arrivals(settled_rows + int(rows.above), up_to, settled_rows)


_OPEN = block.c.state.in_([sa.literal_column("'reserved'", sa.Text), sa.literal_column("'staged'", sa.Text)])
_ENDS = sa.select(
    sa.select(sa.func.min(block.c.id)).where(_OPEN).scalar_subquery(),
    sa.select(sa.func.max(block.c.id)).scalar_subquery(),
)
_UP_TO = block.c.id <= sa.bindparam("up_to", type_=sa.BigInteger)
_ROWS = sa.select(
    sa.func.coalesce(sa.func.sum(sa.case((_UP_TO, block.c.row_count))), 0).label("settled"),
    sa.func.coalesce(sa.func.sum(sa.case((~_UP_TO, block.c.row_count))), 0).label("above"),
).where(
    block.c.id > sa.bindparam("after", type_=sa.BigInteger), block.c.state == sa.literal_column("'published'", sa.Text)
)
