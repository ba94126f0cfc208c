"""Lanes of senders, and the ranges that were received in them.

The ranges of a lane are disjoint. So of all ranges that begin below a sequence number, only the last can contain it,
and a lookup is short however many ranges a lane has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import sqlalchemy as sa

from strandline.core.forward_protocol import LaneName
from strandline.core.types import DatasetId, Seq, SeqRange, merge_ranges
from strandline.ledger.engine import insert_into, slices, utc_now
from strandline.ledger.schema.core import partition_hash
from strandline.ledger.schema.receive import received, source_lane


@dataclass(frozen=True, slots=True)
class KnownBody:
    rows: SeqRange
    count: int
    digest: str
    size: int


LaneKey = tuple[int, str, str, str, int, str]  # a lane's name, ending in its partition, which is found by its hash
_LANE_KEY = tuple(source_lane.c["dataset_id", "lake", "source_dataset", "instance", "generation", "partition_hash"])
# Built once: building a statement costs as much as running it.
_LANES = sa.select(source_lane.c.id, *_LANE_KEY).where(sa.tuple_(*_LANE_KEY).in_(sa.bindparam("keys", expanding=True)))
_LOCKED_LANES = (
    sa.select(source_lane.c.id)
    .where(source_lane.c.id.in_(sa.bindparam("ids", expanding=True)))
    .order_by(source_lane.c.id)
    .with_for_update(key_share=True)
)


def lane_key(dataset: DatasetId, lane: LaneName) -> LaneKey:
    return dataset, lane.lake, lane.dataset, lane.instance, lane.generation, lane.partition


def lanes_of(connection: sa.Connection, keys: Iterable[LaneKey]) -> dict[LaneKey, int]:
    """The ids of the lanes that exist."""
    ids: dict[LaneKey, int] = {}
    hashed = {(*key[:-1], partition_hash(key[-1])): key for key in keys}
    for part in slices(hashed, len(_LANE_KEY)):
        for id, *key in connection.execute(_LANES, {"keys": part}):
            ids[hashed[tuple(key)]] = id
    return ids


def keep_lanes(connection: sa.Connection, wanted: set[LaneKey]) -> dict[LaneKey, int]:
    """Creates missing lanes, locks all of them until the transaction ends, and returns their ids. It creates all before
    it locks any."""
    keys = sorted(wanted)
    lanes = lanes_of(connection, keys)
    if missing := [key for key in keys if key not in lanes]:
        now, names = utc_now(), [*(column.name for column in _LANE_KEY[:-1]), "partition"]
        connection.execute(
            insert_into(connection, source_lane).on_conflict_do_nothing(),
            [{**dict(zip(names, key, strict=True)), "created_at": now} for key in missing],
        )
        lanes = lanes_of(connection, keys)
    for part in slices(sorted(lanes.values())):
        connection.execute(_LOCKED_LANES, {"ids": part}).all()
    return lanes


def overlapping_bodies(
    connection: sa.Connection, by_lane: Mapping[int, Iterable[SeqRange]]
) -> dict[int, dict[int, KnownBody]]:
    """Per lane, the bodies that overlap one of its ranges, by their first sequence number. Other bodies are not
    read."""
    lookups = [(lane, rows) for lane, ranges in by_lane.items() for rows in merge_ranges(ranges)]
    bodies: dict[int, dict[int, KnownBody]] = {}
    for part in slices(lookups, 4):
        # Repeats the last range up to a power of two, so that few different statements are built.
        padded = part + part[-1:] * ((1 << (len(part) - 1).bit_length()) - len(part))
        _add(bodies, connection.execute(_overlapping(len(padded)), _parameters(padded)))
    return bodies


def first_overlapping_bodies(
    connection: sa.Connection, lookups: Iterable[tuple[int, SeqRange]], bodies_max: int
) -> tuple[dict[int, dict[int, KnownBody]], set[int]]:
    """As `overlapping_bodies`, with one range per lane and at most `bodies_max` bodies, the lowest of each lane first.
    Also returns the lanes that may have more."""
    bodies: dict[int, dict[int, KnownBody]] = {}
    more: set[int] = set()
    left = bodies_max
    for part in slices(lookups, 4):
        if left == 0:
            more.update(lane for lane, _ in part)
            continue
        query = _overlapping(len(part)).order_by(sa.text("1"), sa.text("2")).limit(left + 1)
        rows = connection.execute(query, _parameters(part)).all()
        if len(rows) > left:
            more.update(lane for lane, _ in part if lane >= rows[-1].lane_id)
        _add(bodies, rows[:left])
        left -= min(left, len(rows))
    return bodies, more


def _parameters(lookups: Sequence[tuple[int, SeqRange]]) -> dict[str, int]:
    named = ({f"lane_{n}": lane, f"lo_{n}": r.lo, f"hi_{n}": r.hi} for n, (lane, r) in enumerate(lookups))
    return {name: value for parameters in named for name, value in parameters.items()}


def _add(bodies: dict[int, dict[int, KnownBody]], rows: Iterable[Any]) -> None:
    for lane, lo, hi, count, digest, size in rows:
        bodies.setdefault(lane, {})[lo] = KnownBody(SeqRange(Seq(lo), Seq(hi)), count, digest, size)


@cache
def _overlapping(ranges: int) -> sa.CompoundSelect[Any]:
    each = (
        sa.select(*(sa.bindparam(f"{name}_{n}", type_=sa.BigInteger).label(name) for name in ("lane", "lo", "hi")))
        for n in range(ranges)
    )
    wanted = sa.union_all(*each).cte("wanted")
    below = received.alias("below")
    last_below = (
        sa.select(below.c.id)
        .where(below.c.lane_id == wanted.c.lane, below.c.lo < wanted.c.lo)
        .order_by(below.c.lo.desc())
        .limit(1)
        .correlate(wanted)
        .scalar_subquery()
    )
    body = received.c["lane_id", "lo", "hi", "rows", "digest", "size"]
    within = (received.c.lane_id == wanted.c.lane) & received.c.lo.between(wanted.c.lo, wanted.c.hi)
    return sa.union_all(
        sa.select(*body).join_from(wanted, received, within),
        sa.select(*body).join_from(wanted, received, received.c.id == last_below).where(received.c.hi >= wanted.c.lo),
    )
