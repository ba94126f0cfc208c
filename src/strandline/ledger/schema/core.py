"""The columns of the ledger's tables, for queries, by their types. The migrations make the tables: keys, NOT NULL,
CHECKs, indexes and triggers, which refuse what the protocol does not allow, are in `migrations/versions/` and nowhere
else.

A block moves `reserved → staged → published`, or `reserved → abandoned`. An adopted block moves from `reserved`
straight to `published`, because its commit point is the Iceberg commit that numbers the rows. A chunk moves
`planned → landed` or `planned → empty`. While it is planned, its two parts may replace it. Triggers (made by the
migrations) refuse every other transition, a counter or a watermark that moves back, and every change to what was
promised: an intent's bounds and options, a chunk's range.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import chain
from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, Dialect, MetaData, Table, Text, TypeDecorator
from sqlalchemy.types import TypeEngine

from strandline.core.text.masking import masked, masked_within

metadata = MetaData()
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def micros(moment: datetime) -> int:
    whole = moment.astimezone(UTC)
    return int(whole.replace(microsecond=0).timestamp()) * 1_000_000 + whole.microsecond


class UtcMicros(TypeDecorator[datetime]):
    """A time as microseconds since 1970: exact, sortable, and the same in both databases."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a moment without a time zone")
        return micros(value)

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], datetime | None]:
        return _moment  # and not process_result_value, which costs more than this for each of thousands of values


@lru_cache(maxsize=1 << 15)  # a server reads the same times again and again
def _moment(stored: int | None) -> datetime | None:
    return None if stored is None else _EPOCH + timedelta(microseconds=stored)


class MaskedText(TypeDecorator[str]):
    """Text that may quote a server, stored with secrets masked."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else masked(value)


class MaskedJson(TypeDecorator[str]):
    """JSON that may quote a server, stored with secrets masked in its texts."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else json.dumps(masked_within(json.loads(value)))


def _columns(kind: type[TypeEngine[Any]]) -> Callable[..., Iterable[Column[Any]]]:
    def named(*names: str) -> Iterable[Column[Any]]:
        return (Column(name, kind) for name in names)

    return named


integers = _columns(BigInteger)
texts = _columns(Text)
words = _columns(MaskedText)
documents = _columns(MaskedJson)
flags = _columns(Boolean)
times = _columns(UtcMicros)


def partition_hash(partition: str) -> str:
    """The key that finds a lane: a partition may be longer than PostgreSQL can index (about 2,700 bytes)."""
    return hashlib.sha256(partition.encode()).hexdigest()


def hash_column() -> Iterable[Column[str]]:
    """A column that gets the hash of the row's `partition` on every insert."""
    yield Column(
        "partition_hash", Text, default=lambda context: partition_hash(context.get_current_parameters()["partition"])
    )


def actor_columns() -> Iterable[Column[str]]:
    """The actor (`core/actor.py`). NULL: recorded by a version that did not store it."""
    return texts("actor", "trigger")


def table(name: str, *columns: Iterable[Column[Any]]) -> Table:
    return Table(name, metadata, *chain(*columns))


sequence = table(
    "sequence",
    integers("id", "last", "epoch"),
    texts("lake"),
    times("created_at"),
    texts("move_state", "move_id", "move_place"),  # of a migration to another place (`closed_ledger.py`); NULL: none
)

dataset = table(
    "dataset",
    integers("id"),
    texts("name", "table_uuid", "history"),
    texts("uuid"),  # the dataset's id, the same at every site of the lake; its tables differ
    integers("first_shard", "shards"),  # its shards are numbered from the first one on
    texts("deliver_by"),  # a JSON list of column names
    flags("adopted"),
    times("created_at", "dropped_at"),
)

block = table(
    "block",
    integers("id", "dataset_id", "lo", "hi", "fence", "snapshot_id", "row_count"),
    integers("shard"),  # NULL: in every shard of the dataset, as a purge and a cut are
    texts("kind", "batch_id", "digest", "state"),
    texts("item"),  # what a follower sees: a segment (rows), a purge or a cut, which have a number and no rows
    texts("ranges"),  # JSON: where a purge deleted rows; what a cut leaves. NULL for a segment
    flags("offered"),  # at a follower: the leader has this item, so this site never abandons it
    integers("offered_rows"),  # how many rows the leader counted in it, if it did
    words("reason"),
    times("lease_until", "reserved_at", "changed_at"),
)

# The files whose rows an adopted block numbers. Recovery takes over a crashed pass by numbering them again.
input_file = table("input_file", integers("block_id"), texts("path"))

audit = table("audit", integers("id"), texts("event"), documents("detail"), times("at"), actor_columns())

# Foreign and unnumbered rows, as last counted at one snapshot of main.
table_count = table(
    "table_count",
    integers("dataset_id", "snapshot_id", "unnumbered", "foreign_rows", "twice", "twice_first"),
    integers("foreign_from"),  # the lowest foreign sequence number above the counter of that moment
    times("counted_at"),
)

# The snapshot of main whose sequence numbers were last compared with the counter, stored by the transaction that placed
# a block above them. `beyond`: the lowest sequence number that was too far ahead of the counter to skip.
table_check = table("table_check", integers("dataset_id", "snapshot_id", "beyond"))

# What the ledger remembers of a table besides its blocks.
table_state = table(
    "table_state",
    integers("dataset_id"),
    integers("settled_snapshot"),  # the snapshot of our tag, when the ledger last learned of it
    integers("settled_sequence"),  # Iceberg's sequence number of that snapshot
    words("doubt"),  # rows were published while nothing showed whether the table had been rolled back
    words("trouble"),  # why the last recovery could not settle the dataset
    times("trouble_since"),
)

sink = table(
    "sink",
    integers("id", "dataset_id", "generation", "start", "planned", "failures"),
    texts("instance", "name", "kind", "destination", "state", "lease_token"),
    words("reason"),
    texts("options"),  # a JSON object of texts
    texts("peer"),  # the kind of server that answered the claim of the destination; NULL where it is irrelevant
    times("retry_at", "lease_until", "created_at", "removed_at"),
    times("failing_since"),  # the time of the first failure after the last success
    flags("from_now"),  # whether it was added for new rows only; NULL: not known
)

lane = table(
    "lane",
    integers("id", "sink_id", "generation", "mark", "exported", "withheld", "last_lo", "last_hi", "version"),
    # The generation before delivered the rows at or below it; this generation sent only some of them again.
    integers("builds_on"),
    texts("partition", "continuation"),
    hash_column(),
    times("updated_at"),
)

intent = table(
    "intent",
    integers("id", "lane_id", "after", "until"),
    texts("options"),  # a JSON object of texts
    times("opened_at", "closed_at"),
)

chunk = table(
    "chunk",
    integers("id", "intent_id", "lane_id", "lo", "hi", "expected", "row_count", "withheld", "size"),
    integers("split_from"),  # the id of the chunk that this one is a part of; that chunk is gone
    texts("state", "digest"),
    flags("found"),
    flags("offered"),  # it may have been sent: stored before the send, for sinks that cannot say what they hold
    times("acked_at"),
)
