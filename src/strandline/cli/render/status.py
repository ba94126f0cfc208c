"""`status` for people: what exists, how far it is settled, what is open, what needs attention."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.text import Text

from strandline.cli.render import sinks
from strandline.cli.render.elements import age, grid, number
from strandline.core.reconcile_records import Doubt
from strandline.core.types import BlockKind
from strandline.core.wording import agreeing, plural
from strandline.ledger.maintain.runs import Run
from strandline.status.maintenance import MaintenanceStatus
from strandline.status.receive import ReceiveStatus
from strandline.status.reconcile import ReconcileStatus
from strandline.status.report import DatasetStatus, LakeStatus, OpenBlockStatus


def status(found: LakeStatus, now: datetime | None = None) -> RenderableType:
    parts: list[RenderableType] = [_head(found), Text("")]
    if not found.datasets:
        parts.append(Text("No datasets yet. `strandline dataset create NAME --like FILE` makes one.", "dim"))
    else:
        parts.append(_datasets(found))
    if any(d.blocks for d in found.datasets):
        parts += [Text(""), Text("Open blocks", "bold"), _blocks(found, now or datetime.now(UTC))]
    if found.sinks:
        parts += [Text(""), sinks.table(found.sinks, now)]
    if any(not r.dropped and r.bodies for r in found.receive or ()):
        parts += [Text(""), Text("Received, not ingested yet", "bold"), _received(found.receive or (), now)]
    if found.maintenance is not None and any(d.last or d.floor for d in found.maintenance.datasets):
        parts += [Text(""), _maintenance(found.maintenance, now)]
    if trouble := problems(found, now):
        parts += [Text(""), Text("Needs attention", "bold yellow")]
        parts += [Text.assemble(("! ", "yellow"), line) for line in trouble]
    return Group(*parts)


def _head(found: LakeStatus) -> Text:
    taken = (
        f"sequence numbers up to {found.sequence:,} are taken" if found.sequence else "no sequence number is taken yet"
    )
    head = Text.assemble("Lake ", (found.lake, "bold"), (f" · {taken}", "dim"))
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
            table.add_row(d.name, b.range, age(b.since, now), Text(_short(b.batch_id), "dim"), _meaning(d.name, b, now))
    return table


def _short(batch_id: str, chars_max: int = 24) -> str:
    return batch_id if len(batch_id) <= chars_max else f"{batch_id[: chars_max - 1]}…"


def _meaning(dataset: str, b: OpenBlockStatus, now: datetime) -> Text:
    if b.lease_until is None:
        return Text("committed, not visible yet; `strandline recover` publishes it", "yellow")
    left = (b.lease_until - now).total_seconds()
    if left > 0:
        return Text(f"being written; its writer has {left:.0f} s to show a sign of life")
    if b.kind == BlockKind.ADOPTED:  # recovery leaves these alone: only numbering the same files again settles them
        return Text(f"numbering old rows was cut off; run `strandline dataset adopt {dataset}` again", "yellow")
    return Text("its writer is gone; `strandline recover` settles it", "yellow")


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


def _last_run(run: Run | None, now: datetime | None) -> Text:
    if run is None:
        return Text("–", "dim")
    style = _OUTCOMES.get(run.outcome, "bold red")
    if run.outcome is None:
        return Text(f"under way, {age(run.started_at, now)}", style)
    said = "" if run.outcome == "done" else f"{run.outcome}, "
    return Text(f"{said}{age(run.started_at, now)} ago", style)


def _maintenance_problems(found: MaintenanceStatus | None) -> list[str]:
    if found is None:
        return []
    lines = [
        f"the retention rule for {name} is for nothing: there is no such dataset"
        for name in found.rules_without_dataset
    ]
    lines += [f"{key} was applied and does not count: the settings file has one, too" for key in found.overridden]
    for d in found.datasets:
        lines += [
            f"{d.dataset}: {r.kind} {_WORDS.get(r.outcome or '', r.outcome)}: {r.reason}; "
            f"`strandline maintenance show {r.id}` tells more"
            for r in d.last
            if r.outcome in _WORDS
        ]
    return lines


_WORDS = {"failed": "failed", "died": "died", "refused": "was refused", "skipped": "skipped a run"}


def _receive_problems(found: Sequence[ReceiveStatus]) -> list[str]:
    lines = []
    for r in found:
        if r.dropped:
            bodies, size = r.bodies + r.set_aside.bodies, r.bytes + r.set_aside.bytes
            lines.append(
                f"{r.dataset} was dropped, and the spool still holds {plural(bodies, 'body')} of "
                f"{plural(size, 'byte')} that {agreeing(bodies, 'was')} received for it and that nobody ingests; "
                f"`strandline spool clear {r.dataset}` gives up what is there"
            )
            continue
        lines += [
            f"{r.dataset}: {plural(b.rows, 'row')} that {agreeing(b.rows, 'was')} received cannot be ingested: "
            f"{b.reason}; {'it is' if b.rows == 1 else 'they are'} kept, and it is tried again "
            f"({plural(b.tries, 'time')} so far)"
            for b in r.batches
            if b.reason is not None
        ]
        if r.set_aside.bodies:
            aside = r.set_aside
            lines.append(
                f"{r.dataset}: {plural(aside.bodies, 'body')} of {plural(aside.rows, 'row')} could not be ingested and "
                f"{agreeing(aside.bodies, 'waits')} for you; `strandline spool list` says why"
            )
        if files := r.unrecorded.files:
            why = "" if r.unrecorded.reason is None else f" ({r.unrecorded.reason})"
            lines.append(
                f"{r.dataset}: {plural(files, 'body', 'lies')} in the spool and cannot be recorded{why}, so the rows "
                "are not ingested; `strandline spool list` names the files"
            )
    return lines


def _drift(found: ReconcileStatus) -> list[str]:
    lines = []
    if found.aborted is not None:
        before = ", before it had compared anything" if found.orphans is None else ""
        lines.append(
            f"run {found.last_run} of the reconciler ended early ({found.aborted}){before}; "
            f"`strandline reconcile show {found.last_run}` tells more"
        )
    elif doubts := [doubt for doubt in found.doubts or () if doubt != Doubt.PARTIAL]:
        lines.append(
            f"what run {found.last_run} of the reconciler says is not the whole truth ({', '.join(doubts)}); "
            f"`strandline reconcile show {found.last_run}` tells more"
        )
    seen = found.compared
    if seen is not None and (seen.missing or seen.orphans or seen.partial):
        part = " It could not look everywhere: there may be more." if seen.partial else ""
        lines.append(
            f"run {seen.run} of the reconciler left {plural(seen.missing, 'missing file')} and "
            f"{plural(seen.orphans, 'orphan file')}; `strandline reconcile show {seen.run}` tells more.{part}"
        )
    return lines


def problems(found: LakeStatus, now: datetime | None = None) -> list[str]:
    """In plain words, each with what to do, if there is something to do."""
    lines = [found.problem] if found.problem else []
    for d in found.datasets:
        if d.problem:
            lines.append(f"{d.name}: {d.problem}")
        if d.unnumbered:
            lines.append(
                f"{d.name}: {plural(d.unnumbered, 'row', 'has')} no sequence number, and will not be delivered; "
                f"`strandline dataset adopt {d.name}` numbers them"
            )
        if d.foreign:
            lines.append(
                f"{d.name}: {plural(d.foreign, 'foreign row')}, written past Strandline with a sequence number that is "
                "not theirs; nobody reads them and no sink gets them"
            )
        if d.number_twice is not None:
            lines.append(
                f"{d.name}: sequence number {d.number_twice:,} is on two rows, so reads and sinks that come to it "
                "are refused; delete the row that does not belong there"
            )
    return [
        *lines,
        *_receive_problems(found.receive or ()),
        *sinks.problems(found.sinks, now),
        *_maintenance_problems(found.maintenance),
        *_drift(found.reconcile),
    ]
