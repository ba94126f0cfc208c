"""Purges that have begun and have no sequence number yet: a run works on them, or has died. Followers do not know of
them yet."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile

import sqlalchemy as sa

from strandline.core.delivery_types import SinkId
from strandline.core.records.audit_events import Event
from strandline.core.types import Dataset, Seq, SeqRange
from strandline.ledger import audit

PURGE_EVENTS = (Event.PURGED, Event.PURGE_SETTLED)
AUDITED_MAX = 10_000  # events that are searched


@dataclass(frozen=True, slots=True)
class BegunPurge:
    rows: SeqRange | None  # from the first row that it deletes to the last; None: none of them has a number
    sinks: frozenset[tuple[SinkId, int]]  # that the dataset had then, with their generations


def list_begun(connection: sa.Connection, of: Dataset) -> list[BegunPurge]:
    """Newest first."""
    events = audit.latest(connection, events=PURGE_EVENTS, events_max=AUDITED_MAX)
    of_dataset = (e for e in events if e.detail["dataset"] == of.name)
    begun = [e.detail for e in takewhile(lambda e: e.event == Event.PURGED, of_dataset) if "sinks" in e.detail]
    return [
        BegunPurge(
            None if d["last"] is None else SeqRange(Seq(d["first"]), Seq(d["last"])),
            frozenset((SinkId(id), generation) for id, generation in d["sinks"]),
        )
        for d in begun
    ]
