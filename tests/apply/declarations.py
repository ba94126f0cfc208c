"""Random declarations, and a model of a lake that takes steps as the real one does."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import timedelta

from hypothesis import strategies as st

from strandline.apply.declaration import DatasetSpec, Declaration, SinkSpec
from strandline.apply.steps import (
    AddSink,
    AlterDataset,
    ApplyStep,
    ChangeRule,
    ChangeSchedule,
    CreateDataset,
    DropDataset,
    KindOptions,
    LakeFound,
    RemoveSink,
    UpdateSink,
)
from strandline.core.settings.maintain import RetainSettings
from strandline.core.types import History
from strandline.iceberg.schema.alteration import AddColumn, Alteration, DropColumn, WidenColumn
from strandline.iceberg.schema.columns import Column, ColumnType, ListOf, MapOf, Primitive, Struct
from strandline.ledger.applied_settings import RECONCILE_ACT, SCHEDULES

KINDS = {"files": KindOptions({}, {"chunk_rows_max"}), "forward": KindOptions({"chunk_rows_max": "5000"}, {"token"})}

names = st.sampled_from(["a", "b", "c", "B", "über", 'q"\\', "x y", "\x7f"])
primitives = st.sampled_from(["int", "long", "float", "double", "string", "decimal(9,2)", "decimal(12,2)", "date"]).map(
    Primitive
)


def unique(columns: list[Column]) -> tuple[Column, ...]:
    return tuple({c.name.lower(): c for c in columns}.values())


docs = st.none() | st.sampled_from(["the id", "two\nlines", 'tab\t"quoted" \\ é'])


def fields(kind: st.SearchStrategy[ColumnType]) -> st.SearchStrategy[tuple[Column, ...]]:
    return st.lists(st.builds(Column, names, kind, st.booleans(), docs), min_size=1, max_size=4).map(unique)


types: st.SearchStrategy[ColumnType] = st.recursive(
    primitives,
    lambda inner: (
        st.builds(ListOf, inner, st.booleans())
        | st.builds(MapOf, primitives, inner, st.booleans())
        | fields(inner).map(Struct)
    ),
    max_leaves=2,
)
dataset_names = st.sampled_from(["default.events", "default.orders", "shop.events", "shop.`a.b`"])
paths = st.sampled_from(["out", "in/two", "env:PLACE", "päth"])


@st.composite
def datasets(draw: st.DrawFn, name: str) -> DatasetSpec:
    columns = draw(fields(types))
    plain = [c.name for c in columns if isinstance(c.type, Primitive) and c.name.isidentifier()]
    deliver_by = tuple(draw(st.lists(st.sampled_from(plain), unique=True, max_size=1))) if plain else ()
    parts = [*plain, *(f"bucket(4, {c})" for c in plain)]
    partition_by = tuple(draw(st.lists(st.sampled_from(parts), unique=True, max_size=2))) if parts else ()
    adopted = draw(st.none() | st.sampled_from(History))
    return DatasetSpec(name, columns, partition_by, deliver_by, adopted, draw(st.sampled_from((1, 4, 1024))))


rules = st.one_of(
    st.builds(
        RetainSettings,
        older_than=st.integers(1, 400).map(lambda h: timedelta(hours=h)),
        column=st.none() | st.sampled_from(["a", "b"]),
        on_lag=st.just("hold"),
        paused_sinks=st.sampled_from(["count", "ignore"]),
    ),
    st.builds(
        RetainSettings,
        older_than=st.integers(1, 400).map(lambda d: timedelta(days=d)),
        on_lag=st.just("drop"),
        drop_after=st.integers(1, 100).map(lambda s: timedelta(seconds=s)),
    ),
)
crons = st.sampled_from(["30 3 * * *", "*/5 * * * *", "0 0 1 * *"])


@st.composite
def sinks(draw: st.DrawFn, dataset: DatasetSpec, path: str) -> dict[str, object]:
    options = {"path": path}
    if draw(st.booleans()):
        options["columns"] = draw(st.sampled_from([c.name for c in dataset.columns]))
    if draw(st.booleans()):
        options["chunk_rows_max"] = draw(st.sampled_from(["10", "20"]))
    return {"dataset": dataset.name, "kind": draw(st.sampled_from(sorted(KINDS))), "options": options}


@st.composite
def declarations(draw: st.DrawFn) -> Declaration:
    """Whole: sinks and rules have their datasets, and no two sinks share a destination."""
    found = {n: draw(datasets(n)) for n in draw(st.lists(dataset_names, unique=True, max_size=2))}
    fed: dict[str, SinkSpec] = {}
    if found:
        for name in draw(st.lists(st.sampled_from(["one", "two", "a.b"]), unique=True, max_size=3)):
            taken = {s.options["path"] for s in fed.values()}
            free = [p for p in ("out", "in/two", "env:PLACE", "päth") if p not in taken]
            dataset = found[draw(st.sampled_from(sorted(found)))]
            values = draw(sinks(dataset, draw(st.sampled_from(free))))
            fed[name] = SinkSpec(name, **values, from_now=draw(st.booleans()))  # type: ignore[arg-type]
    ruled = {n: draw(rules) for n in sorted(found) if draw(st.booleans())}
    schedules = {k: draw(crons) for k in SCHEDULES if draw(st.booleans())}
    if draw(st.booleans()):
        schedules[RECONCILE_ACT] = draw(st.sampled_from(["true", "false"]))
    return Declaration(found, fed, ruled, schedules)


def found(
    lake: Declaration,
    declared: Declaration | None = None,
    named: Mapping[str, str] | None = None,
    empty: Collection[str] = (),
) -> LakeFound:
    wanted = {} if declared is None else {n: s.options["path"] for n, s in declared.sinks.items()}
    places = {n: s.options["path"] for n, s in lake.sinks.items()}
    return LakeFound(lake, set(lake.datasets), empty, named or {}, places, KINDS, wanted)


class Broken(Exception):
    """A lake would have refused the step."""


def need(so: bool, why: object) -> None:
    if not so:
        raise Broken(why)


def take(lake: Declaration, step: ApplyStep) -> Declaration:
    datasets, sinks = dict(lake.datasets), dict(lake.sinks)
    rules, schedules = dict(lake.rules), dict(lake.schedules)
    match step.operation:
        case CreateDataset(spec):
            need(spec.name not in datasets and spec.adopted is None, spec.name)
            datasets[spec.name] = spec
        case AlterDataset(name, alterations):
            datasets[name] = replace(datasets[name], columns=altered(datasets[name].columns, alterations))
            left = {c.name for c in datasets[name].columns}
            need(all(s.options.get("columns", "") in {*left, ""} for s in sinks.values() if s.dataset == name), name)
        case DropDataset(name):
            need(not [s for s in sinks.values() if s.dataset == name], name)
            del datasets[name]
            rules.pop(name, None)
        case AddSink(spec):
            need(spec.name not in sinks and spec.dataset in datasets, spec.name)
            need(spec.options["path"] not in {s.options["path"] for s in sinks.values()}, spec.name)
            need_column(datasets[spec.dataset], spec.options)
            sinks[spec.name] = replace(spec, options={**KINDS[spec.kind].defaults, **spec.options})
        case UpdateSink(name, given, unset):
            need(set(unset) <= sinks[name].options.keys(), unset)
            options = {k: v for k, v in {**sinks[name].options, **given}.items() if k not in unset}
            need(options["path"] == sinks[name].options["path"], "another destination")
            need_column(datasets[sinks[name].dataset], options)
            sinks[name] = replace(sinks[name], options=options)
        case RemoveSink(name):
            del sinks[name]
        case ChangeRule(name, before, after):
            need(rules.get(name) == before and name in datasets, name)
            rules.pop(name, None)
            rules |= {} if after is None else {name: after}
        case ChangeSchedule(kind, old, new):
            need(schedules.get(kind) == old, kind)
            schedules.pop(kind, None)
            schedules |= {} if new is None else {kind: new}
    return Declaration(datasets, sinks, rules, schedules)


def need_column(dataset: DatasetSpec, options: Mapping[str, str]) -> None:
    need("columns" not in options or options["columns"] in {c.name for c in dataset.columns}, options)


def altered(columns: tuple[Column, ...], alterations: tuple[Alteration, ...]) -> tuple[Column, ...]:
    for a in alterations:
        head, _, rest = a.name.partition(".")
        if rest:
            columns = tuple(replace(c, type=inside(c.type, a, rest)) if c.name == head else c for c in columns)
        else:
            columns = changed(columns, a)
    return columns


def inside(kind: ColumnType, a: Alteration, rest: str) -> ColumnType:
    match kind:
        case ListOf(element, required):
            return ListOf(reached(element, a, rest.removeprefix("element")), required)
        case MapOf(key, value, required):
            return MapOf(key, reached(value, a, rest.removeprefix("value")), required)
        case Struct(fields):
            return Struct(altered(fields, (replace(a, name=rest),)))
    raise Broken(a)


def reached(kind: ColumnType, a: Alteration, rest: str) -> ColumnType:
    if not rest:
        need(isinstance(a, WidenColumn), a)
        return a.type  # type: ignore[union-attr]
    return inside(kind, a, rest.removeprefix("."))


def changed(columns: tuple[Column, ...], a: Alteration) -> tuple[Column, ...]:
    there = {c.name.lower() for c in columns}
    match a:
        case AddColumn(name, kind, doc):
            need(name.lower() not in there, a)
            return (*columns, Column(name, kind, False, doc))
        case WidenColumn(name, kind):
            return tuple(replace(c, type=kind) if c.name == name else c for c in columns)
        case DropColumn(name):
            need(name in {c.name for c in columns} and len(columns) > 1, a)
            return tuple(c for c in columns if c.name != name)
    raise Broken(a)
