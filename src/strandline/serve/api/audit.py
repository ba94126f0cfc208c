"""The audit log: what was decided, why, and by whom."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from strandline.core.actor import Trigger
from strandline.core.documents import Document
from strandline.core.records.audit_events import events_named
from strandline.ledger import audit
from strandline.serve.api.handlers import reads
from strandline.serve.api.inputs import BeforeId, Limit, Text, paged
from strandline.serve.auth.needs import LakeAdminAccess
from strandline.serve.describe import NAMED, NUMBER, documented, page_of
from strandline.serve.schemas import AUDIT_EVENT
from strandline.status.documents import lake_documents

router = APIRouter(prefix="/audit", tags=["audit"])


@router.get("", summary="Events, newest first", **documented(page_of("events", AUDIT_EVENT, NUMBER), problems=NAMED))
@reads
def list_events(
    access: LakeAdminAccess,
    actor: Annotated[Text | None, Query(description="Only events of this actor.")] = None,
    trigger: Annotated[Trigger | None, Query(description="Only events with this trigger.")] = None,
    event: Annotated[Text | None, Query(description="Only events whose name begins with this prefix: `sink.`.")] = None,
    limit: Limit = 100,
    before: BeforeId = None,
) -> Document:
    events = None if event is None else events_named(event)
    found = access.lake.ledger.query(
        audit.latest, events_max=limit + 1, before=before, actor=actor, trigger=trigger, events=events
    )
    return paged("events", found, limit, lake_documents.audit_event, lambda e: e.id)
