"""How an ingest went, file by file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

from strandline.cli.output import error_document, shown
from strandline.cli.render import BAD, NOTHING, OK, grid, plural

if TYPE_CHECKING:
    from strandline.ingest.files import FileOutcome


def document(dataset: str, found: Sequence[FileOutcome], seconds: float) -> dict[str, Any]:
    return {
        "dataset": dataset,
        "rows": _new_rows(found),
        "rejected": sum(o.rejected or 0 for o in found),
        "failed": sum(o.error is not None for o in found),
        "seconds": round(seconds, 3),
        "files": [_outcome(o) for o in found],
    }


def _outcome(o: FileOutcome) -> dict[str, Any]:
    return {
        "path": o.path if len(o.paths) == 1 else list(o.paths),
        "batch_id": o.batch_id,
        "rows": o.rows,
        "lo": None if o.range is None else o.range.lo,
        "hi": None if o.range is None else o.range.hi,
        "rejected": o.rejected,
        "rejects_path": o.rejects_path,
        "duplicate": o.duplicate,
        "seconds": round(o.seconds, 3),
        "error": None if o.error is None else error_document(o.error),
    }


def _new_rows(found: Sequence[FileOutcome]) -> int:
    return sum(o.rows for o in found if not o.duplicate and o.error is None)


def outcomes(found: Sequence[FileOutcome], seconds: float) -> list[RenderableType]:
    table = grid("", "", "", "", "", right=())
    table.columns[2].justify = "right"
    after: list[RenderableType] = []
    for o in found:
        name = Text(_name(o.paths), "bold")
        if o.error is not None:
            table.add_row(Text(*BAD), name, "", Text(_failed(o), "red"), "")
            after.append(Text.assemble(BAD, " ", (_name(o.paths), "bold"), f": {o.error.message}"))
            if o.error.hint:
                after.append(Text(f"  {o.error.hint}", "dim"))
            if o.rejects_path is not None:
                after.append(Text.assemble(("  Every row with its reason: ", "dim"), (shown(o.rejects_path), "cyan")))
        elif o.duplicate:
            said = Text(f"in already as {o.range}; --again would add it once more", "dim")
            table.add_row(Text(*NOTHING), name, Text(f"{o.rows:,} rows", "dim"), said, "")
        elif o.rows == 0:
            table.add_row(Text(*NOTHING), name, "0 rows", Text("empty: nothing to do", "dim"), "")
        else:
            speed = f"{o.seconds:.1f} s, {o.rows / max(o.seconds, 0.001):,.0f} rows/s"
            table.add_row(Text(*OK), name, plural(o.rows, "row"), f"numbers {o.range}", Text(speed, "dim"))
    after += [_rejects(o.rejected, o.rejects_path) for o in found if o.rejected and o.rejects_path and o.error is None]
    return [table, *after, *([_total(found, seconds)] if len(found) > 1 else [])]


def _failed(o: FileOutcome) -> str:
    return "refused" if o.error is not None and o.error.exit_code == 3 else "failed"


def _rejects(count: int, path: Path) -> Text:
    said = f"! {plural(count, 'row')} did not fit; kept, each with its line and reason, in "
    return Text.assemble((said, "yellow"), (shown(path), "cyan"))


def _name(paths: Sequence[Path]) -> str:
    return paths[0].name if len(paths) == 1 else f"{paths[0].name} and {len(paths) - 1} more"


def _total(found: Sequence[FileOutcome], seconds: float) -> Text:
    rows = _new_rows(found)
    parts = [f"{plural(len(found), 'file')}: {plural(rows, 'new row')} in {seconds:.1f} s"]
    if known := sum(o.duplicate for o in found):
        parts.append(f"{known} in already")
    if failed := sum(o.error is not None for o in found):
        parts.append(f"{failed} failed")
    return Text(", ".join(parts), "bold")
