"""The audit log, filtered by who, how and what."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Response

from strandline.core.actor import Trigger
from strandline.core.documents import Document
from strandline.core.errors import UsageError
from strandline.core.records.audit_events import events_named
from strandline.serve.api import audit as api
from strandline.serve.api.inputs import BeforeId, Text
from strandline.serve.auth.needs import LakeAdminAccess
from strandline.serve.pages.render import PageRoute, document_of, page

router = APIRouter(include_in_schema=False, route_class=PageRoute)
PAGE = 50


@router.get("/audit")
async def list_events(
    access: LakeAdminAccess,
    actor: Annotated[Text, Query()] = "",
    trigger: Annotated[Text, Query()] = "",
    event: Annotated[Text, Query()] = "",
    before: BeforeId = None,
) -> Response:
    """An empty field of the form is no filter."""
    chosen = next((t for t in Trigger if t.value == trigger), None)
    is_unknown = bool(trigger) and chosen is None
    found: Document = {"events": [], "next": None}
    # A search for a name or a trigger that no event has finds nothing: that is no error.
    with suppress(UsageError):
        events_named(event)
        if not is_unknown:
            answered = await api.list_events(access, actor or None, chosen, event or None, PAGE, before)
            found = document_of(answered)
    filters = {"actor": actor, "trigger": trigger, "event": event}
    return page(
        access,
        "audit.html",
        at="/audit",
        beats=before is None,
        events=found["events"],
        next=found["next"],
        filters=filters,
        unknown_trigger=trigger if is_unknown else None,
        query=urlencode({name: value for name, value in filters.items() if value}),
        triggers=[t.value for t in Trigger],
    )
