"""Renders audit events, and who did what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from strandline.cli.render.elements import grid
from strandline.core.text.wording import moment

if TYPE_CHECKING:
    from rich.console import RenderableType

    from strandline.core.actor import Actor
    from strandline.ledger.audit import AuditEvent


def who(actor: Actor | None) -> Text:
    if actor is None:
        return Text("not recorded", "dim")
    return Text(actor.name) if actor.name == actor.trigger else Text(f"{actor.name} ({actor.trigger})")


def events(found: Sequence[AuditEvent], *, more: bool) -> Iterator[RenderableType]:
    if not found:
        yield Text("Nothing out of the ordinary happened here.", "dim")
        return
    table = grid("when", "what", "who", "detail")
    for e in found:
        detail = ", ".join(f"{k}={v}" for k, v in e.detail.items())
        when = moment(e.at)
        table.add_row(Text(when), Text(e.event, "bold"), who(e.actor), Text(detail))
    yield table
    if more:
        yield Text(f"Older events: --before {found[-1].id}", "dim")
