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

# No number is so large that arithmetic with it fails, or a database cannot store it.
_COUNT_MAX = 10**12  # rows or bytes
_WAIT_SECONDS_MAX = 366 * 86_400
_SHOWN_MAX = 40  # characters of a value in a message
_NUMBERS = {  # the least and the most
    "chunk_rows_max": (1, _COUNT_MAX),
    "chunk_bytes_max": (1, _COUNT_MAX),
    "batch_rows_min": (1, _COUNT_MAX),
    "batch_wait_seconds_max": (0, _WAIT_SECONDS_MAX),
    "quarantine_rows_max": (0, _COUNT_MAX),
}

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
    """A number above the most counts as the most: it was stored before there was one. Raises UsageError."""
    given = {o.name: o.default for o in COMMON if o.default is not None} | dict(options)
    columns = tuple(c.strip() for c in given["columns"].split(",")) if given.get("columns") else None
    if columns is not None and (len(set(columns)) != len(columns) or not all(columns)):
        raise UsageError("option columns names a column twice, or none", hint="columns=a,b,c")
    numbers = {name: min(_whole(given, name, least), most) for name, (least, most) in _NUMBERS.items()}
    return DeliveryOptions(**numbers, where=given.get("where") or None, columns=columns)


def check_common(options: Mapping[str, str]) -> None:
    """Raises UsageError for options that a sink cannot be given."""
    parse_common(options)
    for name, (least, most) in _NUMBERS.items():
        if name in options and _whole(options, name, least) > most:
            raise UsageError(f"option {name} is at most {most}")


def own_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options of the sink's kind, without the common ones."""
    common = {o.name for o in COMMON}
    return {name: value for name, value in options.items() if name not in common}


def _whole(options: Mapping[str, str], name: str, least: int) -> int:
    try:
        value = int(options[name])
    except ValueError as e:
        raise UsageError(f"option {name} is a whole number, not {options[name][:_SHOWN_MAX]!r}") from e
    if value < least:
        raise UsageError(f"option {name} is at least {least}, not {value}")
    return value
