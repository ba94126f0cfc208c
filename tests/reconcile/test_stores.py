"""Storage as the sweep acts on it: the same promises on a disk and on an S3 server. And entries, dropped for good."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from strandline.core.errors import CommitUnknown, StorageError
from strandline.core.settings.lake_config import WarehouseSettings
from strandline.iceberg.pyiceberg import drop_entries
from strandline.reconcile.model import Move, Stat, Storage
from strandline.reconcile.storage import s3_copy
from strandline.reconcile.storage.listing import Listing
from strandline.reconcile.storage.local_store import LocalStore
from strandline.reconcile.storage.object_inventory import list_prefixes
from strandline.reconcile.storage.s3_store import S3Store
from strandline.storage.s3_client import RequestFailed, RequestFailure, S3Client
from strandline.storage.s3_listing import ListedBucket
from strandline.storage.s3_settings import S3Settings
from tests import loopback
from tests.reconcile.buckets import put_object, settings_of
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
    return S3Store(settings_of(server, bucket), requests_at_once=4), partial(put_object, server, bucket)


def stat(store: Storage, path: str) -> Stat:
    found = store.find_file(path)
    assert found is not None
    return found


def test_a_file_is_set_aside_and_brought_back_whole(place: tuple[Storage, Put]) -> None:
    store, put = place
    path = put("lake/ns/t/data/a b%41+ü.parquet", b"content")
    kept = f"{path.rpartition('/lake/')[0]}/lake/_strandline/quarantine/reconcile/1/ns/t/data/a b%41+ü.parquet"
    assert store.set_aside([Move(path, kept, stat(store, path))]) == {path: None}
    assert store.find_file(path) is None and stat(store, kept).size == 7
    assert store.bring_back(kept, path) and not store.bring_back(kept, path)
    assert store.find_file(kept) is None and stat(store, path).size == 7


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
    assert stat(store, path).size == 5 and store.find_file(f"{path}.kept") is None


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
    assert [store.find_file(path) for path in paths] == [None] * 25


def test_times_are_the_same_as_those_of_a_listing(place: tuple[Storage, Put]) -> None:
    store, put = place
    path = put("lake/a", b"a")
    seen = stat(store, path)
    assert store.same(seen, stat(store, path)) and abs((seen.modified_ns or 0) / 1e9 - time.time()) < 60
    assert not store.same(Stat(1, (seen.modified_ns or 0) - 2_000_000_000), seen)
    assert not store.same(Stat(2, seen.modified_ns), seen)


def test_the_same_content_is_told_by_bytes_and_not_by_size_or_time(place: tuple[Storage, Put]) -> None:
    store, put = place
    one, twin, other, longer = put("a", b"same"), put("b", b"same"), put("c", b"else"), put("d", b"same+")
    assert store.same_content(one, twin) and store.same_content(one, one)
    assert not any(store.same_content(one, path) for path in (other, longer, f"{one}-never-there"))


def test_every_file_under_a_folder_is_told_and_none_of_its_neighbours(place: tuple[Storage, Put]) -> None:
    store, put = place
    inside = [put(name, b"x") for name in ("lake/a/1", "lake/a/b/c/2 ü%41+", "lake/a/3")]
    folder = inside[0].rpartition("/")[0]
    put("lake/ab", b"x")
    assert sorted(store.files_under(folder)) == sorted(inside)
    assert list(store.files_under(f"{folder}/none")) == []


Answer = Callable[[str, dict[str, Any], Callable[..., Any]], Any]
"""An operation, its parameters, and the request itself."""


class _Client(S3Client):
    """One that lets a test come in between, and notes what is asked of the store."""

    def __init__(self, plain: S3Client, answer: Answer) -> None:
        super().__init__(plain.settings, plain.limits)
        self._answer = answer
        self.asked: list[str] = []

    def call(self, operation: str, /, **parameters: Any) -> Any:
        answer = self._answer(operation, parameters, super().call)
        self.asked.append(operation)
        return answer


def _plain(operation: str, asked: dict[str, Any], call: Callable[..., Any]) -> Any:
    return call(operation, **asked)


def _cut_short(operation: str, asked: dict[str, Any], call: Callable[..., Any]) -> Any:
    """A store that forgets the end of a page, and that there is one."""
    page = call(operation, **asked)
    return page if "StartAfter" in asked else page | {"Contents": page["Contents"][:-1]}


def test_files_that_a_page_leaves_out_are_noticed(s3: S3) -> None:
    bucket = s3.make_bucket()
    for n in range(3):
        put_object(s3, bucket, f"lake/a/{n}", b"x")
    store = S3Store(settings_of(s3, bucket), requests_at_once=1)
    assert len(list(store.files_under(f"s3://{bucket}/lake/a"))) == 3
    store._client = _Client(store._client, _cut_short)
    with pytest.raises(StorageError, match="ends early"):
        list(store.files_under(f"s3://{bucket}/lake/a"))


def test_a_bucket_that_is_not_there_is_no_answer(s3: S3) -> None:
    with pytest.raises(StorageError):
        S3Store(settings_of(s3, "none"), requests_at_once=1).find_file(f"s3://none-{uuid.uuid4().hex}/key")


def _without_conditions(status: int) -> Answer:
    """A store that does not take a condition for a copy."""

    def answer(operation: str, asked: dict[str, Any], call: Callable[..., Any]) -> Any:
        if operation == "copy_object" and "CopySourceIfMatch" in asked:
            raise RequestFailed(RequestFailure.OTHER, "no", status=status)
        return call(operation, **asked)

    return answer


@pytest.mark.parametrize("status", [400, 412, 501])
def test_a_store_that_copies_without_conditions_does_as_well(s3: S3, status: int) -> None:
    bucket = s3.make_bucket()
    store = S3Store(settings_of(s3, bucket), requests_at_once=2)
    store._client = _Client(store._client, _without_conditions(status))
    path = put_object(s3, bucket, "lake/a", b"content")
    assert store.set_aside([Move(path, f"{path}.kept", stat(store, path))]) == {path: None}
    assert store.find_file(path) is None and store.bring_back(f"{path}.kept", path) and stat(store, path).size == 7


def test_what_changes_during_the_copy_stays_without_conditions_too(s3: S3) -> None:
    bucket = s3.make_bucket()
    store = S3Store(settings_of(s3, bucket), requests_at_once=1)
    refusing = _without_conditions(501)
    path = put_object(s3, bucket, "lake/a", b"content")
    before = stat(store, path)

    def meanwhile(operation: str, asked: dict[str, Any], call: Callable[..., Any]) -> Any:
        if operation == "copy_object":
            put_object(s3, bucket, "lake/a", b"another")
        return refusing(operation, asked, call)

    store._client = _Client(store._client, meanwhile)
    assert store.set_aside([Move(path, f"{path}.kept", before)])[path] is not None
    assert stat(store, path).size == 7


def test_an_object_without_a_tag_is_set_aside_by_size_and_time(s3: S3) -> None:
    bucket = s3.make_bucket()
    store = S3Store(settings_of(s3, bucket), requests_at_once=1)
    (s3.server.folder / "data" / bucket / "a").write_bytes(b"past the server")
    path = f"s3://{bucket}/a"
    assert store.set_aside([Move(path, f"{path}.kept", stat(store, path))]) == {path: None}
    assert store.find_file(path) is None and stat(store, f"{path}.kept").size == 15


def test_objects_without_the_same_tag_are_compared_by_their_bytes(s3: S3) -> None:
    bucket = s3.make_bucket()
    store = S3Store(settings_of(s3, bucket), requests_at_once=1)
    for name, content in (("a", b"past the server"), ("b", b"past the server"), ("c", b"past the Server")):
        (s3.server.folder / "data" / bucket / name).write_bytes(content)
    assert store.same_content(f"s3://{bucket}/a", f"s3://{bucket}/b")
    assert not store.same_content(f"s3://{bucket}/a", f"s3://{bucket}/c")


LARGE = bytes(range(256)) * (11 << 12)
"""11 MiB: more than two of the smallest parts that a store takes."""


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_copy, "COPY_BYTES_MAX", 6 << 20)
    monkeypatch.setattr(s3_copy, "PART_BYTES", 5 << 20)


@pytest.mark.usefixtures("small_parts")
def test_an_object_too_large_for_one_copy_is_set_aside_and_brought_back_in_parts(s3: S3) -> None:
    bucket = s3.make_bucket()
    store = S3Store(settings_of(s3, bucket), requests_at_once=2)
    path = put_object(s3, bucket, "lake/large", LARGE)
    store._client = client = _Client(store._client, _plain)
    assert store.set_aside([Move(path, f"{path}.kept", stat(store, path))]) == {path: None}
    assert client.asked.count("upload_part_copy") == 3 and "copy_object" not in client.asked
    assert store.find_file(path) is None and store.bring_back(f"{path}.kept", path)
    assert (s3.server.folder / "data" / bucket / "lake/large").read_bytes() == LARGE
    twin = put_object(s3, bucket, "lake/twin", LARGE)
    assert store.same_content(path, twin), "its tag is that of parts, and its bytes are the same"


@pytest.mark.usefixtures("small_parts")
def test_a_large_object_that_changes_while_its_parts_are_copied_stays_and_leaves_no_upload(s3: S3) -> None:
    bucket = s3.make_bucket()
    store = S3Store(settings_of(s3, bucket), requests_at_once=1)
    path = put_object(s3, bucket, "lake/large", LARGE)
    before, plain = stat(store, path), store._client

    def meanwhile(operation: str, asked: dict[str, Any], call: Callable[..., Any]) -> Any:
        if operation == "upload_part_copy" and client.asked.count(operation) == 1:
            put_object(s3, bucket, "lake/large", LARGE[::-1])
        return call(operation, **asked)

    store._client = client = _Client(plain, meanwhile)
    assert store.set_aside([Move(path, f"{path}.kept", before)])[path] is not None
    assert store.find_file(f"{path}.kept") is None
    assert (s3.server.folder / "data" / bucket / "lake/large").read_bytes() == LARGE[::-1]
    assert not plain.call("list_multipart_uploads", Bucket=bucket).get("Uploads")


def test_a_link_is_not_a_file(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("link", "loop"):
        with pytest.raises(StorageError):
            LocalStore().find_file(str(tmp_path / name))


# ---- entries ---------------------------------------------------------------------------------------------------------


def _drop(lake: WholeLake, paths: list[str], token: str, before: Callable[[], None] = lambda: None) -> int:
    spelled = {f"file://{path}" for path in paths}
    return drop_entries.drop_data_files(
        lake.lake.catalog, "default.events", spelled, lambda p: p, token=token, summary={},
        before_commit=before,
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
    assert drop_entries.landed(lake.lake.catalog, "default.events", "one") == 2
    lake.lake.close()


def test_a_token_that_was_voided_cannot_land_any_more(tmp_path: Path) -> None:
    lake = WholeLake(tmp_path / "lake")
    lake.append()
    lake.append()
    catalog, (first, _) = lake.lake.catalog, lake.data_files()
    with pytest.raises(CommitUnknown, match="voided"):
        _drop(lake, [first], "late", lambda: drop_entries.void(catalog, "default.events", "late"))
    assert len(lake.data_files()) == 2 and drop_entries.landed(catalog, "default.events", "late") is None
    drop_entries.void(catalog, "default.events", "late")
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
        address = ListedBucket(bucket, S3Settings(f"http://127.0.0.1:{port}", s3.region, s3.access_key, s3.secret_key))
        roots = [f"s3://{bucket}/wh/ns/{table}" for table in ("a", "b")]
        return list_prefixes(address, roots, timeout_seconds=60)

    whole = listed(s3.port)
    assert len(whole) == 1_203 and not whole.failures
    proxy = toxiproxy.proxy_to(s3.port)
    assert len(listed(proxy.port)) == 1_203
    proxy.toxic("limit_data", bytes=50_000)  # a first page of a thousand keys is longer than that
    cut = listed(proxy.port)
    assert any(f"s3://{bucket}/wh/ns/b/data/".startswith(failure.prefix) for failure in cut.failures)
    assert len(cut) < len(whole)


KEYS = [f"wh/ns/t/data/{n}.parquet" for n in range(6)]


class _Forgetful(loopback.Handler):
    """Says of a page that there is more, and not where it goes on. Three keys to a page, all of them old."""

    def do_GET(self) -> None:
        asked = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        start = asked.get("prefix", "")
        found = [key for key in KEYS if key.startswith(start) and key > asked.get("start-after", "")]
        inner = sorted({start + key[len(start) :].split("/")[0] + "/" for key in found}) if "delimiter" in asked else []
        folders = [folder for folder in inner if any(key.startswith(folder) for key in found)]
        page = [key for key in found if not any(key.startswith(folder) for folder in folders)][:3]
        told = "".join(
            f"<Contents><Key>{key}</Key><LastModified>2020-01-01T00:00:00.000Z</LastModified><Size>1</Size></Contents>"
            for key in page
        ) + "".join(f"<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>" for folder in folders)
        cut = str(len(found) > len(page) and not folders).lower()
        body = f"<ListBucketResult><IsTruncated>{cut}</IsTruncated>{told}</ListBucketResult>".encode()
        self.answer(200, body)


@pytest.mark.parametrize(("root", "failed"), [("wh", "wh/ns/t"), ("wh/ns/t/data", "wh/ns/t/data")])
def test_a_page_that_has_more_and_does_not_say_where_is_a_failure_of_its_prefix(root: str, failed: str) -> None:
    with loopback.serving(_Forgetful) as port:
        bucket = ListedBucket("b", S3Settings(f"http://127.0.0.1:{port}", "us-east-1", "k", "s"))
        listing = list_prefixes(bucket, [f"s3://b/{root}"], timeout_seconds=30)
    assert [failure.prefix for failure in listing.failures] == [f"s3://b/{failed}"]
    assert len(listing) == 3


def test_one_key_that_cannot_be_deleted_does_not_fail_the_others(s3: S3) -> None:
    store = S3Store(WarehouseSettings(url="s3://b/lake", endpoint=s3.endpoint), requests_at_once=1)
    asked: list[int] = []

    def delete(operation: str, parameters: dict[str, Any], call: Callable[..., Any]) -> Any:
        objects = parameters["Delete"]["Objects"]
        asked.append(len(objects))
        return {"Errors": [{"Key": o["Key"], "Code": "AccessDenied"} for o in objects if o["Key"] == "lake/7"]}

    store._client = _Client(store._client, delete)
    failed = store.delete([f"s3://b/lake/{n}" for n in range(2_500)])
    assert failed == {"s3://b/lake/7": "AccessDenied"} and asked == [1_000, 1_000, 500]
