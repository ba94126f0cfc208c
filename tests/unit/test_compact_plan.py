"""Which files are rewritten together: a function of what is known about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.iceberg.metadata.live_files import FilePart, LiveFile
from strandline.maintain.compact_plan import CompactOptions, CompactPlan, plan
from tests.campaign import scaled

TARGET = 1000
OPTIONS = CompactOptions()


def file(lo: int, hi: int, size: int = 10, *, deletes: int = 0, partition: str = "", spec: int = 0) -> LiveFile:
    return LiveFile(f"{partition}/{lo}-{hi}-{size}", spec, partition, size, hi - lo + 1, lo, hi, deletes, ordered=True)


def in_a_row(sizes: Sequence[int], first: int = 1) -> list[LiveFile]:
    return [file(first + 10 * n, first + 10 * n + 9, size) for n, size in enumerate(sizes)]


def planned(files: Sequence[LiveFile], options: CompactOptions = OPTIONS) -> CompactPlan:
    return plan(files, options, TARGET)


def shape(chosen: CompactPlan) -> list[list[int | None]]:
    """Of each piece the lowest numbers of its files."""
    return [[f.lo for f in piece.files] for piece in chosen.parts]


def test_small_files_in_a_row_become_one() -> None:
    [piece] = planned(in_a_row([10] * 7)).parts
    assert (len(piece.files), piece.order, piece.outputs) == (7, "kept", 1)


def test_few_small_files_are_left_alone_and_it_is_said() -> None:
    chosen = planned(in_a_row([10] * 4))
    assert not chosen.steps
    assert [(s.files, s.why) for s in chosen.skipped] == [(4, "too few small files in a row (fewer than 5)")]


def test_few_small_files_that_fill_a_file_are_not_left_alone() -> None:
    assert shape(planned(in_a_row([600, 600]))) == [[1, 11]]
    assert not planned(in_a_row([400, 400])).steps


def test_a_file_that_is_large_enough_is_not_touched_and_parts_its_neighbours() -> None:
    files = in_a_row([10, 10, 10, 750, 10, 10, 10])
    assert not planned(files).steps, "putting both sides together would make a file that spans the large one"
    assert shape(planned(in_a_row([10] * 5 + [750] + [10] * 5))) == [[1, 11, 21, 31, 41], [61, 71, 81, 91, 101]]


def test_a_file_with_deletes_is_rewritten_however_large_and_alone() -> None:
    assert shape(planned([file(1, 10, 900, deletes=1), file(11, 20, 900)])) == [[1]]


def test_partitions_are_apart_and_stay_under_their_partitioning() -> None:
    files = [
        file(n, n, partition=f"day={n % 2}", spec=spec)
        for n, spec in zip(range(1, 21), [0] * 10 + [1] * 10, strict=True)
    ]
    chosen = planned(files)
    assert [(p.spec, p.partition, len(p.files)) for p in chosen.parts] == [
        (0, "day=0", 5),
        (0, "day=1", 5),
        (1, "day=0", 5),
        (1, "day=1", 5),
    ]
    assert [{p.spec for p in step} for step in chosen.steps] == [{0}, {1}], "one write has one partitioning"


def test_files_that_overlap_are_sorted_and_stay_together() -> None:
    overlapping = [file(1, 50), file(40, 60), file(45, 46), file(61, 70), file(71, 80)]
    [piece] = planned(overlapping).parts
    assert (len(piece.files), piece.order) == (5, "sorted")


def test_many_large_files_over_the_same_numbers_are_sorted_through_a_shuffle_and_two_are_left_alone() -> None:
    tangled = [file(n, 100 + n, 900) for n in range(1, 6)]
    [piece] = planned(tangled).parts
    assert (piece.order, piece.outputs) == ("shuffled", 4)
    assert not planned(tangled[:2]).steps


def test_files_that_meet_in_one_number_overlap() -> None:
    [piece] = planned([file(1, 10), file(10, 20), file(21, 30), file(31, 40), file(41, 50)]).parts
    assert piece.order == "sorted"


def test_files_that_are_not_known_to_be_in_order_are_sorted() -> None:
    files = in_a_row([10] * 5)
    [piece] = planned([*files[:2], replace(files[2], ordered=False), *files[3:]]).parts
    assert piece.order == "sorted"


def test_files_with_rows_without_a_number_wait_for_adopt() -> None:
    unnumbered = [replace(f, lo=None, hi=None) for f in in_a_row([10] * 9)]
    chosen = planned(unnumbered)
    assert not chosen.steps
    assert [(s.files, "without a sequence number" in s.why) for s in chosen.skipped] == [(9, True)]


def test_pieces_are_of_about_the_same_size_near_the_target() -> None:
    pieces = list(planned(in_a_row([100] * 34)).parts)
    assert [p.bytes for p in pieces] == [1100, 1200, 1100]


def test_a_commit_is_bounded() -> None:
    steps = planned(in_a_row([100] * 100), replace(OPTIONS, commit_bytes_max=3000)).steps
    assert len(steps) > 3
    assert all(sum(p.bytes for p in step) <= 3000 for step in steps)
    assert {len(step) for step in planned(in_a_row([100] * 100), replace(OPTIONS, commit_files_max=2)).steps} == {2}


@st.composite
def layouts(draw: st.DrawFn) -> list[LiveFile]:
    """Files of one partition without overlap, as ingest makes them, and some deletes."""
    sizes = draw(st.lists(st.integers(1, 1800), max_size=30))
    deleted = draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes)))
    gaps = draw(st.lists(st.integers(1, 50), min_size=len(sizes), max_size=len(sizes)))
    files: list[LiveFile] = []
    at = 0
    for size, has_deletes, gap in zip(sizes, deleted, gaps, strict=True):
        files.append(file(at + 1, at + gap, size, deletes=int(has_deletes and size % 3 == 0)))
        at += gap + size % 5
    return files


@given(st.permutations(range(12)), layouts())
def test_no_file_is_rewritten_twice_and_new_files_are_as_disjoint_as_the_old(
    order: list[int], files: list[LiveFile]
) -> None:
    mixed = [files[n] for n in order if n < len(files)] + files[12:]
    chosen = planned(mixed)
    rewritten = [f for piece in chosen.parts for f in piece.files]
    assert len(rewritten) == len(set(rewritten))
    assert all(piece.order == "kept" for piece in chosen.parts)
    after = sorted(
        [_hull(piece) for piece in chosen.parts] + [(f.lo or 0, f.hi or 0) for f in set(mixed) - set(rewritten)]
    )
    assert all(a[1] < b[0] for a, b in pairwise(after))


@settings(max_examples=scaled(100, 2000))
@given(layouts())
def test_compaction_comes_to_rest(files: list[LiveFile]) -> None:
    """Run again and again without new rows, it ends; and it never makes more files."""
    for _ in range(8):
        chosen = planned(files)
        if not chosen.steps:
            return
        fewer = _compacted(files, chosen)
        assert len(fewer) <= len(files)
        files = fewer
    raise AssertionError("the same bytes are rewritten for ever")


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 30), st.integers(1, 1500)), max_size=25))
def test_whatever_overlaps_goes_into_the_same_piece_or_stays(spans: list[tuple[int, int, int]]) -> None:
    files = list({f.location: f for f in (file(lo, lo + length, size) for lo, length, size in spans)}.values())
    chosen = planned(files)
    hulls = [_hull(piece) for piece in chosen.parts]
    assert all(a[1] < b[0] for a, b in pairwise(sorted(hulls)))
    rewritten = {f for piece in chosen.parts for f in piece.files}
    for lo, hi in hulls:
        assert not any((f.lo or 0) <= hi and lo <= (f.hi or 0) for f in files if f not in rewritten)


def _hull(piece: FilePart) -> tuple[int, int]:
    return min(f.lo or 0 for f in piece.files), max(f.hi or 0 for f in piece.files)


def _compacted(files: Sequence[LiveFile], chosen: CompactPlan) -> list[LiveFile]:
    gone = {f for piece in chosen.parts for f in piece.files}
    new = [file(*_hull(piece), piece.bytes) for piece in chosen.parts]
    return sorted([f for f in files if f not in gone] + new, key=lambda f: f.lo or 0)
