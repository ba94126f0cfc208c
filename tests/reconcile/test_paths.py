"""One spelling of a path, and the strict layout."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.reconcile.paths import (
    SUFFIXES,
    Room,
    Roots,
    below,
    canonical,
    checksum_of,
    fits_room,
    has_plain_segments,
    is_own,
    is_under,
    key,
    keys,
    room_of_folder,
    unknown_root_of,
)

SEGMENT = st.text(
    st.characters(blacklist_characters="/\0", blacklist_categories=("Cs",)), min_size=1, max_size=12
).filter(lambda s: s not in (".", ".."))
RELATIVE = st.lists(SEGMENT, min_size=1, max_size=6).map("/".join)
SCHEMES = st.sampled_from(["file:///", "file:/", "/", "file://localhost/", "FILE:///"])
S3_SCHEMES = st.sampled_from(["s3://", "s3a://", "s3n://", "S3://"])


@given(RELATIVE, SCHEMES)
def test_every_spelling_of_a_local_path_is_one_path(relative: str, scheme: str) -> None:
    assert canonical(scheme + relative) == f"/{relative}"
    assert key(scheme + relative) == key(f"/{relative}")


@given(RELATIVE, S3_SCHEMES)
def test_every_spelling_of_an_object_is_one_path(relative: str, scheme: str) -> None:
    assert canonical(f"{scheme}bucket/{relative}") == f"s3://bucket/{relative}"
    assert key(f"{scheme}bucket/{relative}") == key(f"s3://bucket/{relative}")


@given(RELATIVE, st.integers(1, 3), SCHEMES)
def test_an_escaped_spelling_means_the_same_file_however_often_it_was_escaped(
    relative: str, times: int, scheme: str
) -> None:
    escaped = relative
    for _ in range(times):
        escaped = quote(escaped, safe="/")
    assert key(scheme + escaped) == key(f"/{relative}")


@given(RELATIVE)
def test_doubled_slashes_and_dots_make_no_difference_to_what_is_compared(relative: str) -> None:
    plain = key(f"/wh/{relative}")
    assert key(f"/wh//{relative}") == plain
    assert key(f"//wh/./{relative}") == plain
    assert key(f"/wh/x/../{relative}") == plain


@given(RELATIVE)
def test_the_name_in_storage_is_kept_as_it_is(relative: str) -> None:
    assert canonical(f"/{relative}") == f"/{relative}"
    assert key(key(f"/{relative}")) == key(f"/{relative}")


@given(st.lists(st.tuples(st.sampled_from(["file:///", "file:/", "s3://", "s3a://", "/", "file:////", "s3:///"]),
                          st.one_of(RELATIVE, st.sampled_from(["a//b", "a/./b", "a/.b", "a%20b", "a/../b", ""]))),
                max_size=8))  # fmt: skip
def test_many_paths_at_once_are_compared_by_the_same_as_each_alone(parts: list[tuple[str, str]]) -> None:
    paths = [scheme + rest for scheme, rest in parts]
    assert keys(paths) == [key(path) for path in paths]


@given(st.lists(RELATIVE, max_size=8), st.sampled_from(["file:///", "file:/", "s3://b/", "s3a://b/", "/"]))
def test_many_paths_of_one_writer_are_compared_by_the_same_as_each_alone(rest: list[str], scheme: str) -> None:
    paths = [scheme + relative for relative in rest]
    assert keys(paths) == [key(path) for path in paths]


@pytest.mark.parametrize("path", ["/a//b", "/a/./b", "/a/../b", "/a/", "/a/b\udcff", "s3://b//k", "s3://b/../k"])
def test_paths_that_no_writer_makes_are_not_plain(path: str) -> None:
    assert not has_plain_segments(path)


@pytest.mark.parametrize("path", ["/a/b", "s3://b/k", "/a/.b", "/a/..b", "/a/ü b\n", "/a/%2e%2e/b"])
def test_odd_names_are_plain_as_long_as_each_is_a_segment(path: str) -> None:
    assert has_plain_segments(path)


def test_a_folder_is_matched_by_whole_segments() -> None:
    assert is_under("/wh/t/data/f", "/wh/t") and is_under("/wh/t", "/wh/t")
    assert not is_under("/wh/table/data/f", "/wh/t")
    assert (
        below("/wh/table/f", "/wh/t") is None and below("/wh/t/f", "/wh/t/") == "f" and below("/wh/t", "/wh/t") is None
    )
    assert is_own("/wh/_strandline/spool/x", "/wh") and is_own("/wh/_strandline", "/wh")
    assert not is_own("/wh/_strandline_x/data/f", "/wh") and not is_own("/wh/ns/_strandline/data/f", "/wh")


@pytest.mark.parametrize(
    ("relative", "room"),
    [
        ("data/f.parquet", Room.DATA),
        ("data/day=2026-01-01/x%2Fy/f.parquet", Room.DATA),
        ("data/0101/1010/f.orc", Room.DATA),
        ("data/00-deletes.puffin", Room.DATA),
        ("data/.f.parquet.crc", Room.DATA),
        ("data/metadata/f.avro", Room.DATA),
        ("metadata/00001-x.metadata.json", Room.METADATA),
        ("metadata/00001-x.gz.metadata.json", Room.METADATA),
        ("metadata/v3.metadata.json.gz", Room.METADATA),
        ("metadata/snap-1.avro", Room.METADATA),
        ("metadata/x.stats", Room.METADATA),
        ("metadata/.snap-1.avro.crc", Room.METADATA),
        ("data/f.txt", None),
        ("data/.hidden.parquet", None),
        ("data/parquet", None),
        ("metadata/version-hint.text", None),
        ("metadata/notes.json", None),
        ("f.parquet", None),
        ("data", None),
        ("mydata/f.parquet", None),
        ("data2/f.parquet", None),
        ("x/data/f.parquet", None),
        ("data//f.parquet", None),
        ("data/../metadata/f.avro", None),
        ("data/./f.parquet", None),
        ("/data/f.parquet", None),
        ("data/f\udcff.parquet", None),
    ],
)
def test_the_layout_is_folder_and_extension_and_nothing_else(relative: str, room: Room | None) -> None:
    folder, _, name = relative.rpartition("/")
    found = room_of_folder(f"/{folder}", "")
    assert (found if found is not None and fits_room(name, SUFFIXES[found]) else None) is room


def test_a_checksum_goes_with_its_file() -> None:
    assert checksum_of(".f.parquet.crc") == "f.parquet"
    assert checksum_of("f.parquet.crc") is None and checksum_of(".crc") is None and checksum_of("..crc") is None


def test_an_unknown_root_is_what_precedes_the_first_room() -> None:
    assert unknown_root_of("ns/t/data/f.parquet") == "ns/t"
    assert unknown_root_of("ns/t/metadata/data/f.avro") == "ns/t"
    assert unknown_root_of("data/f.parquet") is None
    assert unknown_root_of("ns/mydata/f.parquet") is None
    assert unknown_root_of("ns/data") is None


@given(st.lists(RELATIVE, max_size=6), RELATIVE)
def test_the_deepest_folder_is_the_one_that_a_path_lies_in(folders: list[str], path: str) -> None:
    expected = max((f"/{f}" for f in folders if is_under(f"/{path}", f"/{f}")), key=len, default=None)
    assert Roots(f"/{f}" for f in folders).of(f"/{path}") == expected
