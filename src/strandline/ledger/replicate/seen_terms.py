"""The highest term that a site knows of: that of a leader that it follows, or of one that superseded it. Without an
arbiter, only this keeps the site from leading in a lower term than one in which another site has led.

The audit events that name the leader contain it, because nothing else of a leader is stored before its cut arrives.
"""

from __future__ import annotations

import sqlalchemy as sa

from strandline.core.records.audit_events import Event
from strandline.ledger import audit
from strandline.ledger.replicate import sites


def get(connection: sa.Connection) -> int:
    """The highest known term; the site's own term at least."""
    here = sites.get(connection)
    events = audit.latest(connection, events=(Event.REJOINED, Event.FOLLOWING_BEGUN), events_max=1)
    # Events of older versions name only the term of their leader.
    terms = [int(e.detail.get("heard") or e.detail.get("term") or 0) for e in events]
    return max(here.term, here.superseded_term or 0, *terms)
