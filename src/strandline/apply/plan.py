"""The difference between a declaration and a lake: the steps that remove it, in an order that is safe. Pure.

Every step is one durable operation that exists as a command, too. After a crash between two of them, the next plan has
the steps that are left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from strandline.apply.columns import Impossible, compare_columns
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
    Operation,
    Permission,
    Plan,
    RemoveSink,
    StepAction,
    StepRefusal,
    UpdateSink,
    Wish,
)
from strandline.core.settings.maintain import RetainSettings
from strandline.iceberg.metadata.identifier import short_name
from strandline.iceberg.schema.alteration import AddColumn, DropColumn, WidenColumn
from strandline.iceberg.schema.columns import type_text
from strandline.ledger.applied_settings import RECONCILE, RECONCILE_ACT, rule_key, schedule_key

# Sinks that go free their destinations for others. A column is there before a sink names it, and goes after the last
# sink that named it was changed. A sink is there before a rule begins to delete rows.
_ORDER: tuple[tuple[type[Any], StepAction | None], ...] = (
    (RemoveSink, None),
    (CreateDataset, None),
    (AlterDataset, StepAction.CHANGE),
    (UpdateSink, None),
    (AddSink, None),
    (AlterDataset, StepAction.REMOVE),
    (ChangeRule, None),
    (ChangeSchedule, None),
    (DropDataset, None),
)


def plan(declared: Declaration, found: LakeFound, wish: Wish) -> Plan:
    drafts = [*_datasets(declared, found, wish), *_sinks(declared, found, wish)]
    drafts += [*_rules(declared, found, wish), *_schedules(declared, found, wish)]
    steps = [d for d in drafts if isinstance(d, ApplyStep)]
    refused = [d for d in drafts if isinstance(d, StepRefusal)]
    refused += [_not_allowed(s, s.needs) for s in steps if s.needs is not None and s.needs not in wish.allowed]
    changed = {(s.what, s.name) for s in steps} | {(r.what, r.name) for r in refused}
    parts = [("dataset", short_name(n)) for n in declared.datasets] + [("sink", n) for n in declared.sinks]
    parts += [("retain", short_name(n)) for n in declared.rules] + [("schedule", n) for n in declared.schedules]
    return Plan(
        tuple(sorted(steps, key=_rank)),
        tuple(refused),
        sum(part not in changed for part in parts),
        () if wish.prune else tuple(d for d in drafts if isinstance(d, str)),
    )


def _rank(step: ApplyStep) -> tuple[int, bool, str]:
    rank = next(
        i for i, (kind, action) in enumerate(_ORDER)
        if isinstance(step.operation, kind) and action in (None, step.action)
    )  # fmt: skip
    return rank, not _keeps_from_acting(step.operation), step.name


def _keeps_from_acting(operation: Operation) -> bool:
    """Such a step comes before a schedule: after a crash between the two, no run acts without permission."""
    return isinstance(operation, ChangeSchedule) and operation.kind == RECONCILE_ACT and operation.after != "true"


def _not_allowed(step: ApplyStep, needed: Permission) -> StepRefusal:
    return StepRefusal(step.what, step.name, _LOSSES[needed], f"If that is meant: --allow {needed}.")


_LOSSES = {
    Permission.DROP_DATASET: "the dataset would be dropped; its files stay, but nobody reads or delivers its rows",
    Permission.DROP_COLUMN: "columns would be dropped, and nobody reads their values any more",
    Permission.REMOVE_SINK: "the sink would be removed, and gets no more rows",
    Permission.CHANGE_DELIVERY: "the sink would deliver other rows or values than before; nothing is sent again",
    Permission.DELETE_ROWS: "rows that are kept now would be deleted",
    Permission.RECONCILE_ACT: "scheduled runs of the reconciler would move files and drop entries",
}

_Draft = Iterator[ApplyStep | StepRefusal | str]  # a text names something that exists and is not declared


# Datasets.


def _datasets(declared: Declaration, found: LakeFound, wish: Wish) -> _Draft:
    for name, wanted in declared.datasets.items():
        there = found.lake.datasets.get(name)
        if there is None:
            yield from _new_dataset(wanted)
        else:
            yield from _dataset(there, wanted)
    for name in sorted(set(found.datasets) - declared.datasets.keys()):
        if not wish.prune:
            yield f"dataset {short_name(name)}"
            continue
        if name in declared.rules:
            yield StepRefusal("retain", short_name(name), "its dataset is not declared, and --prune drops it")
        if fed := [s.name for s in declared.sinks.values() if s.dataset == name]:
            yield StepRefusal("sink", fed[0], f"its dataset {name} is not declared, and --prune drops it")
        yield _step(DropDataset(name), StepAction.REMOVE, short_name(name), needs=Permission.DROP_DATASET)


def _new_dataset(wanted: DatasetSpec) -> Iterator[ApplyStep | StepRefusal]:
    name = short_name(wanted.name)
    if wanted.adopted is not None:
        how = (
            f"`strandline dataset adopt {name} --history {wanted.adopted}` makes a dataset of it, and numbers its rows."
        )
        yield StepRefusal("dataset", name, "it is declared as adopted, and the table is no dataset yet", how)
        return
    details = [f"{c.name}: {type_text(c.type)}{' required' if c.required else ''}" for c in wanted.columns]
    if wanted.partition_by:
        details.append(f"partition_by {', '.join(wanted.partition_by)}")
    if wanted.deliver_by:
        details.append(f"deliver_by {', '.join(wanted.deliver_by)}")
    if wanted.shards != 1:
        details.append(f"shards {wanted.shards}")
    yield _step(CreateDataset(wanted), StepAction.CREATE, name, details)


def _dataset(there: DatasetSpec, wanted: DatasetSpec) -> Iterator[ApplyStep | StepRefusal]:
    name = short_name(there.name)
    if there.deliver_by != wanted.deliver_by:
        yield _fixed("dataset", name, "deliver_by", there.deliver_by, wanted.deliver_by)
    if there.partition_by != wanted.partition_by:
        yield _fixed("dataset", name, "partition_by", there.partition_by, wanted.partition_by)
    if there.shards != wanted.shards:
        yield _fixed("dataset", name, "shards", [str(there.shards)], [str(wanted.shards)])
    if there.adopted != wanted.adopted:
        yield _fixed("dataset", name, "adopted", [there.adopted or "not"], [wanted.adopted or "not"])
    changes = compare_columns(there.columns, wanted.columns)
    for change in changes:
        if isinstance(change, Impossible):
            hint = change.hint and change.hint.replace("DATASET", name)
            yield StepRefusal("dataset", name, f"column {change.column}: {change.reason}", hint)
    more = [c for c in changes if isinstance(c, AddColumn | WidenColumn)]
    less = [c for c in changes if isinstance(c, DropColumn)]
    if more:
        words = [f"{'add' if isinstance(c, AddColumn) else 'widen'} column {c.name}: {type_text(c.type)}" for c in more]
        yield _step(AlterDataset(there.name, tuple(more)), StepAction.CHANGE, name, words)
    if less:
        words = [f"drop column {c.name}" for c in less]
        yield _step(AlterDataset(there.name, tuple(less)), StepAction.REMOVE, name, words, Permission.DROP_COLUMN)


def _fixed(what: str, name: str, key: str, before: Sequence[str], after: Sequence[str]) -> StepRefusal:
    return StepRefusal(
        what,
        name,
        f"{key} is {', '.join(before) or 'nothing'} and cannot become {', '.join(after) or 'nothing'}",
        f"Declare another {what} with another name.",
    )


# Sinks.


def _sinks(declared: Declaration, found: LakeFound, wish: Wish) -> _Draft:
    exists = set(found.datasets) | declared.datasets.keys()
    for name, wanted in declared.sinks.items():
        there = found.lake.sinks.get(name)
        if wanted.dataset not in exists:
            yield StepRefusal("sink", name, f"there is no dataset {short_name(wanted.dataset)}", "Declare it, too.")
        elif there is None:
            rows = "new rows only" if wanted.from_now else "all rows"
            details = [f"{wanted.kind}, dataset {short_name(wanted.dataset)}, {rows}"]
            details += [f"{k} = {v}" for k, v in sorted(wanted.options.items())]
            yield _step(AddSink(wanted), StepAction.CREATE, name, details)
        else:
            yield from _sink(there, wanted, found)
    for name in sorted(found.lake.sinks.keys() - declared.sinks.keys()):
        if wish.prune:
            yield _step(RemoveSink(name), StepAction.REMOVE, name, needs=Permission.REMOVE_SINK)
        else:
            yield f"sink {name}"


def _sink(there: SinkSpec, wanted: SinkSpec, found: LakeFound) -> Iterator[ApplyStep | StepRefusal]:
    name = there.name
    if there.dataset != wanted.dataset:
        yield _fixed("sink", name, "dataset", [short_name(there.dataset)], [short_name(wanted.dataset)])
        return
    if there.kind != wanted.kind:
        yield _fixed("sink", name, "kind", [there.kind], [wanted.kind])
        return
    kind = found.kinds.get(there.kind, KindOptions())
    # A default that is not declared has its value. A sink that was added before the default existed stays without.
    after = {k: v for k, v in kind.defaults.items() if k in there.options} | dict(wanted.options)
    place, wanted_place = found.destinations.get(name), found.wanted_destinations.get(name)
    if place is not None and wanted_place is not None and place != wanted_place:
        yield _fixed("sink", name, "its destination", [place], [wanted_place])
        return
    given = {k: v for k, v in after.items() if there.options.get(k) != v}
    unset = tuple(sorted(there.options.keys() - after.keys()))
    if not (given or unset):
        return
    words = [f"{k}: {there.options.get(k, 'not set')} → {v}" for k, v in sorted(given.items())]
    words += [f"{k}: {there.options[k]} → not set" for k in unset]
    harmless = not ({*given, *unset} - set(kind.harmless))
    needs = None if harmless else Permission.CHANGE_DELIVERY
    yield _step(UpdateSink(name, given, unset), StepAction.CHANGE, name, words, needs)


# Rules and schedules.


def _rules(declared: Declaration, found: LakeFound, wish: Wish) -> _Draft:
    for name, wanted in declared.rules.items():
        if refusal := _in_settings("retain", short_name(name), found.named.get(rule_key(name))):
            yield refusal
        elif name not in found.datasets and name not in declared.datasets:
            yield StepRefusal("retain", short_name(name), "there is no such dataset", "Declare it, too.")
        else:
            before = found.lake.rules.get(name)
            if before is not None and before.spelled() == wanted.spelled():
                continue
            words = _changes({} if before is None else before.spelled(), wanted.spelled())
            has_rows = name in found.datasets and name not in found.empty
            needs = Permission.DELETE_ROWS if has_rows and deletes_more(before, wanted) else None
            yield _step(ChangeRule(name, before, wanted), _action(before), short_name(name), words, needs)
    for name in sorted(found.lake.rules.keys() - declared.rules.keys()):
        if not wish.prune:
            yield from _undeclared("retain", name, found.named.get(rule_key(name)))
        elif name not in found.datasets or name in declared.datasets:  # otherwise the rule goes with its dataset
            yield _step(ChangeRule(name, found.lake.rules[name], None), StepAction.REMOVE, short_name(name))


def deletes_more(before: RetainSettings | None, after: RetainSettings) -> bool:
    """Whether the new rule may delete rows that the old one, or none, keeps."""
    if before is None or before.column != after.column or after.older_than < before.older_than:
        return True
    if before.paused_sinks == "count" and after.paused_sinks == "ignore":
        return True
    if after.on_lag == "hold":
        return False
    return before.drop_after is None or after.drop_after is None or after.drop_after < before.drop_after


def _schedules(declared: Declaration, found: LakeFound, wish: Wish) -> _Draft:
    for kind, wanted in declared.schedules.items():
        if refusal := _in_settings("schedule", kind, found.named.get(schedule_key(kind))):
            yield refusal
            continue
        before = found.lake.schedules.get(kind)
        if before == wanted:
            continue
        needs = _schedule_needs(kind, before, wanted, declared, found, wish)
        words = [wanted if before is None else f"{before} → {wanted}"]
        yield _step(ChangeSchedule(kind, before, wanted), _action(before), kind, words, needs)
    for kind in sorted(found.lake.schedules.keys() - declared.schedules.keys()):
        if wish.prune:
            yield _step(ChangeSchedule(kind, found.lake.schedules[kind], None), StepAction.REMOVE, kind)
        else:
            yield from _undeclared("schedule", kind, found.named.get(schedule_key(kind)))


def _schedule_needs(
    kind: str, before: str | None, wanted: str, declared: Declaration, found: LakeFound, wish: Wish
) -> Permission | None:
    """The permission that the change of a schedule needs: a new schedule puts rules into effect that existed before."""
    if kind == RECONCILE_ACT:
        return Permission.RECONCILE_ACT if wanted == "true" else None
    if kind == "retain" and before is None:
        rules = {*declared.rules, *(() if wish.prune else found.lake.rules)}
        covered = (n for n in found.datasets if (n in rules or rule_key(n) in found.named) and n not in found.empty)
        return Permission.DELETE_ROWS if any(covered) else None
    if kind == RECONCILE and before is None:
        applied = declared.schedules if wish.prune else {**found.lake.schedules, **declared.schedules}
        by_settings = schedule_key(RECONCILE_ACT) in found.named or RECONCILE_ACT not in applied
        acts = found.settings_act if by_settings else applied[RECONCILE_ACT] == "true"
        return Permission.RECONCILE_ACT if acts else None
    return None


def _undeclared(what: str, name: str, setting: str | None) -> Iterator[str]:
    """Names what is not declared, unless a setting has it."""
    if setting is None:
        yield f"{what} {short_name(name)}"


def _in_settings(what: str, name: str, setting: str | None) -> StepRefusal | None:
    if setting is None:
        return None
    return StepRefusal(
        what,
        name,
        f"{setting} is set in the settings file or the environment, and has one place at a time",
        f"Take {setting} out of the settings, or leave it out of the declaration.",
    )


def _action(before: object | None) -> StepAction:
    return StepAction.CREATE if before is None else StepAction.CHANGE


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """One line per change. Default values are in neither rule."""
    keys = [k for k in {**after, **before} if before.get(k) != after.get(k)]
    if not before:
        return [f"{k} = {v}" for k, v in after.items()]
    return [f"{k}: {before.get(k, 'default')} → {after.get(k, 'default')}" for k in keys]


_WHAT: dict[type[Any], str] = {
    CreateDataset: "dataset", AlterDataset: "dataset", DropDataset: "dataset", AddSink: "sink", UpdateSink: "sink",
    RemoveSink: "sink", ChangeRule: "retain", ChangeSchedule: "schedule",
}  # fmt: skip


def _step(
    operation: Operation, action: StepAction, name: str, details: Sequence[str] = (), needs: Permission | None = None
) -> ApplyStep:
    return ApplyStep(operation, action, _WHAT[type(operation)], name, tuple(details), needs)
