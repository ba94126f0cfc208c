"""What a leader offers to its followers: items, datasets and sinks. No I/O.

An *item* is one thing that a follower applies: a segment, a purge or a cut. The leader offers the settled items of a
dataset in the order of their sequence numbers; the follower records each as an open block and applies it. docs/adr/0059
says which items the kinds of blocks become.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from strandline.core.types import BlockKind, DatasetUuid, History, ItemKind, Seq, SeqRange, ShardId

SINGLE = ShardId(0)  # the only shard of a lake with one dataset that has one shard
SHARDS_MAX = 1024
FIRST_TERM = 1


class SiteRole(StrEnum):
    LEADER = "leader"
    FOLLOWER = "follower"


class OnLag(StrEnum):
    """What retention does with due rows that a follower or a consumer does not have."""

    HOLD = "hold"
    DROP = "drop"  # after the time that was chosen for the follower or consumer


@dataclass(frozen=True, slots=True)
class TakeoverCut:
    """The sequence numbers above the new leader's seal that stay after a take-over. Of those between `above` and the
    sequence number of the cut itself, only those in `keeps` stay; all other blocks and rows are cut out. docs/adr/0071
    has the rules."""

    term: int  # of the leader that took over
    above: Seq  # its seal before it did; 0: it had none
    keeps: tuple[SeqRange, ...]  # in order, apart from each other, above `above`
    # The last term whose cut that leader had recorded. A leader promoted by force has nothing of the leaders between
    # that term and its own. None: recorded by a version that did not store it.
    replaces: int | None = None

    def leaves_out(self, term: int) -> bool:
        """Whether the new leader has nothing of what an earlier leader added in this term."""
        return self.replaces is not None and self.replaces < term < self.term

    def __post_init__(self) -> None:
        if self.term < FIRST_TERM or self.above < 0:
            raise ValueError(f"a cut of term {self.term} above {self.above}")
        last = int(self.above)
        for kept in self.keeps:
            if kept.lo <= last:
                raise ValueError(f"a cut above {self.above} that keeps {kept} at or below {last}")
            last = kept.hi


@dataclass(frozen=True, slots=True)
class Item:
    """`lo..hi` are its sequence numbers: those of a segment's rows, or the only one of a purge or a cut."""

    kind: ItemKind
    lo: Seq
    hi: Seq
    shard: ShardId | None  # None: in every shard of the dataset, as a purge and a cut are
    rows: int | None  # None: the leader has not counted them
    batch_id: str | None
    digest: str | None
    source: BlockKind = BlockKind.BATCH  # where a segment's rows came from
    ranges: tuple[SeqRange, ...] = ()  # where a purge deleted rows
    cut: TakeoverCut | None = None  # of a cut, and of nothing else

    def __post_init__(self) -> None:
        if not 1 <= self.lo <= self.hi:
            raise ValueError(f"not a range of the sequence: {self.lo}..{self.hi}")
        if (self.kind is ItemKind.SEGMENT) != (self.shard is not None):
            raise ValueError(f"a {self.kind} in shard {self.shard}")
        if self.kind is not ItemKind.SEGMENT and self.lo != self.hi:
            raise ValueError(f"a {self.kind} with more than one sequence number: {self.lo}..{self.hi}")
        if (self.kind is ItemKind.CUT) != (self.cut is not None) or (self.ranges and self.kind is not ItemKind.PURGE):
            raise ValueError(f"a {self.kind} with {self.ranges} and {self.cut}")
        if self.cut is not None and max([self.cut.above, *(r.hi for r in self.cut.keeps)]) >= self.lo:
            raise ValueError(f"a cut with the number {self.lo} that names numbers above it: {self.cut}")

    @property
    def numbers(self) -> SeqRange:
        return SeqRange(self.lo, self.hi)


@dataclass(frozen=True, slots=True)
class DatasetTerms:
    """What a follower needs to create a dataset, and to follow its schema."""

    id: DatasetUuid
    name: str
    columns: tuple[dict[str, object], ...]  # a schema document, without our own columns, with Iceberg's field ids
    deliver_by: tuple[str, ...]
    partition_by: str | None
    first_shard: ShardId
    shards: int
    adopted: bool = False
    history: History = History.DELIVER
    # The term in which a follower begins that has nothing of the dataset yet: the leader's own if the leader created
    # the dataset in it.
    first_term: int = FIRST_TERM

    @property
    def shard_ids(self) -> tuple[ShardId, ...]:
        return shard_ids(self.first_shard, self.shards)


@dataclass(frozen=True, slots=True)
class Offer:
    """Every item of a dataset with a number in `(after, upto]`, in the order of `hi`. No block that is open at the
    leader lies at or below `upto`. A range that begins at or below `after` is clipped."""

    lake: str
    term: int
    dataset: DatasetTerms
    after: Seq  # 0: from the beginning
    upto: Seq
    items: tuple[Item, ...]
    seal: Seq | None = None  # of the leader, for the follower's lag
    receiver_hold: str | None = None  # why the leader's receiver of the dataset is on hold; None: it is not


@dataclass(frozen=True, slots=True)
class LaneDefinition:
    partition: str
    mark: Seq | None
    builds_on: Seq | None


@dataclass(frozen=True, slots=True)
class SinkDefinition:
    """What another site needs to continue delivering to a sink."""

    dataset: DatasetUuid
    name: str
    kind: str
    instance: str
    generation: int
    options: tuple[tuple[str, str], ...]  # as they are stored: with the names of secrets, not the secrets
    destination: str
    start: Seq | None
    planned: Seq | None
    peer: str | None
    from_now: bool | None
    paused: bool
    lanes: tuple[LaneDefinition, ...]
    lowest: Seq | None = None  # it has every row up to here, in all partitions; None: it may need the very first one
    quarantined: int = 0  # rows that it refused, and that stay in quarantine at the leader


def shard_ids(first: ShardId, shards: int) -> tuple[ShardId, ...]:
    return tuple(ShardId(first + n) for n in range(shards))


def shard_span(shards: Sequence[ShardId]) -> str:
    """The shards of a dataset, for people: `3`, or `3 to 6`."""
    return str(shards[0]) if len(shards) == 1 else f"{shards[0]} to {shards[-1]}"


def route(batch_id: str, first: ShardId, shards: int) -> ShardId:
    """The shard of a batch whose writer names none. It depends only on the batch id and the dataset's shards."""
    if shards == 1:
        return first
    digest = hashlib.blake2b(batch_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return ShardId(first + int.from_bytes(digest, "big") % shards)
