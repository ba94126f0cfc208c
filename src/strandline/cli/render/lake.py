"""Renders the lake, its datasets and its ledger."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from strandline.cli.render.elements import BAD, OK, dim, done, grid, nothing
from strandline.core.sites.replication import shard_ids, shard_span
from strandline.core.text.wording import agreeing, moment, part, plural
from strandline.status.documents.lake_documents import replaced_table

if TYPE_CHECKING:
    from strandline.core.types import Dataset, NumberedRows
    from strandline.iceberg.pyiceberg.schema import TableDescription
    from strandline.iceberg.schema.alteration import Alteration
    from strandline.iceberg.schema.columns import Column
    from strandline.iceberg.schema.infer import Guess, Inferred
    from strandline.iceberg.session.runtime import RuntimeCheck
    from strandline.ingest.recover import Recovered
    from strandline.ingest.resync.run import Resynced
    from strandline.ledger.engine import Migrated


def initialised(lake: str, path: Path) -> RenderableType:
    head = Text.assemble(OK, " A new lake: ", (lake, "bold"))
    return _new_site(head, path, "strandline dataset create NAME --like FILE")


def follows(lake: str, path: Path, leader: str) -> RenderableType:
    head = Text.assemble(OK, " This site follows ", (leader, "bold"), " in lake ", (lake, "bold"))
    return _new_site(head, path, "strandline follow")


def _new_site(head: Text, path: Path, next_command: str) -> RenderableType:
    return Group(head, Text.assemble("  Its settings: ", (str(path), "cyan")), dim(f"  Next: {next_command}"))


def checks(found: Sequence[RuntimeCheck]) -> list[RenderableType]:
    table = grid("", "", "")
    for check in found:
        table.add_row(Text(*(OK if check.ok else BAD)), Text(check.name, "bold"), Text(check.detail))
        if check.hint:
            table.add_row("", "", Text(check.hint, "yellow" if not check.ok else "dim"))
    failed = sum(not c.ok for c in found)
    verdict = (
        Text("All checks passed.", "green") if not failed else Text(f"{plural(failed, 'check')} failed.", "bold red")
    )
    return [table, verdict]


def columns_table(columns: Sequence[Column]) -> Table:
    from strandline.iceberg.schema.columns import type_text

    table = grid("", "", "")
    for column in columns:
        note = " ".join(filter(None, ["required" if column.required else "", column.doc or ""]))
        table.add_row(Text(f"  {column.name}"), Text(type_text(column.type), "cyan"), Text(note, "dim"))
    return table


def created(made: Dataset, found: Inferred, *, inferred_from: Path | None) -> RenderableType:
    head = Text.assemble(OK, " Dataset ", (made.name, "bold"))
    if made.deliver_by:
        head.append(f", delivered by {', '.join(made.deliver_by)}")
    if made.shards > 1:
        head.append(f", shards {shard_span(shard_ids(made.first_shard, made.shards))}")
    parts: list[RenderableType] = [head]
    if inferred_from is not None:
        sample = "" if found.sampled_rows is None else f"the first {plural(found.sampled_rows, 'row')} of "
        parts.append(Text(f"  Columns as found in {sample}{inferred_from}:", "dim"))
    parts.append(columns_table(found.columns))
    parts += [Text(line, "yellow") for line in _doubts(made, found)]
    return Group(*parts)


def _doubts(made: Dataset, found: Inferred) -> Iterator[str]:
    for guess in found.guesses:
        yield f"! {guess.column} is a string: {_misfits(guess)}"
    if found.empty:
        yield f"! {', '.join(found.empty)}: a string, because no row of the file has a value there"
    if found.empty_objects:
        yield f"! {', '.join(found.empty_objects)}: a map of strings, because every object there is empty"
    doubted = [*(g.column for g in found.guesses), *found.empty, *found.empty_objects]
    if not doubted:
        return
    # --types takes columns, but no nested fields.
    likely = {g.column: g.likely for g in found.guesses}
    of_columns = [name for name in doubted if name in {c.name for c in found.columns}]
    chosen = "with --schema FILE"
    if of_columns:
        chosen = (
            f"with --types '{of_columns[0]}:{likely.get(of_columns[0], 'TYPE')}' (rows that do not fit are then "
            "rejected) or with --schema FILE"
        )
    yield f"  To choose otherwise: strandline dataset drop {made.name}, and create it again {chosen}"


def _misfits(guess: Guess) -> str:
    fit = f"{part(guess.values - guess.misfits, guess.values, 'value', 'fits')} {guess.likely}"
    shown = ", ".join(f'"{text}" in line {line}' for line, text in guess.examples)
    return f"{fit}, {guess.misfits:,} {agreeing(guess.misfits, 'does')} not: {shown}"


def datasets(found: Sequence[Dataset]) -> RenderableType:
    if not found:
        return Text("No datasets yet. `strandline dataset create NAME --like FILE` creates one.", "dim")
    table = grid("dataset", "delivered by", "came as", "created")
    for d in found:
        values = ", ".join(d.deliver_by) or "–", _origin(d), moment(d.created_at)
        table.add_row(Text(d.name, "bold"), *map(Text, values))
    return table


def shown(d: Dataset, table: TableDescription) -> RenderableType:
    facts = grid("", "")
    for label, value in (
        ("delivered by", ", ".join(d.deliver_by) or "–"),
        ("partitioned by", ", ".join(table.partition_by) or "–"),
        ("came as", _origin(d)),
        ("created", moment(d.created_at)),
        ("shards", shard_span(shard_ids(d.first_shard, d.shards))),
        ("id", d.uuid),
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


def adopted(name: str, found: NumberedRows) -> RenderableType:
    if not found.rows:
        return done(f"{name}: every row has its sequence number")
    return done(f"{name}: {plural(found.rows, 'row')} numbered in {plural(found.steps, 'step')}")


def altered(name: str, changes: Sequence[Alteration]) -> RenderableType:
    from strandline.iceberg.schema.alteration import alteration_text

    return Group(done(f"{name} is changed"), *(Text(f"  {alteration_text(change)}") for change in changes))


def migrated(found: Migrated | None, version: str) -> RenderableType:
    if found is None:
        return done(f"The ledger has version {version}, the newest one")
    copied = "" if found.copy is None else f"; a copy of the old one is {found.copy}"
    return done(f"The ledger is migrated from version {found.before} to {found.after}{copied}")


def resynced(found: Resynced, what: str) -> RenderableType:
    facts = {
        "Sequence numbers that it did not know, and that are never used again": found.gap,
        "Published": ", ".join(map(str, found.rolled_forward)),
        "Datasets found": ", ".join(found.datasets_found),
        "Batches learned from the tables' history": f"{found.batches:,}" if found.batches else "",
    }
    lines: list[RenderableType] = [Text(f"  {label}: {value}") for label, value in facts.items() if value]
    if found.followers_forgotten:
        names = ", ".join(found.followers_forgotten)
        lines.append(Text.assemble(BAD, f" The ledger had forgotten followers that the tables know: {names}"))
        lines.append(
            Text(
                "  Retention keeps everything for them. `strandline follower add NAME` gives one a new token; "
                "`strandline follower remove NAME` forgets one that is gone."
            )
        )
    return Group(done(f"{what} (epoch {found.epoch})"), *lines)


def recovered(found: Recovered) -> RenderableType:
    lines: list[RenderableType] = []
    for label, ranges in (("Published", found.published), ("Abandoned", found.abandoned)):
        if ranges:
            lines.append(done(f"{label}: {', '.join(map(str, ranges))}"))
    if found.waiting:
        live = ", ".join(map(str, found.waiting))
        lines.append(nothing(f"Left alone, because the writer may be alive: {live}"))
    lines += [Text.assemble(BAD, f" Held: {held}") for held in found.held]
    if found.branches_removed:
        lines.append(done(f"{plural(found.branches_removed, 'left-over branch')} removed"))
    return Group(*lines) if lines else done("No block was open")
