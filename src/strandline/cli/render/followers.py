"""Renders followers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from strandline.cli.render.elements import UNKNOWN, grid, number
from strandline.core.text.wording import age, duration, moment

if TYPE_CHECKING:
    from strandline.ledger.replicate.followers import RegisteredFollower
    from strandline.status.followers import FollowerStatus


def follower_list(known: Sequence[RegisteredFollower], found: Sequence[FollowerStatus]) -> RenderableType:
    if not known:
        return Text("No followers yet. `strandline follower add NAME` lets a site follow this lake.", "dim")
    return shards(found) if found else Text(f"{', '.join(f.name for f in known)}: no dataset to follow yet", "dim")


def shards(found: Sequence[FollowerStatus]) -> RenderableType:
    right = ("shard", "applied", "segments", "rows", "behind")
    table = grid("follower", "dataset", "shard", "applied", "segments", "rows", "behind", "last contact", right=right)
    for s in found:
        behind = Text(UNKNOWN, "yellow") if s.lag_seconds is None else Text(duration(s.lag_seconds))
        reported = Text("never", "yellow") if s.reported_at is None else Text(f"{age(s.reported_at)} ago")
        table.add_row(
            Text(s.name, "bold"), Text(s.dataset), str(s.shard), _count(s.high_water), _count(s.lag_segments),
            _count(s.lag_rows), behind, reported,
        )  # fmt: skip
    return table


def detail(record: RegisteredFollower, follows: str, found: Sequence[FollowerStatus]) -> Iterator[RenderableType]:
    yield Text(record.name, "bold")
    yield Text(f"  follows {follows}, since {moment(record.added_at)}")
    if record.drop_after is None:
        yield Text("  retention keeps rows that it lacks")
    else:
        yield Text(f"  retention keeps rows that it lacks for {record.drop_after}")
    if found:
        yield shards(found)


def _count(value: int | None) -> Text:
    return Text(UNKNOWN, "yellow") if value is None else Text(number(value))
