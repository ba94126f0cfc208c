"""Reads the sequence numbers of data files from manifests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from strandline.core.errors import FailedError
from strandline.core.types import SEQ_COLUMN
from strandline.iceberg.spark.java import IcebergJava


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file that was just written. All its rows have sequence numbers."""

    rows: int
    bytes: int
    lo: int
    hi: int


class NumberBounds:
    """For the files of one table. Calls to the JVM take time, so values that do not change are read once."""

    def __init__(self, java: IcebergJava, table: Any) -> None:
        self._field = table.schema().findField(SEQ_COLUMN).fieldId()
        self._number = java.long_reader()

    def of(self, file: Any) -> tuple[int, int] | None:
        """The lowest and the highest sequence number. None if the manifest has no bounds."""
        lower, upper = file.lowerBounds(), file.upperBounds()
        lo = None if lower is None else lower.get(self._field)
        hi = None if upper is None else upper.get(self._field)
        return None if lo is None or hi is None else (self._number(lo), self._number(hi))

    def of_all_rows(self, file: Any) -> tuple[int, int] | None:
        """Like `of`. None also if some rows have no sequence number."""
        nulls = file.nullValueCounts()
        return None if nulls is not None and nulls.get(self._field) else self.of(file)


def new_files(java: IcebergJava, table: Any, files: Iterable[Any]) -> list[NewFile]:
    """Reads the bounds of new files. Raises FailedError if a file has none."""
    bounds, read = NumberBounds(java, table), []
    for file in files:
        if (numbers := bounds.of_all_rows(file)) is None:
            raise FailedError(f"{table.name()}: a new file has no bounds of {SEQ_COLUMN}", hint="Nothing was changed.")
        read.append(NewFile(int(file.recordCount()), int(file.fileSizeInBytes()), *numbers))
    return read
