"""What routes take: names, pages, and bodies in which nothing unknown is ignored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import Annotated, Any, TypeVar

from fastapi import Path, Query
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema

from strandline.core.documents import Document
from strandline.core.errors import UsageError
from strandline.core.text import duration
from strandline.core.text.bounded_text import NAME_BYTES_MAX, check_text
from strandline.serve.describe import INNER_MAX

_T = TypeVar("_T")
_ID_MAX = (1 << 63) - 1
PAGE_MAX = 1000
LONG_BYTES_MAX = 16 << 10  # a condition, or the value of an option


def _text(value: str, bytes_max: int = NAME_BYTES_MAX) -> str:
    try:
        return check_text("it", value, bytes_max)
    except UsageError as e:
        raise ValueError(e.message) from None


def _duration(value: object) -> timedelta:
    if not isinstance(value, str):
        raise ValueError("Input should be a valid string")
    try:
        return duration.parse(value)
    except UsageError as e:
        raise ValueError(e.message) from None


Text = Annotated[str, AfterValidator(_text)]
LongText = Annotated[str, AfterValidator(partial(_text, bytes_max=LONG_BYTES_MAX)), Field(max_length=LONG_BYTES_MAX)]
Name = Annotated[Text, Field(min_length=1, max_length=500)]
DurationInput = Annotated[
    timedelta,
    PlainValidator(_duration),
    WithJsonSchema({"type": "string", "description": "A number and s, m, h or d: `30d`."}),
]

NamePath = Annotated[Name, Path(description="Its name.")]
IdPath = Annotated[int, Path(ge=1, le=_ID_MAX, description="Its number.")]
Limit = Annotated[int, Query(ge=1, le=PAGE_MAX, description="How many at most.")]
AfterName = Annotated[Text | None, Query(description="`next` of the page before.")]
AfterId = Annotated[int | None, Query(ge=0, le=_ID_MAX, description="`next` of the page before.")]
BeforeId = Annotated[int | None, Query(ge=1, le=_ID_MAX, description="`next` of the page before.")]


DryRun = Annotated[bool, Query(description="Report what would be done, and change nothing.")]


class RequestInput(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


def paged(name: str, found: Sequence[_T], limit: int, show: Callable[[_T], Any], key: Callable[[_T], Any]) -> Document:
    """A page of `found`, which has one more than the page if there is another page."""
    shown = found[:limit]
    return {name: list(map(show, shown)), "next": key(shown[-1]) if len(found) > limit else None}


def paged_after(
    name: str, known: Iterable[_T], after: Any, limit: int, show: Callable[[_T], Any], key: Callable[[_T], Any]
) -> Document:
    """The page of all that is known, in the order of its keys, that follows the key `after`."""
    found = sorted((one for one in known if after is None or key(one) > after), key=key)
    return paged(name, found, limit, show, key)


def cut(document: Document, *names: str, most: int = INNER_MAX) -> Document:
    """With at most `most` entries in each of these lists, and `NAME_total` for how many there are. Another path pages
    them."""
    for name in names:
        document = document | {name: document[name][:most], f"{name}_total": len(document[name])}
    return document
