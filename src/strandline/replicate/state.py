"""How far a follower has applied each shard: a thread-safe cache of its ledger."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping

from strandline.core.sites.replication import SINGLE
from strandline.core.types import SEQ_MAX, Seq, ShardId

__all__ = ["SINGLE", "ReplicationState", "ShardId"]

NOTHING = Seq(0)  # the watermark of a shard of which nothing is applied


class ReplicationState:
    """The watermark of each shard of a lake: the sequence number up to which all its items are applied.

    Watermarks never move back. The shards are fixed when the state is made; any other shard is unknown."""

    def __init__(self, watermarks: Mapping[ShardId, Seq]) -> None:
        # Its keys never change. So a reader needs no lock: it finds the old watermark or the new one.
        self._watermarks = dict(watermarks)
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
        """The shard's watermark: 0 if nothing is applied, None for an unknown shard."""
        return self._watermarks.get(shard)

    def advance(self, shard: ShardId, seqno: Seq) -> None:
        """Moves the shard's watermark up to `seqno`. A lower or equal one changes nothing, nor does an unknown
        shard."""
        with self._moving:
            if seqno > self._watermarks.get(shard, SEQ_MAX):
                self._watermarks[shard] = seqno

    def snapshot(self) -> dict[ShardId, Seq]:
        """A copy of all watermarks."""
        return dict(self._watermarks)

    def to_checkpoint_bytes(self) -> bytes:
        """A JSON object from shard to watermark."""
        return json.dumps({str(shard): watermark for shard, watermark in sorted(self.snapshot().items())}).encode()

    @classmethod
    def from_checkpoint_bytes(cls, checkpoint: bytes, shards: Iterable[ShardId]) -> ReplicationState:
        """The watermarks of the given shards, as `to_checkpoint_bytes` wrote them. A shard that is not in the
        checkpoint begins at 0. From damaged bytes nothing is used: all shards begin at 0."""
        found = _decode(checkpoint)
        return cls({shard: found.get(shard, NOTHING) for shard in shards})


def _decode(checkpoint: bytes) -> dict[ShardId, Seq]:
    """Empty unless the bytes are a JSON object from shard to watermark, each shard once."""
    try:
        pairs = json.loads(checkpoint.decode(), object_pairs_hook=_Pairs)
        if not isinstance(pairs, _Pairs):
            return {}
        watermarks = {_shard(key): _applied_upto(value) for key, value in pairs}
    except (ValueError, RecursionError):  # RecursionError: deeply nested brackets
        return {}
    return watermarks if len(watermarks) == len(pairs) else {}


class _Pairs(list[tuple[str, object]]):
    """A JSON object with all its pairs, also those of a key that occurs twice."""


def _shard(key: str) -> ShardId:
    shard = ShardId(int(key))
    if shard < 0 or str(shard) != key:
        raise ValueError(f"not a shard: {key}")
    return shard


def _applied_upto(value: object) -> Seq:
    if type(value) is not int or not 0 <= value <= SEQ_MAX:
        raise ValueError("not a watermark")
    return Seq(value)
