"""Every guard by itself, at its edge."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.types import Seq, SeqRange
from strandline.reconcile.compare import guard
from strandline.reconcile.model import FileContent, LedgerContext, Protection, TableSeal
from strandline.reconcile.references.missing_entries import Entry
from strandline.reconcile.storage.discovery import discover

SECOND = 1_000_000_000
NOW = 1_800_000_000 * SECOND
GRACE, SKEW = 86_400, 300


def context(**values: Any) -> LedgerContext:
    return LedgerContext(**({"now_ns": NOW, "grace_seconds": GRACE, "clock_skew_seconds": SKEW} | values))


def test_the_age_limit_is_exact() -> None:
    limit = NOW - (GRACE + SKEW) * SECOND
    assert guard.by_time(limit, context()) is None
    assert guard.by_time(limit + 1, context()) is Protection.YOUNG
    assert guard.by_time(limit - SECOND, context()) is None


@pytest.mark.parametrize("modified", [None, 0, -5])
def test_no_time_is_young(modified: int | None) -> None:
    assert guard.by_time(modified, context(grace_seconds=0, clock_skew_seconds=0)) is Protection.NO_TIME


def test_a_time_to_come_is_young() -> None:
    assert guard.by_time(NOW + 1, context(grace_seconds=0, clock_skew_seconds=0)) is Protection.FUTURE_TIME
    assert guard.by_time(NOW, context(grace_seconds=0, clock_skew_seconds=0)) is None


def test_nothing_younger_than_the_oldest_open_block_or_job_is_old_enough() -> None:
    old = NOW - 90 * 86_400 * SECOND
    assert guard.by_time(old, context(oldest_open_block_ns=old)) is Protection.OPEN_BLOCK
    assert guard.by_time(old, context(oldest_job_ns=old)) is Protection.OPEN_JOB
    skewed = old + SKEW * SECOND
    assert guard.by_time(old, context(oldest_open_block_ns=skewed)) is Protection.OPEN_BLOCK
    assert guard.by_time(old, context(oldest_open_block_ns=skewed + 1, oldest_job_ns=skewed + 1)) is None


@given(st.integers(1, 50), st.integers(0, 20), st.one_of(st.none(), st.integers(1, 80)))
def test_an_entry_is_settled_only_if_all_of_it_is_at_or_below_the_seal(lo: int, more: int, sealed: int | None) -> None:
    rows = SeqRange(Seq(lo), Seq(lo + more))
    seal = TableSeal("t", None if sealed is None else Seq(sealed))
    settled = sealed is not None and all(n <= sealed for n in range(rows.lo, rows.hi + 1))
    assert (guard.by_seal(rows, seal) is None) is settled
    assert guard.by_seal(None, seal) is Protection.UNSEALED


def test_a_range_is_delivered_where_the_mark_is_at_its_end() -> None:
    seal = TableSeal("t", Seq(9), {"a": Seq(7), "b": Seq(6), "c": None})
    assert guard.delivered(SeqRange(Seq(3), Seq(7)), seal) == (("a",), ("b", "c"))
    assert guard.by_delivery(SeqRange(Seq(3), Seq(7)), seal, accept_loss=False) is Protection.UNDELIVERED
    assert guard.by_delivery(SeqRange(Seq(3), Seq(7)), seal, accept_loss=True) is None
    assert guard.by_delivery(SeqRange(Seq(3), Seq(6)), TableSeal("t", Seq(9), {"a": Seq(7)}), accept_loss=False) is None


def test_only_entries_of_data_files_are_dropped() -> None:
    assert guard.by_content(FileContent.DATA) is None
    others = [content for content in FileContent if content is not FileContent.DATA]
    assert {guard.by_content(content) for content in others} == {Protection.NOT_DATA}


def missing(**values: Any) -> Protection | None:
    given: dict[str, Any] = {
        "table": "t", "stopped": None, "content": FileContent.DATA, "rows": SeqRange(Seq(1), Seq(2)), "added_ns": 1,
        "in_main": True, "shared": False,
    }  # fmt: skip
    about = values.pop("context", context(seals={"t": TableSeal("t", Seq(2))}))
    given |= values
    entry = Entry("/wh/x", given["content"], None, None, None, given["rows"], given["added_ns"], given["in_main"])
    return guard.of_missing(about, given["table"], entry, stopped=given["stopped"], shared=given["shared"])


def test_an_entry_is_dropped_only_if_no_guard_says_no() -> None:
    assert missing() is None
    assert missing(stopped=Protection.OVERLAP) is Protection.OVERLAP
    assert missing(content=FileContent.DELETION_VECTOR) is Protection.NOT_DATA
    assert missing(in_main=False) is Protection.NOT_IN_MAIN
    assert missing(shared=True) is Protection.SHARED_FILE
    assert missing(added_ns=None) is Protection.NO_TIME
    assert missing(rows=None) is Protection.UNSEALED
    assert missing(context=context()) is Protection.NOT_A_DATASET
    assert missing(context=context(own_origin=False, seals={"t": TableSeal("t", Seq(2))})) is Protection.ORIGIN


def place(**values: bool | Protection | None) -> Protection | None:
    given: dict[str, Any] = {
        "stopped": None, "in_layout": True, "known_root": True, "failed_prefix": False, "any_unread": False,
    }  # fmt: skip
    about = context(delete_foreign=bool(values.pop("delete_foreign", False)))
    return guard.by_place(about, **(given | values))


def test_a_place_is_touched_only_if_no_guard_says_no() -> None:
    assert place() is None
    assert place(any_unread=True) is None
    assert place(stopped=Protection.REFERENCES_SHRUNK) is Protection.REFERENCES_SHRUNK
    assert place(failed_prefix=True) is Protection.PREFIX_FAILED
    assert place(in_layout=False, delete_foreign=True) is Protection.LAYOUT
    assert place(known_root=False) is Protection.UNKNOWN_ROOT
    assert place(known_root=False, delete_foreign=True) is None
    assert place(known_root=False, delete_foreign=True, any_unread=True) is Protection.TABLE_UNREAD


def test_of_several_reasons_the_first_in_their_order_is_told() -> None:
    for one, other in product(Protection, Protection):
        earlier = one if list(Protection).index(one) <= list(Protection).index(other) else other
        assert guard.first((one, None, other)) is earlier
    assert guard.first((None,)) is None


def test_references_that_are_gone_while_files_are_there_stop_a_table() -> None:
    def shrinking(contents: int, before: int | None, listed: int) -> Protection | None:
        return guard.by_shrinking(contents=contents, before=before, listed=listed, shrink_max=0.5)

    assert guard.by_emptiness(references=3, contents=0, listed=4) is Protection.REFERENCES_EMPTY
    assert guard.by_emptiness(references=3, contents=0, listed=3) is None
    assert guard.by_emptiness(references=3, contents=1, listed=4) is None
    assert shrinking(49, 100, 100) is Protection.REFERENCES_SHRUNK
    assert shrinking(50, 100, 100) is None
    assert shrinking(49, 100, 49) is None, "the files went with the references: it was cleaned up"
    assert shrinking(49, None, 100) is None


def test_nothing_is_dropped_where_nothing_was_listed_of_a_table_or_of_its_data() -> None:
    assert guard.by_absence(expected=2, found=0) is Protection.NOTHING_LISTED
    assert guard.by_absence(expected=2, found=1) is None
    assert guard.by_absence(expected=0, found=0) is None, "a table without data has none to list"


SEGMENTS = st.lists(st.sampled_from("ab"), min_size=1, max_size=4).map("/".join)


@given(st.dictionaries(st.sampled_from("tuvwx"), st.lists(SEGMENTS, min_size=1, max_size=2)))
def test_tables_overlap_if_a_folder_of_one_lies_in_a_folder_of_another(folders: dict[str, list[str]]) -> None:
    def meet(one: str, other: str) -> bool:
        return any(
            f"{a}/".startswith(f"{b}/") or f"{b}/".startswith(f"{a}/") for a in folders[one] for b in folders[other]
        )

    expected = {one for one in folders for other in folders if one != other and meet(one, other)}
    found = guard.overlaps({name: [f"/{f}" for f in of] for name, of in folders.items()})
    assert set(found) == expected and all(meet(one, other) for one, other in found.items())


def test_folders_that_only_begin_alike_do_not_overlap() -> None:
    assert not guard.overlaps({"a": ["/wh/t"], "b": ["/wh/t2"], "c": ["/wh/t-1"]})


def test_the_share_is_asked_from_the_floor_on() -> None:
    def refused(planned: int, listed: int) -> bool:
        return guard.share_refused(planned, listed, share_max=0.2, floor_files=100)

    assert refused(21, 100) and not refused(20, 100) and not refused(99, 99)


# ---- discovery -------------------------------------------------------------------------------------------------------

TREE = {
    "/wh": ["ns", "other", "_strandline", "_strandline_x"],
    "/wh/ns": ["t", "u1", "u2", "deep"],
    "/wh/ns/deep": ["t2", "u3"],
}
KNOWN = ["/wh/ns/t", "/wh/ns/deep/t2"]


def children(folder: str) -> list[str]:
    return list(reversed(TREE.get(folder, [])))


def test_what_neither_is_a_table_nor_leads_to_one_is_unknown_in_a_fixed_order() -> None:
    read: list[str] = []
    found = discover("/wh", KNOWN, lambda folder: read.append(folder) or children(folder), roots_max=10)
    assert found.unknown == ["/wh/_strandline_x", "/wh/other", "/wh/ns/u1", "/wh/ns/u2", "/wh/ns/deep/u3"]
    assert read == ["/wh", "/wh/ns", "/wh/ns/deep"] and not found.is_cut


def test_known_roots_do_not_use_up_the_cap() -> None:
    many = {"/wh": ["ns"], "/wh/ns": [f"t{n:03d}" for n in range(100)] + [f"x{n}" for n in range(9)]}

    def look(folder: str) -> list[str]:
        return many.get(folder, [])

    known = [f"/wh/ns/t{n:03d}" for n in range(100)]
    found = discover("/wh", known, look, roots_max=9)
    assert len(found.unknown) == 9 and not found.is_cut
    cut = discover("/wh", known, look, roots_max=2)
    assert cut.unknown == ["/wh/ns/x0", "/wh/ns/x1"] and cut.is_cut
    assert not discover("/wh", known, lambda folder: pytest.fail(folder), roots_max=0).unknown
