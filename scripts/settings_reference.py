"""Writes docs/settings.md from config.py, so that what users read is what the program checks.

`--check` writes nothing and fails where the file is not what it should be.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import sys
import types
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from generated import write_or_check
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from strandline.core.settings.lake_config import CONFIG_NAME, Settings
from strandline.core.settings.section import Cron
from strandline.core.text import duration

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "settings.md"

INTRODUCTION = f"""\
# Settings

<!-- Made from src/strandline/core/settings/lake_config.py by `make docs`. Do not edit. -->

One TOML file holds the settings of a lake: `{CONFIG_NAME}`, which `strandline init` writes. Everything has a default,
so the file may be empty. A command uses the file that `--config` names (a file, or a folder that has one), else the one
that `STRANDLINE_CONFIG` names, else the one in the current folder. Paths in it are relative to the file.

Every setting can be overridden by an environment variable: `STRANDLINE_`, the section, two underscores, the setting.
The environment wins over the file. A whole table of `options` is given as JSON:
`STRANDLINE_SPARK__OPTIONS='{{"spark.executor.memory": "4g"}}'`.

A duration is a number and a unit, `s`, `m`, `h` or `d`: `90s`, `15m`, `12h`, `30d`. A schedule is written as cron
writes it, with five fields, in UTC.

A secret need not stand in the file. In `warehouse.access_key`, `warehouse.secret_key` and the values of
`catalog.options`, a value `env:NAME` is read from the environment variable `NAME` when it is needed, and is never
stored. The password of a PostgreSQL ledger comes from `STRANDLINE_LEDGER__URL`, or from PostgreSQL's own `PGPASSWORD`
or password file.

A name that is not in this list is refused, and so is a value outside its bounds: the command ends with exit code 2 and
says which one. Only in `[reconcile]` a number outside its bounds is taken for the nearest bound.
"""

OTHER_VARIABLES = (
    ("STRANDLINE_CONFIG", "The settings file, or its folder, where `--config` is not given."),
    (
        "STRANDLINE_CACHE",
        "Where the Iceberg jars, the class archive and the logs are kept: by default `~/.cache/strandline`, on macOS "
        "`~/Library/Caches/strandline`. Everything in it can be deleted at any time.",
    ),
    ("STRANDLINE_DEBUG", "Set to anything: errors come with a traceback."),
    (
        "STRANDLINE_FAILPOINT",
        "Kills, stops or fails the process at a named point, to see that it recovers. The points are listed in "
        "`src/strandline/core/failpoints.py`.",
    ),
    ("JAVA_HOME", "The Java to use. Without it, the first fit one that is found."),
)


def reference() -> str:
    parts = [INTRODUCTION, _example()]
    parts += [_section(name, field) for name, field in Settings.model_fields.items()]
    return "\n".join([*parts, _other_variables()])


def _other_variables() -> str:
    lines = ["## Other environment variables", "", "| variable | meaning |", "|---|---|"]
    return "\n".join([*lines, *(f"| `{name}` | {meaning} |" for name, meaning in OTHER_VARIABLES), ""])


def _example() -> str:
    return """\
```toml
[warehouse]
url = "s3://lake/events"
access_key = "env:LAKE_KEY"
secret_key = "env:LAKE_SECRET"

[ledger]
url = "postgresql://strandline@db.internal/lake"

[ingest]
lease_seconds = 300

[maintain]
compact_schedule = "30 3 * * *"

[maintain.retain.events]
older_than = "30d"
```
"""


def _section(name: str, field: FieldInfo) -> str:
    section = field.annotation
    if not _is_section(section):
        raise TypeError(f"{name} is not a section")
    return _table(name, section)


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _table(name: str, section: Any) -> str:
    """A section, and below it the sections within it."""
    lines = [f"## `[{name}]`", ""]
    if section.__dict__.get("__doc__"):
        lines += [inspect.cleandoc(section.__doc__ or ""), ""]
    lines += ["| setting, and its environment variable | value | default | meaning |", "|---|---|---|---|"]
    within, meanings = [], _meanings(section)
    for setting, info in section.model_fields.items():
        if _is_section(info.annotation):
            within.append(_table(f"{name}.{setting}", info.annotation))
            continue
        if _holds_sections(info.annotation):
            within.append(_table(f"{name}.{setting}.<name>", get_args(info.annotation)[1]))
        both = f"`{setting}`<br>`{_variable(name, setting)}`"
        cells = (both, _type(info.annotation) + _bounds(info), _default(info), meanings[setting])
        lines.append("| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |")
    return "\n".join([*lines, "", *within])


def _meanings(section: type[BaseModel]) -> dict[str, str]:
    """The text below each setting."""
    [found] = ast.parse(inspect.getsource(section)).body
    return {
        setting.target.id: " ".join(text.value.value.split())
        for setting, text in itertools.pairwise(found.body)
        if isinstance(setting, ast.AnnAssign) and isinstance(text, ast.Expr)
    }


def _variable(name: str, setting: str) -> str:
    return "STRANDLINE_" + f"{name}.{setting}".upper().replace(".", "__")


def _holds_sections(annotation: Any) -> bool:
    return get_origin(annotation) is dict and _is_section(get_args(annotation)[1])


def _type(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return " or ".join(f"`{value}`" for value in get_args(annotation))
    if get_origin(annotation) in (Union, types.UnionType):
        return " or ".join(_type(a) for a in get_args(annotation) if a is not type(None))
    if get_origin(annotation) is Annotated:
        return "cron" if annotation is Cron else _type(get_args(annotation)[0])
    if get_origin(annotation) is dict:
        return "sections" if _holds_sections(annotation) else "table of strings"
    if get_origin(annotation) is list:
        return "list of strings"
    names = {str: "string", int: "integer", float: "number", bool: "boolean", timedelta: "duration"}
    return names[annotation]


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "must be set"
    value = info.get_default(call_default_factory=True)
    if value is None:
        return "none"
    if isinstance(value, timedelta):
        return f"`{duration.spell(value)}`"
    if isinstance(value, dict | list):
        return "empty" if not value else f"`{value}`"
    return f"`{value}`"


def _bounds(info: FieldInfo) -> str:
    words = {annotated_types.Ge: "≥", annotated_types.Gt: ">", annotated_types.Le: "≤", annotated_types.Lt: "<"}
    found = []
    for bound in info.metadata:
        for kind, sign in words.items():
            if isinstance(bound, kind):
                found.append(f"{sign} {getattr(bound, kind.__name__.lower()):,}")
    return "".join(f", {bound}" for bound in found)


if __name__ == "__main__":
    sys.exit(write_or_check(TARGET, reference()))
