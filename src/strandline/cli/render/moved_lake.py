"""Renders a lake that moves to another place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from strandline.cli.render.elements import BAD, done, grid
from strandline.core.text.wording import plural

if TYPE_CHECKING:
    from strandline.migrate.run import MoveReport


def moved(report: MoveReport) -> Iterator[RenderableType]:
    if not report.steps:
        yield done(f"The lake is at {report.ledger[1]} already")
        return
    table = grid("", "", "")
    for what, places in (("ledger", report.ledger), ("catalog", report.catalog), ("warehouse", report.warehouse)):
        if places is not None:
            table.add_row(Text(f"  {what}", "bold"), Text(places[0]), Text.assemble(("to ", "dim"), places[1]))
    if report.dry_run:
        yield Text("This would move:", "bold")
        yield table
        yield Text(f"  {_counts(report)}", "dim")
        if report.settings:
            yield Text(f"  Other settings that differ: {', '.join(report.settings)}", "yellow")
        for number, step in enumerate(report.steps, 1):
            yield Text(f"  {number}. {step.value}")
        for obstacle in report.obstacles:
            yield Text.assemble(BAD, " ", obstacle.what, (f": {obstacle.remedy}", "yellow"))
        return
    yield done("The lake has moved")
    yield table
    yield Text(f"  {_counts(report)}", "dim")
    if report.settings_before is not None:
        yield Text(f"  The old settings are in {report.settings_before}.", "dim")
    yield Text("  Start `strandline run`, the receiver and the API again.", "dim")


def _counts(report: MoveReport) -> str:
    counted = [f"{plural(report.rows, 'row')} of the ledger"] if report.rows else []
    if report.catalog is not None:
        counted.append(plural(len(report.tables), "table"))
    if report.warehouse is not None:
        counted.append(f"{plural(report.files, 'file')} with {report.bytes:,} bytes")
    return ", ".join(counted)


def called_off(tables: list[str]) -> RenderableType:
    back = f"; {plural(len(tables), 'table')} have their names again" if tables else ""
    return done(f"The migration is called off, and the lake is open where it was{back}")
