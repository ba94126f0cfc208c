"""The rows that did not fit, for a JSON-lines file that people read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from strandline.ingest.sources.blocks import LINE, RAW, REJECT


def rejected_rows(df: DataFrame, limit: int) -> Iterator[dict[str, Any]]:
    """The first `limit` rejected rows, by line. They pass through the driver: `limit` and `RAW_CHARS_MAX` bound
    them."""
    rejected = df.where(F.col(REJECT).isNotNull()).select(LINE, REJECT, RAW).orderBy(LINE).limit(limit)
    for row in rejected.toLocalIterator():
        yield {"line": row[0], "reason": row[1], "raw": row[2]}
