"""Retention rules and schedules that `strandline apply` stored, and how they combine with those of the settings file.

`apply` refuses a rule or schedule that the settings file or the environment sets. If it is added to the settings file
later, the file's value counts, and `status` says so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import sqlalchemy as sa

from strandline.core.errors import RefusedError
from strandline.core.records.audit_events import Event
from strandline.core.settings.lake_config import LakeConfig
from strandline.core.settings.maintain import MaintainSettings, RetainSettings
from strandline.core.settings.reconcile import ReconcileSettings
from strandline.ledger import audit
from strandline.ledger.engine import insert_into, utc_now
from strandline.ledger.schema.applied import applied_setting

MAINTENANCE = ("number", "retain", "compact", "expire")  # kinds of maintenance that can have a schedule
RECONCILE = "reconcile"
RECONCILE_ACT = "reconcile_act"
SCHEDULES = (*MAINTENANCE, RECONCILE)

_RETAIN, _SCHEDULE = "retain.", "schedule."
_SETTINGS_OF = {kind: (f"maintain.{kind}_schedule",) for kind in MAINTENANCE} | {
    RECONCILE: ("reconcile.enabled", "reconcile.schedule"),
    RECONCILE_ACT: ("reconcile.dry_run",),
}


@dataclass(frozen=True, slots=True)
class Applied:
    """`schedules` has cron texts by kind of work, and `reconcile_act` as `true` or `false`."""

    schedules: Mapping[str, str] = field(default_factory=dict)
    rules: Mapping[str, RetainSettings] = field(default_factory=dict)  # by the dataset's full name


@dataclass(frozen=True, slots=True)
class Effective:
    """The rules and schedules that daemons and commands use."""

    maintain: MaintainSettings
    reconcile: ReconcileSettings
    overridden: tuple[str, ...]  # keys of applied ones that do not count, because the settings file has them, too


def read(connection: sa.Connection) -> Applied:
    stored = {row.name: row.value for row in connection.execute(sa.select(applied_setting))}
    return Applied(
        {k.removeprefix(_SCHEDULE): v for k, v in sorted(stored.items()) if k.startswith(_SCHEDULE)},
        {
            k.removeprefix(_RETAIN): RetainSettings(**json.loads(v))
            for k, v in sorted(stored.items())
            if k.startswith(_RETAIN)
        },
    )


def effective(connection: sa.Connection, config: LakeConfig) -> Effective:
    return combine(config, read(connection))


def combine(config: LakeConfig, applied: Applied) -> Effective:
    """The rules and schedules of the settings, and the applied ones that the settings do not have. Pure."""
    maintain, reconcile = config.settings.maintain, config.settings.reconcile
    named = named_in_settings(config)
    crons = {kind: cron for kind, cron in applied.schedules.items() if schedule_key(kind) not in named}
    maintain_changes: dict[str, object] = {f"{k}_schedule": crons[k] for k in MAINTENANCE if k in crons}
    if applied.rules:
        maintain_changes["retain"] = {**applied.rules, **maintain.rules()}
    reconcile_changes: dict[str, object] = {}
    if RECONCILE in crons:
        reconcile_changes |= {"enabled": True, "schedule": crons[RECONCILE]}
    if RECONCILE_ACT in crons:
        reconcile_changes["dry_run"] = crons[RECONCILE_ACT] != "true"
    keys = {*map(schedule_key, applied.schedules), *map(rule_key, applied.rules)}
    return Effective(
        maintain.model_copy(update=maintain_changes),
        reconcile.model_copy(update=reconcile_changes),
        tuple(sorted(keys & named.keys())),
    )


def named_in_settings(config: LakeConfig) -> dict[str, str]:
    """The rules and schedules that the settings file or the environment has: their keys, each with its setting."""
    maintain = config.settings.maintain
    setting_by_key = {rule_key(name): f"maintain.retain.{name}" for name in maintain.rules()}
    for kind, settings in _SETTINGS_OF.items():
        has_value = kind in MAINTENANCE and getattr(maintain, f"{kind}_schedule") is not None
        if named := [s for s in settings if has_value or s in config.named]:
            setting_by_key[schedule_key(kind)] = named[0]
    return setting_by_key


def schedule_key(kind: str) -> str:
    return _SCHEDULE + kind


def rule_key(dataset: str) -> str:
    return _RETAIN + dataset


def rule_text(rule: RetainSettings) -> str:
    return json.dumps(rule.spelled(), sort_keys=True)


def change(connection: sa.Connection, key: str, *, before: str | None, after: str | None) -> None:
    """Stores the value, or deletes it if `after` is None. `RefusedError` if the stored value is not `before`."""
    stored = connection.execute(sa.select(applied_setting.c.value).where(applied_setting.c.name == key)).scalar()
    if stored == after:
        return
    statement: sa.Executable
    is_unchanged = (applied_setting.c.name == key, applied_setting.c.value == before)
    if after is None:
        statement = applied_setting.delete().where(*is_unchanged).returning(applied_setting.c.name)
    else:
        values = {"name": key, "value": after, "applied_at": utc_now()}
        if before is None:
            new = insert_into(connection, applied_setting).values(values).on_conflict_do_nothing()
            statement = new.returning(applied_setting.c.name)
        else:
            statement = applied_setting.update().where(*is_unchanged).values(values).returning(applied_setting.c.name)
    if connection.execute(statement).one_or_none() is None:
        raise RefusedError(f"{key} was changed by another command meanwhile", hint="Run the command again.")
    audit.record(connection, Event.SETTING_APPLIED, setting=key, before=before, after=after)


def forget_dataset(connection: sa.Connection, dataset: str) -> None:
    """Removes the rule of a dropped dataset: a later dataset with the same name must not lose rows by it."""
    connection.execute(applied_setting.delete().where(applied_setting.c.name == rule_key(dataset)))
