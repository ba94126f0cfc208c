"""Storage as the sweep acts on it: the same promises on a disk and on an S3 server. And entries, dropped for good."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import obstore
import pytest
from obstore.store import S3Store as ObjectStore

from strandline.config import WarehouseSettings
from strandline.errors import CommitUnknown, StorageError
from strandline.reconcile.listing import Listing
from strandline.reconcile.local_store import LocalStore
from strandline.reconcile.model import Move, Stat, Storage
from strandline.reconcile.object_inventory import Bucket, list_bucket
from strandline.reconcile.s3_store import S3Store
from strandline.tables import light_drop
from tests.reconcile.whole_lakes import WholeLake
from tests.servers import S3, Toxiproxy

Put = Callable[[str, bytes], str]


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Storage, Put]:
    if request.param == "local":

        def put_file(name: str, content: bytes) -> str:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            return str(path)

        return LocalStore(), put_file
    server: S3 = request.getfixturevalue("s3")
    bucket = server.make_bucket()
    settings = WarehouseSettings(
        url=f"s3://{bucket}/lake", endpoint=server.endpoint, access_key=server.access_key, secret_key=server.secret_key
    )
    objects = ObjectStore(
        bucket,
        endpoint=server.endpoint,
        access_key_id=server.access_key,
        secret_access_key=server.secret_key,
        region="us-east-1",
        client_options={"allow_http": True},
        virtual_hosted_style_request=False,
    )

    def put_object(name: str, content: bytes) -> str:
        obstore.put(objects, name, content)
        return f"s3://{bucket}/{name}"

    return S3Store(settings, requests_at_once=4), put_object


def stat(store: Storage, path: str) -> Stat:
    found = store.look(path)
    assert found is not None
    return found


def test_a_file_is_set_aside_and_brought_back_whole(place: tuple[Storage, Put]) -> None:
    store, put = place
    path = put("lake/ns/t/data/a b%41+ü.parquet", b"content")
    kept = f"{path.rpartition('/lake/')[0]}/lake/_strandline/quarantine/reconcile/1/ns/t/data/a b%41+ü.parquet"
    assert store.set_aside([Move(path, kept, stat(store, path))]) == {path: None}
    assert store.look(path) is None and stat(store, kept).size == 7
    assert store.bring_back(kept, path) and not store.bring_back(kept, path)
    assert store.look(kept) is None and stat(store, path).size == 7


def test_what_is_not_as_expected_stays(place: tuple[Storage, Put]) -> None:
    store, put = place
    path, other = put("lake/a", b"old"), put("lake/b", b"other")
    listed = stat(store, path)
    put("lake/a", b"newer")
    told = store.set_aside(
        [
            Move(path, f"{path}.kept", listed),
            Move(other, f"{other}.kept", stat(store, other)),
            Move(f"{path}-gone", f"{path}-gone.kept", listed),
        ]
    )
    assert told[path] is not None and told[f"{path}-gone"] is not None and told[other] is None
    assert stat(store, path).size == 5 and store.look(f"{path}.kept") is None


def test_bringing_back_never_replaces_a_file(place: tuple[Storage, Put]) -> None:
    store, put = place
    kept, path = put("lake/kept", b"kept"), put("lake/there", b"there!")
    assert not store.bring_back(kept, path)
    assert stat(store, path).size == 6 and stat(store, kept).size == 4


def test_setting_aside_never_replaces_a_file(place: tuple[Storage, Put]) -> None:
    store, put = place
    path, kept = put("lake/a", b"a"), put("lake/kept", b"kept")
    assert store.set_aside([Move(path, kept, stat(store, path))])[path] is not None
    assert stat(store, path).size == 1 and stat(store, kept).size == 4


def test_many_are_deleted_at_once_and_what_is_gone_counts_as_deleted(place: tuple[Storage, Put]) -> None:
    store, put = place
    paths = [put(f"lake/many/{n} &<>.parquet", b"x") for n in range(25)]
    assert not store.delete([*paths, f"{paths[0]}-never-there"])
    assert [store.look(path) for path in paths] == [None] * 25


def test_times_are_the_same_as_those_of_a_listing(place: tuple[Storage, Put]) -> None:
    store, put = place
    path = put("lake/a", b"a")
    seen = stat(store, path)
    assert store.same(seen, stat(store, path)) and abs((seen.modified_ns or 0) / 1e9 - time.time()) < 60
    assert not store.same(Stat(1, (seen.modified_ns or 0) - 2_000_000_000), seen)
    assert not store.same(Stat(2, seen.modified_ns), seen)


def test_a_bucket_that_is_not_there_is_no_answer(s3: S3) -> None:
    settings = WarehouseSettings(
        url="s3://none", endpoint=s3.endpoint, access_key=s3.access_key, secret_key=s3.secret_key
    )
    with pytest.raises(StorageError):
        S3Store(settings, requests_at_once=1).look(f"s3://none-{uuid.uuid4().hex}/key")


def test_a_link_is_not_a_file(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("link", "loop"):
        with pytest.raises(StorageError):
            LocalStore().look(str(tmp_path / name))


# ---- entries ---------------------------------------------------------------------------------------------------------


def _drop(lake: WholeLake, paths: list[str], token: str, before: Callable[[], None] = lambda: None) -> int:
    spelled = {f"file://{path}" for path in paths}
    return len(
        light_drop.drop_data_files(
            lake.lake.catalog, "default.events", spelled, lambda p: p, token=token, summary={}, attempts_max=3,
            before_commit=before,
        ).paths
    )  # fmt: skip


def test_entries_are_dropped_once_for_a_token_beside_other_commits(tmp_path: Path) -> None:
    lake = WholeLake(tmp_path / "lake")
    for _ in range(3):
        lake.append()
    first, second, third = lake.data_files()
    appended: list[object] = []

    def meanwhile() -> None:
        if not appended:
            appended.append(lake.append())

    assert _drop(lake, [first, second], "one", meanwhile) == 2  # lost once against the append, then landed
    assert len(lake.data_files()) == 2 and lake.count() == 6
    assert _drop(lake, [first, third], "one") == 2 and len(lake.data_files()) == 2  # it had landed
    assert light_drop.landed(lake.lake.catalog, "default.events", "one") == 2
    lake.lake.close()


def test_a_token_that_was_voided_cannot_land_any_more(tmp_path: Path) -> None:
    lake = WholeLake(tmp_path / "lake")
    lake.append()
    lake.append()
    catalog, (first, _) = lake.lake.catalog, lake.data_files()
    with pytest.raises(CommitUnknown, match="voided"):
        _drop(lake, [first], "late", lambda: light_drop.void(catalog, "default.events", "late"))
    assert len(lake.data_files()) == 2 and light_drop.landed(catalog, "default.events", "late") is None
    light_drop.void(catalog, "default.events", "late")
    assert _drop(lake, [first], "another") == 1
    lake.lake.close()


# ---- listing a bucket ------------------------------------------------------------------------------------------------


def test_a_page_of_a_listing_that_is_cut_short_is_a_failure_of_its_prefix(s3: S3, toxiproxy: Toxiproxy) -> None:
    bucket = s3.make_bucket()
    for table in ("a", "b"):
        folder = s3.server.folder / "data" / bucket / "wh/ns" / table / "data"
        folder.mkdir(parents=True)
        for n in range(1_200 if table == "b" else 3):
            (folder / f"{n:05}.parquet").write_bytes(b"x")

    def listed(port: int) -> Listing:
        address = Bucket(bucket, s3.region, f"http://127.0.0.1:{port}", s3.access_key, s3.secret_key)
        roots = [f"s3://{bucket}/wh/ns/{table}" for table in ("a", "b")]
        return list_bucket(address, roots, timeout_seconds=60)

    whole = listed(s3.port)
    assert len(whole) == 1_203 and not whole.failures
    proxy = toxiproxy.proxy_to(s3.port)
    assert len(listed(proxy.port)) == 1_203
    proxy.toxic("limit_data", bytes=50_000)  # a first page of a thousand keys is longer than that
    cut = listed(proxy.port)
    assert any(f"s3://{bucket}/wh/ns/b/data/".startswith(failure.prefix) for failure in cut.failures)
    assert len(cut) < len(whole)


def test_one_key_that_cannot_be_deleted_does_not_fail_the_others(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    store = S3Store(WarehouseSettings(url="s3://b/lake", endpoint=s3.endpoint), requests_at_once=1)
    asked: list[int] = []

    def delete_objects(Bucket: str, Delete: dict[str, list[dict[str, str]]]) -> dict[str, list[dict[str, str]]]:
        asked.append(len(Delete["Objects"]))
        held = [o["Key"] for o in Delete["Objects"] if o["Key"] == "lake/7"]
        return {"Errors": [{"Key": key, "Code": "AccessDenied"} for key in held]}

    monkeypatch.setattr(store, "_client", SimpleNamespace(delete_objects=delete_objects), raising=False)
    failed = store.delete([f"s3://b/lake/{n}" for n in range(2_500)])
    assert failed == {"s3://b/lake/7": "AccessDenied"} and asked == [1_000, 1_000, 500]
