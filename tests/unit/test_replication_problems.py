"""What is said of followers and of a leader: what is wrong, and what to do."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from strandline.cli.render import replication as render
from strandline.core.sites.arbiter import LeaderRecord
from strandline.core.types import Seq
from strandline.ledger.replicate.cuts import CutFolder
from strandline.replicate.arbiter.arbiter import Arbiter, PutLanded
from strandline.replicate.arbiter.folder import FolderCell
from strandline.replicate.arbiter.watch import ArbiterWatch
from strandline.status.followers import FollowerStatus
from strandline.status.problems.replication_problems import find_replication_problems
from strandline.status.problems.status_problem import Severity, StatusProblem, Subject
from strandline.status.replication import (
    FollowedStatus,
    LeaderStatus,
    PurgeStatus,
    ReplicationStatus,
    SiteStatus,
    site_of,
)

NOW = datetime(2031, 4, 1, 12, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
EAST = FollowerStatus("east", "default.d", 0, 90, 90, 0, 0, 0.0, NOW, None, None, NOW - DAY)
LEADER = LeaderStatus("https://leader", NOW, False, None, None, None, None)
SHARD = FollowedStatus("default.d", 0, 90, 90, 90, 90, False, 0, 0, 0, 0, 0.0)


def of_followers(*shards: FollowerStatus, wait_for: str = "none") -> list[StatusProblem]:
    return list(find_replication_problems(SiteStatus(wait_for=wait_for), shards, NOW))


def of_leader(**changes: Any) -> list[StatusProblem]:
    site = SiteStatus("follower", leader=replace(LEADER, **changes), shards=(SHARD,))
    return list(find_replication_problems(site, (), NOW))


def test_what_is_well_is_no_problem() -> None:
    assert of_followers(EAST) == of_leader() == []


def test_a_silent_follower_is_named_once_with_what_it_holds_and_what_to_do() -> None:
    silent = replace(EAST, reported_at=NOW - 2 * HOUR)
    [found] = of_followers(silent, replace(silent, shard=1))
    assert (found.severity, found.subject, found.name) == (Severity.WARNING, Subject.FOLLOWER, "east")
    assert "has not reported its progress for 2 h" in found.reason and "retention keeps" in found.reason
    assert "strandline follow" in str(found.next_step) and "follower remove east" in str(found.next_step)
    [worse] = of_followers(silent, wait_for="all")
    assert worse.severity is Severity.ERROR and "sinks get no rows" in worse.reason


def test_a_follower_that_never_began_is_named_after_a_while() -> None:
    unknown = replace(EAST, high_water=None, sealed=None, lag_segments=None, reported_at=None)
    assert of_followers(replace(unknown, added_at=NOW - timedelta(minutes=2))) == []
    [found] = of_followers(unknown)
    assert "has never reported its progress" in found.reason and "follow init" in str(found.next_step)


def test_a_follower_that_holds_retention_is_named_for_each_dataset() -> None:
    held = replace(EAST, held_since=NOW - 3 * HOUR)
    found = of_followers(held, replace(held, shard=1), replace(held, dataset="default.other"))
    assert [p.dataset for p in found] == ["default.d", "default.other"]
    assert "has held retention back for 3 h: rows of default.d are due" in found[0].reason
    assert found[0].next_step == "`strandline follower show east` shows its progress"


def test_a_follower_whose_rows_were_dropped_is_named_until_it_has_passed_them() -> None:
    [found] = of_followers(replace(EAST, sealed=40, dropped_upto=60))
    assert "will not get all rows of default.d up to 60" in found.reason and "audit" in str(found.next_step)
    assert of_followers(replace(EAST, sealed=60, dropped_upto=60)) == []
    assert len(of_followers(replace(EAST, sealed=None, dropped_upto=60))) == 1


@pytest.mark.parametrize(("minutes", "severity"), [(2, Severity.WARNING), (20, Severity.ERROR)])
def test_a_leader_that_does_not_answer_is_an_error_after_a_while(minutes: int, severity: Severity) -> None:
    since = NOW - timedelta(minutes=minutes)
    [found] = of_leader(
        answered_at=since, is_quiet=True, failing_since=since, failed_step="ask", error="no route", next_step="Look."
    )
    assert (found.severity, found.subject, found.next_step) == (severity, Subject.LEADER, "Look")
    assert found.reason.startswith("this site has not reached its leader for")
    assert found.reason.endswith(": no route")


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ("apply", "failed to apply the leader's items for 2 h"),
        ("tell", "rejected this site's progress reports for 2 h"),
    ],
)
def test_other_steps_that_fail_are_named(step: str, words: str) -> None:
    [found] = of_leader(failing_since=NOW - 2 * HOUR, failed_step=step, error="e")
    assert words in found.reason and found.next_step == "it is tried again"


def test_a_site_where_nobody_follows_is_named() -> None:
    [found] = of_leader(answered_at=NOW - 2 * HOUR, is_quiet=True)
    assert found.severity is Severity.ERROR and "has not contacted its leader https://leader for 2 h" in found.reason
    assert "strandline follow" in str(found.next_step)
    [new] = of_leader(answered_at=None, is_quiet=True)
    assert new.severity is Severity.WARNING and "has never contacted it" in new.reason


def test_a_dataset_whose_ledger_was_restored_is_named_once() -> None:
    behind = replace(SHARD, is_behind=True, sealed=None)
    site = SiteStatus("follower", leader=LEADER, shards=(behind, replace(behind, shard=1)))
    [found] = find_replication_problems(site, (), NOW)
    assert (found.subject, found.name) == (Subject.DATASET, "default.d") and "lost or restored" in found.reason


def text(found: ReplicationStatus) -> str:
    console = Console(width=140, force_terminal=False)
    with console.capture() as captured:
        for part in render.replication(found, NOW):
            console.print(part)
    return captured.get()


def test_a_follower_that_does_not_know_its_lag_shows_the_least_that_it_lacks() -> None:
    unsure = replace(SHARD, open_items=3, open_rows=None, lag_segments=None, lag_rows=None, lag_seconds=None)
    shown = text(ReplicationStatus("lake", SiteStatus("follower", leader=LEADER, shards=(unsure,)), ()))
    assert "This site follows https://leader, which answered 0 s ago" in shown
    line = next(line for line in shown.splitlines() if line.startswith("default.d"))
    assert line.split()[-4:] == ["≥", "3", "?", "?"]


def test_a_leader_without_followers_says_how_one_is_added() -> None:
    shown = text(ReplicationStatus("lake", SiteStatus(), ()))
    assert "This site leads." in shown and "strandline follower add NAME" in shown


def test_rows_that_were_set_aside_are_shown_with_place_and_count() -> None:
    aside = CutFolder("default.d", Seq(7), "s3://bucket/_strandline/cut/d/7", 20, 1, NOW)
    shown = text(ReplicationStatus("lake", SiteStatus("follower", leader=LEADER), (), set_aside=(aside,)))
    line = next(line for line in shown.splitlines() if line.startswith("default.d"))
    assert line.split()[-2:] == ["20", "s3://bucket/_strandline/cut/d/7"]


def test_however_many_ask_what_the_arbiter_says_it_is_asked_once_in_a_while(tmp_path: Path) -> None:
    now, folder = [0.0], tmp_path / "arbiter"
    folder.mkdir()
    arbiter = Arbiter(FolderCell(folder, "lake"), "lake", call_seconds_max=60)
    watch = ArbiterWatch(arbiter, every_seconds=10, clock=lambda: now[0])
    assert watch.newest().trouble is None
    folder.rename(tmp_path / "away")
    now[0] = 9.9
    assert watch.newest().trouble is None, "the arbiter was not asked again"
    now[0] = 10
    assert watch.newest().trouble is not None
    (tmp_path / "away").rename(folder)
    record = LeaderRecord("lake", 1, 0, "a", None, True, None, frozenset(), 30)
    assert isinstance(arbiter.put(record, over=None), PutLanded)
    assert watch.newest().record is None
    now[0] = 20
    found = watch.newest()
    assert found.trouble is None and found.record is not None and found.record.name == "a"


def test_a_purge_that_a_take_over_gave_up_is_to_be_run_again_at_the_leader() -> None:
    purges = (PurgeStatus("default.d", 41, 1, 5),)
    site = SiteStatus("follower", leader=LEADER, shards=(SHARD,), purges_given_up=purges)
    [found] = find_replication_problems(site, (), NOW)
    assert "purge 41" in found.reason and found.next_step == "run the purge again at the leader"
    assert site_of(site, {"default.d"}).purges_given_up == purges and site_of(site, ()).purges_given_up == ()
