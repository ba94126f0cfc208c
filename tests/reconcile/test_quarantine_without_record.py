"""What the ledger has forgotten is found in quarantine by looking there."""

from __future__ import annotations

import os

import pytest

from strandline.core.errors import StorageError
from strandline.reconcile.context import QUARANTINE_FOLDER
from strandline.reconcile.paths import canonical
from strandline.reconcile.quarantine_lookup import find_unrecorded
from strandline.reconcile.storage.local_store import LocalStore
from strandline.reconcile.storage.s3_store import S3Store
from tests.reconcile.buckets import put_object, settings_of
from tests.reconcile.whole_lakes import ACT, MakeLake, WholeLake
from tests.servers import S3


@pytest.fixture
def lake(make_lake: MakeLake) -> WholeLake:
    return make_lake()


def asked(lake: WholeLake, *paths: str) -> dict[str, str]:
    return find_unrecorded(LocalStore(), canonical(lake.lake.config.warehouse_url), paths)


def test_a_file_that_a_run_has_set_aside_is_found_without_the_ledger(lake: WholeLake) -> None:
    orphans = [lake.put(name) for name in ("a b%41+ü.parquet", "p=1/x.parquet", "p=2/x.parquet")]
    run = lake.run(ACT)
    kept = {file.path: file.kept_at for file in lake.swept(run.id)}
    assert len(kept) == 3 and asked(lake, *orphans) == kept
    assert asked(lake, f"{orphans[1]}-another", *lake.data_files()) == {}
    assert lake.lake.reconciler.restore(run.id).restored == 3 and asked(lake, *orphans) == {}


def test_another_spelling_of_its_path_finds_it_too(lake: WholeLake) -> None:
    orphan = lake.put("p=1/a b.parquet")
    (kept,) = [file.kept_at for file in lake.swept(lake.run(ACT).id)]
    for spelled in (f"file://{orphan}", orphan.replace(" ", "%20"), orphan.replace("/data/", "/data//")):
        assert asked(lake, spelled) == {spelled: kept}


def test_a_file_from_outside_the_warehouse_is_found_and_strange_files_are_not_taken_for_one(lake: WholeLake) -> None:
    folder = lake.warehouse / QUARANTINE_FOLDER
    for name in ("7-abcdef01/_outside/mnt/t/data/x.parquet", "8-ab/x.parquet"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_bytes(b"x")
    (folder / "stray").write_bytes(b"x")
    assert asked(lake, "/mnt/t/data/x.parquet", "/stray", "/x.parquet") == {
        "/mnt/t/data/x.parquet": str(folder / "7-abcdef01/_outside/mnt/t/data/x.parquet")
    }


def test_a_quarantine_that_cannot_be_listed_is_no_answer(lake: WholeLake) -> None:
    deep = lake.warehouse / QUARANTINE_FOLDER / "1-ab"
    deep.mkdir(parents=True)
    name = "d" * 200
    at = os.open(deep, os.O_RDONLY)  # a path too long to be opened is refused to everybody, also to root
    for _ in range(25):
        os.mkdir(name, dir_fd=at)
        inner = os.open(name, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
    os.close(at)
    with pytest.raises(StorageError):
        asked(lake, "/any")
    assert asked(lake) == {}


def test_a_bucket_is_asked_page_by_page(s3: S3) -> None:
    bucket = s3.make_bucket()
    store = S3Store(settings_of(s3, bucket), requests_at_once=1)
    folder = s3.server.folder / "data" / bucket / "lake" / QUARANTINE_FOLDER / "3-ab" / "ns/t/data"
    folder.mkdir(parents=True)
    for n in range(1_005):
        (folder / f"{n:05}.parquet").write_bytes(b"x")
    put_object(s3, bucket, f"lake/{QUARANTINE_FOLDER}/4-cd/_outside/other/t/data/x", b"x")
    paths = [f"s3a://{bucket}/lake/ns/t/data/{n:05}.parquet" for n in (0, 1_004, 1_005)]
    found = find_unrecorded(store, f"s3://{bucket}/lake", [*paths, "s3://other/t/data/x"])
    assert set(found) == {paths[0], paths[1], "s3://other/t/data/x"}
    with pytest.raises(StorageError):
        find_unrecorded(store, f"s3://{bucket}-none/lake", paths)
