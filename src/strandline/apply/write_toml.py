"""Writes a declaration as TOML: the same values always give the same text, one line for each thing that may change."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from strandline.apply.declaration import DatasetSpec, Declaration, SinkSpec
from strandline.iceberg.metadata.identifier import short_name
from strandline.iceberg.schema.columns import to_json
from strandline.ledger.applied_settings import RECONCILE_ACT, SCHEDULES

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def write_declaration(declared: Declaration, comments: Sequence[str] = ()) -> str:
    """The declaration as TOML: datasets, sinks, rules and schedules, each by name. `comments` come first."""
    parts = [_dataset(spec) for _, spec in sorted(declared.datasets.items())]
    parts += [_sink(spec) for _, spec in sorted(declared.sinks.items())]
    parts += [_table(["retain", short_name(name)], rule.spelled()) for name, rule in sorted(declared.rules.items())]
    if declared.schedules:
        order = (*SCHEDULES, RECONCILE_ACT)
        values = {name: declared.schedules[name] for name in order if name in declared.schedules}
        parts.append(_table(["schedule"], {n: v == "true" if n == RECONCILE_ACT else v for n, v in values.items()}))
    head = "".join(f"# {line}\n" for line in comments)
    return "\n".join([*([head] if head else []), *parts])


def _dataset(spec: DatasetSpec) -> str:
    values: dict[str, Any] = {}
    if spec.adopted is not None:
        values["adopted"] = spec.adopted.value
    if spec.partition_by:
        values["partition_by"] = list(spec.partition_by)
    if spec.deliver_by:
        values["deliver_by"] = list(spec.deliver_by)
    if spec.shards != 1:
        values["shards"] = spec.shards
    columns = [{k: v for k, v in c.items() if k != "required" or v} for c in to_json(spec.columns)]
    lines = "".join(f"    {_value(column)},\n" for column in columns)
    return f"{_table(['dataset', short_name(spec.name)], values)}columns = [\n{lines}]\n"


def _sink(spec: SinkSpec) -> str:
    values: dict[str, Any] = {"dataset": short_name(spec.dataset), "kind": spec.kind}
    if spec.from_now:
        values["from"] = "now"
    text = _table(["sink", spec.name], values)
    if spec.options:
        text += "\n" + _table(["sink", spec.name, "options"], dict(sorted(spec.options.items())))
    return text


def _table(names: Sequence[str], values: Mapping[str, Any]) -> str:
    return f"[{'.'.join(map(_key, names))}]\n" + "".join(f"{_key(k)} = {_value(v)}\n" for k, v in values.items())


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _text(name)


def _value(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case str():
            return _text(value)
        case Mapping():
            return "{ " + ", ".join(_pairs(value)) + " }"
        case Iterable():
            return "[" + ", ".join(_value(v) for v in value) + "]"
    raise TypeError(f"{type(value).__name__} has no place in a declaration")


def _pairs(values: Mapping[str, object]) -> Iterator[str]:
    return (f"{_key(k)} = {_value(v)}" for k, v in values.items())


def _text(text: str) -> str:
    """A TOML basic string. It escapes as JSON does, and DEL besides."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")
