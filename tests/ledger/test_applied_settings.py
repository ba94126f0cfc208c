"""Rules and schedules that were applied, on both ledgers."""

from __future__ import annotations

from datetime import timedelta

import pytest
import sqlalchemy as sa

from strandline.core.errors import RefusedError
from strandline.core.settings.lake_config import LakeConfig, Settings
from strandline.core.settings.maintain import RetainSettings
from strandline.ledger import applied_settings
from strandline.ledger.applied_settings import Applied, combine, rule_key, rule_text, schedule_key
from strandline.ledger.deliver import sinks
from tests.ledger.conftest import LakeState

RULE = RetainSettings(older_than=timedelta(days=30), on_lag="drop", drop_after=timedelta(hours=36))
NIGHTLY, HOURLY = "30 3 * * *", "0 * * * *"


def change(lake: LakeState, key: str, before: str | None, after: str | None) -> None:
    with lake.ledger.write() as connection:
        applied_settings.change(connection, key, before=before, after=after)


def read(lake: LakeState) -> Applied:
    with lake.ledger.read() as connection:
        return applied_settings.read(connection)


def test_what_is_applied_is_read_back_changed_and_forgotten(lake: LakeState) -> None:
    key = rule_key("default.events")
    change(lake, key, None, rule_text(RULE))
    change(lake, schedule_key("retain"), None, NIGHTLY)
    assert read(lake) == Applied({"retain": NIGHTLY}, {"default.events": RULE})
    change(lake, schedule_key("retain"), NIGHTLY, HOURLY)
    change(lake, schedule_key("retain"), NIGHTLY, HOURLY)  # a repeat is no change
    assert read(lake).schedules == {"retain": HOURLY}
    change(lake, schedule_key("retain"), HOURLY, None)
    with lake.ledger.write() as connection:
        applied_settings.forget_dataset(connection, "default.events")
    assert read(lake) == Applied()


def test_a_value_that_somebody_else_changed_is_left_alone(lake: LakeState) -> None:
    change(lake, schedule_key("retain"), None, NIGHTLY)
    for before in (None, "1 1 * * *"):
        with pytest.raises(RefusedError, match="changed by another command"):
            change(lake, schedule_key("retain"), before, HOURLY)
    assert read(lake).schedules == {"retain": NIGHTLY}


def test_the_ledger_refuses_what_is_neither_a_rule_nor_a_schedule(lake: LakeState) -> None:
    with pytest.raises(sa.exc.IntegrityError), lake.ledger.write() as connection:
        connection.exec_driver_sql("INSERT INTO applied_setting (name, value, applied_at) VALUES ('other', '1', 0)")


def test_a_sink_remembers_that_it_was_added_for_new_rows_only(lake: LakeState) -> None:
    for name, from_now in (("now", True), ("all", False), ("before", None)):
        with lake.ledger.write() as connection:
            added = sinks.add(
                connection, instance=name, name=name, kind="files", dataset=lake.dataset.id, options={},
                destination=name, start=None, from_now=from_now,
            )  # fmt: skip
        assert added.from_now is from_now


def test_settings_that_are_named_come_before_what_was_applied(lake: LakeState) -> None:
    applied = Applied(
        {"retain": NIGHTLY, "compact": NIGHTLY, "reconcile": HOURLY, "reconcile_act": "true"}, {"default.events": RULE}
    )
    nothing = combine(LakeConfig(Settings(), lake.config.home), applied)
    assert nothing.maintain.schedules() == {"retain": NIGHTLY, "compact": NIGHTLY, "expire": None, "number": None}
    assert nothing.maintain.rules() == {"default.events": RULE} and nothing.overridden == ()
    assert (nothing.reconcile.enabled, nothing.reconcile.schedule, nothing.reconcile.dry_run) == (True, HOURLY, False)
    settings = Settings(
        maintain={"retain_schedule": HOURLY, "retain": {"events": {"older_than": "9d"}}},  # type: ignore[arg-type]
        reconcile={"dry_run": True},  # type: ignore[arg-type]
    )
    named = frozenset({"maintain.retain_schedule", "reconcile.dry_run"})
    both = combine(LakeConfig(settings, lake.config.home, named), applied)
    assert both.maintain.retain_schedule == HOURLY and both.maintain.compact_schedule == NIGHTLY
    assert both.maintain.rules()["default.events"].older_than == timedelta(days=9)
    assert both.reconcile.enabled and both.reconcile.dry_run
    assert both.overridden == ("retain.default.events", "schedule.reconcile_act", "schedule.retain")
