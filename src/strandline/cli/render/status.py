"""Renders `status`: datasets and seals, open blocks, sinks, replication, maintenance, and what needs attention."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from strandline.cli.render import consumers, followers, replication, sinks
from strandline.cli.render.elements import attention, grid, number
from strandline.core.text.wording import age, duration, plural
from strandline.core.types import BlockKind
from strandline.status.problems.lake_problems import find_problems

if TYPE_CHECKING:
    from strandline.ledger.maintain.runs import MaintenanceRun
    from strandline.status.maintenance import MaintenanceStatus
    from strandline.status.receive import ReceiveStatus
    from strandline.status.report import DatasetStatus, LakeStatus, OpenBlockStatus


def status(found: LakeStatus, at: datetime | None = None) -> RenderableType:
    now = at or datetime.now(UTC)
    parts: list[RenderableType] = [_head(found), Text("")]
    if not found.datasets:
        parts.append(Text("No datasets yet. `strandline dataset create NAME --like FILE` creates one.", "dim"))
    else:
        parts.append(_datasets(found))
    if any(d.blocks for d in found.datasets):
        parts += [Text(""), Text("Open blocks", "bold"), _blocks(found, now)]
    if found.sinks:
        parts += [Text(""), sinks.table(found.sinks, now)]
    if found.consumers:
        parts += [Text(""), consumers.consumers(found.consumers)]
    if found.site.leader is not None:
        parts += [Text(""), replication.leader_line(found.site.leader, now)]
        parts += [replication.followed(found.site.shards)] if found.site.shards else []
    if found.followers:
        parts += [Text(""), followers.shards(found.followers)]
    if any(not r.dropped and r.bodies for r in found.receive or ()):
        parts += [Text(""), Text("Received, not ingested yet", "bold"), _received(found.receive or (), now)]
    if found.maintenance is not None and any(d.last or d.floor for d in found.maintenance.datasets):
        parts += [Text(""), _maintenance(found.maintenance, now)]
    if trouble := find_problems(found, now):
        parts += [Text(""), Text("Needs attention", "bold yellow"), *map(attention, trouble)]
    return Group(*parts)


def _head(found: LakeStatus) -> Text:
    last = f"last sequence number: {found.sequence:,}" if found.sequence else "no sequence numbers yet"
    head = Text.assemble("Lake ", (found.lake, "bold"), (f" · {last}", "dim"))
    if found.witness is None:
        return head.append(" · no witness", "bold red")
    if found.witness != found.sequence:
        return head.append(f" · witness at {found.witness:,}", "yellow")
    return head.append(" · witness agrees", "dim")


def _datasets(found: LakeStatus) -> RenderableType:
    counts = ("rows", "sealed", "allocated", "open", "unnumbered", "foreign")
    table = grid("dataset", *counts, right=counts)
    for d in found.datasets:
        table.add_row(
            Text(d.name, "bold"),
            number(d.rows),
            _sealed(d),
            "–" if d.allocated is None else number(d.allocated),
            _alarming(d.open_blocks),
            _alarming(d.unnumbered),
            _alarming(d.foreign),
        )
    return table


def _sealed(d: DatasetStatus) -> Text:
    if d.sealed is None:
        return Text("nothing yet", "dim")
    return Text(number(d.sealed), "green" if d.open_blocks == 0 else "yellow")


def _alarming(count: int | None) -> Text:
    return Text(number(count), "dim" if count == 0 else "yellow")


def _blocks(found: LakeStatus, now: datetime) -> RenderableType:
    table = grid("dataset", "numbers", "age", "batch", "what it means", right=("age",))
    for d in found.datasets:
        for b in d.blocks:
            table.add_row(
                d.name, b.range, age(b.since, now), Text(_short(b.batch_id), "dim"), _meaning(found, d.name, b, now)
            )
    return table


def _short(batch_id: str, chars_max: int = 24) -> str:
    return batch_id if len(batch_id) <= chars_max else f"{batch_id[: chars_max - 1]}…"


def _meaning(found: LakeStatus, dataset: str, b: OpenBlockStatus, now: datetime) -> Text:
    if found.site.leader is not None:
        return Text("recorded, not applied yet; `strandline follow` or `strandline run` applies it")
    if b.lease_until is None:
        return Text("committed, not visible yet; `strandline recover` publishes it", "yellow")
    left = (b.lease_until - now).total_seconds()
    if left > 0:
        return Text(f"being written; the writer's lease lasts {duration(left)}")
    if b.kind == BlockKind.ADOPTED:  # recovery leaves these alone: only numbering the same files again settles them
        return Text(f"numbering old rows was interrupted; run `strandline dataset adopt {dataset}` again", "yellow")
    return Text("the writer's lease has expired; `strandline recover` settles it", "yellow")


def _received(found: Sequence[ReceiveStatus], now: datetime | None) -> RenderableType:
    table = grid("dataset", "rows", "bodies", "bytes", "oldest", "state", right=("rows", "bodies", "bytes", "oldest"))
    for r in found:
        if r.dropped or not r.bodies:
            continue
        stuck = sum(b.reason is not None for b in r.batches)
        state = Text(f"{plural(stuck, 'batch')} failed", "yellow") if stuck else Text("")
        table.add_row(
            Text(r.dataset, "bold"), number(r.rows), number(r.bodies), number(r.bytes), _age(r.oldest, now), state
        )
    return table


def _age(moment: datetime | None, now: datetime | None) -> str:
    return "–" if moment is None else age(moment, now)


_KINDS = ("compact", "retain", "expire", "purge")
_KIND_OF_SOME = "number"  # shown only if it ever ran: most lakes have no table that others write to
_OUTCOMES = {None: "cyan", "done": "", "skipped": "yellow"}


def _maintenance(found: MaintenanceStatus, now: datetime | None) -> RenderableType:
    some = any(r.kind == _KIND_OF_SOME for d in found.datasets for r in d.last)
    kinds = (*_KINDS, _KIND_OF_SOME) if some else _KINDS
    table = grid("maintenance", "floor", *(f"last {kind}" for kind in kinds), right=("floor",))
    for d in found.datasets:
        last = {r.kind.value: r for r in d.last}
        floor = Text("–", "dim") if d.floor is None else Text(number(d.floor))
        table.add_row(Text(d.dataset, "bold"), floor, *(_last_run(last.get(kind), now) for kind in kinds))
    return table


def _last_run(run: MaintenanceRun | None, now: datetime | None) -> Text:
    if run is None:
        return Text("–", "dim")
    style = _OUTCOMES.get(run.outcome, "bold red")
    if run.outcome is None:
        return Text(f"under way, {age(run.started_at, now)}", style)
    said = "" if run.outcome == "done" else f"{run.outcome}, "
    return Text(f"{said}{age(run.started_at, now)} ago", style)
