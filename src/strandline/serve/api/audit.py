"""The audit log: what was decided, why, and by whom."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from strandline.core.actor import Trigger
from strandline.core.audit_events import events_named
from strandline.core.documents import Document
from strandline.core.roles import Role
from strandline.ledger import audit
from strandline.serve.api.inputs import BeforeId, Limit, Text, paged
from strandline.serve.auth.caller import Caller
from strandline.serve.auth.needs import needs
from strandline.serve.context import context_of
from strandline.serve.describe import NAMED, NUMBER, documented, page_of
from strandline.serve.schemas import AUDIT_EVENT
from strandline.status import documents

router = APIRouter(prefix="/audit", tags=["audit"])


@router.get("", summary="Events, newest first", **documented(page_of("events", AUDIT_EVENT, NUMBER), problems=NAMED))
async def list_events(
    request: Request,
    caller: Caller = needs(Role.ADMIN, whole_lake=True),
    actor: Annotated[Text | None, Query(description="Only events of this actor.")] = None,
    trigger: Annotated[Trigger | None, Query(description="Only events with this trigger.")] = None,
    event: Annotated[Text | None, Query(description="Only events whose name begins with this prefix: `sink.`.")] = None,
    limit: Limit = 100,
    before: BeforeId = None,
) -> Response:
    context = context_of(request)

    def load() -> Document:
        events = None if event is None else events_named(event)
        with context.lake.ledger.read() as connection:
            found = audit.latest(
                connection, events_max=limit + 1, before=before, actor=actor, trigger=trigger, events=events
            )
        return paged("events", found, limit, documents.audit_event, lambda e: e.id)

    return await context.read(caller, load)
