"""The kinds of sinks: ours, and those that installed packages bring."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points

from strandline.core.errors import UsageError
from strandline.core.secrets import read_secret, resolve_secret
from strandline.deliver.sink import ENTRY_POINTS, SinkKind

# Also declared as entry points. They are repeated here because an editable install keeps the metadata of the day it was
# installed, and because no package may take one of these names for a kind of its own.
_BUILT_IN = {
    "files": "strandline.deliver.sinks.files.sink:KIND",
    "s3": "strandline.deliver.sinks.s3.sink:KIND",
    "postgres": "strandline.deliver.sinks.postgres.sink:KIND",
    "forward": "strandline.deliver.sinks.forward.sink:KIND",
    "iceberg": "strandline.deliver.sinks.iceberg.sink:KIND",
}

_SECRET_PREFIXES = ("env:", "file:")


def kind_names() -> list[str]:
    return sorted({*_BUILT_IN, *(found.name for found in entry_points(group=ENTRY_POINTS))})


def find_kind(name: str) -> SinkKind:
    kind: object = _entry_point(name).load()
    if not isinstance(kind, SinkKind):
        raise UsageError(
            f"the package that brings the kind {name} does not name a SinkKind under the entry point {ENTRY_POINTS}",
            hint="Ask its maintainer.",
        )
    return kind


def _entry_point(name: str) -> EntryPoint:
    if name in _BUILT_IN:
        return EntryPoint(name, _BUILT_IN[name], ENTRY_POINTS)
    found = {(e.value, e) for e in entry_points(group=ENTRY_POINTS, name=name)}
    if not found:
        raise UsageError(
            f"there is no kind of sink called {name}",
            hint=f"There are: {', '.join(kind_names())}. Packages may bring more (entry point {ENTRY_POINTS}).",
        )
    values = sorted({value for value, _ in found})
    if len(values) > 1:
        raise UsageError(f"two packages bring a kind of sink called {name}: {' and '.join(values)}")
    return next(iter(found))[1]


def check_options(kind: SinkKind, options: Mapping[str, str]) -> None:
    """Raises UsageError for an unknown, missing or invalid option, and for a secret in plain text."""
    known = {option.name: option for option in kind.options}
    for given in options:
        if given not in known:
            names = ", ".join(f"{o.name} (required)" if o.required else o.name for o in known.values())
            raise UsageError(f"this kind of sink has no option {given}", hint=f"It has: {names}.")
    for option in known.values():
        value = options.get(option.name)
        if value is None and option.required:
            raise UsageError(
                f"this kind of sink needs the option {option.name}",
                hint=f"--option {option.name}=…: {option.description}",
            )
        if value is None:
            continue
        if option.check is not None:
            option.check(value)
        if option.secret and (value in _SECRET_PREFIXES or not value.startswith(_SECRET_PREFIXES)):
            raise UsageError(
                f"{option.name} is a secret, and a secret is never stored",
                hint=f"Put it into an environment variable or a file, and name that: --option {option.name}=env:NAME, "
                f"or {option.name}=file:PATH.",
            )


def resolve(kind: SinkKind, options: Mapping[str, str]) -> dict[str, str]:
    """Options with defaults filled in and `env:NAME` and secrets' `file:PATH` read. Never store or show them."""
    check_options(kind, options)
    resolved = {o.name: o.default for o in kind.options if o.default is not None}
    secrets = {o.name for o in kind.options if o.secret}
    for given, value in options.items():
        found = read_secret(value) if given in secrets else resolve_secret(value)
        if found is not None:
            resolved[given] = found
    return resolved
