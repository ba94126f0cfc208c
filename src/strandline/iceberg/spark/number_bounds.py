"""Reads the sequence numbers of data files from manifests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from strandline.core.errors import FailedError
from strandline.core.types import SEQ_COLUMN
from strandline.iceberg.spark.java import IcebergJava


@dataclass(frozen=True, slots=True)
class StagedFile:
    records: int
    lo: int
    hi: int


class NumberBounds:
    """For the files of one table. Every call to the JVM costs, so what does not change is read once."""

    def __init__(self, java: IcebergJava, table: Any) -> None:
        self._table = table
        self._field = table.schema().findField(SEQ_COLUMN).fieldId()
        self._number = java.long_reader()

    def of(self, file: Any) -> tuple[int, int] | None:
        """The lowest and the highest; None if the manifest does not say."""
        lower, upper = file.lowerBounds(), file.upperBounds()
        lo = None if lower is None else lower.get(self._field)
        hi = None if upper is None else upper.get(self._field)
        return None if lo is None or hi is None else (self._number(lo), self._number(hi))

    def has_nulls(self, file: Any) -> bool:
        """Whether rows are known to have no sequence number."""
        nulls = file.nullValueCounts()
        return nulls is not None and bool(nulls.get(self._field))

    def staged(self, file: Any) -> StagedFile:
        if (found := self.of(file)) is None:
            raise FailedError(f"{self._table.name()}: a staged file has no bounds of {SEQ_COLUMN}")
        return StagedFile(file.recordCount(), *found)
