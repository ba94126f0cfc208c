"""audit."""

from __future__ import annotations

import typer

from strandline.cli.command import Call, command
from strandline.cli.render import audit as render
from strandline.core.actor import Trigger
from strandline.core.records.audit_events import events_named
from strandline.status.documents import lake_documents

app = typer.Typer()


@command(app)
def audit(
    call: Call,
    actor: str | None = typer.Option(None, metavar="NAME", help="Only what this token, user or `schedule` did."),
    trigger: Trigger | None = typer.Option(None, help="Only what was done in this way."),
    event: str | None = typer.Option(
        None, metavar="PREFIX", help="Only events whose names begin with this, such as sink."
    ),
    before: int | None = typer.Option(None, metavar="ID", min=1, help="Only events before this one."),
    limit: int = typer.Option(100, metavar="N", min=1, max=100_000, help="How many events, newest first."),
) -> None:
    """The audit log: decisions and unusual events, with reason and actor. Starts no JVM."""
    events = None if event is None else events_named(event)
    found = call.lake.audit_events(limit + 1, before=before, actor=actor, trigger=trigger, events=events)
    page, more = found[:limit], len(found) > limit
    document = {"events": list(map(lake_documents.audit_event, page)), "next": page[-1].id if more else None}
    call.show(document, *render.events(page, more=more))
