"""Both directions of the comparison, against a model that knows which files are live."""

from __future__ import annotations

import random
from urllib.parse import quote

from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.reconcile.compare.diff import TableKeys, compare
from strandline.reconcile.model import PrefixFailure
from strandline.reconcile.paths import canonical, checksum_of, is_under, key
from strandline.reconcile.storage.listing import Listing

NAMES = st.sampled_from(["a.parquet", "b.parquet", "c d.parquet", "e%20f.parquet", "e f.parquet", "ü.parquet",
                         "g\nh.parquet", "100%.parquet", ".a.parquet.crc", ".z.parquet.crc"])  # fmt: skip
FOLDERS = st.sampled_from(["/wh/ns/t/data", "/wh/ns/t/data/p=1", "/wh/ns/t/data/p=a%2Fb", "/wh/ns/t/metadata",
                           "/wh/ns/t2/data", "/wh/ns/u", "/wh/other/t/data"])  # fmt: skip
FILES = st.sets(st.tuples(FOLDERS, NAMES).map("/".join), max_size=14)
TABLES = {"ns.t": "/wh/ns/t", "ns.t2": "/wh/ns/t2"}


def spelled(path: str, how: int) -> str:
    return [path, f"file://{path}", f"file:{path}", "file://" + quote(path), path.replace("/data", "//data", 1)][
        how % 5
    ]


@settings(max_examples=400)
@given(FILES, FILES, FILES, st.lists(st.integers(0, 4), min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_no_live_file_is_called_unreferenced_and_every_other_one_is(
    stored: set[str], of_t: set[str], of_t2: set[str], how: list[int], order: random.Random
) -> None:
    def reach(name: str, files: set[str]) -> TableKeys:
        spellings = [spelled(path, how[n % len(how)]) for n, path in enumerate(sorted(files))]
        return TableKeys((TABLES[name],), {key(path) for path in spellings})

    files = list(stored)
    order.shuffle(files)
    listing = Listing.of(((path, 1, 1) for path in files), roots=["/wh"])
    found = compare(listing, {"ns.t": reach("ns.t", of_t), "ns.t2": reach("ns.t2", of_t2)})
    live = {key(path) for path in of_t | of_t2}
    unreferenced = {file.path for file in found.unreferenced}

    assert not {path for path in unreferenced if path in of_t | of_t2}
    assert not {path for path in unreferenced if key(path) in live}
    for path in stored - unreferenced:
        folder, _, name = path.rpartition("/")
        summed = checksum_of(name)
        beside = None if summed is None else f"{folder}/{summed}"
        assert key(path) in live or (beside is not None and (beside in stored or key(beside) in live))

    there = {key(path) for path in stored}
    assert set(found.missing.get("ns.t", ())) == {key(p) for p in of_t} - there
    assert set(found.missing.get("ns.t2", ())) == {key(p) for p in of_t2} - there
    assert not found.elsewhere
    paths = [file.path for file in found.unreferenced]
    assert paths == sorted(paths)
    assert compare(listing, {"ns.t2": reach("ns.t2", of_t2), "ns.t": reach("ns.t", of_t)}) == found


@given(FILES, FILES, st.sampled_from(["/wh/ns/t/data/p=1", "/wh/ns/t", "/wh/ns/t2/data"]))
def test_nothing_is_called_missing_under_a_prefix_that_was_not_listed_whole(
    stored: set[str], referenced: set[str], failed: str
) -> None:
    listing = Listing.of(((p, 1, 1) for p in stored), roots=["/wh"], failures=[PrefixFailure(failed, "no answer")])
    found = compare(listing, {"ns.t": TableKeys(("/wh/ns/t",), {key(p) for p in referenced})})
    assert not [k for k in found.missing.get("ns.t", ()) if is_under(k, failed)]
    expected = {key(p) for p in referenced} - {key(p) for p in stored}
    assert set(found.missing.get("ns.t", ())) == {k for k in expected if not is_under(k, failed)}


def test_a_reference_outside_of_what_was_listed_is_neither_missing_nor_there() -> None:
    listing = Listing.of([("/wh/ns/t/data/a.parquet", 1, 1)], roots=["/wh/ns/t"])
    found = compare(listing, {"ns.t": TableKeys(("/wh/ns/t",), {"/wh/ns/t/data/a.parquet", "/elsewhere/b.parquet"})})
    assert not found.missing and found.elsewhere == {"ns.t": ["/elsewhere/b.parquet"]}


def test_a_file_in_the_folder_of_one_table_that_another_one_reaches_is_live() -> None:
    listing = Listing.of([("/wh/ns/t/data/a.parquet", 1, 1)], roots=["/wh"])
    tables = {
        "ns.t": TableKeys(("/wh/ns/t",), set[str]()),
        "ns.t2": TableKeys(("/wh/ns/t2",), {"/wh/ns/t/data/a.parquet"}),
    }
    assert not compare(listing, tables).unreferenced


def test_what_is_reached_through_a_link_is_live() -> None:
    listing = Listing.of([("/wh/ns/t/data/a.parquet", 1, 1)], roots=["/wh"])
    tables = {"ns.t": TableKeys(("/link/t",), {"/link/t/data/a.parquet"})}
    assert not compare(listing, tables, {"/wh/ns/t/data/a.parquet"}).unreferenced


def test_the_owner_of_a_file_is_the_table_whose_folder_it_lies_in() -> None:
    files = ["/wh/ns/t/data/x.parquet", "/wh/ns/t2/data/x.parquet", "/wh/ns/tt/data/x.parquet"]
    listing = Listing.of(((path, 1, 1) for path in files), roots=["/wh"])
    found = compare(listing, {name: TableKeys((folder,), set[str]()) for name, folder in TABLES.items()})
    assert [file.table for file in found.unreferenced] == ["ns.t", "ns.t2", None]
    assert found.listed == {"ns.t": 1, "ns.t2": 1, None: 1}


def test_a_file_that_a_listing_shows_twice_is_one_and_as_young_as_the_later_time_says() -> None:
    path = "/wh/ns/t/data/x.parquet"
    listing = Listing.of([(path, 1, 5), (path, 2, 9), (path, 1, 5)], roots=["/wh"])
    (file,) = compare(listing, {"ns.t": TableKeys(("/wh/ns/t",), set[str]())}).unreferenced
    assert (file.size, file.modified_ns) == (2, 9)


def test_the_path_of_a_finding_is_the_name_in_storage() -> None:
    path = "/wh/ns/t/data/e%20f.parquet"
    listing = Listing.of([(path, 1, 1)], roots=["/wh"])
    (file,) = compare(listing, {"ns.t": TableKeys(("/wh/ns/t",), set[str]())}).unreferenced
    assert file.path == path == canonical(path)
