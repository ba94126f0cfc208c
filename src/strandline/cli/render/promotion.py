"""Renders a promotion, or the forecast of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from strandline.cli.render.elements import grid, number
from strandline.core.text.wording import age, agreeing, plural
from strandline.core.types import ItemKind
from strandline.replicate.take_over.promote_plan import End, Refuse

if TYPE_CHECKING:
    from strandline.ledger.replicate.promotions import GivenUp, PromotionState
    from strandline.replicate.take_over.promote import Forecast, Promoted

_SHOWN_MAX = 50


def forecast(found: Forecast) -> Iterator[RenderableType]:
    if isinstance(found.step, End | Refuse):
        yield Text(f"This site cannot be promoted: {found.step.message}", "yellow")
        yield Text(found.step.hint, "dim")
    else:
        yield Text("This site can be promoted.")
    yield from _items(found.state.given_up, "would be lost")


def what_it_left(promoted: Promoted) -> Iterator[RenderableType]:
    if promoted.led is None:
        return
    yield from _items(promoted.led.given_up, "were lost")
    sinks = promoted.led.sinks
    if sinks.left:
        names = ", ".join(sinks.left)
        yield Text(f"These sinks were not taken over, because this site lacks their datasets: {names}", "yellow")
    if sinks.removed:
        names = ", ".join(sinks.removed)
        said = "These sinks of an earlier term of this site were removed, because the old leader did not have them"
        yield Text(f"{said}: {names}", "yellow")
    for sink, rows in sinks.quarantined:
        stays = agreeing(rows, "stays")
        said = f"{plural(rows, 'row')} that sink {sink} refused {stays} in quarantine at the old leader"
        yield Text(f"{said}, and this site does not send {'it' if rows == 1 else 'them'}", "yellow")
    for dataset, bodies in promoted.led.bodies_aside:
        said = f"{dataset}: {plural(bodies, 'body', 'was')} set aside, received when this site led before"
        yield Text(f"{said}; list with `strandline spool list`", "yellow")
    for dataset, reason in promoted.led.receivers_on_hold.items():
        yield Text(f"{dataset}: its receiver is on hold: {reason}", "yellow")
        yield Text("See `strandline dataset accept-received --help`.", "yellow")


def lacks(state: PromotionState) -> Iterator[str]:
    """What a promotion by force gives up, as far as this site knows."""
    for one in state.lacks:
        here = "no row yet" if one.sealed is None else f"every row up to {one.sealed}"
        leader = (
            "the leader has not reported its seal"
            if one.leader_sealed is None
            else f"the leader had sealed up to {one.leader_sealed} at its last offer"
        )
        yield f"{one.dataset}: this site has {here}; {leader}"
        for sink, upto in one.sinks:
            yield f"{one.dataset}: sink {sink} has rows up to {upto}. Those that this site lacks stay in the sink only"
    at = state.answered_at
    said = "The leader has never answered." if at is None else f"The leader answered last {age(at)} ago."
    yield f"{said} What it accepted after that, and what sinks got of it, is not known here."
    yield "Sites that have recorded a take-over which this site has not cannot follow it: they must be created again."


def _items(found: Sequence[GivenUp], what: str) -> Iterator[RenderableType]:
    if not found:
        return
    purges = sum(1 for g in found if g.kind is ItemKind.PURGE)
    said = f"{plural(len(found), 'item')} {what}: the old leader offered them, but this site never received their rows"
    yield Text(said, "yellow")
    if purges:
        yield Text(
            f"{plural(purges, 'purge', 'is')} among them. Run them again here; otherwise those rows stay.", "yellow"
        )
    table = grid("dataset", "kind", "numbers", "rows", "batch", right=("rows",))
    for g in found[:_SHOWN_MAX]:
        rows = Text("–", "dim") if g.rows is None else Text(number(g.rows))
        table.add_row(Text(g.dataset), g.kind.value, str(g.numbers), rows, Text(g.batch_id))
    yield table
    if len(found) > _SHOWN_MAX:
        yield Text(f"and {len(found) - _SHOWN_MAX:,} more: --json names all", "dim")
