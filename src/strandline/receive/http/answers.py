"""The receiver's answers: one status and one outcome for each case.

No answer contains a path, a secret or a traceback; the operator finds those in the receiver's log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

from strandline.core.forward_protocol import Answer
from strandline.core.roles import Role
from strandline.core.text.masking import masked
from strandline.core.types import SeqRange
from strandline.ledger.receive.received import BodyGone, Decision, New, OnHold, OtherBody, Overlaps, Repeat
from strandline.ledger.receive.senders import NotClaimed, NotOwner, SenderPassed
from strandline.ledger.replicate.sites import Site


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    outcome: Answer
    why: str | None = None
    more: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        return {"outcome": self.outcome.value, "why": None if self.why is None else masked(self.why), **self.more}


class EarlyReply(Exception):
    """Ends the request with this reply."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.why)
        self.reply = reply


def decided(decision: Decision, rows: int, digest: str) -> Reply:
    """`rows` and `digest` are those of the body just sent. A repeat is answered with those of the first one."""
    match decision:
        case New():
            return Reply(202, Answer.ACCEPTED, None, {"rows": rows, "digest": digest, "repeat": False})
        case Repeat(stored_rows, stored_digest, held):
            again: dict[str, Any] = {"rows": stored_rows, "digest": stored_digest, "repeat": True}
            if stored_digest is None:
                again["held"] = _pairs(held)
            return Reply(202, Answer.ACCEPTED, None, again)
        case Overlaps(held):
            why = "some of these rows are held already and some are not"
            return Reply(409, Answer.CONFLICT, why, {"held": _pairs(held)})
        case OtherBody(stored):
            return Reply(422, Answer.OTHER_BODY, "this key was used for another body", {"digest": stored})
        case BodyGone(what):
            return NO_TOKEN if what == "token" else NO_DATASET
        case OnHold():
            return ON_HOLD
        case NotOwner():
            return NOT_OWNER
        case NotClaimed(generation):
            return not_claimed(generation)
        case SenderPassed(term):
            why = f"another site leads this lake since term {term}, and sends its rows"
            return Reply(409, Answer.TERM_PASSED, why, {"term": term})
        case _:
            assert_never(decision)


def _pairs(ranges: Sequence[SeqRange]) -> list[list[int]]:
    return [[r.lo, r.hi] for r in ranges]


def busy(why: str, retry_after_seconds: int, *, status: int = 429) -> Reply:
    return Reply(status, Answer.BUSY, why, headers={"Retry-After": str(retry_after_seconds)})


_HOLD_RETRY_SECONDS = 60


ON_HOLD = busy(
    "the receiver's ledger was restored from an older copy, and which rows it has is not known: a person has to "
    "check it there with `strandline status`. Nothing was taken; send the same request again later",
    _HOLD_RETRY_SECONDS,
    status=503,
)


def behind(retry_after_seconds: int) -> Reply:
    why = (
        "the receiver's ledger was restored, or a writer died, and the ledger is not resynced yet: an ingesting "
        "receiver or `strandline ledger resync` does that. Nothing was taken; send the same request again later"
    )
    return busy(why, retry_after_seconds, status=503)


def not_leading(site: Site, retry_after_seconds: int, *, named: bool) -> Reply:
    """`named`: the caller may know the address of the site that leads."""
    place = (site.leader if site.follows else site.superseded_by) or ""
    known = place if named and place.startswith(("http://", "https://")) else None  # others are paths and names
    if site.follows:
        why = f"this site follows {known or 'another one'}, and takes no rows"
    elif site.superseded_term is not None:
        why = f"{known or 'another site'} leads this lake since term {site.superseded_term}; this site takes no rows"
    else:
        why = "another site takes over this lake; this site takes no rows"
    return busy(
        f"{why}. Nothing was taken; send the same request to the receiver of the site that leads, or here once this "
        "site leads (`strandline replication status` says who does)",
        retry_after_seconds,
        status=503,
    )


def lease_over(retry_after_seconds: int) -> Reply:
    why = (
        "this site cannot show that it still leads: its lease is over, and it has no answer from the arbiter "
        "(`strandline replication status`). Nothing was taken; send the same request again later, or to the receiver "
        "of the site that leads by then"
    )
    return busy(why, retry_after_seconds, status=503)


def in_flight(retry_after_seconds: int) -> Reply:
    return Reply(
        409,
        Answer.IN_FLIGHT,
        "a body with this key is being taken in right now",
        headers={"Retry-After": str(retry_after_seconds)},
    )


def bad_body(line: int | None, why: str) -> Reply:
    return Reply(400, Answer.BAD_BODY, why, {"line": line})


BAD_DIGEST = Reply(400, Answer.BAD_DIGEST, "the body is not what Content-Digest says: it was damaged on the way")


def bad_request(why: str, *, status: int = 400) -> Reply:
    return Reply(status, Answer.BAD_REQUEST, why)


def too_large(limit: int, why: str) -> Reply:
    return Reply(413, Answer.TOO_LARGE, why, {"limit": limit})


def not_understood(why: str) -> Reply:
    return Reply(415, Answer.NOT_UNDERSTOOD, why)


NO_TOKEN = Reply(
    401,
    Answer.NO_TOKEN,
    "a token is needed: Authorization: Bearer TOKEN",
    headers={"WWW-Authenticate": 'Bearer realm="strandline"'},
)
NOT_ALLOWED = Reply(403, Answer.NOT_ALLOWED, "the token is not for this dataset")
NOT_OWNER = Reply(
    403,
    Answer.NOT_ALLOWED,
    "these lanes belong to another token or another sink; a new token takes them over with "
    "`strandline token create NAME --replaces OLD` at the receiver",
)
NO_DATASET = Reply(404, Answer.NO_DATASET, "there is no such dataset here")


def wrong_role(role: Role) -> Reply:
    why = f"the token's role is `{role}`: sending rows needs `{Role.WRITE}`"
    return Reply(403, Answer.NOT_ALLOWED, why)


def not_claimed(generation: int | None) -> Reply:
    """`generation` is the last one that was claimed."""
    if generation is None:
        why = "no sink has claimed these lanes: a sender claims its first generation before it sends"
    else:
        why = f"generation {generation} of this sink was claimed last: another one is claimed first, one step at a time"
    return Reply(409, Answer.NOT_CLAIMED, why, {"generation": generation})
