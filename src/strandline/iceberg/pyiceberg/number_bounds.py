"""Reads the sequence numbers of a data file from its manifest, without a JVM."""

from __future__ import annotations

from pyiceberg.manifest import DataFile


def number_bounds(file: DataFile, field_id: int) -> tuple[int, int] | None:
    """The lowest and the highest sequence number. None if the manifest has no bounds."""
    lower, upper = (file.lower_bounds or {}).get(field_id), (file.upper_bounds or {}).get(field_id)
    if lower is None or upper is None or len(lower) != 8 or len(upper) != 8:
        return None
    return int.from_bytes(lower, "little", signed=True), int.from_bytes(upper, "little", signed=True)


def null_numbers(file: DataFile, field_id: int) -> int | None:
    """How many rows have no sequence number. None if the manifest has no null count."""
    return (file.null_value_counts or {}).get(field_id)
