"""What a response means for the chunk that was sent. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

from strandline.core import forward_protocol
from strandline.core.types import Seq, SeqRange
from strandline.core.wording import plural
from strandline.deliver.sink import Conflict, Landed, Outcome, Refused, TryLater, Unknown
from strandline.deliver.sinks.forward.body import RequestBody
from strandline.deliver.sinks.forward.http import HttpAnswer
from strandline.deliver.sinks.forward.success import Success

NOT_THE_RECEIVER = "the answer lacks the header of a Strandline receiver: something in between gave it"
_TOO_LARGE = 413
_REFUSALS = (400, _TOO_LARGE, 422)
# Damaged on the way, or a request that this receiver does not understand: splitting the rows would not help.
_NOT_ABOUT_ROWS = (forward_protocol.Answer.BAD_DIGEST, forward_protocol.Answer.BAD_REQUEST)
_WORDS_MAX = 300


def outcome_of(
    answer: HttpAnswer,
    rows: SeqRange,
    body: RequestBody,
    *,
    success: Success | None,
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
            f"{words}: it tells of {_rows(count)}, {digest}; {plural(body.rows, 'row', 'was')} sent, {body.digest}"
        )
    return Landed(body.rows, body.recorded, size)


def _rows(told: object) -> str:
    return plural(told, "row") if isinstance(told, int) else f"{told} rows"


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
