"""The readers for which retention keeps rows, besides the sinks of this site: its consumers; at a leader, its
followers; and at a follower, its leader's sinks, which it may have to continue one day. Rows that a reader lacks are
counted, and kept or dropped as its rule says.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from strandline.core.errors import WatermarkMoved
from strandline.core.records.audit_events import Event
from strandline.core.settings.maintain import RetainSettings
from strandline.core.types import SEQ_COLUMN, Dataset, Seq
from strandline.ledger import audit
from strandline.ledger.engine import Connection
from strandline.ledger.ingest import purge_items
from strandline.ledger.maintain import floors
from strandline.ledger.maintain.begun_purges import list_begun
from strandline.ledger.maintain.floors import SinkProgress
from strandline.ledger.read import consumers
from strandline.ledger.read.consumers import Consumer
from strandline.ledger.replicate import followers, leader_sinks, sites
from strandline.ledger.replicate.followers import RegisteredFollower
from strandline.ledger.replicate.leader_sinks import LeaderSink
from strandline.maintain import count_rows
from strandline.maintain.retain_plan import Awaited, UnreportedSinks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


Lacking = tuple[tuple[Awaited, int], ...]  # how many rows each of them lacks


def list_awaited(connection: Connection, dataset: Dataset, rule: RetainSettings) -> list[Awaited]:
    """All readers of the dataset for which retention may have to keep rows."""
    # Consumers read this site's own table, so they count at every site.
    own = [Awaited(c, c.watermark, c.held_since, c.drop_after) for c in consumers.of_dataset(connection, dataset.id)]
    return own + _other_sites(connection, dataset, rule)


def _other_sites(connection: Connection, dataset: Dataset, rule: RetainSettings) -> list[Awaited]:
    if not sites.get(connection).follows:
        return _followers(connection, dataset)
    after = rule.drop_after if rule.on_lag == "drop" else None
    reported = leader_sinks.of_dataset(connection, dataset.uuid)
    if reported is None:
        return [Awaited(UnreportedSinks(), None, None, None)]
    not_ignored = [s for s in reported if not (s.is_paused and rule.paused_sinks == "ignore")]
    return [Awaited(s, s.number, s.held_since, after) for s in not_ignored]


def _followers(connection: Connection, dataset: Dataset) -> list[Awaited]:
    """The followers, each with the first row of the purges that it has yet to carry out."""
    # Rows from there on are kept for it. If purged rows are too many to be named, a follower deletes what the leader
    # lacks between them, too: that must not be what retention has deleted (docs/adr/0070, rule 20).
    progress = followers.list_progress(connection, dataset)
    begun = [p.rows.lo for p in list_begun(connection, dataset) if p.rows is not None] if progress else []

    def first_purged(number: Seq | None) -> Seq | None:
        offered = purge_items.first_row_above(connection, dataset.id, number or Seq(0))
        return min([*begun, *(() if offered is None else (offered,))], default=None)

    return [
        Awaited(p.follower, p.number, p.held_since, p.follower.drop_after, first_purged(p.number)) for p in progress
    ]


def own_sinks(connection: Connection, dataset: Dataset) -> list[SinkProgress]:
    """The progress of this site's sinks. Empty at a site that follows: the leaders since then have continued the sinks
    that it had when it led."""
    return [] if sites.get(connection).follows else floors.list_sink_progress(connection, dataset.id)


def count_lacking(df: DataFrame, awaited: Sequence[Awaited], condition: str) -> Lacking:
    """How many of the rows that match the condition each of them lacks."""
    return tuple((p, _count(df, condition, int(p.number or 0))) for p in awaited)


def count_held(df: DataFrame, awaited: Sequence[Awaited], condition: str, after: Seq | None) -> Lacking:
    """How many of the rows above `after` that match the condition stay for each of them."""
    return tuple((p, _count(df, condition, max(p.waits_at, int(after or 0)))) for p in awaited)


def _count(df: DataFrame, condition: str, above: int) -> int:
    return count_rows.count(df, f"({condition}) AND `{SEQ_COLUMN}` > {above}").rows


def pass_over(connection: Connection, dataset: Dataset, rule: RetainSettings, dropped: Lacking, end: Seq) -> None:
    """Records the rows that are deleted before these readers have them, in the transaction that raises the floor to
    `end`. Raises WatermarkMoved if another reader lacks rows up to there."""
    passed = {p.title for p, _ in dropped}
    now = list_awaited(connection, dataset, rule)
    if late := next((p for p in now if p.waits_at < end and p.title not in passed), None):
        raise WatermarkMoved(f"{late.title} was added or reset meanwhile", hint="Try again.")
    for p, rows in dropped:
        match p.who:
            case RegisteredFollower(id=id, name=name) if int(p.number or 0) < end:
                followers.drop_for(connection, dataset.id, id, end)
                audit.record(
                    connection, Event.FOLLOWER_ROWS_DROPPED, follower=name, dataset=dataset.name, rows=rows,
                    after=p.number, up_to=end,
                )  # fmt: skip
            case Consumer(id=reader, name=name):
                consumers.drop_for(connection, reader, end)
                audit.record(
                    connection, Event.CONSUMER_ROWS_DROPPED, consumer=name, dataset=dataset.name, rows=rows,
                    after=p.number, up_to=end,
                )  # fmt: skip
            case LeaderSink(name=name):  # the loss is recorded when this site leads, and has the sink
                audit.record(
                    connection, Event.LEADER_SINK_ROWS_DROPPED, sink=name, dataset=dataset.name, rows=rows,
                    after=p.number, up_to=end,
                )  # fmt: skip


def record_holds(
    connection: Connection, dataset: Dataset, held: Lacking, *, due: Seq | None, now: datetime
) -> list[str]:
    """Records for whom rows are held, and how many. Returns the titles of those for whom none are held any more."""
    live = {f.id: f for f in followers.of_dataset(connection, dataset)}
    of_followers = {p.who.id: rows for p, rows in held if isinstance(p.who, RegisteredFollower) and p.who.id in live}
    new, over = followers.keep_holds(connection, dataset.id, list(of_followers), now)
    for id in new:
        name, rows = live[id].name, of_followers[id]
        audit.record(connection, Event.RETENTION_HELD, dataset=dataset.name, follower=name, rows=rows, up_to=due)
    released = [live[id] for id in over if id in live]
    for one in released:
        audit.record(connection, Event.RETENTION_RELEASED, dataset=dataset.name, follower=one.name)
    released_readers = _record_consumers(connection, dataset, held, due=due, now=now)
    of_sinks = {p.who.name: rows for p, rows in held if isinstance(p.who, LeaderSink)}
    new_sinks, released_sinks = leader_sinks.keep_holds(connection, dataset.uuid, of_sinks, upto=due or Seq(1), now=now)
    for sink in new_sinks:
        rows = of_sinks[sink.name]
        audit.record(
            connection, Event.RETENTION_HELD, dataset=dataset.name, leaders_sink=sink.name, rows=rows, up_to=due
        )
    for sink in released_sinks:
        audit.record(connection, Event.RETENTION_RELEASED, dataset=dataset.name, leaders_sink=sink.name)
    return [*(one.title for one in released), *released_readers, *(sink.title for sink in released_sinks)]


def _record_consumers(
    connection: Connection, dataset: Dataset, held: Lacking, *, due: Seq | None, now: datetime
) -> list[str]:
    rows = {p.who.id: n for p, n in held if isinstance(p.who, Consumer)}
    new, over = consumers.keep_holds(connection, dataset.id, rows, now)
    for one in new:
        audit.record(
            connection, Event.RETENTION_HELD, dataset=dataset.name, consumer=one.name, rows=rows[one.id], up_to=due
        )
    for one in over:
        audit.record(connection, Event.RETENTION_RELEASED, dataset=dataset.name, consumer=one.name)
    return [one.title for one in over]
