"""Runs of maintenance for people. What is told right after a run is what is told when it is looked up later: both come
from the stored result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

from strandline.cli.output import dumps
from strandline.cli.render import BAD, NOTHING, OK, age, grid, number, plural
from strandline.ledger.maintenance import Kind, Outcome

if TYPE_CHECKING:
    from strandline.ledger.maintenance import Run

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


def document(run: Run) -> dict[str, Any]:
    return {
        "run": run.id,
        "dataset": run.dataset,
        "kind": run.kind,
        "dry_run": run.dry_run,
        "by_schedule": run.by_schedule,
        "node": run.node,
        "started_at": run.started_at,
        "ended_at": run.ended_at,
        "seconds": run.seconds,
        "outcome": run.outcome,
        "reason": run.reason,
        "result": None if run.result is None else dict(run.result),
    }


def size(count: int) -> str:
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def _some(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


# One run, right after it.


def told(run: Run) -> Iterator[RenderableType]:
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
    for s in r["skipped"][:LINES_MAX]:
        where = f" of {s['partition']}" if s["partition"] else ""
        yield Text(f"  left alone: {plural(s['files'], 'file')}{where}: {s['why']}", "dim")


def _again(left: int) -> str:
    return "was done again" if not left else f"{plural(left, 'file')} are left for the next run"


def _expired(run: Run, r: Result) -> Iterator[RenderableType]:
    gone, kept = r["snapshots_expired"], r["snapshots_before"] - r["snapshots_expired"]
    if gone:
        verb = "would go" if run.dry_run else "are gone"
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


def _retained(run: Run, r: Result) -> Iterator[RenderableType]:
def _held(rows: int, sink: str) -> str:
    if rows:
        return f"{plural(rows, 'row')} that {sink} does not have yet"
    return f"rows that {sink} is not owed, but has not come past: another partition of it, or a promise, is below them"


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


def _moment(text: str) -> str:
    return f"{datetime.fromisoformat(text):%Y-%m-%d %H:%M:%S} UTC"


def _purged(run: Run, r: Result) -> Iterator[RenderableType]:
    if r["deleted_rows"]:
        verb = "would be deleted" if run.dry_run else "is deleted" if r["deleted_rows"] == 1 else "are deleted"
        yield Text.assemble(OK, f" {run.dataset}: {plural(r['deleted_rows'], 'row')} {verb}")
    else:
        yield Text.assemble(NOTHING, f" {run.dataset}: no row of the table fits")
    verb = "would be deleted" if run.dry_run else "deleted"
    if r["quarantined"]:
        yield Text(f"  {plural(r['quarantined'], 'quarantined row')} {verb}, too")
    if r["rejects"]:
        yield Text(f"  {_some(r['rejects'], 'line', 'lines')} of reject files {verb}, too")
    for at in r["holding"]:
        yield Text(
            f"  {at['sink']} was sent {plural(at['rows'], 'row')}; delete them there: {at['destination']}",
            "bold yellow",
        )
    for at in r["undelivered"]:
        verb = "would not get" if run.dry_run else "will not get"
        yield Text(f"  {at['sink']} {verb} {plural(at['rows'], 'row')} that it did not have yet", "yellow")
    yield from (Text(f"  {line}", "yellow") for line in _not_purged(r))
    if r["snapshots_expired"]:
        verb = "would go" if run.dry_run else "are gone"
        yield Text(f"  {plural(r['snapshots_expired'], 'snapshot')} that showed them {verb}", "dim")


def _not_purged(r: Result) -> Iterator[str]:
    """What could not be reached, and what to do about it."""
    if r["not_settled"]:
        yield f"{plural(r['not_settled'], 'row')} that fit are not settled yet: run it again when they are"
    if r["quarantined_not_judged"]:
        yield f"{plural(r['quarantined_not_judged'], 'quarantined row')} could not be read: look at them yourself"
    if r["rejects_not_judged"]:
        lines = plural(r["rejects_not_judged"], "rejected line")
        yield f"of {lines} in {r['rejects_folder']} nobody can tell whether they fit: look at them yourself"
    if r["delete_files_left"]:
        yield "the rows are hidden and still in data files, since another commit came first: run it again"
    if r["snapshots_expired"] is None:
        yield "old snapshots are kept, and still show the rows"
    if r["refs_kept"]:
        yield f"{_some(r['refs_kept'], 'other branch or tag', 'other branches and tags')} may still show the rows"
    if r["floor"] is not None:
        yield f"rows up to {r['floor']:,} were deleted before by retention; sinks may hold some that fit, too"


_TOLD: Mapping[Kind, Callable[[Run, Result], Iterator[RenderableType]]] = {
    Kind.COMPACT: _compacted,
    Kind.RETAIN: _retained,
    Kind.EXPIRE: _expired,
    Kind.PURGE: _purged,
}


# Runs that are stored.


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
            Text("schedule" if r.by_schedule else "hand", "dim"),
            outcome(r),
        )
    return table


def outcome(run: Run) -> Text:
    said = "under way" if run.outcome is None else run.outcome.value
    text = Text(said, _OUTCOMES[run.outcome])
    return text.append(f": {run.reason}", "") if run.reason else text


def shown(run: Run, now: datetime | None = None) -> Iterator[RenderableType]:
    moment = now or datetime.now(UTC)
    began = f"began {age(run.started_at, moment)} ago on {run.node}, by {'schedule' if run.by_schedule else 'hand'}"
    yield Text.assemble(
        (f"Run {run.id}", "bold"), f" · {run.kind.value} of {run.dataset} · ", (began, "dim"), " · ", outcome(run)
    )
    if run.result is not None:
        yield from told(run)
        yield Text(dumps(dict(run.result)), "dim")
