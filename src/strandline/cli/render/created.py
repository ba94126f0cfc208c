"""A new dataset: its columns, and what was guessed about them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from strandline.cli.render.common import OK, columns_table
from strandline.core.types import Dataset
from strandline.core.wording import agreeing, part, plural

if TYPE_CHECKING:
    from strandline.iceberg.schema.infer import Guess, Inferred


def created(made: Dataset, found: Inferred, *, inferred_from: Path | None) -> RenderableType:
    head = Text.assemble(OK, " Dataset ", (made.name, "bold"))
    if made.deliver_by:
        head.append(f", delivered by {', '.join(made.deliver_by)}")
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
