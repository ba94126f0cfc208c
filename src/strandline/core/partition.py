"""Logical partitions as text, injectively: no two different tuples of values look alike, whatever they hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import quote_plus

from strandline.core.errors import UsageError

NULL_PART = "~"
"""No encoded value contains it; the empty string stays empty."""


def encode_part(text: str) -> str:
    """As Java's URLEncoder does it, which is what Spark calls on the executors."""
    return quote_plus(text, safe="*").replace("~", "%7E")


def choose_partition(deliver_by: Sequence[str], chosen: Mapping[str, str | None]) -> str:
    """The one partition that these values name: a value, or None for null, for each of its columns."""
    if set(chosen) != set(deliver_by):
        wanted = ", ".join(deliver_by) or "nothing: the dataset has no logical partitions"
        raise UsageError(f"a partition is named by a value for each of: {wanted}")
    return encode_partition([(column, chosen[column]) for column in deliver_by])


def encode_partition(values: Sequence[tuple[str, str | None]]) -> str:
    """`column=value` parts joined by `/`, in the order of the dataset's `deliver_by`."""
    return "/".join(f"{encode_part(name)}={NULL_PART if v is None else encode_part(v)}" for name, v in values)
