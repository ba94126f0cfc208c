"""What every sink promises, whatever it is: one suite, run over each kind.

A kind joins it like this, and adds tests of its own beside it:

    class TestFiles(SinkContract):
        @pytest.fixture
        def made(self, tmp_path) -> Made: ...
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pyarrow as pa
import pytest

from strandline.core.errors import RefusedError
from strandline.core.partition import encode_partition
from strandline.core.types import SEQ_COLUMN, Seq, SeqRange
from strandline.deliver.send.digests import bare
from strandline.deliver.sink import Address, ChunkRows, Claim, Claimed, Conflict, Landed, Sender, Sink, TryLater
from strandline.iceberg.schema.columns import Column, Primitive

LAKE = "0f8e0b6c-lake"
DATASET = "shop.orders"
COLUMNS = (Column(SEQ_COLUMN, Primitive("long"), required=True), Column("name", Primitive("string")))
ADDRESS = Address(LAKE, "instance-1", 1, DATASET, "")
TOKEN = "a" * 32


@dataclass
class Made:
    """A kind of sink, ready to be tried."""

    open: Callable[..., Sink]
    """`open(place="one", generation=1)`: the sink of the dataset at one of several places; not claimed, not fenced."""
    numbers: Callable[[Sink, Address], list[int]]
    """The numbers that a consumer finds in a lane, sorted; one that stands there twice is there twice."""
    take_away: Callable[[Sink, Address, SeqRange], None] | None
    """A consumer takes what it has read; None for a kind whose consumers cannot."""


def seqs(lo: int, hi: int) -> SeqRange:
    return SeqRange(Seq(lo), Seq(hi))


def ready(
    made: Made, place: str = "one", *, generation: int = 1, token: str = TOKEN, instance: str = ADDRESS.instance
) -> Sink:
    """Opened, prepared, claimed and fenced, as a deliverer does it."""
    sink = made.open(place=place, generation=generation)
    sink.prepare(COLUMNS)
    sink.claim(Claim(LAKE, instance, DATASET, "table-uuid"), generation)
    sink.fence(token)
    return sink


def parcel(
    form: str, address: Address, lo: int, hi: int, numbers: Sequence[int] | None = None, word: str = "row"
) -> ChunkRows:
    """The rows of a range, in the sink's own form; by default every number of it is there."""
    chosen = list(range(lo, hi + 1) if numbers is None else numbers)
    seq = pa.array(chosen, pa.int64())
    match form:
        case "rows":
            table = pa.table({SEQ_COLUMN: seq, "name": pa.array([f"{word} {n}" for n in chosen])})
        case "jsonl":
            table = pa.table({SEQ_COLUMN: seq, "line": [f'{{"{SEQ_COLUMN}":{n},"name":"{word} {n}"}}' for n in chosen]})
        case "csv":
            table = pa.table({SEQ_COLUMN: seq, "line": [f'{n},"{word} {n}"' for n in chosen]})
        case _:
            table = pa.table({SEQ_COLUMN: seq, "line": [f"{n}\t{word} {n}" for n in chosen]})
    return ChunkRows(address, seqs(lo, hi), table)


def landed(sender: Sender, offered: ChunkRows) -> Landed:
    outcome = sender.send(offered)
    assert isinstance(outcome, Landed), outcome
    return outcome


class SinkContract:
    def test_a_chunk_lands_and_is_held(self, made: Made) -> None:
        sink = ready(made)
        outcome = landed(sink.sender(TOKEN), parcel(sink.form, ADDRESS, 1, 5))
        assert (outcome.count, outcome.repeat) == (5, False)
        assert outcome.digest.startswith("sha256:") and outcome.size > 0
        assert made.numbers(sink, ADDRESS) == [1, 2, 3, 4, 5]
        assert [h.rows for h in sink.held([(ADDRESS, None)])[0].ranges] == [seqs(1, 5)]

    def test_a_repeat_does_nothing_and_is_answered_with_what_landed(self, made: Made) -> None:
        sink = ready(made)
        first = landed(sink.sender(TOKEN), parcel(sink.form, ADDRESS, 1, 5))
        sender = sink.sender(TOKEN)
        for _ in range(2):
            again = landed(sender, parcel(sink.form, ADDRESS, 1, 5))
            assert again.repeat
            assert (again.count, again.digest) == (first.count, first.digest)
        assert made.numbers(sink, ADDRESS) == [1, 2, 3, 4, 5]

    def test_what_landed_is_the_delivery_when_rows_were_deleted_before_the_retry(self, made: Made) -> None:
        sink = ready(made)
        first = landed(sink.sender(TOKEN), parcel(sink.form, ADDRESS, 1, 5))
        again = landed(sink.sender(TOKEN), parcel(sink.form, ADDRESS, 1, 5, numbers=[1, 5], word="changed"))
        assert (again.count, bare(again.digest), again.repeat) == (first.count, bare(first.digest), True)
        assert made.numbers(sink, ADDRESS) == [1, 2, 3, 4, 5]

    def test_disjoint_ranges_land_in_any_order(self, made: Made) -> None:
        sink = ready(made)
        sender = sink.sender(TOKEN)
        for lo, hi in ((11, 15), (1, 5), (6, 10)):
            assert not landed(sender, parcel(sink.form, ADDRESS, lo, hi)).repeat
        assert made.numbers(sink, ADDRESS) == list(range(1, 16))
        held = sink.held([(ADDRESS, None)])[0]
        assert [h.rows for h in held.ranges] == [seqs(1, 5), seqs(6, 10), seqs(11, 15)]

    def test_an_overlap_is_a_conflict_that_says_what_is_held(self, made: Made) -> None:
        sink = ready(made)
        landed(sink.sender(TOKEN), parcel(sink.form, ADDRESS, 10, 50))
        for lo, hi in ((10, 60), (1, 10), (50, 50 + 1), (1, 100)):
            outcome = sink.sender(TOKEN).send(parcel(sink.form, ADDRESS, lo, hi))
            assert isinstance(outcome, Conflict), outcome
            assert outcome.held == (seqs(10, 50),)
        assert made.numbers(sink, ADDRESS) == list(range(10, 51))

    def test_a_part_of_what_is_held_and_a_parent_of_parts_are_repeats(self, made: Made) -> None:
        sink = ready(made)
        landed(sink.sender(TOKEN), parcel(sink.form, ADDRESS, 1, 10))
        landed(sink.sender(TOKEN), parcel(sink.form, ADDRESS, 11, 20))
        for lo, hi in ((3, 7), (1, 20), (5, 15)):
            assert landed(sink.sender(TOKEN), parcel(sink.form, ADDRESS, lo, hi)).repeat
        assert made.numbers(sink, ADDRESS) == list(range(1, 21))

    def test_a_range_with_holes_lands_whole(self, made: Made) -> None:
        sink = ready(made)
        outcome = landed(sink.sender(TOKEN), parcel(sink.form, ADDRESS, 1, 100, numbers=[7, 50, 93]))
        assert outcome.count == 3
        assert made.numbers(sink, ADDRESS) == [7, 50, 93]
        assert isinstance(sink.sender(TOKEN).send(parcel(sink.form, ADDRESS, 100, 101)), Conflict)

    def test_held_tells_everything_beyond_the_number_asked_for(self, made: Made) -> None:
        sink = ready(made)
        sender = sink.sender(TOKEN)
        for lo in (1, 11, 21, 31):
            landed(sender, parcel(sink.form, ADDRESS, lo, lo + 9))
        sink.set_watermarks([(ADDRESS, Seq(20))])
        beyond = sink.held([(ADDRESS, Seq(20))])[0]
        assert {seqs(21, 30), seqs(31, 40)} <= {h.rows for h in beyond.ranges}
        everything = sink.held([(ADDRESS, None)])[0]
        assert [h.rows for h in everything.ranges] == [seqs(1, 10), seqs(11, 20), seqs(21, 30), seqs(31, 40)]
        behind = sink.held([(ADDRESS, Seq(10))])[0]
        known = {n for h in behind.ranges for n in range(h.rows.lo, h.rows.hi + 1)}
        assert set(range(11, 41)) <= known | set(range(1, (behind.mark or 0) + 1))

    def test_nothing_is_held_of_a_lane_that_was_never_seen(self, made: Made) -> None:
        sink = ready(made)
        held = sink.held([(ADDRESS, None), (replace(ADDRESS, partition="k=v"), Seq(7))])
        assert [(h.mark, h.ranges) for h in held] == [(None, ()), (None, ())]

    def test_marks_never_go_back(self, made: Made) -> None:
        sink = ready(made)
        landed(sink.sender(TOKEN), parcel(sink.form, ADDRESS, 1, 10))
        for mark in (10, 3, 10, 7):
            sink.set_watermarks([(ADDRESS, Seq(mark))])
            held = sink.held([(ADDRESS, None)])[0]
            assert held.mark == 10 or (held.mark is None and made.take_away is None)
            assert landed(sink.sender(TOKEN), parcel(sink.form, ADDRESS, 1, 10)).repeat

    def test_marks_of_many_lanes_are_set_and_read_side_by_side(self, made: Made) -> None:
        sink = ready(made)
        lanes = [replace(ADDRESS, partition=f"k={n}") for n in range(20)]
        for n, lane in enumerate(lanes):
            landed(sink.sender(TOKEN), parcel(sink.form, lane, 1 + 10 * n, 10 + 10 * n))
        sink.set_watermarks([(lane, Seq(10 + 10 * n)) for n, lane in enumerate(lanes)])
        for n, held in enumerate(sink.held([(lane, None) for lane in lanes])):
            assert [h.rows for h in held.ranges] == [seqs(1 + 10 * n, 10 + 10 * n)]
            assert held.mark in (None, 10 + 10 * n)

    def test_what_a_consumer_took_away_is_not_delivered_again(self, made: Made) -> None:
        if made.take_away is None:
            pytest.skip("what this kind of sink holds cannot be taken away")
        sink = ready(made)
        landed(sink.sender(TOKEN), parcel(sink.form, ADDRESS, 1, 10))
        sink.set_watermarks([(ADDRESS, Seq(10))])
        made.take_away(sink, ADDRESS, seqs(1, 10))
        again = landed(ready(made, token="b" * 32).sender("b" * 32), parcel(sink.form, ADDRESS, 1, 10))
        assert again.repeat
        assert made.numbers(sink, ADDRESS) == []
        assert sink.held([(ADDRESS, None)])[0].mark == 10

    def test_a_stopped_deliverer_that_goes_on_does_not_bring_back_what_was_taken_away(self, made: Made) -> None:
        if made.take_away is None:
            pytest.skip("what this kind of sink holds cannot be taken away")
        sink = ready(made)
        stopped = sink.sender(TOKEN)
        landed(stopped, parcel(sink.form, ADDRESS, 1, 10))
        following = ready(made, token="b" * 32)
        landed(following.sender("b" * 32), parcel(sink.form, ADDRESS, 11, 20))
        following.set_watermarks([(ADDRESS, Seq(20))])
        made.take_away(sink, ADDRESS, seqs(11, 20))
        outcome = stopped.send(parcel(sink.form, ADDRESS, 11, 20))
        assert isinstance(outcome, TryLater) or (isinstance(outcome, Landed) and outcome.repeat), outcome
        assert made.numbers(sink, ADDRESS) == list(range(1, 11))

    def test_lanes_are_kept_apart_whatever_their_names_hold(self, made: Made) -> None:
        sink = ready(made)
        values: list[str | None] = [
            None, "", "~", "null", "all", "a/b", "a_b", "a%2Fb", "a b", "a+b", "A", "a", ".", "..", "_marks", "_tmp",
            "é", "e\u0301", "日本", "x" * 300, "x" * 301, "x" * 120 + "~", "a=b", "é" * 300, "\n", "\\", "'", '"',
        ]  # fmt: skip
        partitions = ["", *(encode_partition([("k", v)]) for v in values)]
        partitions.append(encode_partition([("a" * 150, "b" * 300), ("c" * 300, "d" * 300), ("e", "f" * 900)]))
        lanes = [replace(ADDRESS, partition=p) for p in partitions]
        assert len(set(partitions)) == len(values) + 2
        sender = sink.sender(TOKEN)
        for n, lane in enumerate(lanes, 1):
            assert not landed(sender, parcel(sink.form, lane, 1, 100, numbers=[n])).repeat
        assert [made.numbers(sink, lane) for lane in lanes] == [[n] for n in range(1, len(lanes) + 1)]
        assert all(len(held.ranges) == 1 for held in sink.held([(lane, None) for lane in lanes]))

    def test_two_instances_in_two_places_know_nothing_of_each_other(self, made: Made) -> None:
        one, two = ready(made, "one"), ready(made, "two", instance="instance-2")
        assert one.destination != two.destination
        there = replace(ADDRESS, instance="instance-2")
        landed(one.sender(TOKEN), parcel(one.form, ADDRESS, 1, 5))
        assert two.held([(there, None)])[0].ranges == ()
        assert not landed(two.sender(TOKEN), parcel(two.form, there, 1, 5)).repeat
        assert made.numbers(one, ADDRESS) == made.numbers(two, there) == [1, 2, 3, 4, 5]

    def test_a_new_generation_begins_with_nothing(self, made: Made) -> None:
        first = ready(made)
        landed(first.sender(TOKEN), parcel(first.form, ADDRESS, 1, 5))
        second = ready(made, generation=2)
        anew = replace(ADDRESS, generation=2)
        assert second.held([(anew, None)])[0].ranges == ()
        assert not landed(second.sender(TOKEN), parcel(second.form, anew, 1, 5)).repeat
        assert [h.rows for h in first.held([(ADDRESS, None)])[0].ranges] == [seqs(1, 5)]

    def test_the_record_says_whose_it_is_and_its_generation_never_goes_back(self, made: Made) -> None:
        sink = made.open(place="one", generation=1)
        sink.prepare(COLUMNS)
        assert sink.claimed() is None
        mine = Claim(LAKE, "instance-1", DATASET, "table-uuid")
        for generation, expected in ((1, 1), (3, 3), (2, 3), (10, 10), (9, 10)):
            found = sink.claim(mine, generation)
            assert (found.claim, found.generation) == (mine, expected)
            assert sink.claimed() == found

    def test_the_term_in_the_record_never_goes_back_and_no_generation_is_lost_by_it(self, made: Made) -> None:
        sink = ready(made)
        mine = Claim(LAKE, "instance-1", DATASET, "table-uuid")
        for term, expected in ((1, 1), (17, 17), (1, 17), (2, 17), (33, 33)):
            found = sink.claim(replace(mine, term=term), 1)
            assert (found.claim.term, found.generation) == (expected, 1)
            assert sink.claimed() == found
        assert sink.claim(replace(mine, term=33), 2) == Claimed(replace(mine, term=33), 2)

    def test_a_destination_of_another_lake_or_dataset_is_refused_by_name(self, made: Made) -> None:
        sink = ready(made)
        for other in (Claim("other-lake", "i", DATASET, "t"), Claim(LAKE, "i", "shop.other", "t")):
            with pytest.raises(RefusedError, match=f"{LAKE}.*{DATASET}|{DATASET}.*{LAKE}"):
                sink.claim(other, 1)
        claimed = sink.claimed()
        assert claimed is not None and claimed.claim.lake == LAKE

    def test_a_ledger_that_lost_the_sink_gets_the_instance_that_is_recorded(self, made: Made) -> None:
        sink = ready(made)
        found = sink.claim(Claim(LAKE, "another-instance", DATASET, "table-uuid"), 1)
        assert found.claim.instance == ADDRESS.instance

    def test_of_many_senders_of_one_chunk_one_delivers(self, made: Made) -> None:
        sink = ready(made)
        with ThreadPoolExecutor(4) as pool:
            outcomes = list(pool.map(lambda _: sink.sender(TOKEN).send(parcel(sink.form, ADDRESS, 1, 5)), range(4)))
        assert all(isinstance(o, Landed | TryLater) for o in outcomes), outcomes
        assert sum(isinstance(o, Landed) and not o.repeat for o in outcomes) == 1
        assert made.numbers(sink, ADDRESS) == [1, 2, 3, 4, 5]

    def test_senders_and_inspectors_travel_and_do_not_show_secrets(self, made: Made) -> None:
        sink = ready(made)
        sender = pickle.loads(pickle.dumps(sink.sender(TOKEN)))
        outcome = landed(sender, parcel(sink.form, ADDRESS, 1, 5))
        pickle.loads(pickle.dumps(sender))
        inspector = pickle.loads(pickle.dumps(sink.inspector()))
        inspected = inspector.inspect(ADDRESS, seqs(1, 5))
        assert (inspected.count, inspected.problem) == (outcome.count, None)
        assert inspected.digest in (None, bare(outcome.digest))
        for thing in (sink, sender, inspector):
            assert "secret" not in repr(thing).lower()
            thing.close()


class RefusesLowerTerms:
    """For kinds that look at the term when rows land. The others rely on the fence."""

    def test_an_old_leader_that_has_fenced_and_claimed_lands_nothing_after_a_later_one_claimed(
        self, made: Made
    ) -> None:
        sink = ready(made)
        old = sink.sender(TOKEN)
        landed(old, parcel(sink.form, ADDRESS, 1, 5))
        sink.claim(Claim(LAKE, ADDRESS.instance, DATASET, "table-uuid", 17), 1)
        refused = old.send(parcel(sink.form, ADDRESS, 6, 9))
        assert isinstance(refused, TryLater) and "term 17" in refused.why
        assert landed(old, parcel(sink.form, ADDRESS, 1, 5)).repeat, "what it landed before is known"
        assert made.numbers(sink, ADDRESS) == [1, 2, 3, 4, 5]
