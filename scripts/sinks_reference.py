"""Writes docs/sinks-options.md from the kinds of sinks that Strandline brings, and from PostgreSQL's table of types.

`--check` writes nothing and fails where the file is not what it should be.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from generated import write_or_check

from strandline.deliver.sink import Option
from strandline.deliver.sink_kinds import find_kind
from strandline.deliver.sink_options import COMMON
from strandline.deliver.sinks.postgres.columns import TYPE_RULES

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "sinks-options.md"

INTRODUCTION = """\
# Options of sinks

<!-- Made from src/strandline/deliver by `make docs`. Do not edit. -->

Options are given as `--option NAME=VALUE` to `strandline sink add` and `strandline sink update`. A value `env:NAME` is
read from the environment variable `NAME` when it is needed, and is never stored. [sinks.md](sinks.md) explains sinks;
`strandline sink kinds` shows this list for what is installed, kinds of other packages too.
"""

TYPES = """\
## Types in PostgreSQL

What a column becomes where the sink creates it (`create=true`), and what a table of your own may have instead. `text`,
and `varchar` without a length, take everything. [types.md](types.md) says which of Iceberg's types a dataset can have.
"""


def reference() -> str:
    parts = [INTRODUCTION, "## Every kind\n", _options(COMMON)]
    for name in ("files", "s3", "postgres", "forward", "iceberg"):
        parts += [f"## `{name}`\n", _options(find_kind(name).options)]
    rules = ((f"`{r.iceberg}`", f"`{r.created}`", _list(r.also), r.note) for r in TYPE_RULES)
    return "\n".join([*parts, TYPES, _table(("Iceberg", "created as", "or", "note"), rules)])


def _options(options: Sequence[Option]) -> str:
    return _table(
        ("option", "default", "meaning"),
        ((f"`{o.name}`", _default(o), o.description + _secret(o)) for o in options),
    )


def _default(option: Option) -> str:
    if option.required:
        return "required"
    return "" if option.default is None else f"`{option.default}`"


def _secret(option: Option) -> str:
    return " A secret: nothing else is accepted." if option.secret else ""


def _list(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *(f"| {' | '.join(cells)} |" for cells in rows), ""])


if __name__ == "__main__":
    sys.exit(write_or_check(TARGET, reference()))
