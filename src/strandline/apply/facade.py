"""`apply` and `export` as a lake offers them: a plan, its steps one after the other, and the lake as TOML."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from strandline.apply.declaration import Declaration
from strandline.apply.lake_state import LakeAccess, load_declaration, load_found
from strandline.apply.plan import plan
from strandline.apply.steps import (
    AddSink,
    AlterDataset,
    ApplyStep,
    ChangeRule,
    ChangeSchedule,
    CreateDataset,
    DropDataset,
    Plan,
    RemoveSink,
    UpdateSink,
    Wish,
)
from strandline.apply.write_toml import write_declaration
from strandline.core import failpoints
from strandline.core.errors import RefusedError
from strandline.core.settings.maintain import RetainSettings
from strandline.ledger import applied_settings
from strandline.ledger.applied_settings import named_in_settings, rule_key, rule_text, schedule_key

_HEAD = "What the lake has. `strandline apply` compares it with a lake and removes the difference."


@dataclass(frozen=True)
class Declarations:
    """`lake.declarations`."""

    lake: LakeAccess

    def plan(self, declared: Declaration, wish: Wish) -> Plan:
        return plan(declared, load_found(self.lake, declared), wish)

    def apply(
        self, declared: Declaration, wish: Wish, shown: Plan, on_done: Callable[[ApplyStep], None] = lambda step: None
    ) -> None:
        """Takes the steps of a plan that a person has seen, in order. Each is durable when `on_done` hears of it. After
        a failure or a crash, a new plan has the steps that are left. `RefusedError` if the plan has a refusal, or if
        the lake has changed since the plan was made."""
        if shown.refused:
            first = shown.refused[0]
            raise RefusedError(f"{first.what} {first.name}: {first.reason}", hint=first.hint)
        if self.plan(declared, wish) != shown:
            raise RefusedError(
                "the lake changed after the plan was shown, so nothing was applied", hint="Run the command again."
            )
        for step in shown.steps:
            self._take(step)
            failpoints.hit("apply.after_step")
            on_done(step)

    def export(self) -> str:
        """The lake as a declaration. Applying it changes nothing."""
        elsewhere = sorted(named_in_settings(self.lake.config).values())
        comments = [_HEAD, *(f"{setting} is in the settings, so not here." for setting in elsewhere)]
        return write_declaration(load_declaration(self.lake), comments)

    def _take(self, step: ApplyStep) -> None:
        lake = self.lake
        match step.operation:
            case CreateDataset(spec):
                partition_by = ", ".join(spec.partition_by) or None
                lake.create_dataset(
                    spec.name, spec.columns, deliver_by=spec.deliver_by, partition_by=partition_by, shards=spec.shards
                )
            case AlterDataset(name, alterations):
                lake.alter_dataset(name, alterations)
            case DropDataset(name):
                lake.drop_dataset(name)
            case AddSink(spec):
                lake.delivery.add(
                    spec.name,
                    spec.dataset,
                    spec.kind,
                    spec.options,
                    from_now=spec.from_now,
                    may_skip=False,  # only a person may decide to leave rows out
                )
            case UpdateSink(name, options, unset):
                lake.delivery.update(name, options, unset)
            case RemoveSink(name):
                lake.delivery.remove(name)
            case ChangeRule(dataset, before, after):
                self._store(rule_key(dataset), _text(before), _text(after))
            case ChangeSchedule(kind, cron, new):
                self._store(schedule_key(kind), cron, new)

    def _store(self, key: str, before: str | None, after: str | None) -> None:
        self.lake.ledger.change(applied_settings.change, key, before=before, after=after)


def _text(rule: RetainSettings | None) -> str | None:
    return None if rule is None else rule_text(rule)
