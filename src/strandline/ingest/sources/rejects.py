"""The rows that did not fit, as one JSON-lines file for people."""

from __future__ import annotations

import json
import os
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from strandline.core.errors import StorageError
from strandline.ingest.sources.blocks import LINE, RAW, REJECT


def write_rejects(df: DataFrame, path: Path, limit: int) -> int:
    """Write the first `limit` rejected rows, by line; say how many were written. Without any there is no file.

    They pass through the driver: `limit` and the cut of each row's text bound them.
    """
    rejected = df.where(F.col(REJECT).isNotNull()).select(LINE, REJECT, RAW).orderBy(LINE).limit(limit)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    written = 0
    try:
        with temporary.open("x", encoding="utf-8") as out:
            for row in rejected.toLocalIterator():
                out.write(json.dumps({"line": row[0], "reason": row[1], "raw": row[2]}, ensure_ascii=False) + "\n")
                written += 1
            out.flush()
            os.fsync(out.fileno())
        if written:
            temporary.replace(path)
    except OSError as e:
        raise StorageError(f"the reject file {path} cannot be written: {e.strerror or e}") from e
    finally:
        temporary.unlink(missing_ok=True)
    return written
