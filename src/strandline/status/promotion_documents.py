"""A promotion as JSON: what it would do, and what it did."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.core.documents import Document
from strandline.ledger.replicate.promotions import GivenUp
from strandline.replicate.promote import Forecast, Promoted
from strandline.replicate.promote_plan import End, Refuse


def is_refused(found: Forecast) -> bool:
    return isinstance(found.step, End | Refuse)


def forecast(found: Forecast) -> Document:
    refused = found.step if isinstance(found.step, End | Refuse) else None
    site = found.standing.site
    return {
        "dry_run": True,
        "possible": refused is None,
        "reason": None if refused is None else refused.message,
        "hint": None if refused is None else refused.hint,
        "term": site.term,
        "leader": site.leader,
        "seals": dict(found.standing.seals),
        "given_up": _items(found.standing.given_up),
    }


def promoted(found: Promoted) -> Document:
    led = found.led
    return {
        "term": found.term,
        "already": found.already,
        "cuts": {} if led is None else {name: int(cut.number) for name, cut in led.cuts},
        "given_up": [] if led is None else _items(led.given_up),
        "sinks_left": [] if led is None else list(led.sinks_left),
        "quarantined_at_the_old_leader": dict(found.quarantined),
        "bodies_aside": {} if led is None else dict(led.bodies_aside),
    }


def _items(found: Sequence[GivenUp]) -> list[Document]:
    return [
        {
            "dataset": g.dataset,
            "kind": g.kind.value,
            "lo": int(g.numbers.lo),
            "hi": int(g.numbers.hi),
            "rows": g.rows,
            "batch_id": g.batch_id,
        }
        for g in found
    ]
