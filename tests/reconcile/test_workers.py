"""Workers: folders listed, manifests read, and what happens when they hang, die, or are given damaged files."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from strandline.core.errors import InputError
from strandline.reconcile.references.avro_reader import AvroUnreadable
from strandline.reconcile.references.manifest_workers import ListedManifest, ManifestReading
from strandline.reconcile.references.manifests import listed_manifests, live_files
from strandline.reconcile.references.real_paths import same_folders
from strandline.reconcile.storage import pool as pool_module
from strandline.reconcile.storage.inventory import list_local
from strandline.reconcile.storage.inventory_file import read_inventory
from strandline.reconcile.storage.pool import Pool
from strandline.reconcile.storage.worker import scan_folder
from tests.reconcile.conftest import SomeLake

NOBODY = 65_534


def touch(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    return str(path)


def files_of(listing: Any) -> set[str]:
    return {f"{path}/{name}" for path, folder in listing.folders.items() for name in folder.names}


def test_every_file_is_listed_once_however_deep_and_odd_its_name(tmp_path: Path) -> None:
    seed = random.Random(7)
    names = ["a", "b c", "100%", "x%20y", "ü", "n\nl", "-", "é́"]
    expected = set()
    for n in range(300):
        parts = [seed.choice(names) + str(seed.randrange(3)) for _ in range(seed.randrange(1, 6))]
        expected.add(touch(tmp_path.joinpath(*parts, f"f{n}.parquet")))
    listing = list_local([str(tmp_path), str(tmp_path / "a0")], timeout_seconds=30)
    assert files_of(listing) == expected and len(listing) == len(expected) and not listing.failures


def test_links_loops_and_sockets_are_told_and_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "s"
    kept = touch(home / "d" / "f")
    (home / "d" / "loop").symlink_to(home)
    (home / "broken").symlink_to(home / "nowhere")
    with socket.socket(socket.AF_UNIX) as server:
        monkeypatch.chdir(home)  # a socket's path must be short
        server.bind("sock")
    listing = list_local([str(home)], timeout_seconds=30)
    assert files_of(listing) == {kept}
    assert {f.prefix for f in listing.failures} == {f"{home}/d/loop", f"{home}/broken", f"{home}/sock"}


def test_a_root_behind_a_link_is_a_failure_and_one_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    touch(tmp_path / "real" / "f")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    listing = list_local([str(tmp_path / "link"), str(tmp_path / "gone")], timeout_seconds=30)
    assert [f.prefix for f in listing.failures] == [str(tmp_path / "link")] and not len(listing)


def too_deep(folder: Path) -> str:
    """A folder whose path is longer than the system takes: listing it fails, for root as well. The last that can be."""
    name = "d" * 250
    at = os.open(folder, os.O_RDONLY)
    path, longest = str(folder), ""
    for _ in range(18):
        os.mkdir(name, dir_fd=at)
        inner = os.open(name, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at, path = inner, f"{path}/{name}"
        longest = longest or (path if len(path) >= 4096 else "")
    os.close(at)
    return longest


def test_a_folder_that_cannot_be_read_is_a_failure_of_that_folder(tmp_path: Path) -> None:
    kept = [touch(tmp_path / "b" / "f"), touch(tmp_path / "deep" / "f")]
    failed = too_deep(tmp_path / "deep")
    listing = list_local([str(tmp_path)], timeout_seconds=30)
    assert files_of(listing) == set(kept) and [f.prefix for f in listing.failures] == [failed]


def test_a_folder_that_may_not_be_read_is_a_failure_and_not_an_empty_folder(tmp_path: Path) -> None:
    """Asked by a process that is nobody in particular: root may read everything."""
    touch(tmp_path / "closed" / "f")
    touch(tmp_path / "open" / "f")
    tmp_path.chmod(0o755)
    (tmp_path / "closed").chmod(0)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.chdir(tmp_path)  # What lies above it is not everybody's.
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            os.write(writing, json.dumps([list(scan_folder("closed")), list(scan_folder("open"))]).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        closed, opened = json.loads(answer.read())
    os.waitpid(child, 0)
    (tmp_path / "closed").chmod(0o700)
    assert closed == [["failed", "PermissionError: Permission denied"]]
    assert opened == [["part", [["f"], [], []]], ["end", None]]


def test_a_worker_that_hangs_or_dies_fails_its_task_and_the_others_go_on(tmp_path: Path) -> None:
    fifo = str(tmp_path / "fifo")
    os.mkfifo(fifo)  # Opening it for reading waits for a writer that never comes.
    ends: dict[str, str] = {}

    def on_end(task: tuple[str, None], how: str, why: str) -> tuple[()]:
        ends[task[0]] = how
        return ()

    paths = [fifo, *(str(tmp_path / f"gone{n}") for n in range(20))]
    with Pool() as pool:
        pool.run("manifest", [(p, None, None, None) for p in paths], lambda t, p: None, on_end, timeout_seconds=10)
        assert ends.pop(fifo) == "timeout" and set(ends.values()) == {"missing"} and len(ends) == 20
        pool.run("manifest", [(paths[1], None, None, None)], lambda t, p: None, on_end, timeout_seconds=60)


def test_a_worker_that_cannot_be_killed_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that waits in the kernel for a disk that went away."""
    monkeypatch.setattr(pool_module, "ENDING_SECONDS_MAX", 0.2)
    left: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr(subprocess.Popen, "kill", lambda process: left.append(process))
    fifo = str(tmp_path / "fifo")
    os.mkfifo(fifo)
    ends: list[str] = []

    def on_end(task: Any, how: str, why: str) -> tuple[()]:
        ends.append(how)
        return ()

    with Pool(1) as pool:
        for path, seconds in ((fifo, 1), ("/nowhere", 60)):
            pool.run("manifest", [(path, None, None, None)], lambda t, p: None, on_end, timeout_seconds=seconds)
    monkeypatch.undo()
    assert ends == ["timeout", "missing"] and len(left) == 2 and left[0].poll() is None
    left[0].kill()
    left[0].wait()


def test_a_folder_that_has_two_names_is_known_by_both(tmp_path: Path) -> None:
    (tmp_path / "wh/ns/t").mkdir(parents=True)
    (tmp_path / "alias").symlink_to(tmp_path / "wh")  # As a bind mount would look to stat.
    (tmp_path / "wh2/ns").mkdir(parents=True)
    known = [str(tmp_path / "alias/ns/t")]
    unknown = [str(tmp_path / "wh/ns"), str(tmp_path / "wh/ns/t"), str(tmp_path / "wh2/ns")]
    assert set(same_folders(unknown, known)) == {unknown[0], unknown[1]}


# ---- manifests -------------------------------------------------------------------------------------------------------


def manifests_of(lake: SomeLake) -> list[Path]:
    return sorted(lake.path("ns/t/metadata").glob("*-m*.avro"))


def test_what_is_read_is_what_pyiceberg_reads(some_lake: SomeLake) -> None:
    some_lake.create(partition_by="p")
    for n in range(3):
        table = some_lake.append(p=n)
    table.delete("p = 1")
    table = some_lake.catalog.load("ns.t")
    for snapshot in table.snapshots():
        manifests = snapshot.manifests(table.io)
        (listed,) = listed_manifests(Path(snapshot.manifest_list.removeprefix("file://")).read_bytes())
        assert [entry[0] for entry in listed] == [m.manifest_path for m in manifests]
        for manifest in manifests:
            ((count, data, others),) = live_files(Path(manifest.manifest_path.removeprefix("file://")).read_bytes())
            live = [e.data_file.file_path.removeprefix("file://") for e in manifest.fetch_manifest_entry(table.io)]
            assert data == live and count == len(live) and not others


def test_a_manifest_that_is_cut_or_changed_is_never_a_shorter_answer(some_lake: SomeLake, tmp_path: Path) -> None:
    """Cut anywhere, or with noise in it: it is not read, or all of its entries are."""
    some_lake.create()
    for _ in range(2):
        some_lake.append()
    table = some_lake.catalog.load("ns.t")
    (manifest, *_) = table.current_snapshot().manifests(table.io)  # type: ignore[union-attr]
    whole = Path(manifest.manifest_path.removeprefix("file://")).read_bytes()
    seed = random.Random(11)
    damaged = [whole[: seed.randrange(len(whole))] for _ in range(60)]
    for _ in range(60):
        at = seed.randrange(len(whole))
        damaged.append(whole[:at] + seed.randbytes(seed.randrange(1, 40)) + whole[at + 20 :])
    paths = []
    for n, content in enumerate([whole, *damaged]):
        paths.append(str(tmp_path / f"{n}.avro"))
        Path(paths[-1]).write_bytes(content)
    wanted = [ListedManifest(path, 1, 0, 1) for path in paths]
    with Pool() as pool:
        found = ManifestReading(pool, timeout_seconds=60).read_manifests(wanted, dict.fromkeys(paths))  # type: ignore[arg-type]
    assert found[paths[0]].problem is None and len(found[paths[0]].data) == 1
    assert all(f.problem is not None or len(f.data) == 1 for f in found.values())
    assert sum(f.problem is not None for f in found.values()) > 60


def test_fewer_entries_than_the_list_says_are_a_problem(some_lake: SomeLake) -> None:
    some_lake.create()
    some_lake.append()
    (path,) = map(str, manifests_of(some_lake))
    with Pool() as pool:
        reading = ManifestReading(pool, timeout_seconds=60)
        assert reading.read_manifests([ListedManifest(path, 2, 0, 1)], {path: None})[path].problem is not None  # type: ignore[dict-item]
        assert reading.read_manifests([ListedManifest(path, 1, 0, 1)], {path: None})[path].problem is None  # type: ignore[dict-item]
        gone = f"{path}.gone"
        assert reading.read_manifests([ListedManifest(gone, 1, 0, 1)], {gone: None})[gone].is_missing  # type: ignore[dict-item]


def long(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = b""
    while value & ~0x7F:
        out += bytes([(value & 0x7F) | 0x80])
        value >>= 7
    return out + bytes([value])


def text(value: str) -> bytes:
    return long(len(value.encode())) + value.encode()


def test_every_kind_of_field_is_stepped_over() -> None:
    """Also those that Iceberg's writers do not use today: maps, enums, fixed, blocks that say their size."""
    odd = [
        ("a", "boolean", b"\1"), ("b", "float", b"1234"), ("c", "double", b"12345678"), ("d", "bytes", long(2) + b"xy"),
        ("e", {"type": "fixed", "name": "fx", "size": 3}, b"abc"), ("f", "fx", b"abc"),
        ("g", {"type": "enum", "name": "en", "symbols": ["X", "Y"]}, long(1)),
        ("h", ["null", "string"], long(1) + text("s")),
        ("i", {"type": "map", "values": "long"}, long(1) + text("k") + long(7) + long(0)),
        ("j", {"type": "array", "items": "int"}, long(-2) + long(2) + long(1) + long(2) + long(0)),
        ("k", {"type": "array", "items": {"type": "record", "name": "r", "fields": [
            {"name": "key", "type": "int"}, {"name": "value", "type": "bytes"}]}},
         long(1) + long(3) + long(1) + b"z" + long(0)),
        ("l", {"type": "array", "items": "r"}, long(1) + long(3) + long(1) + b"z" + long(0)),
        ("m", ["null", {"type": "record", "name": "empty", "fields": []}], long(1)), ("n", "null", b""),
    ]  # fmt: skip
    inner = [{"name": n, "type": kind} for n, kind, _ in odd]
    schema = {"type": "record", "name": "manifest_entry", "fields": [
        {"name": "status", "type": "int", "field-id": 0},
        {"name": "data_file", "field-id": 2, "type": {"type": "record", "name": "r2", "fields": [
            {"name": "content", "type": ["null", "int"], "field-id": 134},
            {"name": "file_path", "type": "string", "field-id": 100}, *inner]}},
    ]}  # fmt: skip

    def record(name: str, status: int = 1) -> bytes:
        return long(status) + long(1) + long(0) + text(f"file:///t/{name}") + b"".join(value for _, _, value in odd)

    records = [record("a"), record("b"), record("c"), record("gone", 2), record("d")]

    def manifest(records: list[bytes]) -> bytes:
        packer = zlib.compressobj(6, zlib.DEFLATED, -15)
        block = packer.compress(b"".join(records)) + packer.flush()
        head = b"Obj\1" + long(2) + text("avro.schema") + text(json.dumps(schema)) + text("avro.codec")
        return b"".join(
            (head, text("deflate"), long(0), b"S" * 16, long(len(records)), long(len(block)), block, b"S" * 16)
        )

    assert list(live_files(manifest(records))) == [(4, ["/t/a", "/t/b", "/t/c", "/t/d"], [])]
    for again in (record("b"), record("gone"), record("a", 2)):
        with pytest.raises(AvroUnreadable, match="one file"):  # the name of another is lost
            list(live_files(manifest([*records, again])))
    for odd_path in ("%ff", "%ed%a0%80", "a\0b", "a%00b"):
        with pytest.raises(AvroUnreadable, match="as text"):
            list(live_files(manifest([*records, record(odd_path)])))


# ---- inventory files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_a_listing_can_come_from_a_file_that_a_store_exports(tmp_path: Path, form: str) -> None:
    table = pa.table(
        {
            "Bucket": ["b", "b", "b", "other", "b"],
            "Key": ["wh/ns/t/data/a b.parquet", "wh/ns/t/data/old.parquet", "else/x.parquet", "wh/y.parquet", "wh/ns/"],
            "Size": [1, 2, 3, 4, 0],
            "LastModifiedDate": pa.array([1_700_000_000_123] * 5, pa.timestamp("ms", tz="UTC")),
            "IsLatest": [True, False, True, True, True],
        }
    )
    file = tmp_path / f"inventory.{form}"
    if form == "parquet":
        pq.write_table(table, file)
    else:
        pacsv.write_csv(table, file)
    listing = read_inventory(file, "s3://b/wh")
    assert files_of(listing) == {"s3://b/wh/ns/t/data/a b.parquet"}
    (folder,) = listing.folders.values()
    assert list(folder.sizes or ()) == [1] and list(folder.modified_ns or ()) == [1_700_000_000_123_000_000]


def test_an_inventory_without_times_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "i.csv"
    file.write_text("key,size\na,1\n")
    with pytest.raises(InputError, match="modified"):
        read_inventory(file, "s3://b/wh")


def test_a_survey_can_use_an_inventory(some_lake: SomeLake, tmp_path: Path) -> None:
    some_lake.create()
    some_lake.append()
    stray = some_lake.put("ns/t/data/stray.parquet")
    listed = [str(p) for p in some_lake.warehouse.rglob("*") if p.is_file()]
    some_lake.append()  # After the inventory was made: not in it, and not missing.
    times = pa.array([Path(p).stat().st_mtime_ns for p in listed], pa.timestamp("ns", tz="UTC"))
    file = tmp_path / "inventory.parquet"
    pq.write_table(pa.table({"key": listed, "size": [1] * len(listed), "last_modified": times}), file)
    survey = some_lake.survey(inventory_file=file)
    assert [f.path for f in survey.drift.orphans()] == [stray] and not list(survey.drift.missing())
