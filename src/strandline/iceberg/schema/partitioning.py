"""`--partition-by`: Iceberg's transforms as people write them. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from strandline.core.errors import SchemaError
from strandline.core.text.whole_number import whole_number
from strandline.iceberg.schema.schema_file import split_at_commas

_PLAIN = ("identity", "year", "month", "day", "hour")
_WITH_NUMBER = ("bucket", "truncate")
_CALL = re.compile(r"(\w+)\s*\((.*)\)")
_HINT = "Use col, year(col), month(col), day(col), hour(col), bucket(16, col) or truncate(4, col)."


@dataclass(frozen=True, slots=True)
class PartitionBy:
    column: str  # a path: `a.b` is the field b of the struct a
    transform: str  # as Iceberg writes it: `identity`, `day`, `bucket[16]`

    @property
    def field_name(self) -> str:
        """The name that Iceberg itself would choose."""
        suffix = {"identity": "", "truncate": "_trunc"}.get(kind := self.transform.partition("[")[0], f"_{kind}")
        return f"{self.column}{suffix}"

    @property
    def spelled(self) -> str:
        """As `--partition-by` takes it: `who`, `day(at)`, `bucket(16, id)`."""
        kind, _, number = self.transform.rstrip("]").partition("[")
        if kind == "identity":
            return self.column
        return f"{kind}({number}, {self.column})" if number else f"{kind}({self.column})"


def parse_partition_by(text: str) -> tuple[PartitionBy, ...]:
    if not text.strip():
        raise SchemaError("--partition-by is empty", hint=_HINT)
    parts = tuple(_parse(part) for part in split_at_commas(text, "--partition-by"))
    for i, part in enumerate(parts):
        if part in parts[:i]:
            raise SchemaError(f"--partition-by has {part.column} by {part.transform} twice")
    return parts


def _parse(text: str) -> PartitionBy:
    if not (call := _CALL.fullmatch(text)):
        if not text or re.search(r"[()\s]", text):
            raise SchemaError(f"not a column or a partition transform: {text!r}", hint=_HINT)
        return PartitionBy(text, "identity")
    transform, arguments = call[1].lower(), [a.strip() for a in call[2].split(",")]
    match transform, arguments:
        case _, [column] if transform in _PLAIN and column:
            return PartitionBy(column, transform)
        case _, [digits, column] if transform in _WITH_NUMBER and digits.isascii() and digits.isdigit() and column:
            number = whole_number(digits)
            if number is None or not 1 <= number < 2**31:
                raise SchemaError(f"{text}: the number must be at least 1, and less than 2^31")
            return PartitionBy(column, f"{transform}[{number}]")
    raise SchemaError(f"not a column or a partition transform: {text!r}", hint=_HINT)
