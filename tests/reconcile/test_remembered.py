"""What manifests named is remembered by their content, for reports alone."""

from __future__ import annotations

import errno
import hashlib
import marshal
import os
import shutil
import time
import uuid
import zlib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.reconcile.references import avro_reader, manifest_cache, manifests
from strandline.reconcile.references.avro_reader import AvroUnreadable
from strandline.reconcile.references.manifests import LivePart
from strandline.storage import durable
from tests.reconcile.whole_lakes import ACT, REPORT, WholeLake, there

CONTENT = os.urandom(manifest_cache.WORTH_BYTES)
PARTS: list[LivePart] = [(2, ["/t/a", "/t/b"], []), (1, [], [(1, "PUFFIN", "/t/dv \udcff")])]


class Reader:
    def __init__(self, *parts: LivePart | Exception) -> None:
        self.parts = parts
        self.times = 0

    def __call__(self, content: bytes) -> Iterator[LivePart]:
        self.times += 1
        for part in self.parts:
            if isinstance(part, Exception):
                raise part
            yield part


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder)) if folder.exists() else []


def test_what_was_read_to_its_end_is_not_read_again(tmp_path: Path) -> None:
    reader = Reader(*PARTS)
    folder = tmp_path / "not" / "made yet"
    for _ in range(3):
        assert list(manifest_cache.read(CONTENT, str(folder), reader)) == PARTS
    assert reader.times == 1
    assert list(manifest_cache.read(CONTENT[:-1] + b"x", str(folder), reader)) == PARTS
    assert list(manifest_cache.read(CONTENT + b"x", str(folder), reader)) == PARTS
    assert reader.times == 3 and len(names(folder)) == 3


@given(st.lists(st.tuples(st.lists(st.text()), st.lists(st.tuples(st.integers(), st.text(), st.text())))))
def test_it_comes_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, found: list[tuple[list[str], list[tuple[int, str, str]]]]
) -> None:
    parts: list[LivePart] = [(len(data) + len(others), data, others) for data, others in found]
    folder = str(tmp_path_factory.mktemp("memory"))
    assert list(manifest_cache.read(CONTENT, folder, Reader(*parts))) == parts
    assert list(manifest_cache.read(CONTENT, folder, Reader(AssertionError("read again")))) == parts


def test_neither_half_a_manifest_nor_a_damaged_one_is_remembered(tmp_path: Path) -> None:
    half = manifest_cache.read(CONTENT, str(tmp_path), Reader(*PARTS))
    next(half)
    half.close()
    damaged = Reader(PARTS[0], AvroUnreadable("cut"))
    for _ in range(2):
        with pytest.raises(AvroUnreadable):
            list(manifest_cache.read(CONTENT, str(tmp_path), damaged))
    assert damaged.times == 2 and names(tmp_path) == []


def _with_digest(body: bytes) -> bytes:
    return hashlib.sha256(body).digest() + body


ODD = {
    "empty": b"",
    "another's": b"x" * 500,
    "not packed": _with_digest(b"something"),
    "not marshalled": _with_digest(zlib.compress(b"\xff something")),
    "no list": _with_digest(zlib.compress(marshal.dumps(7))),
    "no parts": _with_digest(zlib.compress(marshal.dumps(["a", "b"]))),
    "a part that does not add up": _with_digest(zlib.compress(marshal.dumps([(3, ["/t/a"], [])]))),
}


@pytest.mark.parametrize("damage", [*ODD, "cut", "flipped"])
def test_a_memory_that_is_damaged_is_none_and_is_replaced(tmp_path: Path, damage: str) -> None:
    reader = Reader(*PARTS)
    list(manifest_cache.read(CONTENT, str(tmp_path), reader))
    (name,) = names(tmp_path)
    file = tmp_path / name
    kept = file.read_bytes()
    cut = {"cut": kept[:-1], "flipped": kept[:-3] + bytes([kept[-3] ^ 1]) + kept[-2:]}
    file.write_bytes((ODD | cut)[damage])
    for _ in range(2):
        assert list(manifest_cache.read(CONTENT, str(tmp_path), reader)) == PARTS
    assert reader.times == 2 and file.read_bytes() == kept


def test_nothing_is_left_where_it_cannot_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader(*PARTS)
    list(manifest_cache.read(CONTENT, str(tmp_path), reader))
    (name,) = names(tmp_path)
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    assert list(manifest_cache.read(CONTENT, str(tmp_path), reader)) == PARTS and names(tmp_path) == [name]
    (tmp_path / name).rmdir()

    def full(at: Path, to: Path) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(durable, "rename", full)
    assert list(manifest_cache.read(CONTENT, str(tmp_path), reader)) == PARTS and names(tmp_path) == []


def test_only_its_owner_can_read_it(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    list(manifest_cache.read(CONTENT, str(folder), Reader(*PARTS)))
    (name,) = names(folder)
    assert folder.stat().st_mode & 0o777 == 0o700 and (folder / name).stat().st_mode & 0o777 == 0o600


def test_another_way_of_reading_remembers_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release that reads manifests better must not repeat what an older one made of them."""
    list(manifest_cache.read(CONTENT, str(tmp_path), Reader((0, [], []))))
    file = tmp_path / "paths.py"
    file.write_text("# better\n", "utf-8")
    better = ModuleType("paths")
    better.__file__ = str(file)
    ways = {manifest_cache.way_of_reading(), manifest_cache.way_of_reading((avro_reader, manifests, better))}
    assert len(ways) == 2 and None not in ways and manifest_cache.WAY_OF_READING in ways
    monkeypatch.setattr(manifest_cache, "version", lambda package: f"{version(package)}.1")
    assert manifest_cache.way_of_reading() not in ways
    monkeypatch.setattr(manifest_cache, "WAY_OF_READING", manifest_cache.way_of_reading())
    assert list(manifest_cache.read(CONTENT, str(tmp_path), Reader(*PARTS))) == PARTS
    # Not at hand.
    file.unlink()
    assert manifest_cache.way_of_reading((better,)) is None
    monkeypatch.setattr(manifest_cache, "WAY_OF_READING", None)
    reader = Reader(*PARTS)
    for _ in range(2):
        assert list(manifest_cache.read(CONTENT, str(tmp_path), reader)) == PARTS
    assert reader.times == 2


def test_small_ones_and_folders_that_cannot_be_written_to_are_simply_read(tmp_path: Path) -> None:
    reader = Reader(*PARTS)
    assert list(manifest_cache.read(CONTENT[1:], str(tmp_path), reader)) == PARTS and names(tmp_path) == []
    (tmp_path / "file").write_bytes(b"")
    for _ in range(2):
        assert list(manifest_cache.read(CONTENT, str(tmp_path / "file"), reader)) == PARTS
    assert reader.times == 3
    manifest_cache.forget_old(str(tmp_path / "file"))
    manifest_cache.forget_old(str(tmp_path / "nowhere"))


def test_what_is_old_is_read_again_and_only_what_is_ours_is_removed(tmp_path: Path) -> None:
    reader = Reader(*PARTS)
    for content in (CONTENT, CONTENT + b"x"):
        list(manifest_cache.read(content, str(tmp_path), reader))
    first, second = names(tmp_path)
    died = f"{first}.{uuid.uuid4().hex}.tmp"
    (tmp_path / died).write_bytes(b"half")
    (tmp_path / "notes.txt").write_bytes(b"somebody's")
    (tmp_path / ("a" * 64)).mkdir()
    (tmp_path / ("b" * 64)).symlink_to(tmp_path / "nowhere")
    before = time.time() - manifest_cache.KEPT_SECONDS - 1
    for name in (first, died, "notes.txt", "a" * 64):
        os.utime(tmp_path / name, (before, before))
    for content in (CONTENT, CONTENT + b"x"):
        list(manifest_cache.read(content, str(tmp_path), reader))
    assert reader.times == 3  # and the one that was old is kept anew
    os.utime(tmp_path / first, (before, before))
    manifest_cache.forget_old(str(tmp_path))
    assert names(tmp_path) == sorted([second, "notes.txt", "a" * 64, "b" * 64])


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[WholeLake]:
    """One manifest that is worth remembering: of 500 files."""
    made = WholeLake(tmp_path / "lake")
    made.append()
    (first,) = made.data_files()
    paths = [str(Path(first).with_name(f"{uuid.uuid4().hex * 2}.parquet")) for _ in range(500)]
    old = time.time() - 10 * 86_400
    for path in paths:
        shutil.copy(first, path)
        os.utime(path, (old, old))
    made.table().add_files([f"file://{path}" for path in paths], check_duplicate_files=False)
    yield made
    made.lake.close()


def test_a_run_that_acts_goes_by_nothing_that_is_remembered(lake: WholeLake) -> None:
    memory = lake.home / "cache" / "manifests"
    assert lake.run(ACT).outcome.found.orphans == 0 and names(memory) == []
    assert lake.run(REPORT).outcome.found.orphans == 0
    (name,) = names(memory)
    # As if it had been read wrongly: as many files, and all of them others.
    wrong: list[LivePart] = [(500, [f"/elsewhere/{n}" for n in range(500)], [])]
    (memory / name).unlink()
    manifest_cache._keep(str(memory / name), wrong)
    body = (memory / name).read_bytes()
    assert hashlib.sha256(body[32:]).digest() == body[:32]
    assert lake.run(REPORT).outcome.found.orphans > 0
    live = lake.data_files()
    run = lake.run(ACT)
    assert run.outcome.found.orphans == 0 and run.outcome.done.orphans == 0
    assert all(there(live))


def test_a_manifest_that_was_damaged_since_is_not_read_from_memory(lake: WholeLake) -> None:
    for _ in range(2):
        assert lake.run(REPORT).outcome.found.orphans == 0
    snapshot = lake.table().current_snapshot()
    assert snapshot is not None
    large = max(snapshot.manifests(lake.table().io), key=lambda m: m.manifest_length).manifest_path
    file = Path(large.removeprefix("file://"))
    content = file.read_bytes()
    file.write_bytes(content[:-200] + bytes(100) + content[-100:])
    run = lake.run(REPORT)
    assert run.outcome.partial and run.outcome.planned.orphans == 0
