"""What a response must look like so that rows count as delivered, for peers that are no Strandline receiver. Pure.

A receiver proves what it took: each response says so in a header, and has the count and the digest of the rows. What a
200 of any other server means is unknown; the sink's options say it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from strandline.core.errors import UsageError
from strandline.deliver.sinks.forward.http import HttpAnswer

STATUS, HEADER, FIELD = "success_status", "success_header", "success_json"
_ALREADY_THERE = 409  # what some servers answer to a key that they know
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


@dataclass(frozen=True, slots=True)
class Success:
    statuses: frozenset[int]
    header: tuple[str, str | None] | None = None  # its name in lower case, and its value if that counts, too
    # the path of a field in a JSON response, and its value if that counts, too
    field: tuple[tuple[str, ...], str | None] | None = None

    def lacking(self, answer: HttpAnswer) -> str | None:
        """What a response with a status of success still lacks; None if nothing."""
        if self.header is not None:
            name, wanted = self.header
            found = answer.headers.get(name)
            if found is None or (wanted is not None and found.strip() != wanted):
                return f"it lacks the header {_shown(name, wanted)}"
        if self.field is not None:
            path, wanted = self.field
            value = _value(answer, path)
            if value is None or (wanted is not None and value != wanted):
                return f"its JSON lacks the field {_shown('.'.join(path), wanted)}"
        return None


def parse_success(options: Mapping[str, str]) -> Success | None:
    """None if the options name no status: then only a Strandline receiver can be the destination. Raises UsageError."""
    given = options.get(STATUS)
    if not given:
        if extra := next((name for name in (HEADER, FIELD) if options.get(name)), None):
            raise UsageError(f"option {extra} needs the option {STATUS}, too", hint=f"--option {STATUS}=2xx")
        return None
    header, field = options.get(HEADER), options.get(FIELD)
    return Success(
        parse_statuses(given), parse_header(header) if header else None, parse_field(field) if field else None
    )


def parse_statuses(given: str) -> frozenset[int]:
    found: set[int] = set()
    for part in (p.strip().lower() for p in given.split(",")):
        if part == "2xx":
            found.update(range(200, 300))
        elif re.fullmatch(r"2[0-9]{2}", part) or part == str(_ALREADY_THERE):
            found.add(int(part))
        else:
            raise UsageError(
                f"option {STATUS} does not take {part!r}",
                hint=f"Statuses from 200 to 299, `2xx` for all of them, and {_ALREADY_THERE} where the server answers "
                "so to a key that it knows; several are separated by commas.",
            )
    return frozenset(found)


def parse_header(given: str) -> tuple[str, str | None]:
    name, equals, value = given.partition("=")
    if not _HEADER_NAME.fullmatch(name.strip()):
        raise UsageError(f"option {HEADER} is NAME or NAME=VALUE, and {name!r} is no name of a header")
    return name.strip().lower(), value.strip() if equals else None


def parse_field(given: str) -> tuple[tuple[str, ...], str | None]:
    name, equals, value = given.partition("=")
    path = tuple(part.strip() for part in name.split("."))
    if not all(path):
        raise UsageError(f"option {FIELD} is FIELD or FIELD=VALUE, with dots between nested fields")
    return path, value.strip() if equals else None


def _value(answer: HttpAnswer, path: tuple[str, ...]) -> str | None:
    """A string as it is, any other plain value as JSON spells it; None if the field is missing, null or false."""
    value: object = answer.fields
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    if value is None or value is False or isinstance(value, dict | list):
        return None
    return value if isinstance(value, str) else json.dumps(value)


def _shown(name: str, value: str | None) -> str:
    return name if value is None else f"{name}={value}"
