"""The options that every sink has, whatever its kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strandline.core.errors import UsageError
from strandline.deliver.sink import Option

COMMON = (
    Option("chunk_rows_max", "Rows in one chunk, at most: one object, one transaction, one request.", default="500000"),
    Option(
        "chunk_bytes_max",
        "Bytes of rows in one chunk, at most, before compression. A larger row is a chunk of its own.",
        default=str(64 << 20),
    ),
    Option("batch_rows_min", "Wait until so many rows have come, so that chunks are not tiny.", default="1"),
    Option("batch_wait_seconds_max", "Do not wait longer than this for more rows.", default="60"),
    Option(
        "quarantine_rows_max",
        "Rows of one intent that are quarantined if the sink refuses them for good. More, and the sink stops.",
        default="100",
    ),
    Option("where", "A condition in SQL: rows that do not meet it are left out, and counted."),
    Option("columns", "The columns to deliver, separated by commas. Without: all, and the sequence number first."),
)

PACE = tuple(o.name for o in COMMON if o.name not in ("where", "columns"))  # they do not say what is delivered


@dataclass(frozen=True, slots=True)
class DeliveryOptions:
    chunk_rows_max: int
    chunk_bytes_max: int
    batch_rows_min: int
    batch_wait_seconds_max: float
    quarantine_rows_max: int
    where: str | None
    columns: tuple[str, ...] | None


def parse_common(options: Mapping[str, str]) -> DeliveryOptions:
    given = {o.name: o.default for o in COMMON if o.default is not None} | dict(options)
    columns = tuple(c.strip() for c in given["columns"].split(",")) if given.get("columns") else None
    if columns is not None and (len(set(columns)) != len(columns) or not all(columns)):
        raise UsageError("option columns names a column twice, or none", hint="columns=a,b,c")
    return DeliveryOptions(
        _whole(given, "chunk_rows_max", 1),
        _whole(given, "chunk_bytes_max", 1),
        _whole(given, "batch_rows_min", 1),
        _whole(given, "batch_wait_seconds_max", 0),
        _whole(given, "quarantine_rows_max", 0),
        given.get("where") or None,
        columns,
    )


def own_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options of the sink's kind, without the common ones."""
    common = {o.name for o in COMMON}
    return {name: value for name, value in options.items() if name not in common}


def _whole(options: Mapping[str, str], name: str, least: int) -> int:
    try:
        value = int(options[name])
    except ValueError as e:
        raise UsageError(f"option {name} is a whole number, not {options[name]!r}") from e
    if value < least:
        raise UsageError(f"option {name} is at least {least}, not {value}")
    return value
