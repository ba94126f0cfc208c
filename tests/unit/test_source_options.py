"""Options and offsets of the Spark data source, and which files a task reads. Pure."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.errors import TokenError, UsageError
from strandline.core.read_token import Continuation
from strandline.core.sites.replication import OnLag
from strandline.core.types import DatasetUuid, Seq
from strandline.read.source.offsets import Offset, from_json
from strandline.read.source.options import KNOWN, parse
from strandline.read.source.partitions import FILE_BYTES, pack

TOKEN = Continuation("lake", "uuid", Seq(7))


def test_options_are_read_whatever_their_case_and_the_dataset_may_be_what_is_loaded() -> None:
    found = parse({"Dataset": "events"})
    assert found.dataset == "events" and found.rows_max is None and found.with_sequence is False
    assert parse({"path": "events"}).dataset == "events"
    full = parse({
        "lake": "here", "dataset": "d", "consumer": "c", "since": TOKEN.encode(), "until": "12", "columns": " a, b ",
        "where": "a > 1", "partition": "k=v,l=~", "max_rows_per_trigger": "10", "with_sequence": "TRUE",
        "on_lag": "drop", "drop_after": "7d",
    })  # fmt: skip
    assert full.since == TOKEN and full.until == 12 and full.columns == ("a", "b")
    assert full.partition == {"k": "v", "l": None} and full.rows_max == 10 and full.with_sequence
    assert (full.on_lag, full.drop_after) == (OnLag.DROP, timedelta(days=7))
    assert parse({"dataset": "d", "columns": '["a,b"]'}).columns == ("a,b",)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "`dataset` is missing"),
        ({"dataset": "d", "path": "d"}, "named twice"),
        ({"dataset": "d", "maxfilespertrigger": "1"}, "there is no option maxfilespertrigger"),
        ({"dataset": "d", "until": "0"}, "`until` is a whole number from 1 on"),
        ({"dataset": "d", "max_rows_per_trigger": "many"}, "`max_rows_per_trigger` is a whole number"),
        ({"dataset": "d", "with_sequence": "yes"}, "`true` or `false`"),
        ({"dataset": "d", "columns": "a,,b"}, "names columns"),
        ({"dataset": "d", "columns": "[1]"}, "names columns"),
        ({"dataset": "d", "columns": "[a"}, "neither"),
        ({"dataset": "d", "partition": "k"}, "COL=VALUE"),
        ({"dataset": "d", "consumer": "c", "on_lag": "drop"}, "belong together"),
        ({"dataset": "d", "consumer": "c", "drop_after": "1d"}, "belong together"),
        ({"dataset": "d", "consumer": "c", "on_lag": "forget"}, "`hold` or `drop`"),
        ({"dataset": "d", "on_lag": "hold"}, "for a reader with a name"),
    ],
)
def test_an_option_that_cannot_be_is_refused_by_name(given: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse(given)


def test_a_token_that_is_none_is_refused() -> None:
    with pytest.raises(TokenError):
        parse({"dataset": "d", "since": "yesterday"})


def test_every_option_is_described() -> None:
    assert all(text.endswith(".") for text in KNOWN.values())


ME: dict[str, Any] = {"lake": "lake", "dataset": DatasetUuid("uuid"), "name": "default.events"}


SEQS = st.one_of(st.none(), st.integers(1, 2**63 - 1).map(Seq))


@given(SEQS, SEQS)
def test_an_offset_comes_back_from_a_checkpoint_as_it_went_in(begin: Seq | None, after: Seq | None) -> None:
    offset = Offset("lake", DatasetUuid("uuid"), begin, after)
    assert offset.first.after == begin and offset.first.begin == begin
    assert from_json(offset.to_json(), **ME) == offset
    assert list(offset.to_json()) == ["version", "lake", "dataset", "begin", "after"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"lake": "other"}, "of another dataset than default.events is now"),
        ({"dataset": "other"}, "of another dataset than default.events is now"),
        ({"version": 2}, "version 2, this program knows up to 1"),
        ({"version": None}, "offsets of another source"),
        ({"begin": None}, "offsets of another source"),
        ({"after": -1}, "offsets of another source"),
        ({"after": 2**63}, "offsets of another source"),
        ({"after": "7"}, "offsets of another source"),
    ],
)
def test_an_offset_that_is_not_of_this_dataset_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(TokenError, match=said):
        from_json(Offset("lake", DatasetUuid("uuid"), None, Seq(7)).to_json() | change, **ME)


@dataclass(frozen=True)
class File:
    bytes: int


@given(st.lists(st.integers(0, 5 * FILE_BYTES).map(File), max_size=30), st.integers(1, 10 * FILE_BYTES))
def test_each_file_is_in_one_task_in_order_and_a_task_is_only_larger_than_it_may_be_for_a_single_file(
    files: list[File], most: int
) -> None:
    parts = pack(files, part_bytes=most)
    assert [f for part in parts for f in part] == files and all(parts)
    for part in parts:
        assert len(part) == 1 or sum(f.bytes + FILE_BYTES for f in part) <= most
    for a, b in itertools.pairwise(parts):
        assert sum(f.bytes + FILE_BYTES for f in [*a, b[0]]) > most, "neighbours that fit go together"
