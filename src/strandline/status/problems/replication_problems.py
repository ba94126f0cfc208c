"""Problems of replication: of the followers at a leader, of the leader at a follower. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING

from strandline.core.text.wording import age
from strandline.status.problems.status_problem import LONG_SECONDS, StatusProblem, Subject

if TYPE_CHECKING:
    from strandline.status.followers import FollowerStatus
    from strandline.status.replication import LeaderStatus, SiteStatus


def find_replication_problems(
    site: SiteStatus, followers: Iterable[FollowerStatus], now: datetime | None = None
) -> Iterator[StatusProblem]:
    """`followers` are ordered by name."""
    moment = now or datetime.now(UTC)
    for _, shards in groupby(followers, key=lambda f: f.name):
        yield from _of_follower(list(shards), moment, is_waited_for=site.wait_for == "all")
    if site.leader is not None:
        yield from _of_leader(site.leader, moment)
        yield from _of_own_ledger(site)
        yield from _of_purges(site)


def _of_follower(shards: Sequence[FollowerStatus], now: datetime, *, is_waited_for: bool) -> Iterator[StatusProblem]:
    one = shards[0]
    waits = ", and sinks get no rows that it lacks" if is_waited_for else ""
    follower = Subject.FOLLOWER.named(one.name, None)
    report = follower.error if is_waited_for else follower.warning
    if one.reported_at is None:
        if (now - one.added_at).total_seconds() >= LONG_SECONDS:
            yield report(
                f"follower {one.name} was added {age(one.added_at, now)} ago and has never reported its progress; "
                f"retention keeps all rows for it{waits}",
                "run `strandline follow init` and `strandline follow` at its site, or remove it: "
                f"`strandline follower remove {one.name}`",
            )
    elif (now - one.reported_at).total_seconds() >= LONG_SECONDS:
        yield report(
            f"follower {one.name} has not reported its progress for {age(one.reported_at, now)}; retention keeps the "
            f"rows that it may lack{waits}",
            "check that `strandline follow` or `strandline run` runs at its site and reaches this one, or remove it: "
            f"`strandline follower remove {one.name}`",
        )
    for dataset, group in groupby(shards, key=lambda f: f.dataset):
        first, follower = next(group), Subject.FOLLOWER.named(one.name, dataset)
        if first.held_since is not None:
            yield follower.warning(
                f"follower {one.name} has held retention back for {age(first.held_since, now)}: rows of {dataset} are "
                "due for deletion and wait for it",
                f"`strandline follower show {one.name}` shows its progress",
            )
        if first.dropped_upto is not None and (first.sealed or 0) < first.dropped_upto:
            yield follower.warning(
                f"follower {one.name} will not get all rows of {dataset} up to {first.dropped_upto:,}: retention "
                "deleted some before the follower had them (it was added with --on-lag drop)",
                "it gets the rows that are left; `strandline audit` says how many were deleted, and when",
            )


_FAILED = {
    "ask": "this site has not reached its leader for {age}",
    "apply": "this site has failed to apply the leader's items for {age}",
    "tell": "the leader has rejected this site's progress reports for {age}; until it accepts one, it keeps rows for "
    "this site",
}


def _of_leader(leader: LeaderStatus, now: datetime) -> Iterator[StatusProblem]:
    subject = Subject.LEADER.named(None, None)
    if leader.failing_since is not None:
        is_long = (now - leader.failing_since).total_seconds() >= LONG_SECONDS
        problem = _FAILED[leader.failed_step or "ask"].format(age=age(leader.failing_since, now))
        step = (leader.next_step or "it is tried again").rstrip(".")
        why = "" if leader.error is None else f": {leader.error}"  # None for a token that may not see it
        yield (subject.error if is_long else subject.warning)(f"{problem}{why}", step)
    elif leader.answered_at is None:
        yield subject.warning(
            f"this site follows {leader.address} and has never contacted it",
            "run `strandline follow` or `strandline run` here",
        )
    elif (now - leader.answered_at).total_seconds() >= LONG_SECONDS:
        yield subject.error(
            f"this site has not contacted its leader {leader.address} for {age(leader.answered_at, now)}",
            "no `strandline follow` or `strandline run` is running here, or one batch is taking long",
        )


def _of_own_ledger(site: SiteStatus) -> Iterator[StatusProblem]:
    for name in sorted({s.dataset for s in site.shards if s.is_behind}):
        yield Subject.DATASET.named(name, name).warning(
            f"{name}: this site's ledger was lost or restored, so the dataset cannot be read here until it is complete",
            "`strandline follow` or `strandline run` fetches what is missing",
        )


def _of_purges(site: SiteStatus) -> Iterator[StatusProblem]:
    for p in site.purges_given_up:
        yield Subject.DATASET.named(p.dataset, p.dataset).warning(
            f"{p.dataset}: the leader does not know purge {p.number:,}, which the previous leader began. It still has "
            f"those rows (sequence numbers {p.first:,} to {p.last:,}), and this site may lack them",
            "run the purge again at the leader",
        )
