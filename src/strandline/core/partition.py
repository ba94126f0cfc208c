"""Encodes logical partitions as text, injectively: different tuples of values never have the same text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import quote_plus

from strandline.core.errors import UsageError

NULL_PART = "~"  # no encoded value contains it; an empty string stays empty


def encode_part(text: str) -> str:
    """Like Java's URLEncoder, which Spark calls on the executors."""
    return quote_plus(text, safe="*").replace("~", "%7E")


def choose_partition(deliver_by: Sequence[str], chosen: Mapping[str, str | None]) -> str:
    """The partition with these values (None for null); `UsageError` unless there is one for each column."""
    if set(chosen) != set(deliver_by):
        wanted = ", ".join(deliver_by) or "nothing: the dataset has no logical partitions"
        raise UsageError(f"a partition is named by a value for each of: {wanted}")
    return encode_partition([(column, chosen[column]) for column in deliver_by])


def encode_partition(values: Sequence[tuple[str, str | None]]) -> str:
    """`column=value` parts joined by `/`, in the order of the dataset's `deliver_by`."""
    return "/".join(f"{encode_part(name)}={NULL_PART if v is None else encode_part(v)}" for name, v in values)
