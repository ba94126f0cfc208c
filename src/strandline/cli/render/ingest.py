"""Renders the result of an ingest, file by file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from strandline.cli.output import shown
from strandline.cli.render.elements import BAD, NOTHING, OK, grid, rate
from strandline.core.errors import RefusedError
from strandline.core.text.wording import plural, took
from strandline.status.documents.lake_documents import new_rows

if TYPE_CHECKING:
    from strandline.ingest.ingest_files import FileOutcome


_NAMES_MAX = 10


def outcomes(found: Sequence[FileOutcome], seconds: float) -> list[RenderableType]:
    table = grid("", "", "", "", "", right=())
    table.columns[2].justify = "right"
    after: list[RenderableType] = []
    for o in found:
        name = Text(_name(o.paths), "bold")
        if o.error is not None:
            outcome = "refused" if o.error.exit_code == RefusedError.exit_code else "failed"
            table.add_row(Text(*BAD), name, "", Text(outcome, "red"), "")
            after.append(Text.assemble(BAD, " ", (_name(o.paths), "bold"), f": {_message(o)}"))
            if o.error.hint:
                after.append(Text(f"  {o.error.hint}", "dim"))
            if o.rejects_path is not None:
                after.append(Text.assemble(("  Every row with its reason: ", "dim"), (shown(o.rejects_path), "cyan")))
        elif o.duplicate:
            said = Text(f"already ingested as {o.range}; --again adds it again", "dim")
            table.add_row(Text(*NOTHING), name, Text(plural(o.rows, "row"), "dim"), said, "")
        elif o.rows == 0:
            table.add_row(Text(*NOTHING), name, "0 rows", Text("empty: nothing to do", "dim"), "")
        else:
            speed = f"{took(o.seconds)}{rate(o.rows, o.seconds)}"
            table.add_row(Text(*OK), name, plural(o.rows, "row"), f"sequence numbers {o.range}", Text(speed, "dim"))
    for o in found:
        if o.error is None and o.absent and o.rows and not o.duplicate:
            after.append(_absent(o))
        if o.error is None and o.rejected and o.rejects_path:
            after.append(_rejects(o, o.rejected, o.rejects_path))
    return [table, *after, *([_total(found, seconds)] if len(found) > 1 else [])]


def _message(o: FileOutcome) -> str:
    """Without the path at the start, which was just printed."""
    said = "" if o.error is None else o.error.message
    for start in (f"{o.path}: ", f"{o.path} "):
        said = said.removeprefix(start)
    return said


def _rejects(o: FileOutcome, count: int, path: Path) -> Text:
    said = f"! {_name(o.paths)}: {plural(count, 'row')} did not fit; stored with line and reason in "
    return Text.assemble((said, "yellow"), (shown(path), "cyan"))


def _absent(o: FileOutcome) -> Text:
    listed = ", ".join(o.absent[:_NAMES_MAX]) + (", …" if len(o.absent) > _NAMES_MAX else "")
    lacks = "lacks" if len(o.paths) == 1 else "lack"
    return Text(f"! {_name(o.paths)} {lacks} {plural(len(o.absent), 'column')}, null in all rows: {listed}", "yellow")


def _name(paths: Sequence[Path]) -> str:
    return paths[0].name if len(paths) == 1 else f"{paths[0].name} and {len(paths) - 1} more"


def _total(found: Sequence[FileOutcome], seconds: float) -> Text:
    rows = new_rows(found)
    parts = [f"{plural(len(found), 'file')}: {plural(rows, 'new row')} in {took(seconds)}"]
    if known := sum(o.duplicate for o in found):
        parts.append(f"{known} already ingested")
    if failed := sum(o.error is not None for o in found):
        parts.append(f"{failed} failed")
    return Text(", ".join(parts), "bold")
