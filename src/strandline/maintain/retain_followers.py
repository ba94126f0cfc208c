"""What retention does about followers: rows that they lack are counted, kept for them, or dropped as they chose."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from strandline.core.audit_events import Event
from strandline.core.errors import MarkMoved
from strandline.core.types import SEQ_COLUMN, Dataset, Seq
from strandline.ledger import audit
from strandline.ledger.engine import Connection
from strandline.ledger.replicate import followers
from strandline.ledger.replicate.followers import FollowerProgress
from strandline.maintain import count_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FollowersLacking = tuple[tuple[FollowerProgress, int], ...]  # followers, and how many rows each of them lacks


def count_lacking(
    df: DataFrame, progress: Sequence[FollowerProgress], condition: str, after: Seq | None = None
) -> FollowersLacking:
    """Of the rows above `after` that fit the condition."""

    def count(p: FollowerProgress) -> int:
        above = max(int(p.number or 0), int(after or 0))
        return count_rows.count(df, f"({condition}) AND `{SEQ_COLUMN}` > {above}").rows

    return tuple((p, count(p)) for p in progress)


def pass_followers(connection: Connection, dataset: Dataset, dropped: FollowersLacking, end: Seq) -> None:
    """In the transaction that raises the floor to `end`: records what is deleted before these followers have it. Raises
    MarkMoved if another follower lacks rows up to there."""
    passed = {p.follower.id for p, _ in dropped}
    now = followers.list_progress(connection, dataset)
    if any(int(p.number or 0) < end for p in now if p.follower.id not in passed):
        raise MarkMoved("a follower was added meanwhile", hint="Try again.")
    for p, rows in dropped:
        followers.drop_for(connection, dataset.id, p.follower.id, end)
        audit.record(
            connection, Event.FOLLOWER_ROWS_DROPPED, follower=p.follower.name, dataset=dataset.name, rows=rows,
            after=p.number, up_to=end,
        )  # fmt: skip


def record_follower_holds(
    connection: Connection, dataset: Dataset, held: FollowersLacking, *, due: Seq | None, now: datetime
) -> list[str]:
    """Returns the followers for which nothing is held any more."""
    live = {f.id: f for f in followers.of_dataset(connection, dataset)}
    counted = {p.follower.id: rows for p, rows in held if p.follower.id in live}
    new, over = followers.keep_holds(connection, dataset.id, list(counted), now)
    for id in new:
        name, rows = live[id].name, counted[id]
        audit.record(connection, Event.RETENTION_HELD, dataset=dataset.name, follower=name, rows=rows, up_to=due)
    released = [live[id] for id in over if id in live]
    for one in released:
        audit.record(connection, Event.RETENTION_RELEASED, dataset=dataset.name, follower=one.name)
    return [one.title for one in released]
