"""Why the promotion that is under way last failed, in the audit log: its terminal may be closed by now."""

from __future__ import annotations

from strandline.core.records.audit_events import Event
from strandline.ledger import audit
from strandline.ledger.engine import Ledger
from strandline.ledger.replicate import sites

_OF_A_PROMOTION = (Event.PROMOTION_BEGUN, Event.PROMOTION_FAILED, Event.TERM_TAKEN)


def record(ledger: Ledger, why: str) -> None:
    """Records why the promotion failed. Does nothing if none is under way, or if the last record has the same
    reason."""
    with ledger.write() as connection:
        here = sites.get(connection)
        if here.promoting_term is None:
            return
        before = audit.latest(connection, events=_OF_A_PROMOTION, events_max=1)
        if any(e.event == Event.PROMOTION_FAILED and e.detail["reason"] == why for e in before):
            return
        audit.record(
            connection, Event.PROMOTION_FAILED, replaces=here.promoting_term, term=here.claimed_term, reason=why
        )  # fmt: skip
