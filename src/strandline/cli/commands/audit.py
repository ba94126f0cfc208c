"""audit."""

from __future__ import annotations

from typing import Annotated

import typer

from strandline.cli.options import CARE, ConfigOption, JsonOption, opened
from strandline.cli.output import Output
from strandline.cli.render import audit as render
from strandline.core.actor import Trigger
from strandline.core.audit_events import events_named
from strandline.status import documents


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel=CARE)(audit)


def audit(
    actor: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only what this token, user or `schedule` did.", show_default=False),
    ] = None,
    trigger: Annotated[Trigger | None, typer.Option(help="Only what was done through it.", show_default=False)] = None,
    event: Annotated[
        str | None,
        typer.Option(metavar="PREFIX", help="Only events whose names begin so, such as sink.", show_default=False),
    ] = None,
    before: Annotated[
        int | None, typer.Option(metavar="ID", min=1, help="Only events before this one.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=100_000, help="How many events, newest first.")] = 100,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """What was decided out of the ordinary course, why, and by whom. Starts no JVM."""
    events = None if event is None else events_named(event)
    with opened(config) as lake:
        found = lake.audit_events(limit + 1, before=before, actor=actor, trigger=trigger, events=events)
    page, more = found[:limit], len(found) > limit
    document = {"events": list(map(documents.audit_event, page)), "next": page[-1].id if more else None}
    Output(as_json=json).show(document, *render.events(page, more=more))
