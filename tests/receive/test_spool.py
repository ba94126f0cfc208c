"""The spool, in a folder and in a bucket: the same promises."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from strandline.core.errors import StorageError
from strandline.core.forward_protocol import KeyIdentity, LaneName, RangeIdentity
from strandline.core.settings.lake_config import LakeConfig
from strandline.core.types import Seq, SeqRange
from strandline.ledger.receive.receipts import Note, Receipt, ReceiptBody, TokenFingerprint, open_receipts
from strandline.receive.spool import FOLDER, Spool, open_spool
from strandline.storage.objects import LocalObjects
from tests.conftest import MakeHome

ROWS = pa.table(
    {"id": [1, 2, 3], "text": ["a", None, "c" * 1000], "at": pa.array([1, 2, 3], pa.timestamp("us", "UTC"))}
)
NOTE = Note(KeyIdentity("k"), TokenFingerprint("first", "0123456789abcdef"), 3, "sha256:d", 100)


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
def spool(config: LakeConfig) -> Iterator[Spool]:
    yield open_spool(config)


def local_spool(warehouse: Path) -> Spool:
    return Spool(LocalObjects(warehouse))


def _table(spool: Any, name: str) -> pa.Table:
    with spool.read(name) as parts:
        return pa.Table.from_batches(list(parts))


def test_what_was_written_is_read_back_by_its_name(spool: Spool) -> None:
    name, size = spool.write("table-1", ROWS, NOTE)
    other, _ = spool.write("table-1", ROWS.slice(0, 1), NOTE)
    spool.sync([name, other])
    assert name != other and name.startswith("table-1/") and size > 0
    assert _table(spool, name).equals(ROWS) and _table(spool, other).equals(ROWS.slice(0, 1))
    assert spool.count(name) == 3 and spool.exists(name)


def test_a_task_elsewhere_can_read_it(spool: Spool) -> None:
    name, _ = spool.write("table-1", ROWS, NOTE)
    sent = pickle.loads(pickle.dumps(spool))
    assert _table(sent, name).equals(ROWS)


def test_what_was_removed_is_gone_and_removing_it_again_is_fine(spool: Spool) -> None:
    names = [spool.write("table-1", ROWS, NOTE)[0] for _ in range(3)]
    spool.remove(names[:2])
    spool.remove(names[:2])
    spool.remove([])
    assert [spool.exists(name) for name in names] == [False, False, True]
    with pytest.raises(StorageError):
        _table(spool, names[0])


@pytest.mark.parametrize("name", ["../x.arrow", "a/../../x.arrow", "/etc/x.arrow", "a/b/c.arrow", "a/b", "x.arrow", ""])
def test_a_name_that_leads_elsewhere_is_not_followed(tmp_path: Path, name: str) -> None:
    with pytest.raises(StorageError):
        local_spool(tmp_path).remove([name])


def test_secrets_are_not_shown(tmp_path: Path, make_home: MakeHome) -> None:
    keys = {"url": "s3://b/p", "access_key": "an-access-key", "secret_key": "a-secret-key"}
    shown = repr(open_spool(make_home(tmp_path, {"warehouse": keys})))
    assert "a-secret-key" not in shown and "an-access-key" not in shown


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    spool = local_spool(tmp_path)
    name, _ = spool.write("t", ROWS, NOTE)
    path = tmp_path / FOLDER / name
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(StorageError, match="damaged"):
        spool.count(name)


def test_nothing_is_left_of_a_file_that_could_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = local_spool(tmp_path)
    spool.write("t", ROWS, NOTE)
    monkeypatch.setattr("os.fdatasync", _full)
    with pytest.raises(StorageError, match="No space") as found:
        spool.write("t", ROWS, NOTE)
    assert str(tmp_path) not in found.value.message
    assert len(list((tmp_path / FOLDER / "t").iterdir())) == 1


def _full(_fd: int) -> None:
    raise OSError(28, "No space left on device")


def test_a_folder_that_was_taken_away_is_made_again_but_never_the_warehouse(tmp_path: Path) -> None:
    warehouse = tmp_path / "warehouse"
    spool = local_spool(warehouse)
    with pytest.raises(StorageError):
        spool.write("t", ROWS, NOTE)
    assert not warehouse.exists()
    warehouse.mkdir()
    name, _ = spool.write("t", ROWS, NOTE)
    (warehouse / FOLDER / name).unlink()
    (warehouse / FOLDER / "t").rmdir()
    name, _ = spool.write("t", ROWS, NOTE)
    assert spool.count(name) == 3


def test_a_file_says_which_body_it_is_and_so_does_its_copy(spool: Spool) -> None:
    name, size = spool.write("table-1", ROWS, NOTE)
    identity = RangeIdentity(LaneName("lake", "sink", 2, "ns.ö", "p=1"), SeqRange(Seq(1), Seq(9)))
    by_range = Note(identity, NOTE.owner, 3, "d", 1)
    other, _ = spool.write("table-2", ROWS, by_range)
    assert (spool.note(name), spool.note(other)) == (NOTE, by_range)
    copy, copied = spool.copy(name)
    assert copied == size and spool.note(copy) == NOTE and copy.startswith("table-1/") and copy != name
    listed = spool.bodies()
    assert [found for found, _ in listed] == sorted((name, other, copy))
    assert [found for found, _ in spool.bodies("table-1")] == sorted((name, copy))
    assert all(abs(at - datetime.now(UTC)) < timedelta(hours=1) for _, at in listed)
    spool.remove([name])
    assert _table(spool, copy).equals(ROWS)
    spool.set_aside(copy)
    spool.set_aside(copy)
    assert not spool.exists(copy) and [found for found, _ in spool.bodies()] == [other]
    with pytest.raises(StorageError):
        spool.copy(name)


def test_receipts_are_kept_until_they_are_removed(config: LakeConfig) -> None:
    receipts = open_receipts(config)
    body = ReceiptBody(NOTE, "table-1/a.body.arrow", 10, 0, datetime(2026, 1, 2, 3, 4, 5, 6, UTC))
    made = Receipt("received-1", (body,))
    assert receipts.read("table-1", "received-1") is None and receipts.list_batches("table-1") == []
    assert receipts.tables() == set()
    for receipt in (made, made, Receipt("received-2", ())):
        receipts.write("table-1", receipt)
    assert receipts.read("table-1", "received-1") == made and made.rows == 3
    assert [batch for batch, _ in receipts.list_batches("table-1")] == ["received-1", "received-2"]
    receipts.remove("table-1", ["received-1", "received-3"])
    assert [batch for batch, _ in receipts.list_batches("table-1")] == ["received-2"]
    assert receipts.tables() == {"table-1"}
    receipts.remove("table-1", ["received-2"])
    assert receipts.tables() == set(), "a folder without receipts does not count"
    with pytest.raises(StorageError):
        receipts.read("table-1", "received-/../../x")
