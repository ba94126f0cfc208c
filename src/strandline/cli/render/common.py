"""Texts for people. Values in, renderables out; nothing here asks the lake."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from strandline.core.types import Dataset
from strandline.core.wording import plural
from strandline.status.documents import replaced_table

if TYPE_CHECKING:
    from strandline.iceberg.pyiceberg.describe import TableDescription
    from strandline.iceberg.schema.alteration import Alteration
    from strandline.iceberg.schema.columns import Column
    from strandline.iceberg.session.runtime import Check
    from strandline.ingest.recover import Recovered
    from strandline.ingest.resync import Resynced
    from strandline.ledger.engine import Migrated

UNKNOWN = "?"
OK, BAD, NOTHING = ("✓", "green"), ("✗", "bold red"), ("·", "dim")


def grid(*headers: str, right: Iterable[str] = ()) -> Table:
    """A table without a frame, with a dim header."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", show_header=any(headers), pad_edge=False)
    for header in headers:
        table.add_column(header, justify="right" if header in set(right) else "left", overflow="fold")
    return table


def number(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


def rate(rows: int, seconds: float) -> str:
    """To follow a time; empty if below one row per second."""
    per_second = rows / max(seconds, 0.001)
    return f", {per_second:,.0f} rows/s" if per_second >= 1 else ""


def age(since: datetime, now: datetime | None = None) -> str:
    seconds = max(0, int(((now or datetime.now(UTC)) - since).total_seconds()))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def done(text: str) -> RenderableType:
    return Text.assemble(OK, " ", text)


def initialised(lake: str, path: Path) -> RenderableType:
    return Group(
        Text.assemble(OK, " A new lake: ", (lake, "bold")),
        Text.assemble("  Its settings: ", (str(path), "cyan")),
        Text("  Next: strandline dataset create NAME --like FILE", "dim"),
    )


def checks(found: Sequence[Check]) -> list[RenderableType]:
    table = grid("", "", "")
    for check in found:
        table.add_row(Text(*(OK if check.ok else BAD)), Text(check.name, "bold"), Text(check.detail))
        if check.hint:
            table.add_row("", "", Text(check.hint, "yellow" if not check.ok else "dim"))
    failed = sum(not c.ok for c in found)
    verdict = Text("All is well.", "green") if not failed else Text(f"{plural(failed, 'check')} failed.", "bold red")
    return [table, verdict]


def columns_table(columns: Sequence[Column]) -> Table:
    from strandline.iceberg.schema.columns import type_text

    table = grid("", "", "")
    for column in columns:
        note = " ".join(filter(None, ["required" if column.required else "", column.doc or ""]))
        table.add_row(Text(f"  {column.name}"), Text(type_text(column.type), "cyan"), Text(note, "dim"))
    return table


def datasets(found: Sequence[Dataset]) -> RenderableType:
    if not found:
        return Text("No datasets yet. `strandline dataset create NAME --like FILE` makes one.", "dim")
    table = grid("dataset", "delivered by", "came as", "created")
    for d in found:
        table.add_row(
            Text(d.name, "bold"),
            Text(", ".join(d.deliver_by) or "–"),
            Text(_origin(d)),
            Text(_minute(d.created_at)),
        )
    return table


def shown(d: Dataset, table: TableDescription) -> RenderableType:
    facts = grid("", "")
    for label, value in (
        ("delivered by", ", ".join(d.deliver_by) or "–"),
        ("partitioned by", ", ".join(table.partition_by) or "–"),
        ("came as", _origin(d)),
        ("created", _minute(d.created_at)),
        ("table", d.table_uuid),
        ("where", table.location),
    ):
        facts.add_row(Text(f"  {label}", "dim"), Text(value))
    parts: list[RenderableType] = [Text(d.name, "bold"), facts, Text("")]
    if problem := replaced_table(d, table):
        parts.insert(1, Text(f"! {problem}", "yellow"))
    return Group(*parts, columns_table(table.columns))


def _origin(d: Dataset) -> str:
    return f"adopted, history: {d.history.value}" if d.adopted else "new"


def _minute(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M}Z"


def adopted(name: str, rows: int, steps: int) -> RenderableType:
    if not rows:
        return done(f"{name}: every row has its number")
    return done(f"{name}: {plural(rows, 'row')} numbered in {plural(steps, 'step')}")


def alterations(changes: Sequence[Alteration]) -> list[str]:
    from strandline.iceberg.schema.alteration import AddColumn, DropColumn, RenameColumn, WidenColumn
    from strandline.iceberg.schema.columns import type_text

    said = []
    for change in changes:
        match change:
            case AddColumn(name, kind):
                said.append(f"add {name}: {type_text(kind)}")
            case WidenColumn(name, kind):
                said.append(f"widen {name} to {type_text(kind)}")
            case RenameColumn(name, new):
                said.append(f"rename {name} to {new}")
            case DropColumn(name):
                said.append(f"drop {name}")
    return said


def altered(name: str, said: Sequence[str]) -> RenderableType:
    return Group(done(f"{name} is changed"), *(Text(f"  {line}") for line in said))


def migrated(found: Migrated | None, version: str) -> RenderableType:
    if found is None:
        return done(f"The ledger has version {version}, the newest that this program knows")
    kept = "" if found.copy is None else f"; as it was, it is kept in {found.copy}"
    return done(f"The ledger went from version {found.before} to {found.after}{kept}")


def resynced(found: Resynced, what: str) -> RenderableType:
    lines = [done(f"{what} (epoch {found.epoch})")]
    if found.gap is not None:
        lines.append(Text(f"  Numbers that it did not know, and that stay taken: {found.gap}"))
    if found.rolled_forward:
        lines.append(Text(f"  Published: {', '.join(map(str, found.rolled_forward))}"))
    if found.datasets_found:
        lines.append(Text(f"  Datasets found: {', '.join(found.datasets_found)}"))
    if found.batches:
        lines.append(Text(f"  Batches taken back from the tables' history: {found.batches:,}"))
    return Group(*lines)


def recovered(found: Recovered) -> RenderableType:
    lines: list[RenderableType] = []
    for label, ranges in (("Published", found.published), ("Abandoned", found.abandoned)):
        if ranges:
            lines.append(done(f"{label}: {', '.join(map(str, ranges))}"))
    if found.waiting:
        live = ", ".join(map(str, found.waiting))
        lines.append(Text.assemble(NOTHING, f" Left alone, its writer may be alive: {live}"))
    lines += [Text.assemble(BAD, f" Held: {held}") for held in found.held]
    if found.branches_removed:
        lines.append(done(f"{plural(found.branches_removed, 'left-over branch')} removed"))
    return Group(*lines) if lines else done("Nothing was open")
