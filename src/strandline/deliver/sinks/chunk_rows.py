"""What senders of several kinds do with a chunk: check it once more, and join its lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from strandline.core.types import SEQ_COLUMN
from strandline.deliver.sink import ChunkRows

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa


def check_rows(chunk: ChunkRows) -> None:
    """Raises ValueError if there are none."""
    if chunk.rows.num_rows == 0:
        raise ValueError(f"nothing is sent for an empty range, and {chunk.range} has no rows")


def numbers_in_order(chunk: ChunkRows) -> npt.NDArray[np.int64]:
    """The sequence numbers. Raises ValueError unless they are sorted, each of them once, all inside the range."""
    import numpy as np

    numbers = chunk.rows.column(SEQ_COLUMN).to_numpy().astype(np.int64)
    inside = len(numbers) == 0 or chunk.range.lo <= numbers[0] <= numbers[-1] <= chunk.range.hi
    if not inside or (np.diff(numbers) <= 0).any():
        raise ValueError(f"the sequence numbers in the chunk {chunk.range} do not strictly increase inside it")
    return numbers


def joined_lines(rows: pa.Table, rows_each: int) -> Iterator[memoryview]:
    """The lines, each with its end, in pieces of so many rows: the same pieces however Arrow divides the table."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = rows.column("line")
    if column.null_count:
        raise ValueError("a line is null")
    nothing, end = pa.scalar(b"", pa.large_binary()), pa.scalar(b"\n", pa.large_binary())
    for start in range(0, rows.num_rows, rows_each):
        lines = column.slice(start, rows_each).cast(pa.large_binary()).combine_chunks()
        ended = cast("Any", pc).binary_join_element_wise(lines, nothing, end)
        _, offsets, data = ended.buffers()
        bounds = memoryview(offsets).cast("q")
        yield memoryview(data)[bounds[ended.offset] : bounds[ended.offset + len(ended)]]
