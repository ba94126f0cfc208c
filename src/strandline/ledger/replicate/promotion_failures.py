"""Why the promotion that is under way failed last, in the audit log: whoever ran it may have closed the terminal."""

from __future__ import annotations

from strandline.core.records.audit_events import Event
from strandline.ledger import audit
from strandline.ledger.engine import Ledger
from strandline.ledger.replicate import sites

_OF_A_PROMOTION = (Event.PROMOTION_BEGUN, Event.PROMOTION_FAILED, Event.TERM_TAKEN)


def record(ledger: Ledger, why: str) -> None:
    """Nothing if no promotion is under way, or if it has failed with the same words just before."""
    with ledger.write() as connection:
        found = sites.get(connection)
        if found.promoting_term is None:
            return
        before = audit.latest(connection, events=_OF_A_PROMOTION, events_max=1)
        if any(e.event == Event.PROMOTION_FAILED and e.detail["reason"] == why for e in before):
            return
        audit.record(
            connection, Event.PROMOTION_FAILED, replaces=found.promoting_term, term=found.claimed_term, reason=why
        )  # fmt: skip
