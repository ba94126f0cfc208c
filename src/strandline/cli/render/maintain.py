"""Runs of maintenance for people, always from the stored result: a run looks the same right after it and later."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

from strandline.cli.output import dumps
from strandline.cli.render.audit import who
from strandline.cli.render.common import BAD, NOTHING, OK, age, grid, number
from strandline.cli.render.purge import purged
from strandline.core.wording import agreeing, plural
from strandline.ledger.maintain.runs import Kind, Outcome

if TYPE_CHECKING:
    from strandline.ledger.maintain.runs import Run

LINES_MAX = 20
_OUTCOMES = {
    None: "cyan",
    Outcome.DONE: "green",
    Outcome.SKIPPED: "yellow",
    Outcome.REFUSED: "yellow",
    Outcome.FAILED: "bold red",
    Outcome.DIED: "bold red",
}
Result = Mapping[str, Any]


def size(count: int) -> str:
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def _some(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


def render_run(run: Run) -> Iterator[RenderableType]:
    if run.result is None:
        yield Text.assemble(BAD, f" {run.dataset}: {run.reason or 'no result'}")
        return
    yield from _TOLD[run.kind](run, run.result)
    took = "" if run.seconds is None else f" · {run.seconds:.1f} s"
    note = " · nothing was changed" if run.dry_run else ""
    yield Text(f"  run {run.id}{took}{note}", "dim")


def _compacted(run: Run, r: Result) -> Iterator[RenderableType]:
    if r["files_rewritten"]:
        verb = "would become" if run.dry_run else "became"
        yield Text.assemble(
            OK,
            f" {run.dataset}: {plural(r['files_rewritten'], 'file')} {verb} {number(r['files_written'])}, with "
            f"{plural(r['rows_written'], 'row')} and {size(r['bytes_rewritten'])}",
        )
    else:
        yield Text.assemble(NOTHING, f" {run.dataset}: nothing to gain in {plural(r['files_before'], 'file')}")
    if r["manifests_after"] < r["manifests_before"]:
        yield Text(f"  manifests: {r['manifests_before']:,}, now {r['manifests_after']:,}")
    if r["delete_files_after"] != r["delete_files_before"]:
        yield Text(f"  delete files: {r['delete_files_before']:,}, now {r['delete_files_after']:,}")
    if r["lost"]:
        yield Text(f"  {plural(r['lost'], 'commit')} lost against others, and {_again(r['left'])}", "yellow")
    if r.get("manifests_left"):
        yield Text("  manifests left as they are: not safe over a REST catalog with a warehouse in a folder", "yellow")
    for s in r["skipped"][:LINES_MAX]:
        where = f" of {s['partition']}" if s["partition"] else ""
        yield Text(f"  left alone: {plural(s['files'], 'file')}{where}: {s['why']}", "dim")


def _again(left: int) -> str:
    return "was done again" if not left else f"{plural(left, 'file', 'is')} left for the next run"


def _expired(run: Run, r: Result) -> Iterator[RenderableType]:
    gone, kept = r["snapshots_expired"], r["snapshots_before"] - r["snapshots_expired"]
    if gone:
        verb = "would go" if run.dry_run else f"{agreeing(gone, 'is')} gone"
        yield Text.assemble(OK, f" {run.dataset}: {plural(gone, 'snapshot')} {verb}, {_some(kept, 'stays', 'stay')}")
    else:
        yield Text.assemble(NOTHING, f" {run.dataset}: no snapshot is old enough; {_some(kept, 'stays', 'stay')}")
    if r["data_files_deleted"] is not None and gone:
        yield Text(
            f"  deleted: {plural(r['data_files_deleted'], 'data file')}, "
            f"{plural(r['delete_files_deleted'], 'delete file')}, {plural(r['manifests_deleted'], 'manifest')}",
            "dim",
        )
    kept_too = [
        _some(r[key], one, many)
        for key, one, many in (("branches_kept", "other branch", "other branches"), ("tags_kept", "tag", "tags"))
        if r[key]
    ]
    if kept_too:
        yield Text(f"  kept: {' and '.join(kept_too)}", "dim")


def _held(rows: int, sink: str) -> str:
    if rows:
        return f"{plural(rows, 'row')} that {sink} does not have yet"
    return f"rows that {sink} is not owed, but has not come past: another partition of it, or a promise, is below them"


def _retained(run: Run, r: Result) -> Iterator[RenderableType]:
    before = (
        f"of before {_moment(r['cutoff'])}"
        if r["column"] is None
        else f"with {r['column']} before {_moment(r['cutoff'])}"
    )
    if r["deleted_rows"]:
        verb = "would be deleted" if run.dry_run else "are deleted" if r["deleted_rows"] != 1 else "is deleted"
        yield Text.assemble(OK, f" {run.dataset}: {plural(r['deleted_rows'], 'row')} {before} {verb}")
    else:
        yield Text.assemble(NOTHING, f" {run.dataset}: no row {before} can go")
    for h in r["held"]:
        yield Text(f"  held: {_held(h['rows'], h['sink'])}", "yellow")
    for x in r["lost"]:
        verb = "would not get" if run.dry_run else "will not get"
        yield Text(f"  lost: {x['sink']} {verb} {plural(x['rows'], 'row')}, as the rule says", "bold yellow")
    if r["released"]:
        yield Text(f"  nothing is held any more for {', '.join(r['released'])}", "dim")
    if r["floor"] is not None and r["floor"] != r["floor_before"]:
        yield Text(f"  the floor is at {r['floor']:,}: a sink that is added begins above it", "dim")


def _numbered(run: Run, r: Result) -> Iterator[RenderableType]:
    if not r["rows"]:
        yield Text.assemble(NOTHING, f" {run.dataset}: every row has its number")
        return
    yield Text.assemble(OK, f" {run.dataset}: {plural(r['rows'], 'row')} got a number")


def _moment(text: str) -> str:
    return f"{datetime.fromisoformat(text):%Y-%m-%d %H:%M:%S} UTC"


_TOLD: Mapping[Kind, Callable[[Run, Result], Iterator[RenderableType]]] = {
    Kind.COMPACT: _compacted,
    Kind.RETAIN: _retained,
    Kind.EXPIRE: _expired,
    Kind.PURGE: purged,
    Kind.NUMBER: _numbered,
}


def runs(found: Sequence[Run], now: datetime | None = None) -> RenderableType:
    if not found:
        return Text("No maintenance yet. `strandline compact DATASET` is one kind of it.", "dim")
    table = grid("run", "dataset", "kind", "began", "took", "by", "outcome", right=("run", "took"))
    for r in found:
        kind = f"{r.kind.value} (dry run)" if r.dry_run else r.kind.value
        took = "" if r.seconds is None else f"{r.seconds:.1f} s"
        table.add_row(
            Text(str(r.id), "bold"),
            Text(r.dataset),
            Text(kind),
            Text(f"{age(r.started_at, now)} ago"),
            Text(took),
            who(r.actor),
            outcome(r),
        )
    return table


def outcome(run: Run) -> Text:
    said = "under way" if run.outcome is None else run.outcome.value
    text = Text(said, _OUTCOMES[run.outcome])
    return text.append(f": {run.reason}", "") if run.reason else text


def shown(run: Run, now: datetime | None = None) -> Iterator[RenderableType]:
    moment = now or datetime.now(UTC)
    began = f"began {age(run.started_at, moment)} ago on {run.node}, by "
    yield Text.assemble(
        (f"Run {run.id}", "bold"),
        f" · {run.kind.value} of {run.dataset} · ",
        (began, "dim"),
        who(run.actor),
        " · ",
        outcome(run),
    )
    if run.result is not None:
        yield from render_run(run)
        yield Text(dumps(dict(run.result)), "dim")
