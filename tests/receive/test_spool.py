"""The spool, in a folder and in a bucket: the same promises."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from strandline.config import LakeConfig
from strandline.errors import StorageError
from strandline.receive.spool import LocalSpool, S3Spool, open_spool
from tests.conftest import MakeHome

ROWS = pa.table(
    {"id": [1, 2, 3], "text": ["a", None, "c" * 1000], "at": pa.array([1, 2, 3], pa.timestamp("us", "UTC"))}
)


@pytest.fixture(params=["folder", "s3"])
def config(request: pytest.FixtureRequest, tmp_path: Path, make_home: MakeHome) -> LakeConfig:
    if request.param == "folder":
        (tmp_path / "warehouse").mkdir()
        return make_home(tmp_path)
    s3 = request.getfixturevalue("s3")
    bucket = s3.make_bucket()
    keys = {"endpoint": s3.endpoint, "access_key": s3.access_key, "secret_key": s3.secret_key}
    return make_home(tmp_path, {"warehouse": {"url": f"s3://{bucket}/lake", **keys}})


@pytest.fixture
def spool(config: LakeConfig) -> Iterator[LocalSpool | S3Spool]:
    yield open_spool(config)


def _table(spool: Any, name: str) -> pa.Table:
    with spool.read(name) as parts:
        return pa.Table.from_batches(list(parts))


def test_what_was_written_is_read_back_by_its_name(spool: LocalSpool | S3Spool) -> None:
    name, size = spool.write("table-1", ROWS)
    other, _ = spool.write("table-1", ROWS.slice(0, 1))
    spool.sync([name, other])
    assert name != other and name.startswith("table-1/") and size > 0
    assert _table(spool, name).equals(ROWS) and _table(spool, other).equals(ROWS.slice(0, 1))
    assert spool.count(name) == 3 and spool.exists(name)


def test_a_task_elsewhere_can_read_it(spool: LocalSpool | S3Spool) -> None:
    name, _ = spool.write("table-1", ROWS)
    sent = pickle.loads(pickle.dumps(spool.reader()))
    assert _table(sent, name).equals(ROWS)


def test_what_was_removed_is_gone_and_removing_it_again_is_fine(spool: LocalSpool | S3Spool) -> None:
    names = [spool.write("table-1", ROWS)[0] for _ in range(3)]
    spool.remove(names[:2])
    spool.remove(names[:2])
    spool.remove([])
    assert [spool.exists(name) for name in names] == [False, False, True]
    with pytest.raises(StorageError):
        _table(spool, names[0])


@pytest.mark.parametrize("name", ["../x.arrow", "a/../../x.arrow", "/etc/x.arrow", "a/b/c.arrow", "a/b", "x.arrow", ""])
def test_a_name_that_leads_elsewhere_is_not_followed(tmp_path: Path, name: str) -> None:
    with pytest.raises(StorageError):
        LocalSpool(str(tmp_path), str(tmp_path / "spool")).remove([name])


def test_secrets_are_not_shown(tmp_path: Path, make_home: MakeHome) -> None:
    keys = {"url": "s3://b/p", "access_key": "an-access-key", "secret_key": "a-secret-key"}
    shown = repr(open_spool(make_home(tmp_path, {"warehouse": keys})))
    assert "a-secret-key" not in shown and "an-access-key" not in shown


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    spool = LocalSpool(str(tmp_path), str(tmp_path / "spool"))
    name, _ = spool.write("t", ROWS)
    path = tmp_path / "spool" / name
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(StorageError, match="damaged"):
        spool.count(name)


def test_nothing_is_left_of_a_file_that_could_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = LocalSpool(str(tmp_path), str(tmp_path / "spool"))
    spool.write("t", ROWS)
    monkeypatch.setattr("os.fdatasync", _full)
    with pytest.raises(StorageError, match="No space") as found:
        spool.write("t", ROWS)
    assert str(tmp_path) not in found.value.message
    assert len(list((tmp_path / "spool" / "t").iterdir())) == 1


def _full(_fd: int) -> None:
    raise OSError(28, "No space left on device")


def test_a_folder_that_was_taken_away_is_made_again_but_never_the_warehouse(tmp_path: Path) -> None:
    warehouse = tmp_path / "warehouse"
    spool = LocalSpool(str(warehouse), str(warehouse / "_strandline" / "spool"))
    with pytest.raises(StorageError):
        spool.write("t", ROWS)
    assert not warehouse.exists()
    warehouse.mkdir()
    name, _ = spool.write("t", ROWS)
    (warehouse / "_strandline" / "spool" / name).unlink()
    (warehouse / "_strandline" / "spool" / "t").rmdir()
    name, _ = spool.write("t", ROWS)
    assert spool.count(name) == 3
