"""How values become JSON wherever they are shown or stored: a dataclass as its fields, times in UTC with a Z."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from strandline.core.errors import StrandlineError

Document = dict[str, Any]


def fields_of(value: Any, *without: str) -> Document:
    """A dataclass's fields by name; `json_text` turns their values into JSON."""
    return {name: getattr(value, name) for name in field_names(value.__class__) if name not in without}


@cache
def field_names(kind: Any) -> tuple[str, ...]:
    """The names of a dataclass's fields, in order."""
    return tuple(field.name for field in fields(kind))


def json_text(value: Any, *, indent: int | None = None) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=False, default=_plain)


def json_object(members: Mapping[str, str]) -> str:
    """The text of an object, from the texts of its members."""
    return f"{{{', '.join(f'{json_text(name)}: {text}' for name, text in members.items())}}}"


def json_array(items: Iterable[str]) -> str:
    return f"[{', '.join(items)}]"


def _plain(value: object) -> object:
    match value:
        case datetime():
            return iso(value)
        case date():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Path():
            return str(value)
        case Enum():
            return value.value
        case Mapping():
            return dict(value)
        case set() | frozenset():
            return sorted(value)
    if is_dataclass(value):
        return fields_of(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def iso(moment: datetime) -> str:
    """A time in UTC, as a row's timestamp is written: always with six digits after the second."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def error_document(error: StrandlineError) -> Document:
    shown = {"message": error.message, "hint": error.hint, "retryable": error.retryable}
    return {"type": type(error).__name__} | shown
