"""What a tick did, and what it would do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from strandline.cli.render.elements import BAD, DOUBT, NO_SINKS, NOTHING, OK, cut, dim, rate
from strandline.core.text.wording import plural, took
from strandline.status.problems.lake_problems import reason_of

if TYPE_CHECKING:
    from strandline.deliver.plan.preview import LanePreview, SinkPreview
    from strandline.deliver.tick import SinkReport, TickReport

FAILED, STOPPED = 1, 3


def exit_code(report: TickReport) -> int:
    """A stopped sink needs a person. A sink that failed is retried, and rows that another deliverer is sending have not
    arrived yet. 0 means that every sink has what was sealed when the tick began."""
    if any(s.did == "stopped" for s in report.sinks):
        return STOPPED
    return FAILED if any(s.did == "busy" or (s.did == "waiting" and s.reason) for s in report.sinks) else 0


def tick(report: TickReport, seconds: float) -> list[RenderableType]:
    if not report.sinks:
        return [NO_SINKS]
    lines: list[RenderableType] = []
    for s in report.sinks:
        lines.append(Text.assemble(_sign(s), " ", (s.name, "bold"), "  ", _said(s)))
        if s.hint:
            lines.append(Text(f"  {s.hint}", "dim"))
        elif s.did == "stopped":
            lines.append(dim(f"  Details: `strandline sink show {s.name}`. Next step: `strandline status`."))
    if rows := sum(s.rows for s in report.sinks):
        lines.append(dim(f"{plural(rows, 'row')} delivered in {took(seconds)}{rate(rows, seconds)}"))
    return lines


def _sign(s: SinkReport) -> tuple[str, str]:
    if s.did in ("stopped", "waiting", "busy"):
        return BAD if s.did == "stopped" else DOUBT
    return OK if s.did == "delivered" else NOTHING


def _said(s: SinkReport) -> Text:
    sent = f"{plural(s.rows, 'row')} in {plural(s.chunks, 'chunk')}"
    if s.withheld:
        sent += f", {s.withheld:,} withheld"
    if s.quarantined:
        sent += f", {s.quarantined:,} quarantined"
    match s.did:
        case "delivered":
            return Text(sent)
        case "idle":
            return Text("nothing to do", "dim")
        case "paused":
            return Text(f"paused; `strandline sink resume {s.name}` continues", "yellow")
        case "busy":
            return Text("another process delivers to it; some rows may not have arrived yet", "yellow")
        case "stopped":
            return Text(f"stopped: {reason_of(s.name, s.reason)}", "red")
    said = f"waits to try again: {reason_of(s.name, s.reason)}" if s.reason else "waits for more rows"
    return Text(f"{sent}; {said}" if s.rows or s.withheld else said, "yellow")


def preview(found: Sequence[SinkPreview]) -> list[RenderableType]:
    if not found:
        return [NO_SINKS]
    lines: list[RenderableType] = []
    for s in found:
        lines.append(_head(s))
        if s.error is not None and s.error.hint:
            lines.append(Text(f"  {s.error.hint}", "dim"))
        lines += cut([line for lane in s.lanes for line in _lane(lane)], "line")
    return [*lines, Text("Nothing was sent or stored.", "dim")]


def _head(s: SinkPreview) -> Text:
    if s.error is not None:
        return Text.assemble(BAD, " ", (s.name, "bold"), "  ", (reason_of(s.name, s.error.message), "red"))
    if s.state in ("paused", "stopped"):
        return Text.assemble(NOTHING, " ", (s.name, "bold"), "  ", (f"{s.state}: a tick sends nothing", "yellow"))
    if not s.lanes:
        return Text.assemble(NOTHING, " ", (s.name, "bold"), "  ", ("nothing to do", "dim"))
    chunks = sum(len(lane.chunks) for lane in s.lanes)
    where = f" to {plural(len(s.lanes), 'partition')}" if any(lane.partition for lane in s.lanes) else ""
    return Text.assemble(
        OK, " ", (s.name, "bold"), f"  would get {plural(s.rows, 'row')} in {plural(chunks, 'chunk')}{where}"
    )


def _lane(lane: LanePreview) -> list[RenderableType]:
    name, first = lane.partition or "all", "  from an open intent, sent first" if lane.under_way else ""
    if len(lane.chunks) == 1:
        [only] = lane.chunks
        return [Text.assemble(f"  {name}  {plural(lane.rows, 'row')}", (f"  {only.rows}{first}", "dim"))]
    head = Text.assemble(f"  {name}  {plural(lane.rows, 'row')} in {plural(len(lane.chunks), 'chunk')}", (first, "dim"))
    return [head, *(Text(f"    {c.rows}  {plural(c.expected, 'row')}", "dim") for c in lane.chunks)]
