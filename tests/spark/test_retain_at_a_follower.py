"""Retention at a follower: what the leader's sinks have not got yet is there when the follower takes over."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from strandline import Lake
from strandline.core.settings.maintain import RetainSettings
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.ledger.deliver import losses
from strandline.ledger.deliver import sinks as sink_records
from strandline.ledger.deliver.losses import Reason, RecordedLoss
from strandline.maintain.retain import retain
from strandline.maintain.retain_result import Retained
from tests.conftest import MakeHome
from tests.spark import sinks
from tests.spark.followed import follow, new_follower, new_leader, restarted, take_over
from tests.spark.protocol import COLUMNS, copy_ledger, frame, ids, restore_ledger

OLD = timedelta(days=30)


@pytest.fixture
def pair(tmp_path: Path, make_home: MakeHome) -> Iterator[tuple[Lake, Lake]]:
    """Ten rows that the sink has, then twenty that it has not, because it is paused."""
    with new_leader(tmp_path, make_home) as leader:
        leader.create_dataset("events", parse_columns(COLUMNS))
        leader.delivery.add("out", "events", "files", {"path": str(tmp_path / "out")})
        leader.append("events", frame(leader, 0, 10), batch_id="a")
        sinks.tick(leader, "out")
        leader.delivery.pause("out")
        leader.append("events", frame(leader, 10, 20), batch_id="b")
        with new_follower(tmp_path, make_home, leader) as follower:
            follow(follower)
            yield leader, follower


def run(lake: Lake, days: float = 31, **rule: Any) -> Retained:
    """As if it were later; a person says that this is so."""
    now = datetime.now(UTC) + timedelta(days=days)
    rule_of = RetainSettings(older_than=OLD, **rule)
    return retain(lake.maintenance.context, lake.dataset("events"), rule_of, now=now, accept_clock=True)


def lost(lake: Lake) -> list[RecordedLoss]:
    return lake.ledger.query(losses.of_sink, lake.ledger.query(sink_records.get, "out"))


def test_a_sink_of_the_leader_gets_every_row_from_the_follower_that_takes_over(
    pair: tuple[Lake, Lake], tmp_path: Path
) -> None:
    _, follower = pair
    done = run(follower)
    assert (done.deleted_rows, [(h.sink, h.rows) for h in done.held]) == (10, [("the leader's sink out", 20)])
    assert ids(follower) == list(range(10, 30))
    status = follower.status()
    assert status.maintenance is not None
    assert [(h.name, h.rows) for d in status.maintenance.datasets for h in d.held_by] == [("the leader's sink out", 20)]
    restarted(follower)
    take_over(follower, 17)
    follower.delivery.resume("out")
    sinks.tick(follower, "out")
    assert [row for _, row in sinks.rows(tmp_path / "out", "id")] == list(range(30))
    assert lost(follower) == []


def test_a_purge_leaves_rows_that_only_the_leaders_retention_has_deleted(pair: tuple[Lake, Lake]) -> None:
    """Those between the purged ones, too, and whichever ledger is restored from before the purge."""
    leader, follower = pair
    copies = [(lake, copy_ledger(lake, "before-the-purge.db")) for lake in pair]
    assert leader.maintenance.purge("events", "id IN (3, 12, 25)").result.deleted_rows == 3
    assert run(leader, paused_sinks="ignore").deleted_rows == 27
    wanted = [id for id in range(30) if id not in (3, 12, 25)]
    follow(follower)
    assert ids(leader) == [] and ids(follower) == wanted
    for lake, copy in copies:
        restore_ledger(lake, copy)
        lake.recover()
        restarted(follower)
        follow(follower)
        assert ids(follower) == wanted and follower.sealed("events") == leader.sealed("events")


def test_a_person_may_choose_not_to_wait_for_the_leaders_sinks(pair: tuple[Lake, Lake]) -> None:
    """As for sinks of the site itself: `on_lag = "drop"`, or `paused_sinks = "ignore"`. The take-over counts it."""
    _, follower = pair
    drop = {"on_lag": "drop", "drop_after": timedelta(days=7)}
    assert run(follower, **drop).deleted_rows == 10, "held for the first time"
    assert run(follower, days=31 + 6, **drop).deleted_rows == 0
    done = run(follower, days=31 + 8, **drop)
    assert (done.deleted_rows, [(x.sink, x.rows) for x in done.lost]) == (20, [("the leader's sink out", 20)])
    restarted(follower)
    take_over(follower, 17)
    assert [(loss.reason, loss.until) for loss in lost(follower)] == [(Reason.FORGOTTEN, 30)]
