"""What a target table records of the ranges that it got: packed, folded, read again, and decided on."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.errors import RefusedError
from strandline.core.types import Anchor, Seq, SeqRange, SnapshotId, merge_ranges
from strandline.deliver.sink import Address, Claim, Conflict, Landed, OlderRows
from strandline.deliver.sinks.iceberg import record as recording
from strandline.deliver.sinks.iceberg.record import (
    CLAIM,
    HEAD,
    LANE_PREFIX,
    Head,
    LandedRange,
    LaneRecord,
    TableRecord,
    claim_property,
    folded,
    pack,
    settled,
    unpack,
)

ADDRESS = Address("lake", "instance", 1, "shop.orders", "country=PT")


def seqs(lo: int, hi: int) -> SeqRange:
    return SeqRange(Seq(lo), Seq(hi))


@st.composite
def ranges(draw: st.DrawFn, count_max: int = 40) -> list[LandedRange]:
    found, at = [], 0
    for _ in range(draw(st.integers(0, count_max))):
        lo = at + 1 + draw(st.sampled_from([0, 0, 0, 1, 5, 1 << 40]))
        at = lo + draw(st.integers(0, 1000))
        count = draw(st.integers(0, at - lo + 1))
        digest = draw(st.none() | st.just(f"sha256:{at:064x}"))
        found.append(LandedRange(seqs(lo, at), count, draw(st.integers(0, 1 << 30)), digest, draw(st.booleans())))
    return found


@given(ranges())
def test_ranges_are_read_as_they_were_written(given_ranges: list[LandedRange]) -> None:
    assert list(unpack(pack(given_ranges))) == [replace(r, digest=None) for r in given_ranges]
    lane = LaneRecord(ADDRESS, tuple(given_ranges))
    again = LaneRecord.parse("name", lane.as_property())
    kept = given_ranges[-recording.DIGESTS_MAX :]
    assert again.address == ADDRESS
    assert [r.rows for r in again.ranges] == [r.rows for r in given_ranges]
    assert [r.digest for r in again.ranges[-len(kept) :]] == [r.digest for r in kept] or not kept
    assert LaneRecord.parse("name", again.as_property()) == again


@given(ranges(), st.integers(0, 10))
def test_folding_old_ranges_changes_neither_what_is_held_nor_how_many_rows(
    given_ranges: list[LandedRange], kept: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recording, "RANGES_MAX", kept)
        made = folded(given_ranges)
        assert folded(made) == made
    assert merge_ranges(r.rows for r in made) == merge_ranges(r.rows for r in given_ranges)
    assert sum(r.count for r in made) == sum(r.count for r in given_ranges)
    assert sum(r.count for r in made if r.is_given_up) == sum(r.count for r in given_ranges if r.is_given_up)
    assert made[len(made) - kept :] == given_ranges[len(given_ranges) - kept :] or len(given_ranges) < kept
    small = (recording.MERGED_ROWS_MAX, recording.MERGED_BYTES_MAX)
    originals = {r.rows for r in given_ranges}
    assert all(r.rows in originals or (r.count <= small[0] and r.size <= small[1]) for r in made)


def test_a_month_of_chunks_takes_little_room() -> None:
    """One every minute, 100 rows each: what is in every metadata file stays small."""
    lane = LaneRecord(ADDRESS)
    chunks = [LandedRange(seqs(1 + 100 * n, 100 + 100 * n), 100, 5_000, f"sha256:{n:064x}") for n in range(44_640)]
    text = replace(lane, ranges=tuple(chunks)).as_property()
    assert len(text) < 10_000
    again = LaneRecord.parse("name", text)
    assert merge_ranges(r.rows for r in again.ranges) == [seqs(1, 4_464_000)]
    assert sum(r.count for r in again.ranges) == 4_464_000


@given(ranges(), st.integers(1, 5000), st.integers(0, 2000))
def test_a_chunk_is_a_repeat_or_a_conflict_or_new(given_ranges: list[LandedRange], lo: int, length: int) -> None:
    lane, rows = LaneRecord(ADDRESS, tuple(given_ranges)), seqs(lo, lo + length)
    held = {n for r in given_ranges if r.rows.lo < 10_000 for n in range(r.rows.lo, r.rows.hi + 1)}
    wanted = set(range(lo, lo + length + 1))
    outcome = settled(rows, lane.overlapping(rows), 7)
    if not wanted & held:
        assert outcome is None
        added = lane.add(LandedRange(rows, 1, 1))
        assert rows in [r.rows for r in added.ranges] and list(added.ranges) == sorted(
            added.ranges, key=lambda r: r.rows
        )
    else:
        assert isinstance(outcome, Landed) == (wanted <= held)
        assert isinstance(outcome, Conflict) or (isinstance(outcome, Landed) and outcome.repeat)
        with pytest.raises(ValueError, match="held already"):
            lane.add(LandedRange(rows, 1, 1))


def test_a_repeat_that_was_cut_otherwise_says_how_many_rows_landed() -> None:
    lane = LaneRecord(
        ADDRESS, (LandedRange(seqs(1, 10), 4, 9, "sha256:a"), LandedRange(seqs(11, 20), 5, 9, "sha256:b"))
    )
    assert settled(seqs(1, 10), lane.overlapping(seqs(1, 10)), 7) == Landed(4, "sha256:a", 9, repeat=True)
    assert settled(seqs(1, 20), lane.overlapping(seqs(1, 20)), 7) == Landed(9, "", 0, repeat=True)
    assert settled(seqs(5, 15), lane.overlapping(seqs(5, 15)), 7) == Landed(7, "", 0, repeat=True)


def properties_of(*lanes: LaneRecord, **others: str) -> dict[str, str]:
    return {LANE_PREFIX + lane.key: lane.as_property() for lane in lanes} | others


def test_what_counts_is_this_generation_and_what_it_builds_on() -> None:
    old = LaneRecord(ADDRESS, (LandedRange(seqs(1, 10), 10, 1), LandedRange(seqs(11, 20), 10, 1)))
    mine = LaneRecord(
        replace(ADDRESS, generation=2),
        (
            LandedRange(seqs(21, 30), 10, 1),
            LandedRange(seqs(31, 40), 10, 1, None, True),
            LandedRange(seqs(41, 50), 0, 1),
        ),
    )
    record = TableRecord(properties_of(old, mine) | {"write.format.default": "parquet"})

    def found(generation: int, *older: OlderRows) -> set[SeqRange]:
        return {r.rows for lane in record.in_scope(generation, older) for r in lane.ranges}

    assert found(1) == {seqs(1, 10), seqs(11, 20)}
    assert found(2) == {seqs(21, 30)}
    assert found(2, OlderRows(ADDRESS, 0, 10)) == {seqs(1, 10), seqs(21, 30)}
    assert found(2, OlderRows(ADDRESS, 5, 20)) == {seqs(11, 20), seqs(21, 30)}
    assert found(3) == set()


def test_a_head_and_a_claim_are_read_as_they_were_written() -> None:
    claim = Claim("lake", "instance", "shop.orders", "uuid")
    for head in (Head(Anchor(SnapshotId(7), 3)), Head(Anchor(SnapshotId(7), 3), "lane", seqs(1, 9))):
        record = TableRecord({CLAIM: claim_property(claim, 4), HEAD: head.as_property()})
        assert record.head() == head
    claimed = record.claimed()
    assert claimed is not None and (claimed.claim, claimed.generation) == (claim, 4)
    assert TableRecord({}).head() is None and TableRecord({}).claimed() is None


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "nonsense", '{"snapshot":1}', '{"ranges":"AAAA"}', '{"version":1,"lake":"l"}']
)
def test_a_property_that_others_changed_is_refused_by_name(text: str) -> None:
    name = LANE_PREFIX + LaneRecord(ADDRESS).key
    for changed, ask in ((CLAIM, TableRecord.claimed), (HEAD, TableRecord.head), (name, lambda r: r.lane(ADDRESS))):
        with pytest.raises(RefusedError, match=changed):
            ask(TableRecord({changed: text}))


def test_a_truncated_list_of_ranges_is_refused() -> None:
    lane = LaneRecord(ADDRESS, tuple(LandedRange(seqs(1 + 10 * n, 5 + 10 * n), 5, 1) for n in range(50)))
    found = json.loads(lane.as_property())
    for cut in (1, 4, 8, 20):
        with pytest.raises(RefusedError):
            LaneRecord.parse("name", json.dumps(found | {"ranges": found["ranges"][:-cut]}))


def test_a_record_of_a_newer_version_is_refused() -> None:
    text = claim_property(Claim("lake", "instance", "shop.orders", "uuid"), 1).replace('"version":1', '"version":2')
    with pytest.raises(RefusedError, match="newer version"):
        TableRecord({CLAIM: text}).claimed()
