"""Renders runs of maintenance from the stored result, so a run looks the same right after it and later."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

from strandline.cli.output import dumps
from strandline.cli.render.audit import who
from strandline.cli.render.elements import BAD, LINES_MAX, done, grid, nothing, number
from strandline.core.records.maintenance_records import MaintenanceKind, MaintenanceOutcome
from strandline.core.text.wording import age, agreeing, moment, plural, size, took

if TYPE_CHECKING:
    from strandline.ledger.maintain.runs import MaintenanceRun

_OUTCOMES = {
    None: "cyan",
    MaintenanceOutcome.DONE: "green",
    MaintenanceOutcome.SKIPPED: "yellow",
    MaintenanceOutcome.REFUSED: "yellow",
    MaintenanceOutcome.FAILED: "bold red",
    MaintenanceOutcome.DIED: "bold red",
}
ResultDocument = Mapping[str, Any]


def render_run(run: MaintenanceRun) -> Iterator[RenderableType]:
    if run.result is None:
        yield Text.assemble(BAD, f" {run.dataset}: {run.reason or 'no result'}")
        return
    yield from _RENDERERS[run.kind](run, run.result)
    length = "" if run.seconds is None else f" · {took(run.seconds)}"
    note = " · nothing was changed" if run.dry_run else ""
    yield Text(f"  run {run.id}{length}{note}", "dim")


def _compacted(run: MaintenanceRun, r: ResultDocument) -> Iterator[RenderableType]:
    if r["files_rewritten"]:
        verb = "would become" if run.dry_run else "became"
        yield done(
            f"{run.dataset}: {plural(r['files_rewritten'], 'file')} {verb} {number(r['files_written'])}, with "
            f"{plural(r['rows_written'], 'row')} and {size(r['bytes_rewritten'])}"
        )
    else:
        yield nothing(f"{run.dataset}: nothing to gain in {plural(r['files_before'], 'file')}")
    if r["manifests_after"] < r["manifests_before"]:
        yield Text(f"  manifests: {r['manifests_before']:,}, now {r['manifests_after']:,}")
    if r["delete_files_after"] != r["delete_files_before"]:
        yield Text(f"  delete files: {r['delete_files_before']:,}, now {r['delete_files_after']:,}")
    if r["lost"]:
        yield Text(
            f"  {plural(r['lost'], 'commit')} failed because others committed first, and {_again(r['left'])}", "yellow"
        )
    if r.get("manifests_left"):
        yield Text("  manifests left as they are: not safe over a REST catalog with a warehouse in a folder", "yellow")
    for s in r["skipped"][:LINES_MAX]:
        where = f" of {s['partition']}" if s["partition"] else ""
        yield Text(f"  left alone: {plural(s['files'], 'file')}{where}: {s['why']}", "dim")


def _again(left: int) -> str:
    return "was repeated" if not left else f"{plural(left, 'file', 'is')} left for the next run"


def _expired(run: MaintenanceRun, r: ResultDocument) -> Iterator[RenderableType]:
    gone, kept = r["snapshots_expired"], r["snapshots_before"] - r["snapshots_expired"]
    stays = f"{kept:,} {agreeing(kept, 'stays')}"
    if gone:
        verb = "would go" if run.dry_run else f"{agreeing(gone, 'is')} gone"
        yield done(f"{run.dataset}: {plural(gone, 'snapshot')} {verb}, {stays}")
    else:
        yield nothing(f"{run.dataset}: no snapshot is old enough; {stays}")
    if r["data_files_deleted"] is not None and gone:
        yield Text(
            f"  deleted: {plural(r['data_files_deleted'], 'data file')}, "
            f"{plural(r['delete_files_deleted'], 'delete file')}, {plural(r['manifests_deleted'], 'manifest')}",
            "dim",
        )
    nouns = {"branches_kept": "other branch", "tags_kept": "tag"}
    if kept_too := [plural(r[key], noun) for key, noun in nouns.items() if r[key]]:
        yield Text(f"  kept: {' and '.join(kept_too)}", "dim")


def _held(rows: int, sink: str) -> str:
    if rows:
        return f"{plural(rows, 'row')} that {sink} does not have yet"
    return (
        f"rows that {sink} will not get, but has not passed yet: another of its partitions, or an open intent, is below"
    )


def _retained(run: MaintenanceRun, r: ResultDocument) -> Iterator[RenderableType]:
    of = "of" if r["column"] is None else f"with {r['column']}"
    before = f"{of} before {moment(datetime.fromisoformat(r['cutoff']))}"
    if r["deleted_rows"]:
        verb = "would be deleted" if run.dry_run else "are deleted" if r["deleted_rows"] != 1 else "is deleted"
        yield done(f"{run.dataset}: {plural(r['deleted_rows'], 'row')} {before} {verb}")
    else:
        yield nothing(f"{run.dataset}: no row {before} can be deleted")
    for h in r["held"]:
        yield Text(f"  held: {_held(h['rows'], h['sink'])}", "yellow")
    for x in r["lost"]:
        verb = "would not get" if run.dry_run else "will not get"
        yield Text(f"  lost: {x['sink']} {verb} {plural(x['rows'], 'row')}, as the rule says", "bold yellow")
    if r["released"]:
        yield Text(f"  no rows are held any more for {', '.join(r['released'])}", "dim")
    if r["floor"] is not None and r["floor"] != r["floor_before"]:
        yield Text(f"  the floor is at {r['floor']:,}: a new sink begins above it", "dim")


def _numbered(run: MaintenanceRun, r: ResultDocument) -> Iterator[RenderableType]:
    if not r["rows"]:
        yield nothing(f"{run.dataset}: every row has its sequence number")
        return
    yield done(f"{run.dataset}: {plural(r['rows'], 'row')} got a sequence number")


def _purged(run: MaintenanceRun, r: ResultDocument) -> Iterator[RenderableType]:
    if r["deleted_rows"]:
        verb = "would be deleted" if run.dry_run else "is deleted" if r["deleted_rows"] == 1 else "are deleted"
        yield done(f"{run.dataset}: {plural(r['deleted_rows'], 'row')} {verb}")
    else:
        yield nothing(f"{run.dataset}: no row of the table meets the condition")
    if r.get("foreign"):  # older runs did not record it
        yield Text(f"  {r['foreign']:,} of them were foreign rows, which no sink ever got", "dim")
    verb = "would be deleted" if run.dry_run else "deleted"
    if r["quarantined"]:
        yield Text(f"  {plural(r['quarantined'], 'quarantined row')} {verb}, too")
    if r["rejects"]:
        yield Text(f"  {plural(r['rejects'], 'line')} of reject files {verb}, too")
    yield from (Text(f"  {line}", "bold yellow") for line in _holders(r))
    for at in r["undelivered"]:
        verb = "would not get" if run.dry_run else "will not get"
        yield Text(f"  {at['sink']} {verb} {plural(at['rows'], 'row')} that it did not have yet", "yellow")
    for name in r.get("followers", ()):  # older runs did not record them
        yield Text(f"  follower {name} deletes them, too, when it applies the purge", "yellow")
    yield from (Text(f"  {line}", "yellow") for line in _not_reached(run, r))
    if r["snapshots_expired"]:
        gone = "is gone, because it" if r["snapshots_expired"] == 1 else "are gone, because they"
        yield Text(f"  {plural(r['snapshots_expired'], 'snapshot')} {gone} showed them", "dim")
    yield from (Text(f"  left: {line}", "bold yellow") for line in r["left"])
    if r["left"]:
        yield Text("  run it again, until nothing is left", "bold yellow")


def _holders(r: ResultDocument) -> Iterator[str]:
    """Sinks that have such rows, or may have: their owners have to delete them."""
    for at in r["holding"]:
        them = "it" if at["rows"] == 1 else "them"
        yield f"{_named(at)} was sent {plural(at['rows'], 'row')}; delete {them} there: {at['destination']}"
    for at in r["may_hold"]:
        rows = "such rows" if at["rows"] is None else f"up to {plural(at['rows'], 'such row')}"
        more = " more" if any(_same(at, other) for other in r["holding"]) and at["rows"] is not None else ""
        yield f"{_named(at)} may hold {rows}{more} ({'; '.join(at['why'])}): check {at['destination']}"
    if r["named_before"]:
        named = ", ".join(r["named_before"])
        yield f"an earlier run did not finish; rows that it deleted may be at {named}, too"


def _named(at: ResultDocument) -> str:
    what = [
        *([f"generation {at['generation']}, before it was reset"] if at["older"] else []),
        *(["removed since"] if at["removed"] else []),
    ]
    return f"{at['sink']} ({', '.join(what)})" if what else str(at["sink"])


def _same(at: ResultDocument, other: ResultDocument) -> bool:
    return all(at[key] == other[key] for key in ("sink", "destination", "generation", "removed"))


def _not_reached(run: MaintenanceRun, r: ResultDocument) -> Iterator[str]:
    """What the purge did not reach, and a person has to check."""
    if r["quarantined_not_judged"]:
        rows = plural(r["quarantined_not_judged"], "quarantined row")
        yield f"the condition could not be checked on {rows}: check them yourself (`strandline sink quarantine list`)"
    if r["rejects_not_judged"]:
        lines = plural(r["rejects_not_judged"], "rejected line")
        folders = ", ".join(r["rejects_folders"])
        yield f"the condition could not be checked on {lines} in {folders}: check them yourself"
    if r["rejects_elsewhere"]:
        yield f"rejected rows may be on other machines, too: {', '.join(r['rejects_elsewhere'])}; run it there"
    if r["snapshots_expired"] is None and not run.dry_run:
        yield "old snapshots are kept, and still show the rows"
    if r["refs_kept"]:
        many = "other branch or tag" if r["refs_kept"] == 1 else "other branches and tags"
        yield f"{r['refs_kept']:,} {many} may still show the rows"
    if r["floor"] is not None:
        yield f"rows up to {r['floor']:,} were deleted by retention before, so sinks were not searched for those"


_RENDERERS: Mapping[MaintenanceKind, Callable[[MaintenanceRun, ResultDocument], Iterator[RenderableType]]] = {
    MaintenanceKind.COMPACT: _compacted,
    MaintenanceKind.RETAIN: _retained,
    MaintenanceKind.EXPIRE: _expired,
    MaintenanceKind.PURGE: _purged,
    MaintenanceKind.NUMBER: _numbered,
}


def runs(found: Sequence[MaintenanceRun], now: datetime | None = None) -> RenderableType:
    if not found:
        return Text("No maintenance yet. `strandline compact DATASET` is one kind of it.", "dim")
    table = grid("run", "dataset", "kind", "began", "took", "by", "outcome", right=("run", "took"))
    for r in found:
        kind = f"{r.kind.value} (dry run)" if r.dry_run else r.kind.value
        length = "" if r.seconds is None else took(r.seconds)
        plain = map(Text, (r.dataset, kind, f"{age(r.started_at, now)} ago", length))
        table.add_row(Text(str(r.id), "bold"), *plain, who(r.actor), outcome(r))
    return table


def outcome(run: MaintenanceRun) -> Text:
    under_way = "under way" if run.stop_asked_at is None else "called off, not yet ended"
    said = under_way if run.outcome is None else run.outcome.value
    text = Text(said, _OUTCOMES[run.outcome])
    return text.append(f": {run.reason}", "") if run.reason else text


def shown(run: MaintenanceRun, now: datetime | None = None) -> Iterator[RenderableType]:
    began = f"began {age(run.started_at, now)} ago on {run.node}, by "
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
