"""What is wrong with followers, as their leader sees it, and with the leader, as a follower does. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby

from strandline.core.wording import age
from strandline.status.followers import FollowerStatus
from strandline.status.replication import LeaderStatus, SiteStatus
from strandline.status.status_problem import LONG_SECONDS, Severity, StatusProblem, Subject


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
    waits = ", and sinks get nothing that it does not have" if is_waited_for else ""
    silent = Severity.ERROR if is_waited_for else Severity.WARNING

    def problem(severity: Severity, reason: str, next_step: str, dataset: str | None = None) -> StatusProblem:
        return StatusProblem(severity, Subject.FOLLOWER, one.name, dataset, f"follower {one.name} {reason}", next_step)

    if one.told_at is None:
        if (now - one.added_at).total_seconds() >= LONG_SECONDS:
            yield problem(
                silent,
                f"was added {age(one.added_at, now)} ago and has never said how far it is; retention keeps everything "
                f"for it{waits}",
                "at its site, `strandline follow init` and `strandline follow` begin; "
                f"`strandline follower remove {one.name}` gives it up",
            )
    elif (now - one.told_at).total_seconds() >= LONG_SECONDS:
        yield problem(
            silent,
            f"has said nothing for {age(one.told_at, now)}; retention keeps for it what it may lack{waits}",
            "check that `strandline follow` or `strandline run` runs at its site and reaches this one; "
            f"`strandline follower remove {one.name}` gives it up",
        )
    for dataset, group in groupby(shards, key=lambda f: f.dataset):
        first = next(group)
        if first.held_since is not None:
            yield problem(
                Severity.WARNING,
                f"holds retention back: rows of {dataset} are due and wait for it, since {age(first.held_since, now)}",
                f"`strandline follower show {one.name}` says how far it is",
                dataset,
            )
        if first.dropped_upto is not None and (first.sealed or 0) < first.dropped_upto:
            yield problem(
                Severity.WARNING,
                f"will not get all rows of {dataset} up to {first.dropped_upto:,}: retention has deleted some before "
                "it had them, as it was added to allow",
                "it gets what is left; `strandline audit` says how many rows it were, and when",
                dataset,
            )


_FAILED = {
    "ask": "this site has not reached its leader for {age}",
    "apply": "what the leader offers could not be applied for {age}",
    "tell": "the leader has not taken for {age} how far this site is, and keeps rows for it meanwhile",
}


def _of_leader(leader: LeaderStatus, now: datetime) -> Iterator[StatusProblem]:
    def problem(severity: Severity, reason: str, next_step: str) -> StatusProblem:
        return StatusProblem(severity, Subject.LEADER, None, None, reason, next_step)

    if leader.failing_since is not None:
        is_long = (now - leader.failing_since).total_seconds() >= LONG_SECONDS
        said = _FAILED[leader.failed_step or "ask"].format(age=age(leader.failing_since, now))
        step = (leader.next_step or "it is tried again").rstrip(".")
        why = "" if leader.error is None else f": {leader.error}"  # not for everybody to see
        yield problem(Severity.ERROR if is_long else Severity.WARNING, f"{said}{why}", step)
    elif leader.answered_at is None:
        yield problem(
            Severity.WARNING,
            f"this site follows {leader.address} and has not asked it for anything yet",
            "`strandline follow` or `strandline run` keeps it up with its leader",
        )
    elif (now - leader.answered_at).total_seconds() >= LONG_SECONDS:
        yield problem(
            Severity.ERROR,
            f"this site has asked its leader {leader.address} for nothing since {age(leader.answered_at, now)}",
            "nobody follows, or one batch takes very long; `strandline follow` or `strandline run` keeps it up",
        )


def _of_own_ledger(site: SiteStatus) -> Iterator[StatusProblem]:
    for name in sorted({s.dataset for s in site.shards if s.is_behind}):
        yield StatusProblem(
            Severity.WARNING,
            Subject.DATASET,
            name,
            name,
            f"{name}: this site's ledger was lost or restored, so nobody reads the dataset here until it is complete",
            "`strandline follow` fetches what is missing",
        )


def _of_purges(site: SiteStatus) -> Iterator[StatusProblem]:
    for p in site.purges_given_up:
        yield StatusProblem(
            Severity.WARNING,
            Subject.DATASET,
            p.dataset,
            p.dataset,
            f"{p.dataset}: the leader does not know of purge {p.number:,}, which the leader before it began. It still "
            f"has those rows (numbers {p.first:,} to {p.last:,}), and this site may lack them",
            "run the purge again at the leader",
        )
