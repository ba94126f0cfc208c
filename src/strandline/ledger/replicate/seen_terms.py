"""The highest term that a site has heard of: that of a leader it was pointed to, or one that replaced it. Without an
arbiter only this keeps the site from leading in a lower term than one in which another site has led already.

It stands in the events that say whom this site follows, because nothing else of a leader is stored before its cut came.
"""

from __future__ import annotations

import sqlalchemy as sa

from strandline.core.records.audit_events import Event
from strandline.ledger import audit
from strandline.ledger.replicate import sites


def get(connection: sa.Connection) -> int:
    """No lower than the site's own term."""
    here = sites.get(connection)
    begun = audit.latest(connection, events=(Event.REJOINED, Event.FOLLOWING_BEGUN), events_max=1)
    # Events of older versions name only the term of their leader.
    heard = [int(e.detail.get("heard") or e.detail.get("term") or 0) for e in begun]
    return max(here.term, here.superseded_term or 0, *heard)
