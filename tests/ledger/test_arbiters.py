"""What an arbiter promises, over each kind: a folder, an object in a bucket, a row in PostgreSQL."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from strandline.core.errors import ConfigError, StorageError
from strandline.core.settings.lake_config import LakeConfig, Settings
from strandline.core.settings.replication import ReplicationSettings
from strandline.core.sites.arbiter import Cell, CellMoved, LeaderRecord, Member, StoredRecord
from strandline.ledger.replicate.arbiter_row import RowCell
from strandline.replicate.arbiter.arbiter import Arbiter, PutLanded, PutRefused, VersionedRecord
from strandline.replicate.arbiter.folder import FolderCell
from strandline.replicate.arbiter.open_arbiter import open_arbiter
from tests.servers import S3, Toxiproxy

MEMBERS = frozenset({Member(1, "first"), Member(2, "second")})
RECORD = LeaderRecord("lake", 1, 0, "site-a", None, True, None, MEMBERS, 30.0)
CALL_SECONDS = 20.0  # a machine that stalls fails no test


@pytest.fixture(params=["folder", "bucket", "row"])
def named(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """The settings of an arbiter that nobody has used yet."""
    match request.param:
        case "folder":
            return {"arbiter": f"file:{tmp_path}"}
        case "bucket":
            return _in_bucket(request.getfixturevalue("s3"))
    return {"arbiter": request.getfixturevalue("postgres_database")}


def _in_bucket(s3: S3, endpoint: str | None = None) -> dict[str, Any]:
    return {
        "arbiter": f"s3://{s3.make_bucket()}/lakes/one",
        "arbiter_endpoint": endpoint or s3.endpoint,
        "arbiter_region": s3.region,
        "arbiter_access_key": s3.access_key,
        "arbiter_secret_key": s3.secret_key,
    }


def _opened(named: dict[str, Any], seconds: float = CALL_SECONDS, lake: str = "lake") -> Arbiter:
    settings = ReplicationSettings(**named, arbiter_seconds_max=seconds, lease_seconds=max(60.0, seconds * 2))
    found = open_arbiter(LakeConfig(Settings(replication=settings), Path("/nowhere")), lake)
    assert found is not None
    return found


def _landed(outcome: object) -> VersionedRecord:
    assert isinstance(outcome, PutLanded), outcome
    return outcome.now


def test_at_first_there_is_no_record(named: dict[str, Any]) -> None:
    assert _opened(named).read() is None


def test_what_landed_is_what_every_site_reads(named: dict[str, Any]) -> None:
    mine, other = _opened(named), _opened(named)
    first = _landed(mine.put(RECORD, over=None))
    assert first.record == RECORD and other.read() == first
    second = _landed(other.put(replace(RECORD, term=17, leads=False), over=first))
    assert second.record == replace(RECORD, term=17, leads=False, beat=1) and mine.read() == second


def test_a_put_over_a_record_that_was_replaced_changes_nothing(named: dict[str, Any]) -> None:
    mine, other = _opened(named), _opened(named)
    first = _landed(mine.put(RECORD, over=None))
    second = _landed(other.put(RECORD, over=first))
    assert mine.put(replace(RECORD, term=17), over=first) == PutRefused(second)
    assert mine.put(replace(RECORD, term=17), over=None) == PutRefused(second)
    assert other.read() == second


@pytest.mark.parametrize("kind", ["folder", "row"])
def test_a_put_over_a_version_that_only_counts_the_same_changes_nothing(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    """The arbiter was restored from an older copy, or its database fell back to a late replica. Then another site put a
    record, and the leader names its own, which is gone, under the same count."""
    cell: Cell = FolderCell(tmp_path, "lake")
    if kind == "row":
        cell = RowCell(request.getfixturevalue("postgres_database"), "lake", CALL_SECONDS)
    first = cell.write(b"first", over=None)
    second = cell.write(b"renewed", over=first)
    if kind == "folder":
        (tmp_path / "lake.2.json").unlink()
    else:
        assert isinstance(cell, RowCell)
        with cell._engine.begin() as connection:
            connection.execute(sa.text("UPDATE strandline_arbiter SET version = 1, body = 'first'"))
    for _ in range(2):
        with pytest.raises(CellMoved):
            cell.write(b"renewed again", over=second)
        if cell.read() == StoredRecord(b"first", first):
            cell.write(b"claimed by another site", over=first)
    found = cell.read()
    assert found is not None and found.body == b"claimed by another site"


def test_of_many_puts_at_the_same_time_one_lands(named: dict[str, Any]) -> None:
    sites = [_opened(named) for _ in range(4)]
    now: VersionedRecord | None = None
    with ThreadPoolExecutor(len(sites)) as pool:
        for round in range(4):
            together = threading.Barrier(len(sites))

            def put(n: int, over: VersionedRecord | None = now, wait: threading.Barrier = together) -> object:
                wait.wait()
                return sites[n].put(replace(RECORD, site=n), over=over)

            outcomes = list(pool.map(put, range(len(sites))))
            landed = [o.now for o in outcomes if isinstance(o, PutLanded)]
            assert len(landed) == 1, (round, outcomes)
            assert all(o == PutRefused(landed[0]) for o in outcomes if not isinstance(o, PutLanded))
            now = sites[0].read()
            assert now == landed[0]


def test_lakes_do_not_see_each_others_records(tmp_path: Path, postgres_database: str) -> None:
    for named in ({"arbiter": f"file:{tmp_path}"}, {"arbiter": postgres_database}):
        _opened(named).put(RECORD, over=None)
        other = _opened(named, lake="other")
        assert other.read() is None
        _landed(other.put(replace(RECORD, lake="other"), over=None))


# --- an arbiter that is away -----------------------------------------------------------------------------------------


def test_a_folder_that_is_not_there_is_never_made(tmp_path: Path) -> None:
    """A disk that is not mounted: a record in its place would be a second one."""
    arbiter = _opened({"arbiter": f"file:{tmp_path / 'unmounted'}"})
    with pytest.raises(StorageError, match="unmounted"):
        arbiter.read()
    with pytest.raises(StorageError, match="unmounted"):
        arbiter.put(RECORD, over=None)
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_stopped_within_a_put_keeps_nobody_from_putting(tmp_path: Path) -> None:
    """What it leaves behind is a file under a temporary name, or the record of its put."""
    arbiter = _opened({"arbiter": f"file:{tmp_path}"})
    first = _landed(arbiter.put(RECORD, over=None))
    (tmp_path / "lake.0123.tmp").write_bytes(b"half of a rec")
    second = _landed(arbiter.put(RECORD, over=first))
    assert arbiter.read() == second


def test_a_site_that_saw_the_folder_long_ago_replaces_nothing(tmp_path: Path) -> None:
    """The name that it wants is free again: the versions in between were removed."""
    cell = FolderCell(tmp_path, "lake")
    old = now = cell.write(b"0", over=None)
    for n in range(100):
        now = cell.write(str(n).encode(), over=now)
    with pytest.raises(CellMoved):
        cell.write(b"late", over=old)
    found = cell.read()
    assert found is not None and found.body == b"99"
    assert len(list(tmp_path.iterdir())) < 80


def test_a_bucket_or_database_that_hangs_ends_in_time_and_nobody_believes_that_a_put_failed(
    s3: S3, postgres_database: str, toxiproxy: Toxiproxy
) -> None:
    from strandline.replicate.arbiter.arbiter import PutUnknown

    bucket = toxiproxy.proxy_to(s3.port)
    server, _, name = postgres_database.rpartition("/")
    row = toxiproxy.proxy_to(int(server.rpartition(":")[2]))
    ways = [
        (bucket, _in_bucket(s3, f"http://127.0.0.1:{bucket.port}")),
        (row, {"arbiter": f"postgresql://postgres@127.0.0.1:{row.port}/{name}"}),
    ]
    for way, named in ways:
        first = _landed(_opened(named).put(RECORD, over=None))
        arbiter = _opened(named, seconds=1.5)
        way.toxic("timeout", timeout=0)  # nothing comes through, and nobody closes the connection
        with pytest.raises(StorageError):
            arbiter.read()
        try:
            assert isinstance(arbiter.put(RECORD, over=first), PutUnknown)
        except StorageError:
            pass  # it was never sent
        way.heal()
        assert _opened(named).read() is not None


@pytest.mark.parametrize("named", ["bucket", "row"], indirect=True)
def test_a_server_that_is_not_there_is_said_to_be_away(named: dict[str, Any]) -> None:
    away = {**named, "arbiter": named["arbiter"].replace("127.0.0.1", "127.0.0.2")}
    if "arbiter_endpoint" in named:
        away["arbiter_endpoint"] = "http://127.0.0.2:1"
    with pytest.raises(StorageError):
        _opened(away).read()
    with pytest.raises(StorageError):
        _opened(away).put(RECORD, over=None)


def test_an_arbiter_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="no place that is supported"):
        _opened({"arbiter": "redis://host"})
    assert open_arbiter(LakeConfig(Settings(), Path("/nowhere")), "lake") is None
