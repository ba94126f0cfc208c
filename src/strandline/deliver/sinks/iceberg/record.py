"""What a target table records of the rows that it got, as table properties. Pure.

The commit that adds the rows of a chunk also writes the chunk's range into the property of its lane. Properties outlive
compaction and the expiry of snapshots, by whatever tool. Every commit of ours requires that main is the snapshot that
was read, so nobody overwrites a range that landed meanwhile.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from strandline.core.errors import RefusedError
from strandline.core.sites.replication import FIRST_TERM
from strandline.core.types import Anchor, Seq, SeqRange, SnapshotId, merge_ranges
from strandline.deliver.sink import Address, Claim, Claimed, Conflict, HeldRange, Landed, OlderRows, covers

VERSION = 1
CLAIM = "strandline.sink"
HEAD = "strandline.sink.head"
LANE_PREFIX = "strandline.sink.lane."
# The properties are in every metadata file, so old ranges are merged with their neighbours, and lose their digests.
DIGESTS_MAX = 32  # of a lane: the newest
RANGES_MAX = 1000  # of a lane that are kept as they were delivered: the newest
# A merged range is still small enough to be read back at once.
MERGED_ROWS_MAX = 500_000
MERGED_BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True)
class LandedRange:
    rows: SeqRange
    count: int
    size: int
    digest: str | None = None
    is_given_up: bool = False  # rows of it are missing, and a person accepted that

    @property
    def held(self) -> HeldRange:
        return HeldRange(self.rows, self.count, self.digest, self.size)


@dataclass(frozen=True, slots=True)
class Head:
    """The last of our commits: main must descend from it. `rows` is None for one that added none."""

    anchor: Anchor
    lane: str = ""
    rows: SeqRange | None = None

    def as_property(self) -> str:
        found: dict[str, Any] = {"snapshot": self.anchor.snapshot, "sequence": self.anchor.sequence}
        if self.rows is not None:
            found |= {"lane": self.lane, "lo": self.rows.lo, "hi": self.rows.hi}
        return _compact(found)


@dataclass(frozen=True, slots=True)
class LaneRecord:
    address: Address
    ranges: tuple[LandedRange, ...] = ()  # sorted and disjoint

    @property
    def key(self) -> str:
        return lane_key(self.address)

    def beyond(self, after: Seq | None) -> tuple[HeldRange, ...]:
        return tuple(r.held for r in self.ranges if r.rows.hi > (after or 0))

    def overlapping(self, rows: SeqRange) -> list[LandedRange]:
        return [r for r in self.ranges if r.rows.overlaps(rows)]

    def add(self, landed: LandedRange) -> LaneRecord:
        """Raises ValueError if the range overlaps one that is there."""
        if self.overlapping(landed.rows):
            raise ValueError(f"{landed.rows} is held already")
        return replace(self, ranges=tuple(sorted((*self.ranges, landed), key=lambda r: r.rows)))

    def give_up(self, ranges: Iterable[SeqRange]) -> LaneRecord:
        gone = set(ranges)
        return replace(self, ranges=tuple(replace(r, is_given_up=True) if r.rows in gone else r for r in self.ranges))

    def as_property(self) -> str:
        a, kept = self.address, folded(self.ranges)
        digests = {str(r.rows.lo): r.digest for r in kept[-DIGESTS_MAX:] if r.digest}
        return _compact({
            "lake": a.lake, "instance": a.instance, "generation": a.generation, "dataset": a.dataset,
            "partition": a.partition, "ranges": pack(kept), "digests": digests,
        })  # fmt: skip

    @staticmethod
    def parse(name: str, text: str) -> LaneRecord:
        found = _document(name, text)
        try:
            address = Address(
                found["lake"], found["instance"], found["generation"], found["dataset"], found["partition"]
            )
            digests = found["digests"]
            ranges = tuple(replace(r, digest=digests.get(str(r.rows.lo))) for r in unpack(found["ranges"]))
        except (KeyError, TypeError, ValueError, zlib.error) as e:
            raise _unreadable(name) from e
        return LaneRecord(address, ranges)


@dataclass(frozen=True, slots=True)
class TableRecord:
    """The record of a table. Lanes are parsed when they are asked for."""

    properties: Mapping[str, str]

    def claimed(self) -> Claimed | None:
        if (text := self.properties.get(CLAIM)) is None:
            return None
        found = _document(CLAIM, text)
        if found.get("version", 0) > VERSION:
            raise RefusedError(
                "the table's record was made by a newer version of Strandline", hint="Deliver with that version."
            )
        try:
            term = int(found.get("term", FIRST_TERM))
            claim = Claim(found["lake"], found["instance"], found["dataset"], found["table_uuid"], term)
            return Claimed(claim, int(found["generation"]))
        except (KeyError, TypeError, ValueError) as e:
            raise _unreadable(CLAIM) from e

    def head(self) -> Head | None:
        if (text := self.properties.get(HEAD)) is None:
            return None
        found = _document(HEAD, text)
        try:
            anchor = Anchor(SnapshotId(int(found["snapshot"])), int(found["sequence"]))
            if "lo" not in found:
                return Head(anchor)
            return Head(anchor, found["lane"], SeqRange(Seq(int(found["lo"])), Seq(int(found["hi"]))))
        except (KeyError, TypeError, ValueError) as e:
            raise _unreadable(HEAD) from e

    def lane(self, address: Address) -> LaneRecord:
        name = LANE_PREFIX + lane_key(address)
        text = self.properties.get(name)
        return LaneRecord(address) if text is None else LaneRecord.parse(name, text)

    def lanes(self) -> Iterator[LaneRecord]:
        for name, text in sorted(self.properties.items()):
            if name.startswith(LANE_PREFIX):
                yield LaneRecord.parse(name, text)

    def in_scope(self, generation: int, older: Sequence[OlderRows]) -> list[LaneRecord]:
        """The lanes of a generation, and of older ones the ranges that it builds on; without what was given up."""
        found = []
        for lane in self.lanes():
            wanted = [r for r in lane.ranges if not r.is_given_up and r.count]
            if lane.address.generation != generation:
                spans = [o for o in older if o.address == lane.address]
                wanted = [r for r in wanted if any(r.rows.lo > o.above and r.rows.hi <= o.upto for o in spans)]
            if wanted:
                found.append(replace(lane, ranges=tuple(wanted)))
        return found


def claim_property(claim: Claim, generation: int) -> str:
    return _compact({
        "version": VERSION, "lake": claim.lake, "instance": claim.instance, "dataset": claim.dataset,
        "table_uuid": claim.table_uuid, "term": claim.term, "generation": generation,
    })  # fmt: skip


def lane_key(address: Address) -> str:
    parts = [address.lake, address.instance, address.generation, address.dataset, address.partition]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:40]


def settled(rows: SeqRange, there: Sequence[LandedRange], offered: int) -> Landed | Conflict | None:
    """What the ranges of the lane that overlap the chunk mean for it: a repeat, a conflict, or None if it is new.
    `offered` is how many rows the chunk has now."""
    if not there:
        return None
    if not covers(merge_ranges(r.rows for r in there), rows):
        return Conflict(tuple(r.rows for r in there))
    if there[0].rows == rows:
        return Landed(there[0].count, there[0].digest or "", there[0].size, repeat=True)
    # The range was cut differently then. Where each range is in the chunk as a whole, the counts are known.
    whole = all(rows.lo <= r.rows.lo and r.rows.hi <= rows.hi for r in there)
    return Landed(sum(r.count for r in there) if whole else offered, "", 0, repeat=True)


# --- ranges as text ---
# Whole numbers of variable length: the gap to the range before, the length of the range, how many of its sequence
# numbers have no row, its bytes, and whether it was given up. Compressed, that is a few bytes for each range.


def folded(ranges: Sequence[LandedRange]) -> list[LandedRange]:
    """Old ranges that adjoin are merged as far as they stay small."""
    result: list[LandedRange] = []
    old = max(0, len(ranges) - RANGES_MAX)
    for r in ranges[:old]:
        last = result[-1] if result else None
        if (
            last is not None
            and last.rows.hi + 1 == r.rows.lo
            and last.is_given_up == r.is_given_up
            and last.count + r.count <= MERGED_ROWS_MAX
            and last.size + r.size <= MERGED_BYTES_MAX
        ):
            both = SeqRange(last.rows.lo, r.rows.hi)
            result[-1] = LandedRange(both, last.count + r.count, last.size + r.size, None, r.is_given_up)
        else:
            result.append(replace(r, digest=None))
    return [*result, *ranges[old:]]


def pack(ranges: Sequence[LandedRange]) -> str:
    numbers: list[int] = []
    at = 0
    for r in ranges:
        length = r.rows.hi - r.rows.lo
        numbers += (r.rows.lo - at, length, length + 1 - r.count, r.size * 2 + r.is_given_up)
        at = r.rows.hi
    return base64.b64encode(zlib.compress(b"".join(map(_varint, numbers)), 9)).decode()


def unpack(text: str) -> Iterator[LandedRange]:
    """Raises ValueError or zlib.error if the text is damaged."""
    numbers = list(_varints(zlib.decompress(base64.b64decode(text, validate=True))))
    if len(numbers) % 4:
        raise ValueError("a range is incomplete")
    at = 0
    for n in range(0, len(numbers), 4):
        gap, length, holes, size = numbers[n : n + 4]
        lo = at + gap
        at = lo + length
        yield LandedRange(SeqRange(Seq(lo), Seq(at)), length + 1 - holes, size // 2, None, bool(size % 2))


def _varint(number: int) -> bytes:
    if number < 0:
        raise ValueError("ranges are sorted, disjoint, and have at most as many rows as sequence numbers")
    parts = bytearray()
    while number >= 0x80:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def _varints(content: bytes) -> Iterator[int]:
    number = shift = 0
    for byte in content:
        number |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            yield number
            number = shift = 0
    if shift:
        raise ValueError("a number is incomplete")


def _compact(document: Mapping[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


def _document(name: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as e:
        raise _unreadable(name) from e
    if not isinstance(found, dict):
        raise _unreadable(name)
    return found


def _unreadable(name: str) -> RefusedError:
    return RefusedError(
        f"the table property {name} is not what Strandline wrote there",
        hint="Restore it: an earlier metadata file of the table has it. Or remove the sink, and give it another table.",
    )
