"""Errors as problem documents (RFC 9457).

`STATUS` is the one table from the error tree to status codes; a class that is not in it has the status of its nearest
ancestor. What the HTTP side itself refuses is a `Problem`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi.responses import Response

from strandline.core import errors
from strandline.core.documents import json_text
from strandline.core.text.masking import masked_within

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
_TYPES = "urn:strandline:problem:"

STATUS: Mapping[type[errors.StrandlineError], int] = {
    errors.StrandlineError: 503,
    errors.UsageError: 400,
    errors.NoSuchDataset: 404,
    errors.NoSuchSink: 404,
    errors.NoSuchFollower: 404,
    errors.NoSuchConsumer: 404,
    errors.NoSuchRun: 404,
    errors.RefusedError: 409,
    errors.TooManyTasks: 429,
    errors.InputRefused: 422,
    errors.BadRow: 422,
    errors.LedgerMissing: 503,
    errors.LedgerUnreadable: 503,
    errors.LedgerTooNew: 503,
    errors.LedgerMoved: 503,
    errors.WrongLake: 503,
    errors.WitnessUnreadable: 503,
    errors.Superseded: 503,
    errors.UnsafeCatalog: 503,
    errors.FailedError: 503,
    errors.InputError: 422,
    errors.StampMismatch: 409,
    errors.BlockLost: 409,
    errors.BlockHeld: 409,
    errors.DuplicateNumbers: 409,
    errors.LeaseLost: 409,
    errors.ReferencesTooMany: 409,
    errors.WatermarkMoved: 409,
}

_MISSING = {kind.__name__ for kind, status in STATUS.items() if status == 404}
_AGAIN = "Send the same request again later."
_LIMITED_HINT = "It does not exist, or your token is not for its dataset."


@dataclass(frozen=True, slots=True)
class ProblemKind:
    """What kind of problem it is: its name, the last part of its type, and what all of the kind have in common."""

    name: str
    status: int
    title: str
    retryable: bool = False


NO_TOKEN = ProblemKind("no-token", 401, "a valid token is needed")
WRONG_ROLE = ProblemKind("wrong-role", 403, "the token's role is not enough")
WRONG_SCOPE = ProblemKind("wrong-scope", 403, "the token is limited to datasets, and this is about the whole lake")
CROSS_SITE = ProblemKind("cross-site", 403, "the request does not come from our own page")
NOT_FOUND = ProblemKind("not-found", 404, "there is nothing at this path")
WRONG_METHOD = ProblemKind("wrong-method", 405, "this path does not allow the method")
TOO_SLOW = ProblemKind("too-slow", 408, "the body took too long", retryable=True)
TOO_LARGE = ProblemKind("too-large", 413, "the body is too large")
MALFORMED = ProblemKind("malformed", 422, "the request does not match the description")
TOO_MANY = ProblemKind("too-many", 429, "too many requests", retryable=True)
UNEXPECTED = ProblemKind("unexpected", 500, "unexpected error (see the log)")
LEDGER_AWAY = ProblemKind("ledger-away", 503, "the ledger does not answer", retryable=True)

KINDS = (
    NO_TOKEN, WRONG_ROLE, WRONG_SCOPE, CROSS_SITE, NOT_FOUND, WRONG_METHOD, TOO_SLOW, TOO_LARGE,
    MALFORMED, TOO_MANY, UNEXPECTED, LEDGER_AWAY,
)  # fmt: skip


@dataclass(eq=False)
class Problem(Exception):
    """Ends the request with this problem."""

    kind: ProblemKind
    detail: str
    hint: str | None  # what to do
    headers: Mapping[str, str] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)


def no_token(detail: str = "no token was sent, or one that is unknown, revoked or expired") -> Problem:
    return Problem(
        NO_TOKEN,
        detail,
        "Send Authorization: Bearer TOKEN; `strandline token create` makes one.",
        {"WWW-Authenticate": 'Bearer realm="strandline"'},
    )


SEE_DESCRIPTION = "The description at /api/v1/openapi.json says what is expected."


def too_many(detail: str, retry_after_seconds: int) -> Problem:
    return Problem(TOO_MANY, detail, _AGAIN, {"Retry-After": str(retry_after_seconds)})


def ledger_away(error: errors.StrandlineError, retry_after_seconds: int) -> Problem:
    """For callers that nobody knows yet: the error's own words, which may name a path or an address, go to the log."""
    log.warning("the ledger cannot be asked who sends a request: %s", error.message)
    detail = "the ledger does not answer, so the sender of this request cannot be verified"
    return Problem(LEDGER_AWAY, detail, "Try again later.", {"Retry-After": str(retry_after_seconds)})


def malformed(found: Sequence[Mapping[str, Any]]) -> Problem:
    """From the errors of pydantic. What was sent is not repeated: it may be a secret."""
    said = [{"where": [str(part) for part in e["loc"]], "what": str(e["msg"])} for e in found[:20]]
    first = f"{'.'.join(said[0]['where'])}: {said[0]['what']}" if said else "it cannot be read"
    return Problem(MALFORMED, first, SEE_DESCRIPTION, more={"errors": said})


def status_of(error: type[errors.StrandlineError]) -> int:
    return next(STATUS[base] for base in error.__mro__ if base in STATUS)


def _kind_of(error: type[errors.StrandlineError], *, retryable: bool = False) -> ProblemKind:
    title = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", error.__name__.removesuffix("Error")).lower()
    return ProblemKind(title.replace(" ", "-"), status_of(error), title, retryable)


def of_problem(problem: Problem) -> Response:
    kind = problem.kind
    document = {
        "type": f"{_TYPES}{kind.name}",
        "title": kind.title,
        "status": kind.status,
        "detail": problem.detail,
        "hint": problem.hint,
        "retryable": kind.retryable,
        **problem.more,
    }
    # `replace`: a message may quote a name that is no valid text
    text = json_text(masked_within(document)).encode("utf-8", "replace")
    return Response(text, kind.status, dict(problem.headers), MEDIA_TYPE)


def hint_for(kind: str, hint: str | None, *, limited: bool) -> str | None:
    """The hint of an error of this class. A hint may name what there is: whoever is limited to some datasets gets the
    same one for what is hidden and for what does not exist."""
    return _LIMITED_HINT if limited and kind in _MISSING else hint


def of_error(error: errors.StrandlineError, retry_after_seconds: int, *, limited: bool) -> Response:
    """`limited`: the caller sees only some datasets."""
    kind = _kind_of(type(error), retryable=error.retryable)
    hint = hint_for(type(error).__name__, error.hint, limited=limited) or (_AGAIN if error.retryable else None)
    headers = {"Retry-After": str(retry_after_seconds)} if error.retryable and kind.status in (409, 429, 503) else {}
    return of_problem(Problem(kind, error.message, hint, headers))


def of_unexpected(error: BaseException) -> Response:
    """Its message stays in the log: it may quote anything."""
    log.error("a request failed with an unexpected error", exc_info=error)
    return of_problem(Problem(UNEXPECTED, "the server's log says what happened", "Please report it."))
