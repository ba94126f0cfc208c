"""When maintenance is due, and by which rules: settings and moments in, decisions out."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from strandline.core.errors import ConfigError, UsageError
from strandline.core.settings.lake_config import Settings
from strandline.core.settings.maintain import MaintainSettings, RetainSettings
from strandline.core.text import duration
from strandline.core.types import Dataset, DatasetId, DatasetUuid, History, ShardId
from strandline.jobs.schedule import is_due, start_delay
from strandline.ledger.maintain.runs import MaintenanceKind
from strandline.maintain.schedule import jobs

NIGHTLY = "30 3 * * *"


def at(day: int, hour: int = 0, minute: int = 0) -> datetime:
    return datetime(2026, 3, day, hour, minute, tzinfo=UTC)


def due(last: datetime | None, since: datetime, now: datetime, cron: str = NIGHTLY) -> bool:
    return is_due(cron, last=last, followed_since=since, now=now)


def test_it_is_due_when_its_moment_has_passed_and_not_before() -> None:
    assert not due(None, at(2), at(2, 3, 29))
    assert due(None, at(2), at(2, 3, 30))
    assert not due(at(2, 3, 30), at(2), at(2, 3, 31))
    assert not due(at(2, 3, 30), at(2), at(3, 3, 29))
    assert due(at(2, 3, 30), at(2), at(3, 3, 30))


def test_what_was_missed_while_no_daemon_ran_is_made_up_for_once() -> None:
    assert due(at(2, 3, 30), at(9, 12), at(9, 12))
    assert not due(at(9, 12), at(9, 12), at(9, 12, 1))


def test_a_new_schedule_begins_when_it_is_first_seen() -> None:
    assert not due(None, at(9, 12), at(9, 12))
    assert due(None, at(9, 12), at(10, 3, 30))


def test_a_run_in_the_future_does_not_stop_the_schedule_for_as_long_as_the_clock_was_wrong() -> None:
    tomorrow = at(20, 3, 30)
    assert not due(tomorrow, at(9), at(9, 3))
    assert due(tomorrow, at(9), at(9, 3, 30))
    assert not due(tomorrow, at(10), at(9)), "not even this daemon's own beginning lies in the past"


@given(
    last=st.none() | st.integers(0, 10_000),
    since=st.integers(0, 10_000),
    now=st.integers(0, 10_000),
)
def test_a_turn_that_was_taken_is_not_due_again_in_the_same_moment(last: int | None, since: int, now: int) -> None:
    zero = at(1)
    moment = zero + timedelta(minutes=now)
    begun = None if last is None else zero + timedelta(minutes=last)
    if due(begun, zero + timedelta(minutes=since), moment, "*/7 * * * *"):
        assert not due(moment, zero + timedelta(minutes=since), moment, "*/7 * * * *")


def dataset(name: str) -> Dataset:
    return Dataset(
        DatasetId(len(name)), name, "uuid", (), False, History.DELIVER, at(1), DatasetUuid("uuid"), ShardId(0), 1
    )


def test_retention_runs_only_where_there_is_a_rule_and_before_what_would_write_the_rows_anew() -> None:
    settings = MaintainSettings(
        compact_schedule=NIGHTLY, retain_schedule="0 * * * *", retain={"a": RetainSettings(older_than="1d")}
    )
    found = jobs(settings, [dataset("default.a"), dataset("default.bb")], settings.rules())
    assert [(j.dataset.name, j.kind, j.cron) for j in found] == [
        ("default.a", MaintenanceKind.RETAIN, "0 * * * *"),
        ("default.a", MaintenanceKind.COMPACT, NIGHTLY),
        ("default.bb", MaintenanceKind.COMPACT, NIGHTLY),
    ]
    assert jobs(MaintainSettings(), [dataset("default.a")], {}) == []
    others_write_to = [dataset("default.a"), replace(dataset("default.b"), adopted=True)]
    found = jobs(MaintainSettings(number_schedule=NIGHTLY), others_write_to, {})
    assert [(j.dataset.name, j.kind) for j in found] == [("default.b", MaintenanceKind.NUMBER)]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"compact_schedule": "every night"}, "not a schedule"),
        ({"compact_schedule": "30 25 * * *"}, "not a schedule"),
        ({"compact_schedule": "0 0 31 2 *"}, "not a schedule"),
        ({"expire": {"older_than": "a week"}}, "not a duration"),
        ({"expire": {"older_than": 5}}, "not a duration"),
        ({"retain": {"a": {}}}, "older_than"),
        ({"retain": {"a": {"older_than": "1d", "on_lag": "drop"}}}, "drop_after"),
        ({"retain": {"a": {"older_than": "1d", "drop_after": "2d"}}}, "drop_after"),
        ({"retain": {"a": {"older_than": "1d", "older": "2d"}}}, "older"),
        ({"retain": {"a": {"older_than": "99999999d"}}}, "too long"),
    ],
)
def test_settings_that_cannot_be_are_refused_in_words(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Settings(maintain=values)  # type: ignore[arg-type]


def test_a_rule_is_found_by_the_datasets_full_name_however_it_is_written() -> None:
    rule = {"older_than": "30d", "on_lag": "drop", "drop_after": "7d"}
    nested = MaintainSettings(retain={"events": rule, "shop": {"eu": {"orders": rule}}, "x.y": rule})
    assert sorted(nested.rules()) == ["default.events", "shop.eu.orders", "x.y"]
    assert nested.rules()["x.y"].drop_after == timedelta(days=7)
    with pytest.raises(ConfigError, match=r"two rules for default\.events"):
        MaintainSettings(retain={"events": rule, "default.events": rule}).rules()


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("15m", 900), ("12h", 43_200), ("30d", 2_592_000), (" 1d ", 86_400), ("0s", 0)]
)
def test_durations_are_read_as_they_are_written_and_spelled_back(text: str, seconds: int) -> None:
    assert duration.parse(text) == timedelta(seconds=seconds)
    assert duration.parse(duration.spell(timedelta(seconds=seconds))) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "d", "30", "30 d", "-1d", "1.5h", "1w", "P30D", "1d2h", "٣d"])
def test_what_is_not_a_duration_is_refused_with_how_to_write_one(text: str) -> None:
    with pytest.raises(UsageError, match="not a duration") as refused:
        duration.parse(text)
    assert "30d" in str(refused.value.hint)


# Jitter.


def test_a_job_begins_in_a_process_always_as_long_after_its_time() -> None:
    here = start_delay("compact default.a", "host:1", seconds_max=60)
    assert here == start_delay("compact default.a", "host:1", seconds_max=60) == timedelta(seconds=25.920903)
    assert start_delay("compact default.a", "host:2", seconds_max=60) != here
    assert start_delay("compact default.b", "host:1", seconds_max=60) != here
    assert start_delay("compact default.a", "host:1", seconds_max=0) == timedelta(0)


def test_jobs_are_spread_evenly_over_the_time_that_they_may_begin_late() -> None:
    delays = [start_delay(f"job {n}", "host:1", seconds_max=10).total_seconds() for n in range(2000)]
    assert min(delays) >= 0 and max(delays) < 10
    tenths = [sum(second <= d < second + 1 for d in delays) for second in range(10)]
    assert min(tenths) > 150, tenths


def test_a_delayed_job_is_due_when_its_delay_is_over_too() -> None:
    late = timedelta(minutes=2)
    assert not is_due(NIGHTLY, last=None, followed_since=at(2), now=at(2, 3, 31), delay=late)
    assert is_due(NIGHTLY, last=None, followed_since=at(2), now=at(2, 3, 32), delay=late)


@given(delay=st.integers(0, 10_000), every=st.sampled_from([1, 2, 7]), minutes=st.integers(10, 40))
def test_no_time_of_a_schedule_is_passed_over_however_long_the_delay(delay: int, every: int, minutes: int) -> None:
    cron, begun = f"*/{every} * * * *", list[datetime]()
    for now in (at(1) + timedelta(seconds=second) for second in range(0, minutes * 60, 15)):
        last = begun[-1] if begun else None
        if is_due(cron, last=last, followed_since=at(1), now=now, delay=timedelta(seconds=delay)):
            begun.append(now)
    times = sum(minute % every == 0 for minute in range(1, minutes))
    assert times - 1 <= len(begun) <= times, "each once; the last may be yet to come"
