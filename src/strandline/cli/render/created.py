"""A dataset that was made: its columns, and what was guessed about them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from strandline.cli.render.common import OK, columns_table, dataset_document
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
    if found.guesses or found.empty:
        name = found.guesses[0].column if found.guesses else found.empty[0]
        likely = found.guesses[0].likely if found.guesses else "TYPE"
        yield (
            f"  To choose otherwise: strandline dataset drop {made.name}, and create it again with "
            f"--types '{name}:{likely}' (rows that do not fit are then rejected) or with --schema FILE"
        )


def _misfits(guess: Guess) -> str:
    fit = f"{part(guess.values - guess.misfits, guess.values, 'value', 'fits')} {guess.likely}"
    shown = ", ".join(f'"{text}" in line {line}' for line, text in guess.examples)
    return f"{fit}, {guess.misfits:,} {agreeing(guess.misfits, 'does')} not: {shown}"


def document(made: Dataset, found: Inferred, *, inferred_from: Path | None) -> dict[str, Any]:
    from strandline.iceberg.schema.columns import to_json

    return dataset_document(made) | {
        "columns": to_json(found.columns),
        "inferred_from": inferred_from,
        "guesses": [
            {
                "column": g.column,
                "likely": g.likely,
                "values": g.values,
                "misfits": g.misfits,
                "examples": [{"line": line, "text": text} for line, text in g.examples],
            }
            for g in found.guesses
        ],
        "columns_without_values": list(found.empty),
        "sampled_rows": found.sampled_rows,
    }
