"""Writes docs/cli.md from the command line itself and from errors.py.

`--check` writes nothing and fails where the file is not what it should be.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import typer
from generated import write_or_check

from strandline.cli.main import application
from strandline.core import errors
from strandline.core.errors import StrandlineError

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "cli.md"

EVERYWHERE = ("config", "json")
"""Said once at the top, not at every command."""

INTRODUCTION = """\
# The command line

<!-- Made from src/strandline/cli and src/strandline/core/errors.py by `make docs`. Do not edit. -->

Every command takes `--config FILE`: the lake's settings file, or its folder. Without it, the environment variable
`STRANDLINE_CONFIG` says it; without that, it is `strandline.toml` in the current folder.

Every command takes `--json`: one JSON document on standard output and nothing else there. An error is a document too:
`{"error": {"type", "message", "hint", "retryable"}}`. In JSON, what is not known is `null`, never 0.

Results go to standard output, everything else to standard error. On a terminal long work shows its progress; in a pipe
it is quiet. Dataset names are `TABLE` or `NAMESPACE.TABLE`; the namespace is `default` where none is given.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | it was tried and did not work |
| 2 | wrong usage: the request itself cannot be |
| 3 | refused: a guard said no |
| 130 | interrupted (Ctrl-C) |
| 141 | the reader of a pipe has gone |
"""

ERRORS = """\
## Errors

An error says what happened and, where there is something to do, what to do next (`hint`). Where trying again helps,
`retryable` is true. `type` in the JSON document is one of these; or `UnexpectedError` (exit 1), which is a fault of the
program and worth a report.

| type | exit | again? | meaning |
|---|---|---|---|
"""


def reference() -> str:
    root = typer.main.get_command(application())
    parts = [INTRODUCTION]
    parts += [_command(path, command) for path, command in _leaves(("strandline",), root)]
    return "\n".join([*parts, ERRORS + _errors()])


def _leaves(path: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    children = getattr(command, "commands", None)
    if children is None:
        yield path, command
        return
    if command.invoke_without_command and len(path) > 1:  # a command of its own, and not only a name before others
        yield path, command
    for name, child in children.items():
        yield from _leaves((*path, name), child)


def _command(path: tuple[str, ...], command: Any) -> str:
    arguments = [p for p in command.params if not _is_option(p)]
    options = [p for p in command.params if _is_option(p) and not p.hidden]
    own = [o for o in options if o.name not in EVERYWHERE]
    usage = [*path, *(_usage(a) for a in arguments), *(f"{_spelled(o)}" for o in own if o.required)]
    usage += ["[OPTIONS]"] if any(not o.required for o in options) else []
    said = _cell(inspect.cleandoc(command.help or "").replace("\\[", "["))
    lines = [f"## `{' '.join(path)}`", "", said, "", f"    {' '.join(usage)}", ""]
    described = [*arguments, *own]
    if described:
        lines += ["| | | default |", "|---|---|---|"]
        lines += [f"| `{_shown(p)}` | {_meaning(p)} | {_default(p)} |" for p in described]
        lines.append("")
    if missing := [n for n in EVERYWHERE if n not in {o.name for o in options}]:
        lines += [f"It does not take {' or '.join(f'`--{n}`' for n in missing)}.", ""]
    return "\n".join(lines)


def _is_option(parameter: Any) -> bool:
    return bool(parameter.opts[0].startswith("-"))


def _usage(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    name = f"{name}…" if argument.nargs == -1 and not name.endswith("…") else name
    return name if argument.required else f"[{name}]"


def _spelled(option: Any) -> str:
    if option.is_flag:
        return str(option.opts[0])
    return f"{option.opts[0]} {option.metavar or _choices(option) or option.name.upper()}"


def _choices(option: Any) -> str | None:
    return "|".join(str(m.value) for m in type(option.default)) if isinstance(option.default, Enum) else None


def _shown(parameter: Any) -> str:
    text = _spelled(parameter) if _is_option(parameter) else _usage(parameter)
    return text.replace("|", "\\|")


def _meaning(parameter: Any) -> str:
    said = _without_default(parameter.help or "")[0]
    return _cell(said) + (" Required." if _is_option(parameter) and parameter.required else "")


def _default(parameter: Any) -> str:
    if isinstance(parameter.show_default, str):
        return _cell(parameter.show_default)
    if said := _without_default(parameter.help or "")[1]:
        return _cell(said)
    value = parameter.default
    if value is None or value is False or callable(value):
        return ""
    return f"`{value.value if isinstance(value, Enum) else value}`"


def _without_default(text: str) -> tuple[str, str | None]:
    found = re.fullmatch(r"(.*?)\s*\[default: (.*)\]", text, re.DOTALL)
    return (text, None) if found is None else (found[1], found[2])


def _cell(text: str) -> str:
    """Markdown would take these for something else."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("~", "\\~").replace("*", "\\*")


def _errors() -> str:
    meanings = dict(re.findall(r"^[│├└─ ]+(\w+)[ ]{1,}(\S.*?)(?:[ ]{2,}exit \d)?$", errors.__doc__ or "", re.MULTILINE))
    rows = []
    for kind in _tree(StrandlineError):
        again = "yes" if kind.retryable else ""
        rows.append(f"| `{kind.__name__}` | {kind.exit_code} | {again} | {_cell(meanings.get(kind.__name__, ''))} |")
    return "\n".join(rows) + "\n"


def _tree(kind: type[StrandlineError]) -> Iterator[type[StrandlineError]]:
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            yield child
            yield from _tree(child)


if __name__ == "__main__":
    sys.exit(write_or_check(TARGET, reference()))
