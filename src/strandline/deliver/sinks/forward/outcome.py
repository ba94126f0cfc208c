"""What a response means for the chunk that was sent. Pure.

A receiver proves what it took: each response says so in a header, and has the count and the digest of the rows. What a
200 of any other server means is unknown; the sink's options say it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

from strandline.core import forward_protocol
from strandline.core.errors import UsageError
from strandline.core.text.wording import plural
from strandline.core.types import Seq, SeqRange
from strandline.deliver.sink import Conflict, Landed, Outcome, Refused, TryLater, Unknown
from strandline.deliver.sinks.forward.body import RequestBody
from strandline.deliver.sinks.forward.http import HttpAnswer

STATUS, HEADER, FIELD = "success_status", "success_header", "success_json"
_ALREADY_THERE = 409  # what some servers answer to a key that they know
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
NOT_THE_RECEIVER = "the answer lacks the header of a Strandline receiver: something in between sent it"
_TOO_LARGE = 413
_REFUSALS = (400, _TOO_LARGE, 422)
# Damaged on the way, or a request that this receiver does not understand: splitting the rows would not help.
_NOT_ABOUT_ROWS = (forward_protocol.Answer.BAD_DIGEST, forward_protocol.Answer.BAD_REQUEST)
_WORDS_MAX = 300


# --- servers that are no receiver ---


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


# --- outcomes ---


def outcome_of(
    answer: HttpAnswer,
    rows: SeqRange,
    body: RequestBody,
    success: Success | None,
    *,
    wait_seconds_max: float,
    now: datetime,
) -> Outcome:
    """`success` says what the responses of a peer mean that is no receiver. It is None if the destination is a
    receiver: then a response without its header comes from something in between, and says nothing about rows."""
    words, wait = explain(answer), retry_after_seconds(answer.headers, now, wait_seconds_max)
    if answer.from_receiver:
        return _of_receiver(answer, rows, body, words) or TryLater(words, wait)
    if success is None:
        # A proxy's size limit is the one thing that splitting avoids. A single row cannot be split, and a refusal would
        # quarantine it, though the receiver never saw it.
        if answer.status == _TOO_LARGE and body.rows > 1:
            return Refused(words)
        return TryLater(f"{words} ({NOT_THE_RECEIVER})", wait)
    if answer.status in success.statuses:
        if (lacking := success.lacking(answer)) is not None:
            return Unknown(f"{words} ({lacking})")
        return Landed(body.rows, body.recorded, len(body.content))
    if 200 <= answer.status < 300:
        return Unknown(f"{words} (the sink's option success_status does not name it)")
    return Refused(words) if answer.status in _REFUSALS else TryLater(words, wait)


def _of_receiver(answer: HttpAnswer, rows: SeqRange, body: RequestBody, words: str) -> Outcome | None:
    """None: try later."""
    if 200 <= answer.status < 300:
        return _accepted(answer.fields, body, words)
    said = answer.fields.get("outcome")
    if answer.status in _REFUSALS and said not in _NOT_ABOUT_ROWS:
        return Refused(words)
    if answer.status == 409 and said == forward_protocol.Answer.CONFLICT:
        held = tuple(r for r in ranges_of(answer.fields.get("held")) if r.overlaps(rows))
        return Conflict(held) if held else None
    return None


def after_uncertainty(outcome: Outcome, answer: HttpAnswer, first: str) -> Outcome:
    """The outcome of a retry after a first attempt of unknown outcome. A receiver knows ranges, so it has not taken
    before what it refuses now. Any other server may have, and splitting would send the rows under other keys."""
    if isinstance(outcome, Refused) and not answer.from_receiver:
        return Unknown(f"{first}; sent again: {outcome.why}")
    return outcome


def _accepted(fields: Mapping[str, Any], body: RequestBody, words: str) -> Outcome:
    if fields.get("outcome") != forward_protocol.Answer.ACCEPTED:
        return Unknown(f"{words}: the answer cannot be read")
    count, digest, size = fields.get("rows"), fields.get("digest"), len(body.content)
    if fields.get("repeat") is True:
        if count is None or not digest:  # covered by other ranges: its digest is unknown, so none is given
            return Landed(body.rows, "", 0, repeat=True)
        if digest != body.digest:
            return Landed(int(count), str(digest), 0, repeat=True)
        return Landed(int(count), body.recorded, size, repeat=True)
    if (count, digest) != (body.rows, body.digest):
        return Unknown(
            f"{words}: it reports {_rows(count)}, {digest}; {plural(body.rows, 'row', 'was')} sent, {body.digest}"
        )
    return Landed(body.rows, body.recorded, size)


def _rows(count: object) -> str:
    return plural(count, "row") if isinstance(count, int) else f"{count} rows"


def ranges_of(value: object) -> list[SeqRange]:
    """`[[lo, hi], …]`; entries of any other form are skipped."""
    found = []
    for pair in value if isinstance(value, list) else ():
        try:
            lo, hi = pair
            found.append(SeqRange(Seq(int(lo)), Seq(int(hi))))
        except (TypeError, ValueError):
            continue
    return sorted(found)


def explain(answer: HttpAnswer) -> str:
    """One line: the status, and the server's message."""
    try:
        status = f"{answer.status} {HTTPStatus(answer.status).phrase}"
    except ValueError:
        status = str(answer.status)
    if 300 <= answer.status < 400:
        return f"{status}: redirects are not followed; give the sink the URL that it leads to"
    if answer.from_receiver:
        why, line = answer.fields.get("why"), answer.fields.get("line")
        theirs = f"line {line}: {why}" if line is not None and why else why or ""
    else:
        theirs = answer.content[: 4 * _WORDS_MAX].decode("utf-8", "replace")
    theirs = " ".join("".join(c if c.isprintable() else " " for c in str(theirs)).split())[:_WORDS_MAX]
    return f"{status}: {theirs}" if theirs else status


def retry_after_seconds(headers: Mapping[str, str], now: datetime, seconds_max: float) -> float | None:
    """How long the server asks to wait, bounded; None if it does not say or makes no sense, so that the sink's own
    backoff applies. A date is relative to the server's own clock, if its response has one."""
    text = headers.get("retry-after", "").strip()
    if re.fullmatch(r"[0-9]{1,1000}", text):
        seconds = float(min(int(text), int(seconds_max)))
    else:
        until = _date(text)
        if until is None:
            return None
        seconds = min((until - (_date(headers.get("date", "")) or now)).total_seconds(), seconds_max)
    return seconds if seconds > 0 else None


def _date(text: str) -> datetime | None:
    try:
        parsed = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed


def with_why(outcome: Outcome, why: str) -> Outcome:
    return replace(outcome, why=why) if isinstance(outcome, Refused | TryLater | Unknown) else outcome
