"""Renders replication: followers at a leader; the leader and each shard at a follower."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from strandline.cli.render import followers
from strandline.cli.render.elements import BAD, UNKNOWN, attention, done, grid, nothing, number
from strandline.core.text.wording import age, duration, moment, plural
from strandline.status.problems.replication_problems import find_replication_problems

if TYPE_CHECKING:
    from strandline.ledger.replicate.cuts import CutFolder
    from strandline.replicate.follow.follower import FollowReport
    from strandline.status.leadership import Leadership
    from strandline.status.replication import FollowedStatus, LeaderStatus, ReplicationStatus

_SET_ASIDE_SHOWN_MAX = 20


def replication(found: ReplicationStatus, now: datetime | None = None) -> Iterator[RenderableType]:
    moment = now or datetime.now(UTC)
    site = found.site
    yield Text.assemble("Lake ", (found.lake, "bold"), (f" · term {site.term}", "dim"))
    if site.leader is not None:
        yield leader_line(site.leader, moment)
    elif found.leadership.superseded_term is None:
        yield Text("This site leads." + (" Sinks wait for its followers." if site.wait_for == "all" else ""))
    yield from _leadership(found.leadership)
    yield Text("")
    if site.leader is not None:
        yield followed(site.shards) if site.shards else Text("Nothing followed yet.", "dim")
    if found.followers:
        yield followers.shards(found.followers)
    elif site.leader is None:
        yield Text("No followers yet. `strandline follower add NAME` lets a site follow this lake.", "dim")
    if trouble := list(find_replication_problems(site, found.followers, moment)):
        yield Text("")
        yield Text("Needs attention", "bold yellow")
        yield from map(attention, trouble)
    if found.set_aside:
        yield Text("")
        yield _set_aside(found.set_aside)


def _leadership(found: Leadership) -> Iterator[RenderableType]:
    """What the arbiter's record says, and what this site knows of other leaders and of a promotion of its own."""
    if (replaced := found.replaced) is not None:
        yield Text(f"{replaced[0].upper()}{replaced[1:]}. It accepts no more rows.", "yellow")
        yield Text(f"`strandline rejoin {found.superseded_by or 'LEADER'}` makes it follow that site.", "dim")
    if found.promoting:
        yield Text("A promotion of this site has not finished: `strandline promote` continues it.", "yellow")
    if (arbiter := found.arbiter) is None:
        return
    record = arbiter.record
    if arbiter.trouble is not None:
        yield Text(f"The arbiter does not answer: {arbiter.trouble}", "yellow")
    elif record is None:
        yield Text(f"No leader has written to the arbiter yet ({arbiter.place}).", "dim")
    else:
        does = "leads" if record.leads else "takes over"
        members = ", ".join(str(m.number) for m in sorted(record.members)) or "none"
        yield Text(
            f"Arbiter: site {record.name} (number {record.site}) {does} in term {record.term}, with a lease of "
            f"{record.lease_seconds:g} seconds; sites that may be promoted: {members}",
            "dim",
        )


def _set_aside(found: Sequence[CutFolder]) -> RenderableType:
    table = grid("set aside", "when", "rows", "place", right=("rows",))
    for one in found[:_SET_ASIDE_SHOWN_MAX]:
        rows = Text(UNKNOWN, "yellow") if one.rows is None else Text(number(one.rows))
        table.add_row(Text(one.dataset, "bold"), moment(one.at), rows, Text(one.place))
    if len(found) <= _SET_ASIDE_SHOWN_MAX:
        return table
    return Group(table, Text(f"and {len(found) - _SET_ASIDE_SHOWN_MAX:,} more: --json names all", "dim"))


def one_pass(report: FollowReport) -> Iterator[RenderableType]:
    """The datasets and items that one pass changed, and its errors."""
    if report.made:
        yield done(f"Created {', '.join(report.made)}")
    if report.dropped:
        yield done(f"Dropped {', '.join(report.dropped)}")
    if report.applied:
        yield done(f"Applied {plural(len(report.applied), 'item')} from the leader")
    elif not report.failed:
        yield nothing("The leader has nothing new")
    for error in report.failed:
        yield Text.assemble(BAD, " ", error.message)
        if error.hint:
            yield Text(f"  {error.hint}", "dim")


def leader_line(leader: LeaderStatus, now: datetime) -> Text:
    line = Text.assemble("This site follows ", (leader.address, "bold"))
    if leader.answered_at is None:
        return line.append(", which has not answered yet", "yellow")
    return line.append(f", which answered {age(leader.answered_at, now)} ago", "yellow" if leader.is_quiet else "")


def followed(shards: Sequence[FollowedStatus]) -> RenderableType:
    """For each shard: its progress in sequence numbers, and its lag."""
    right = ("shard", "applied", "recorded", "leader", "segments", "rows", "behind")
    table = grid("followed", "shard", "applied", "recorded", "leader", "segments", "rows", "behind", right=right)
    for s in shards:
        table.add_row(
            Text(s.dataset, "bold"), str(s.shard), number(s.applied), number(s.bound), number(s.leader_sealed),
            _lag(s.lag_segments, s.open_items), _lag(s.lag_rows, s.open_rows), behind(s.lag_seconds),
        )  # fmt: skip
    return table


def _lag(known: int | None, at_least: int | None) -> Text:
    """An unknown lag is at least what is recorded and not applied yet."""
    if known is not None:
        return Text(number(known))
    return Text(f"≥ {number(at_least)}" if at_least else UNKNOWN, "yellow")


def behind(seconds: float | None) -> Text:
    return Text(UNKNOWN, "yellow") if seconds is None else Text(duration(seconds))
