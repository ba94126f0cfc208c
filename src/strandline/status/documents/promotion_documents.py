"""A promotion as JSON: what it would do, and what it did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from strandline.replicate.take_over.promote_plan import End, Refuse

if TYPE_CHECKING:
    from strandline.core.documents import Document
    from strandline.ledger.replicate.promotions import GivenUp, Lack
    from strandline.replicate.take_over.promote import Forecast, Promoted


def is_refused(found: Forecast) -> bool:
    return isinstance(found.step, End | Refuse)


def forecast(found: Forecast) -> Document:
    refused = found.step if isinstance(found.step, End | Refuse) else None
    site = found.state.site
    return {
        "dry_run": True,
        "possible": refused is None,
        "reason": None if refused is None else refused.message,
        "hint": None if refused is None else refused.hint,
        "term": site.term,
        "leader": site.leader,
        "seals": dict(found.state.seals),
        "given_up": _items(found.state.given_up),
        "lacks": _lacks(found.state.lacks),
        "leader_answered_at": found.state.answered_at,
    }


def promoted(found: Promoted) -> Document:
    led = found.led
    return {
        "term": found.term,
        "already": found.already,
        "cuts": {} if led is None else {name: int(cut.number) for name, cut in led.cuts},
        "given_up": [] if led is None else _items(led.given_up),
        "sinks_left": [] if led is None else list(led.sinks.left),
        "sinks_removed": [] if led is None else list(led.sinks.removed),
        "quarantined_at_the_old_leader": {} if led is None else dict(led.sinks.quarantined),
        "bodies_aside": {} if led is None else dict(led.bodies_aside),
        "receivers_on_hold": {} if led is None else dict(led.receivers_on_hold),
        "by_force": led is not None and led.lacks is not None,
        "lacks": [] if led is None else _lacks(led.lacks or ()),
    }


def _lacks(found: Sequence[Lack]) -> list[Document]:
    """`leader_sealed` is what the leader said last; null: it has said nothing."""
    return [
        {
            "dataset": one.dataset,
            "sealed": one.sealed,
            "leader_sealed": one.leader_sealed,
            "sinks": dict(one.sinks),
        }
        for one in found
    ]


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
