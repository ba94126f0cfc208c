"""Reads declarations from TOML. Several files are one declaration. Every error names its file and its table."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from strandline.apply.declaration import DatasetSpec, Declaration, SinkSpec
from strandline.core.errors import ConfigError, InputError, UsageError
from strandline.core.settings.maintain import RetainSettings
from strandline.core.settings.section import Cron, named_tables
from strandline.core.sites.replication import SHARDS_MAX
from strandline.core.text.wording import nearest
from strandline.core.types import History
from strandline.iceberg.metadata.identifier import full_name
from strandline.iceberg.schema.partitioning import parse_partition_by
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.ledger.applied_settings import RECONCILE_ACT, SCHEDULES

DECLARATION_NAME = "lake.toml"

_TABLES = ("dataset", "sink", "retain", "schedule")
_DATASET_KEYS = ("columns", "partition_by", "deliver_by", "adopted", "shards")
_SINK_KEYS = ("dataset", "kind", "options", "from")
_CRON = TypeAdapter(Cron)
_Spec = TypeVar("_Spec")


def read_declaration(paths: Sequence[Path]) -> Declaration:
    """Raises ConfigError for a file that is no declaration, and for a name that two files declare."""
    datasets: dict[str, DatasetSpec] = {}
    sinks: dict[str, SinkSpec] = {}
    rules: dict[str, RetainSettings] = {}
    schedules: dict[str, str] = {}
    for path in paths:
        found = _read(path)
        for what, into, more in (
            ("dataset", datasets, found.datasets),
            ("sink", sinks, found.sinks),
            ("retain", rules, found.rules),
            ("schedule", schedules, found.schedules),
        ):
            _merge(path, what, into, more)
    return Declaration(datasets, sinks, rules, schedules)


def _merge(path: Path, what: str, into: dict[str, Any], more: Mapping[str, Any]) -> None:
    if twice := sorted(into.keys() & more.keys()):
        raise ConfigError(f"{path}: {what} {twice[0]} is declared in another file, too", hint="Keep one of them.")
    into.update(more)


def _read(path: Path) -> Declaration:
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError as e:
        raise ConfigError(f"{path} is not UTF-8 text", hint="Save it as UTF-8.") from e
    except OSError as e:
        raise InputError(f"{path} cannot be read: {e.strerror}", hint="Check the path and its permissions.") from e
    try:
        return parse_declaration(text)
    except UsageError as e:
        raise ConfigError(f"{path}: {e.message}", hint=e.hint or "`docs/apply.md` shows what a declaration has.") from e


def parse_declaration(text: str) -> Declaration:
    """Pure. Raises UsageError."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise ConfigError(f"this is not TOML: {e}", hint="`docs/apply.md` shows a whole declaration.") from e
    _known_keys(values, _TABLES, "a declaration")
    return Declaration(
        _named(values, "dataset", full_name, _dataset),
        _named(values, "sink", str, _sink),
        _named(values, "retain", full_name, _rule),
        _schedules(_table(values.get("schedule", {}), "schedule")),
    )


def _named(
    values: Mapping[str, Any],
    what: str,
    name_of: Callable[[str], str],
    parse: Callable[[str, Mapping[str, Any]], _Spec],
) -> dict[str, _Spec]:
    found: dict[str, _Spec] = {}
    for written, table in named_tables(_table(values.get(what, {}), what)):
        name = name_of(written)
        if name in found:
            raise ConfigError(f"{what} {name} is declared twice", hint="Keep one of them.")
        found[name] = parse(name, _table(table, f"{what} {written}"))
    return found


def _dataset(name: str, table: Mapping[str, Any]) -> DatasetSpec:
    where = f"dataset {name}"
    _known_keys(table, _DATASET_KEYS, where)
    if "columns" not in table:
        raise ConfigError(f"{where} has no columns", hint='columns = [{ name = "id", type = "long" }, …]')
    adopted = table.get("adopted")
    if adopted is not None and adopted not in tuple(History):
        raise ConfigError(f'{where}: adopted must be "deliver" or "skip", as in `dataset adopt --history`')
    try:
        columns = parse_columns(table["columns"])
        partition_by = _partition_by(table.get("partition_by", []), where, adopted=adopted is not None)
    except UsageError as e:
        raise ConfigError(f"{where}: {e.message}", hint=e.hint) from e
    deliver_by = _texts(table.get("deliver_by", []), f"{where}: deliver_by")
    shards = table.get("shards", 1)
    if type(shards) is not int or not 1 <= shards <= SHARDS_MAX:
        raise ConfigError(f"{where}: shards must be a whole number from 1 to {SHARDS_MAX}")
    return DatasetSpec(name, columns, partition_by, deliver_by, None if adopted is None else History(adopted), shards)


def _partition_by(value: object, where: str, *, adopted: bool) -> tuple[str, ...]:
    texts = _texts([value] if isinstance(value, str) else value, f"{where}: partition_by")
    if adopted or not texts:  # a table that others made may be partitioned in ways that `dataset create` does not know
        return texts
    return tuple(p.spelled for p in parse_partition_by(", ".join(texts)))


def _sink(name: str, table: Mapping[str, Any]) -> SinkSpec:
    where = f"sink {name}"
    _known_keys(table, _SINK_KEYS, where)
    for key in ("dataset", "kind"):
        if not isinstance(table.get(key), str):
            raise ConfigError(f"{where} does not say its {key}", hint=f'{key} = "…"')
    start = table.get("from", "beginning")
    if start not in ("beginning", "now"):
        raise ConfigError(f'{where}: from must be "beginning" or "now"')
    options = {k: _option(f"{where}: {k}", v) for k, v in _table(table.get("options", {}), f"{where}: options").items()}
    return SinkSpec(name, full_name(table["dataset"]), table["kind"], options, start == "now")


def _option(where: str, value: object) -> str:
    """An option as text. Errors do not show the value: it may be a secret."""
    match value:
        case bool():
            return "true" if value else "false"
        case str() | int():
            return str(value)
    raise ConfigError(f"{where} must be text, a whole number, true or false")


def _rule(name: str, table: Mapping[str, Any]) -> RetainSettings:
    try:
        return RetainSettings(**table)
    except ValidationError as e:
        said = "; ".join(f"{'.'.join(map(str, x['loc'])) or 'it'}: {_said(x['msg'])}" for x in e.errors())
        raise ConfigError(f"retain {name}: {said}", hint="`docs/settings.md` explains what a rule has.") from e


def _schedules(table: Mapping[str, Any]) -> dict[str, str]:
    _known_keys(table, (*SCHEDULES, RECONCILE_ACT), "schedule")
    found: dict[str, str] = {}
    for name, value in table.items():
        if name == RECONCILE_ACT:
            if not isinstance(value, bool):
                raise ConfigError(f"schedule: {name} must be true or false")
            found[name] = "true" if value else "false"
            continue
        try:
            found[name] = _CRON.validate_python(value)
        except ValidationError as e:
            raise ConfigError(f"schedule: {name}: {_said(e.errors()[0]['msg'])}") from e
    return found


def _said(message: object) -> str:
    return str(message).removeprefix("Value error, ")


def _table(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where} must be a table")
    return value


def _texts(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise ConfigError(f"{where} is a list of names")
    return tuple(value)


def _known_keys(table: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in table:
        if key not in known:
            near = nearest(key, known, 1)
            meant = f"; perhaps {near[0]} is meant" if near else ""
            raise ConfigError(f"{where} has no {key}{meant}", hint=f"It has: {', '.join(known)}.")
