"""From one file system to another: where a rename does not reach, a file is whole in one place before it leaves the
other, and nothing that somebody puts in its place meanwhile is deleted."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from strandline.core import failpoints
from strandline.core.errors import StorageError
from strandline.core.failpoints import FailpointError
from strandline.reconcile.model import Move, Stat
from strandline.reconcile.storage.local_store import LocalStore

MEMORY = Path("/dev/shm")
DAY_AGO_NS = 1_700_000_000_123_456_789


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on another file system, if there is another; else one that says so."""
    if MEMORY.is_dir() and MEMORY.stat().st_dev != tmp_path.stat().st_dev:
        with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
            yield Path(folder) / "quarantine"
        return
    there = tmp_path / "elsewhere"
    link, rename = os.link, Path.rename

    def crosses(source: Any, target: Any) -> None:
        if Path(source).is_relative_to(there) != Path(target).is_relative_to(there):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    def linked(source: Any, target: Any, **options: Any) -> None:
        crosses(source, target)
        link(source, target, **options)

    def renamed(source: Path, target: Any) -> Path:
        crosses(source, target)
        return rename(source, target)

    monkeypatch.setattr(os, "link", linked)
    monkeypatch.setattr(Path, "rename", renamed)
    yield there / "quarantine"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "data" / f"{'long' * 60}.parquet"
    path.parent.mkdir()
    return written(path, b"content")


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    os.utime(path, ns=(DAY_AGO_NS, DAY_AGO_NS))
    path.chmod(0o640)
    return path


def replaced(path: Path, content: bytes) -> None:
    """As writers do it: another file under the same name."""
    path.with_name("new").write_bytes(content)
    path.with_name("new").replace(path)


def aside(file: Path, kept: Path) -> str | None:
    to = kept / "1" / file.name
    return LocalStore().set_aside([Move(str(file), str(to), Stat(7, DAY_AGO_NS))])[str(file)]


def back(file: Path, kept: Path) -> bool:
    return LocalStore().bring_back(str(kept / "1" / file.name), str(file))


def names(*folders: Path) -> list[str]:
    return sorted(at.name for folder in folders for at in folder.rglob("*") if at.is_file())


def meanwhile(monkeypatch: pytest.MonkeyPatch, point: str, work: Callable[[], object]) -> None:
    monkeypatch.setattr(failpoints, "hit", lambda name: work() if name == point else None)


def test_a_file_goes_to_another_file_system_and_comes_back_as_it_was(file: Path, kept: Path) -> None:
    assert aside(file, kept) is None
    assert names(file.parent, kept) == [file.name] and not file.exists()
    assert back(file, kept)
    found = file.stat()
    assert (file.read_bytes(), found.st_mtime_ns, found.st_mode & 0o777) == (b"content", DAY_AGO_NS, 0o640)
    assert names(file.parent, kept) == [file.name]


def test_what_is_not_what_was_listed_is_not_copied(file: Path, kept: Path) -> None:
    file.write_bytes(b"another")
    assert aside(file, kept) is not None
    assert file.read_bytes() == b"another" and names(kept) == []


def test_a_file_that_is_replaced_after_it_was_copied_is_not_deleted(
    file: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meanwhile(monkeypatch, "move_file.before_original_goes", lambda: replaced(file, b"somebody's"))
    assert aside(file, kept) is not None
    assert file.read_bytes() == b"somebody's" and names(file.parent, kept) == [file.name]


def test_a_file_that_is_replaced_twice_is_there_twice(file: Path, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hits: list[str] = []

    def work(name: str) -> None:
        hits.append(name)
        if name in ("move_file.before_original_goes", "move_file.after_original_hidden"):
            replaced(file, name.encode())

    monkeypatch.setattr(failpoints, "hit", work)
    why = aside(file, kept)
    assert why is not None and "replaced twice" in why
    hidden = Path(why.rpartition(" ")[2])
    assert hidden.read_bytes() == b"move_file.before_original_goes"
    assert file.read_bytes() == b"move_file.after_original_hidden"
    monkeypatch.undo()


def test_a_file_that_cannot_be_taken_away_leaves_no_copy(
    file: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def denied(source: Path, target: Any) -> Path:
        if Path(target).parent == source.parent:
            raise PermissionError(13, "Permission denied")
        return rename(source, target)

    monkeypatch.setattr(Path, "rename", denied)
    assert "Permission denied" in (aside(file, kept) or "")
    assert file.read_bytes() == b"content" and names(kept) == []


def test_bringing_back_from_another_file_system_never_replaces_a_file(
    file: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert aside(file, kept) is None
    file.write_bytes(b"somebody's")
    assert not back(file, kept)
    assert file.read_bytes() == b"somebody's" and (kept / "1" / file.name).read_bytes() == b"content"


def test_half_a_file_is_never_under_its_name(file: Path, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk fills up in the middle of the copy, there and back."""
    from strandline.storage import cross_device_move as across

    def full(source: Any, target: Any, size: int) -> None:
        target.write(source.read(3))
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(across.shutil, "copyfileobj", full)
        assert "No space" in (aside(file, kept) or "")
        assert names(kept) == [] and file.read_bytes() == b"content"
    assert aside(file, kept) is None
    with monkeypatch.context() as patch:
        patch.setattr(across.shutil, "copyfileobj", full)
        with pytest.raises(StorageError, match="No space"):
            back(file, kept)
    assert not file.exists() and (kept / "1" / file.name).read_bytes() == b"content"
    assert back(file, kept) and file.read_bytes() == b"content"


@pytest.mark.parametrize("content", [b"content", b"somebody's"])
def test_what_a_killed_move_left_hidden_is_put_right(
    file: Path, kept: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hidden is the file whose copy is kept, or one that replaced it in the last moment: that one goes back."""

    def work(name: str) -> None:
        if name == "move_file.before_original_goes" and content != b"content":
            replaced(file, content)
        if name == "move_file.after_original_hidden":
            raise FailpointError(name)

    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "hit", work)
        with pytest.raises(FailpointError):
            aside(file, kept)
    assert not file.exists() and len(names(file.parent, kept)) == 2
    assert back(file, kept) is (content == b"content")
    assert file.read_bytes() == content and names(file.parent) == [file.name]


def test_the_copy_is_on_the_disk_under_its_name_before_the_original_goes(
    file: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from strandline.storage import cross_device_move as across
    from strandline.storage import durable

    steps: list[str] = []

    def noted(module: Any, name: str, told: Callable[[Any], str]) -> None:
        work = getattr(module, name)

        def done(first: Any, *others: Any, **options: Any) -> Any:
            steps.append(f"{name} {told(first)}".strip())
            return work(first, *others, **options)

        monkeypatch.setattr(module, name, done)

    noted(durable, "sync_data", lambda fd: "")
    noted(across, "sync_folder", lambda folder: Path(folder).name)
    noted(durable, "sync_folder", lambda folder: Path(folder).name)
    noted(os, "link", lambda source: "")
    noted(os, "unlink", lambda path: Path(path).parent.name)
    assert aside(file, kept) is None
    # Twice each: the folder of quarantine that was made, and the one in it.
    copy = steps.index("sync_data")
    assert {"sync_folder quarantine"} <= set(steps[:copy])
    assert steps[copy:][:3] == ["sync_data", "link", "sync_folder 1"] and steps[-1] == "unlink data"
    steps.clear()
    assert back(file, kept)
    copy = steps.index("sync_data")
    assert steps[copy:][:3] == ["sync_data", "link", "sync_folder data"] and steps[-1] == "unlink 1"
