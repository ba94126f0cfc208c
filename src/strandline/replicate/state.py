"""How far a follower has applied each shard: a cache of its ledger, read by many threads while others move it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping

from strandline.core.sites.replication import SINGLE
from strandline.core.types import SEQ_MAX, Seq, ShardId

__all__ = ["SINGLE", "ReplicationState", "ShardId"]

NOTHING = Seq(0)  # the mark of a shard of which nothing is applied


class ReplicationState:
    """The mark of each shard of a lake: the highest sequence number up to which all its items are applied.

    Marks move forward only. The shards are fixed when the state is made; any other shard is unknown."""

    def __init__(self, marks: Mapping[ShardId, Seq]) -> None:
        # Its keys never change. So a reader needs no lock: it finds the old mark or the new one.
        self._marks = dict(marks)
        self._moving = threading.Lock()

    @classmethod
    def new(cls, shards: Iterable[ShardId]) -> ReplicationState:
        """The state of a site that has applied nothing."""
        return cls(dict.fromkeys(shards, NOTHING))

    @classmethod
    def single(cls) -> ReplicationState:
        """The state of a lake with one shard."""
        return cls.new([SINGLE])

    def applied_seqno(self, shard: ShardId) -> Seq | None:
        """The shard's mark: 0 if nothing is applied, None for an unknown shard."""
        return self._marks.get(shard)

    def advance(self, shard: ShardId, seqno: Seq) -> None:
        """Moves the shard's mark up to `seqno`. A lower or equal one changes nothing, nor does an unknown shard."""
        with self._moving:
            if seqno > self._marks.get(shard, SEQ_MAX):
                self._marks[shard] = seqno

    def snapshot(self) -> dict[ShardId, Seq]:
        """A copy of all marks that nobody else changes."""
        return dict(self._marks)

    def to_checkpoint_bytes(self) -> bytes:
        """A JSON object from shard to mark."""
        return json.dumps({str(shard): mark for shard, mark in sorted(self.snapshot().items())}).encode()

    @classmethod
    def from_checkpoint_bytes(cls, checkpoint: bytes, shards: Iterable[ShardId]) -> ReplicationState:
        """The marks of the given shards, as `to_checkpoint_bytes` wrote them. Shards that are not in the checkpoint
        begin at 0. Of damaged or foreign bytes nothing is believed: all begin at 0."""
        found = _decode(checkpoint)
        return cls({shard: found.get(shard, NOTHING) for shard in shards})


def _decode(checkpoint: bytes) -> dict[ShardId, Seq]:
    """Empty unless the bytes are a JSON object from shard to mark, each shard once."""
    try:
        pairs = json.loads(checkpoint.decode(), object_pairs_hook=_Pairs)
        if not isinstance(pairs, _Pairs):
            return {}
        marks = {_shard(key): _applied_upto(value) for key, value in pairs}
    except (ValueError, RecursionError):  # the second for brackets within brackets within brackets
        return {}
    return marks if len(marks) == len(pairs) else {}


class _Pairs(list[tuple[str, object]]):
    """An object of JSON that still has a key that it names twice."""


def _shard(key: str) -> ShardId:
    shard = ShardId(int(key))
    if shard < 0 or str(shard) != key:
        raise ValueError(f"not a shard: {key}")
    return shard


def _applied_upto(value: object) -> Seq:
    if type(value) is not int or not 0 <= value <= SEQ_MAX:
        raise ValueError("not a mark")
    return Seq(value)
