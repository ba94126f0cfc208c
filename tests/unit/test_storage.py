"""The lake's own objects, in a folder and in a bucket; durable writes; how a store is used by each library."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strandline.core.errors import ConfigError, StorageError
from strandline.core.retry import RetryPolicy
from strandline.core.settings.lake_config import WarehouseSettings
from strandline.storage import durable
from strandline.storage.objects import LocalObjects, ObjectStore, explained, open_objects
from strandline.storage.s3_client import RequestFailed, RequestFailure
from strandline.storage.s3_settings import RequestLimits, S3Settings, witness_limits
from tests.conftest import MakeHome


@pytest.fixture(params=["folder", "s3"])
def objects(request: pytest.FixtureRequest, tmp_path: Path, make_home: MakeHome) -> ObjectStore:
    if request.param == "folder":
        (tmp_path / "warehouse").mkdir()
        return open_objects(make_home(tmp_path))
    s3 = request.getfixturevalue("s3")
    keys = {"endpoint": s3.endpoint, "access_key": s3.access_key, "secret_key": s3.secret_key}
    return open_objects(make_home(tmp_path, {"warehouse": {"url": f"s3://{s3.make_bucket()}/lake", **keys}}))


def names(objects: ObjectStore, folder: str) -> list[str]:
    return [stored.name for stored in objects.list_below(folder)]


def test_an_object_is_what_was_put_last_until_it_is_removed(objects: ObjectStore) -> None:
    assert (objects.get("f/a"), objects.buffer("f/a"), objects.size("f/a")) == (None, None, None)
    objects.put("f/a", b"one")
    objects.put("f/a", b"other")
    found = objects.buffer("f/a")
    assert found is not None and bytes(found) == objects.get("f/a") == b"other" and objects.size("f/a") == 5
    objects.put("f/empty", b"")
    assert objects.buffer("f/empty") == b""
    objects.remove(["f/a", "f/none"])
    objects.remove([])
    assert names(objects, "f") == ["f/empty"]


def test_names_are_told_by_folder(objects: ObjectStore) -> None:
    assert (objects.list_below("f"), objects.folders("f")) == ([], set())
    for name in ("f/b/2 ü+%41", "f/a", "f/b/1", "f/c/d/e", "fb/x"):
        objects.put(name, b"x")
    assert names(objects, "f") == ["f/a", "f/b/1", "f/b/2 ü+%41", "f/c/d/e"]
    assert objects.folders("f") == {"b", "c"}
    assert pickle.loads(pickle.dumps(objects)).get("f/a") == b"x"


def test_an_object_whose_writer_fails_is_not_there(objects: ObjectStore) -> None:
    with objects.writer("f/whole") as file:
        file.write(b"whole")
    objects.sync(["f/whole"])
    with pytest.raises(ZeroDivisionError), objects.writer("f/half") as file:
        file.write(b"ha")
        raise ZeroDivisionError
    assert names(objects, "f") == ["f/whole"]


def test_a_new_object_is_put_as_a_whole(objects: ObjectStore) -> None:
    objects.put_new("f/g/whole", memoryview(b"whole"))
    objects.put_new("f/g/empty", b"")
    objects.sync(["f/g/whole", "f/g/empty"])
    assert names(objects, "f") == ["f/g/empty", "f/g/whole"] and objects.get("f/g/whole") == b"whole"


def test_a_file_is_whole_though_the_system_writes_it_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:3]))
    durable.write_file(tmp_path / "a", b"0123456789")
    assert (tmp_path / "a").read_bytes() == b"0123456789"


@pytest.mark.parametrize("step", ["write", "fdatasync", "rename"])
def test_a_file_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(durable if step == "rename" else os, step, full)
    monkeypatch.setattr("sys.platform", "linux")
    with pytest.raises(OSError, match="no space left"):
        durable.write_file(tmp_path / "a", b"content")
    assert list(tmp_path.iterdir()) == []


def test_a_cached_file_is_whole_or_not_there_and_costs_no_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[object] = []
    monkeypatch.setattr(durable, "sync_data", synced.append)
    monkeypatch.setattr(durable, "sync_folder", synced.append)
    for body in (b"first", b"second"):
        with durable.cache_file(tmp_path / "a", mode=0o600) as file:
            file.write(body)
        assert (tmp_path / "a").read_bytes() == body
    with pytest.raises(RuntimeError), durable.cache_file(tmp_path / "a") as file:
        file.write(b"half")
        raise RuntimeError
    assert (tmp_path / "a").read_bytes() == b"second" and [p.name for p in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600 and synced == []


def test_a_finished_file_is_synced_before_it_gets_its_name_and_its_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[tuple[str, bool]] = []
    for name in ("sync_data", "sync_folder"):
        monkeypatch.setattr(durable, name, lambda _, name=name: steps.append((name, (tmp_path / "a").exists())))
    (tmp_path / "part").write_bytes(b"content")
    (tmp_path / "part").chmod(0o444)
    durable.finish_file(tmp_path / "part", tmp_path / "a")
    assert steps == [("sync_data", False), ("sync_folder", True)]
    assert (tmp_path / "a").read_bytes() == b"content" and [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_copy_outlives_its_original_and_a_move_can_be_repeated(objects: ObjectStore) -> None:
    objects.put("f/a", b"x")
    objects.copy("f/a", "f/b")
    objects.copy("f/a", "f/b")
    objects.remove(["f/a"])
    objects.move("f/b", "f/c")
    objects.move("f/b", "f/c")
    assert names(objects, "f") == ["f/c"] and objects.get("f/c") == b"x"
    with pytest.raises(StorageError), explained("it cannot be copied"):
        objects.copy("f/b", "f/d")


def test_what_failed_is_said_without_a_path_or_an_address(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="it cannot be written: the warehouse is not there") as found:
        with explained("it cannot be written"):
            LocalObjects(tmp_path / "away").put("f/a", b"")
    assert str(tmp_path) not in found.value.message and not (tmp_path / "away").exists()
    with pytest.raises(StorageError) as found, explained("it cannot be written", hint="Later."):
        raise RequestFailed(RequestFailure.NOT_SENT, "the store at secret.example cannot be reached")
    assert found.value.message == "it cannot be written: the store cannot be reached" and found.value.hint == "Later."


def no_links(*_: Any, **__: Any) -> None:
    raise OSError(errno.EPERM, "not permitted")


@pytest.mark.parametrize("has_links", [True, False])
def test_a_new_file_replaces_none_and_a_copy_leaves_its_original(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    if not has_links:
        monkeypatch.setattr(os, "link", no_links)
    durable.write_file(tmp_path / "a", b"first", replace=False)
    with pytest.raises(FileExistsError):
        durable.write_file(tmp_path / "a", b"second", replace=False)
    assert (tmp_path / "a").read_bytes() == b"first"
    LocalObjects(tmp_path).copy("a", "b")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"] and (tmp_path / "b").read_bytes() == b"first"


def test_a_file_system_that_might_replace_a_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", no_links)
    monkeypatch.setattr(durable, "_renameat2", lambda: None)
    with pytest.raises(OSError) as refused:
        durable.write_file(tmp_path / "a", b"", replace=False)
    assert refused.value.errno == errno.ENOTSUP and list(tmp_path.iterdir()) == []


def test_every_library_is_given_the_same_store() -> None:
    store = S3Settings.of_warehouse(
        WarehouseSettings(url="s3://b", endpoint="http://host:1", access_key="an-access-key", secret_key="a-secret-key")
    )
    assert "a-secret-key" not in repr(store) and "an-access-key" not in repr(store)
    for options in (store.pyarrow_options(), store.pyiceberg_options(), store.spark_options()):
        assert {"http://host:1", "us-east-1", "an-access-key", "a-secret-key"} <= set(options.values())
    assert store.spark_options()["s3.path-style-access"] == "true"
    plain = S3Settings(None, "eu-west-1").spark_options()
    assert plain == {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO", "client.region": "eu-west-1"}
    with pytest.raises(ConfigError, match="belong together"):
        S3Settings(None, None, "only-one").spark_options()


def test_no_attempt_begins_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr("strandline.core.retry.time", clock)
    limits = RequestLimits(9, total_seconds_max=10, connect_timeout_seconds=1, read_timeout_seconds=1)
    for _ in limits.attempts():
        assert now[0] <= 10
        now[0] += 2
    assert now[0] > 6
    assert len(list(RequestLimits(3, 1e9, 1, 1).attempts())) == 3


def test_attempts_are_counted_anew_after_one_that_achieved_something() -> None:
    seen = []
    for attempt in RetryPolicy(0.0, attempts_max=2).attempts():
        seen.append(attempt.number)
        attempt.has_progressed = len(seen) < 4
    assert seen == [1, 1, 1, 1, 2]


def test_a_step_is_called_again_for_the_errors_that_may_pass_and_its_last_error_is_raised() -> None:
    made: list[str] = []

    def step() -> int:
        made.append("step")
        if len(made) < 5:
            raise KeyError(len(made))
        return len(made)

    assert RetryPolicy(0.0, attempts_max=3).call(step, KeyError, lambda: made.append("between")) == 5
    assert made == ["step", "between", "step", "between", "step"]
    made.clear()
    with pytest.raises(KeyError, match="2"):
        RetryPolicy(0.0, attempts_max=2).call(step, (KeyError,))
    made.clear()
    with pytest.raises(KeyError, match="1"):
        RetryPolicy(0.0, attempts_max=2).call(step, OSError)


def test_the_witness_is_read_written_and_read_again_while_others_wait_for_the_ledger() -> None:
    limits = witness_limits(60)
    put = limits.total_seconds_max + limits.connect_timeout_seconds + limits.read_timeout_seconds
    get = put + limits.read_timeout_seconds
    assert get + put + get <= 60
