"""A purge for people: what was deleted, who else has such rows, and what is left to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

from strandline.cli.render.elements import done, nothing
from strandline.core.wording import plural

if TYPE_CHECKING:
    from strandline.ledger.maintain.runs import Run

Result = Mapping[str, Any]


def purged(run: Run, r: Result) -> Iterator[RenderableType]:
    if r["deleted_rows"]:
        verb = "would be deleted" if run.dry_run else "is deleted" if r["deleted_rows"] == 1 else "are deleted"
        yield done(f"{run.dataset}: {plural(r['deleted_rows'], 'row')} {verb}")
    else:
        yield nothing(f"{run.dataset}: no row of the table fits")
    if r.get("foreign"):  # older runs did not record it
        yield Text(f"  {r['foreign']:,} of them had numbers that are not from here, and no sink was sent those", "dim")
    verb = "would be deleted" if run.dry_run else "deleted"
    if r["quarantined"]:
        yield Text(f"  {plural(r['quarantined'], 'quarantined row')} {verb}, too")
    if r["rejects"]:
        yield Text(f"  {plural(r['rejects'], 'line')} of reject files {verb}, too")
    yield from (Text(f"  {line}", "bold yellow") for line in _holders(r))
    for at in r["undelivered"]:
        verb = "would not get" if run.dry_run else "will not get"
        yield Text(f"  {at['sink']} {verb} {plural(at['rows'], 'row')} that it did not have yet", "yellow")
    yield from (Text(f"  {line}", "yellow") for line in _not_reached(run, r))
    if r["snapshots_expired"]:
        gone = "is gone, because it" if r["snapshots_expired"] == 1 else "are gone, because they"
        yield Text(f"  {plural(r['snapshots_expired'], 'snapshot')} {gone} showed them", "dim")
    yield from (Text(f"  left: {line}", "bold yellow") for line in r["left"])
    if r["left"]:
        yield Text("  run it again, until nothing is left", "bold yellow")


def _holders(r: Result) -> Iterator[str]:
    """Sinks that have such rows, or may have: their owners have to delete them."""
    for at in r["holding"]:
        them = "it" if at["rows"] == 1 else "them"
        yield f"{_named(at)} was sent {plural(at['rows'], 'row')}; delete {them} there: {at['destination']}"
    for at in r["may_hold"]:
        rows = "such rows" if at["rows"] is None else f"up to {plural(at['rows'], 'such row')}"
        more = " more" if any(_same(at, other) for other in r["holding"]) and at["rows"] is not None else ""
        yield f"{_named(at)} may hold {rows}{more} ({'; '.join(at['why'])}): look there: {at['destination']}"
    if r["named_before"]:
        named = ", ".join(r["named_before"])
        yield f"a run before this one did not end; the rows that it deleted are, or may be, at {named}, too"


def _named(at: Result) -> str:
    what = [
        *([f"generation {at['generation']}, before it was reset"] if at["older"] else []),
        *(["removed since"] if at["removed"] else []),
    ]
    return f"{at['sink']} ({', '.join(what)})" if what else str(at["sink"])


def _same(at: Result, other: Result) -> bool:
    return all(at[key] == other[key] for key in ("sink", "destination", "generation", "removed"))


def _not_reached(run: Run, r: Result) -> Iterator[str]:
    """What only a person can check."""
    if r["quarantined_not_judged"]:
        rows = plural(r["quarantined_not_judged"], "quarantined row")
        yield f"of {rows} nobody can tell whether they fit: look at them yourself (`strandline sink quarantine list`)"
    if r["rejects_not_judged"]:
        lines = plural(r["rejects_not_judged"], "rejected line")
        folders = ", ".join(r["rejects_folders"])
        yield f"of {lines} in {folders} nobody can tell whether they fit: look at them yourself"
    if r["rejects_elsewhere"]:
        yield f"rejected rows may be on other machines, too: {', '.join(r['rejects_elsewhere'])}; run it there"
    if r["snapshots_expired"] is None and not run.dry_run:
        yield "old snapshots are kept, and still show the rows"
    if r["refs_kept"]:
        many = "other branch or tag" if r["refs_kept"] == 1 else "other branches and tags"
        yield f"{r['refs_kept']:,} {many} may still show the rows"
    if r["floor"] is not None:
        yield f"rows up to {r['floor']:,} were deleted before by retention, and cannot be looked for any more"
