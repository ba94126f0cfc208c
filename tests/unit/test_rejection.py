"""What becomes of chunks that a sink refuses, and of the content of rows that are set aside; no Spark, no servers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.delivery_types import Chunk, ChunkId, ChunkState, IntentId
from strandline.core.errors import FailedError, StorageError, UsageError
from strandline.core.partition import encode_partition
from strandline.core.settings.lake_config import LakeConfig
from strandline.core.types import Seq, SeqRange
from strandline.deliver.plan.chunking import FoundAtSink, RowPortion, cut_around, segments
from strandline.deliver.quarantine.content import in_json, object_name, open_objects, packed, unpacked
from strandline.deliver.send.rejection import (
    REPLAY_PARTITION,
    ChunkRefusal,
    Halves,
    RefusalHistory,
    Single,
    Steps,
    TooMany,
    decide,
)
from strandline.deliver.sink import Address, HeldRange
from strandline.deliver.sink_options import parse_common
from tests.conftest import MakeHome


def refusal(n: int, found: Halves | Single, intent: int = 1) -> ChunkRefusal:
    rows = SeqRange(Seq(n * 10 + 1), Seq(n * 10 + 10))
    chunk = Chunk(ChunkId(n), rows, ChunkState.PLANNED, 10, None, None, None, None, False)
    return ChunkRefusal(chunk, IntentId(intent), f"why {n}", 0, found)


HALVES, SINGLE, UNREAD = Halves(5, 5), Single(1, b"content"), Single(1, None)
FINE = RefusalHistory({}, 0, True)


def test_chunks_are_split_single_rows_set_aside_and_those_without_content_sent_once_more() -> None:
    refused = [refusal(1, HALVES), refusal(2, SINGLE), refusal(3, UNREAD)]
    assert decide(refused, FINE, 100) == Steps((refused[0],), (refused[1],), (refused[2],))
    assert decide([], RefusalHistory({}, 1000, False), 0) == Steps((), (), ())


@pytest.mark.parametrize("rows_max", [0, 1, 5])
def test_more_refused_chunks_than_rows_may_be_set_aside_stop_the_sink(rows_max: int) -> None:
    within = [refusal(n, HALVES) for n in range(rows_max)]
    assert isinstance(decide(within, FINE, rows_max), Steps)
    found = decide([*within, refusal(rows_max, SINGLE)], FINE, rows_max)
    assert found == TooMany(rows_max + 1, 0, True, "why 0")


def test_what_an_intent_has_set_aside_already_counts_and_what_others_have_does_not() -> None:
    before = RefusalHistory({IntentId(1): 3, IntentId(2): 50}, 0, True)
    assert isinstance(decide([refusal(1, SINGLE), refusal(2, SINGLE)], before, 5), Steps)
    assert decide([refusal(n, SINGLE) for n in range(3)], before, 5) == TooMany(3, 3, True, "why 0")


def test_the_bound_is_for_each_intent_unless_the_sink_takes_nothing_at_all() -> None:
    each_one = [refusal(n, SINGLE, intent=n) for n in range(10)]
    assert isinstance(decide(each_one, FINE, 5), Steps)
    assert isinstance(decide(each_one, RefusalHistory({}, 0, False), 5), TooMany)
    assert isinstance(decide(each_one[:1], RefusalHistory({}, 4, False), 5), Steps)
    assert isinstance(decide(each_one[:1], RefusalHistory({}, 5, False), 5), TooMany)


@given(st.sets(st.integers(1, 200), min_size=1), st.data())
def test_halves_are_never_empty_and_end_with_one_row_that_stands_alone(every: set[int], data: st.DataObject) -> None:
    """Whatever is withheld between the rows that are sent: following the half with a given row ends at that row."""
    from strandline.deliver.send.build_spark import halves

    numbers = np.array(sorted(every), np.int64)
    sent = sorted(data.draw(st.sets(st.sampled_from(sorted(every)), min_size=1)))
    bad = data.draw(st.sampled_from(sent))
    kept = np.array(sent, np.int64)
    for _ in range(20):
        found = halves(kept, numbers)
        if found is None:
            break
        low = numbers <= found.middle
        assert 0 < low.sum() < len(numbers) and found.before == low.sum()
        if len(kept) > 1:
            assert 0 < (kept <= found.middle).sum() < len(kept)
        numbers = numbers[low] if bad <= found.middle else numbers[~low]
        kept = kept[kept <= found.middle] if bad <= found.middle else kept[kept > found.middle]
    assert numbers.tolist() == kept.tolist() == [bad]


def test_the_bound_is_an_option_of_every_sink() -> None:
    assert parse_common({}).quarantine_rows_max == 100
    assert parse_common({"quarantine_rows_max": "0"}).quarantine_rows_max == 0
    with pytest.raises(UsageError, match="quarantine_rows_max"):
        parse_common({"quarantine_rows_max": "-1"})


def test_no_partition_is_called_as_the_lane_of_replays() -> None:
    assert encode_partition([("~replay", "x")]) != REPLAY_PARTITION != encode_partition([("", None)])
    assert "=" not in REPLAY_PARTITION


# --- rows that were set aside are never planned again ----------------------------------------------------------------


@given(
    st.sets(st.integers(1, 30), max_size=6),
    st.sets(st.integers(1, 30), max_size=3),
    st.one_of(st.none(), st.integers(1, 10)),
    st.one_of(st.none(), st.integers(1, 12)),
)
def test_a_plan_tiles_around_what_was_set_aside(
    aside: set[int], listed: set[int], after: int | None, mark: int | None
) -> None:
    held = tuple(HeldRange(SeqRange(Seq(n), Seq(n)), 1, "d", 1) for n in sorted(listed) if n > (after or 0))
    sink_mark = Seq(mark) if mark and mark > (after or 0) else None
    found = FoundAtSink(held, sink_mark, frozenset(n for n in aside if n > (after or 0)))
    begin = None if after is None else Seq(after)
    pieces = {s: [RowPortion(s.lo, s.hi, len(s), 1)] for s, _, _ in segments(begin, Seq(30), found)}
    chunks = cut_around(begin, Seq(30), found, pieces, parse_common({}))
    assert [n for c in chunks for n in range(c.rows.lo, c.rows.hi + 1)] == list(range((after or 0) + 1, 31))
    for number in found.quarantined - {int(h.rows.lo) for h in held}:
        [chunk] = [c for c in chunks if number in c.rows]
        assert (chunk.rows, chunk.state, chunk.count) == (SeqRange(Seq(number), Seq(number)), ChunkState.EMPTY, 0)


# --- content ---------------------------------------------------------------------------------------------------------

ROW = pa.table({"_ingest_seq": pa.array([7], pa.int64()), "text": ["a\0b"]})


def test_content_comes_back_as_it_was_offered() -> None:
    found = unpacked(packed(ROW, ["_ingest_seq", "text"]), "x")
    assert found.rows == ROW and found.columns == ("_ingest_seq", "text")
    assert in_json(found, "rows") == {"_ingest_seq": 7, "text": "a\0b"}
    line = pa.table({"_ingest_seq": pa.array([7], pa.int64()), "line": ['{"n": 7}']})
    assert in_json(unpacked(packed(line, ["_ingest_seq", "n"]), "x"), "jsonl") == {"n": 7}
    assert in_json(unpacked(packed(line, ["n"]), "x"), "copy") == {"_ingest_seq": 7, "line": '{"n": 7}'}


def test_content_that_was_cut_off_or_is_none_of_ours_is_told_and_not_sent() -> None:
    body = packed(ROW, ["_ingest_seq", "text"])
    for bad in (body[: len(body) // 2], body[:-1], b"", b"nonsense"):
        with pytest.raises(FailedError, match="damaged"):
            unpacked(bad, "x")
    with pytest.raises(FailedError, match="2 rows"):
        unpacked(packed(pa.concat_tables([ROW, ROW]), ["text"]), "x")


@pytest.fixture
def local(tmp_path: Path, make_home: MakeHome) -> LakeConfig:
    config = make_home(tmp_path)
    assert config.warehouse_folder is not None
    config.warehouse_folder.mkdir()
    return config


def test_an_object_lies_in_the_warehouse_under_its_sink_generation_lane_and_number(local: LakeConfig) -> None:
    objects = open_objects(local)
    address = Address("lake", "instance", 2, "default.events", "k=a")
    name = object_name(address, 17)
    assert name.startswith("_strandline/quarantine/instance/2/") and name.endswith("/17.arrow")
    assert name != object_name(Address("lake", "instance", 2, "default.events", "k=b"), 17)
    assert objects.get(name) is None
    objects.put(name, b"one")
    objects.put(name, b"two")
    assert objects.get(name) == b"two" and Path(objects.place(name)).read_bytes() == b"two"
    assert [p.name for p in Path(objects.place(name)).parent.iterdir()] == ["17.arrow"]
    objects.remove(name)
    objects.remove(name)
    assert objects.get(name) is None


def test_a_warehouse_that_is_not_mounted_is_not_made_anew(tmp_path: Path, make_home: MakeHome) -> None:
    with pytest.raises(StorageError, match="not there"):
        open_objects(make_home(tmp_path)).put("_strandline/quarantine/x/1/y/1.arrow", b"")


def test_rows_are_listed_replayed_and_discarded_without_spark() -> None:
    code = (
        "import sys; from strandline.cli.commands import quarantine; "
        "from strandline.deliver.quarantine import replay, rows; "
        "sys.exit(any(m in sys.modules for m in ('pyspark', 'pyiceberg', 'pyarrow', 'alembic')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
