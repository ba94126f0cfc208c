"""The leader's sinks, as a follower knows them: one document, which the follower uses when it is promoted; and the
progress of each sink, because retention at this site keeps the rows that the sink lacks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from strandline.core.sites.replication import SinkDefinition
from strandline.core.types import DatasetUuid, Seq, seq_or_none
from strandline.ledger.engine import upsert, utc_now
from strandline.ledger.schema.replicate import leader_sink, leader_sinks


def store(connection: sa.Connection, document: str, definitions: Sequence[SinkDefinition]) -> None:
    """Replaces the stored sinks. `document` has the definitions as JSON."""
    upsert(connection, leader_sinks, {"id": 1}, document=document, told_at=utc_now())
    named = {(d.dataset, d.name) for d in definitions}
    for row in connection.execute(sa.select(leader_sink.c.dataset, leader_sink.c.name)).all():
        if (row.dataset, row.name) not in named:
            own = (leader_sink.c.dataset == row.dataset, leader_sink.c.name == row.name)
            connection.execute(leader_sink.delete().where(*own))
    for d in definitions:
        key = {"dataset": d.dataset, "name": d.name}
        upsert(connection, leader_sink, key, lowest=d.lowest, paused=d.paused)


def forget(connection: sa.Connection) -> None:
    """Deletes the stored sinks, for a site that gets another leader."""
    connection.execute(leader_sinks.delete())
    connection.execute(leader_sink.delete())


def read(connection: sa.Connection) -> str | None:
    """The document; None if the leader has not sent one yet."""
    return connection.execute(sa.select(leader_sinks.c.document)).scalar()


# --- what retention keeps for them -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeaderSink:
    """A sink of the leader, and its progress as the leader last reported it."""

    dataset: DatasetUuid
    name: str
    number: Seq | None  # it has every row up to here; None: it may need the very first row
    is_paused: bool
    held_since: datetime | None  # since when retention keeps due rows for it; None: it does not
    held_rows: int | None
    held_upto: Seq | None

    @property
    def title(self) -> str:
        """For lists that also have sinks of this site."""
        return f"the leader's sink {self.name}"


def list_all(connection: sa.Connection) -> list[LeaderSink]:
    rows = connection.execute(sa.select(leader_sink).order_by(leader_sink.c.dataset, leader_sink.c.name))
    return [
        LeaderSink(
            DatasetUuid(r.dataset), r.name, seq_or_none(r.lowest), r.paused, r.held_since, r.held_rows,
            seq_or_none(r.held_upto),
        )
        for r in rows
    ]  # fmt: skip


def of_dataset(connection: sa.Connection, id: DatasetUuid) -> list[LeaderSink] | None:
    """The leader's sinks of the dataset; None if the leader has not sent any yet."""
    if read(connection) is None:
        return None
    return [s for s in list_all(connection) if s.dataset == id]


def keep_holds(
    connection: sa.Connection, id: DatasetUuid, held: Mapping[str, int], *, upto: Seq, now: datetime
) -> tuple[list[LeaderSink], list[LeaderSink]]:
    """Stores how many due rows retention keeps for which sinks. Returns those that are new, and those for which it
    keeps none any more. `held_since` stays the time of the first run that found it."""
    stored = of_dataset(connection, id) or []
    for one in stored:
        own = (leader_sink.c.dataset == id, leader_sink.c.name == one.name)
        if one.name in held:
            values = {"held_since": one.held_since or now, "held_rows": held[one.name], "held_upto": upto}
            connection.execute(leader_sink.update().where(*own).values(**values))
        elif one.held_since is not None:
            nothing = {"held_since": None, "held_rows": None, "held_upto": None}
            connection.execute(leader_sink.update().where(*own).values(**nothing))
    new = [s for s in stored if s.name in held and s.held_since is None]
    return new, [s for s in stored if s.name not in held and s.held_since is not None]
