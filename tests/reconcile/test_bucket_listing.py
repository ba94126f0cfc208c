"""Buckets, listed: whatever their objects are called, and however slowly they answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote_plus, urlsplit

import pyarrow as pa
import pytest

from strandline.reconcile.on_spark.listing import FILE, FOLDER, LEVELS, Lister
from strandline.reconcile.storage import object_inventory
from strandline.reconcile.storage.object_inventory import list_level, list_prefixes
from strandline.storage.s3_listing import ListedBucket
from strandline.storage.s3_settings import S3Settings
from tests import loopback
from tests.servers import S3

ODD = ("a b", "100%", "x%41y", "x%2Fy", "p+q", "ü", "n\nl", "tab\there", "&<>\"'", "k=v", "~-_.*()!")


def paths_of(listing: Any) -> list[str]:
    return sorted(f"{path}/{name}" for path, folder in listing.folders.items() for name in folder.names)


def put_past_it(s3: S3, bucket: str, key: str) -> str:
    file = Path(s3.server.folder / "data" / bucket / key)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"x")
    return f"s3://{bucket}/{key}"


def test_every_object_is_listed_by_its_name_whatever_it_is_called(s3: S3) -> None:
    bucket = s3.make_bucket()
    keys = [f"wh/{folder}/{name}{n}" for folder in ("t", "t/data", "t/data/p") for n, name in enumerate(ODD)]
    keys += [f"wh/{name}/data/deep/er/f" for name in ODD]
    expected = sorted(put_past_it(s3, bucket, key) for key in keys)
    put_past_it(s3, bucket, "wh2/f")
    address = ListedBucket(bucket, S3Settings(s3.endpoint, s3.region, s3.access_key, s3.secret_key))
    listing = list_prefixes(address, [f"s3://{bucket}/wh"], timeout_seconds=60)
    assert paths_of(listing) == expected and not listing.failures
    assert all(all(folder.modified_ns or ()) and set(folder.sizes or ()) == {1} for folder in listing.folders.values())
    put_past_it(s3, bucket, "odd/t/n\x01l/f")  # This server tells names as they are, and has none for this one.
    ((failure),) = list_prefixes(address, [f"s3://{bucket}/odd"], timeout_seconds=60).failures
    assert failure.prefix == f"s3://{bucket}/odd/t"
    level, folders = list_level(address, f"s3://{bucket}/wh", timeout_seconds=60)
    assert sorted(folders) == sorted([*ODD, "t"]) and not len(level) and not level.failures


# ---- a store of our own: names that no folder can hold, and pages that take their time -------------------------------


class Store:
    def __init__(self, keys: list[str], *, page: int = 3, before_page: Callable[[Any], None] | None = None) -> None:
        self.keys, self.page, self.before_page = sorted(keys), page, before_page or (lambda handler: None)
        self.asked = 0

    def answer(self, asked: dict[str, str]) -> str:
        start = asked.get("prefix", "")
        after = bytes.fromhex(asked.get("continuation-token", "")).decode() or asked.get("start-after", "")
        units: dict[str, bool] = {}
        for key in (key for key in self.keys if key.startswith(start)):
            head, slash, _ = key[len(start) :].partition("/")
            is_folder = bool(slash) and "delimiter" in asked
            units[f"{start}{head}/" if is_folder else key] = is_folder
        wanted = [unit for unit in units if unit > after]
        told = "".join(
            f"<CommonPrefixes><Prefix>{quote_plus(unit)}</Prefix></CommonPrefixes>"
            if units[unit]
            else f"<Contents><Key>{quote_plus(unit)}</Key><LastModified>2020-01-01T00:00:00.000Z</LastModified>"
            "<Size>1</Size></Contents>"
            for unit in wanted[: self.page]
        )
        if len(wanted) > self.page:
            told += f"<NextContinuationToken>{wanted[self.page - 1].encode().hex()}</NextContinuationToken>"
        is_cut = str(len(wanted) > self.page).lower()
        return (
            '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><EncodingType>url</EncodingType>'
            f"<IsTruncated>{is_cut}</IsTruncated>{told}</ListBucketResult>"
        )


@contextmanager
def serving(store: Store) -> Iterator[ListedBucket]:
    class Handler(loopback.Handler):
        def do_GET(self) -> None:
            store.asked += 1
            asked = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
            body = store.answer(asked).encode()
            try:
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                store.before_page(self)
                self.wfile.write(body)
            except OSError:
                pass  # Nobody waits for it any more.

    with loopback.serving(Handler) as port:
        yield ListedBucket("b", S3Settings(f"http://127.0.0.1:{port}", "us-east-1", "k", "s"))


ODD_KEYS = ["wh/t/data//a", "wh/t//data/b", "wh/t/data/./c", "wh/t/../d", "wh/t/data/e\nf", "wh//g", "wh/\x01/h"]
MARKER = "wh/t/data/x/"
KEYS = [*ODD_KEYS, "wh/t/data/f0", "wh/t/data/f1", "wh/t/data///f2", "wh/t/metadata/m"]


@pytest.mark.parametrize("root", ["s3://b/wh", "s3://b/wh/t/data"])
def test_a_key_that_no_path_has_is_listed_as_it_is_and_fails_nothing(root: str) -> None:
    with serving(Store([*KEYS, MARKER])) as bucket:
        listing = list_prefixes(bucket, [root], timeout_seconds=30)
    expected = sorted(f"s3://b/{key}" for key in KEYS if f"s3://b/{key}".startswith(root))
    assert paths_of(listing) == expected and not listing.failures


def test_executors_list_each_key_once_however_it_is_spelled() -> None:
    prefixes, listed = [b"s3://b/wh"], list[str]()
    with serving(Store([*KEYS, MARKER])) as bucket:
        for level in range(LEVELS + 1):
            batch = pa.RecordBatch.from_pydict({"path": pa.array(prefixes, pa.binary())})
            lister = Lister(bucket, 30, is_whole=level == LEVELS)
            rows = [row for found in lister.run([batch]) for row in found.to_pylist()]
            prefixes = [row["path"] for row in rows if row["kind"] == FOLDER]
            listed += [row["path"].decode() for row in rows if row["kind"] == FILE]
    assert sorted(listed) == sorted(f"s3://b/{key}" for key in KEYS)


def test_more_folders_than_are_listed_side_by_side_are_listed_in_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_inventory, "SPLIT_PREFIXES_MAX", 5)
    keys = [f"wh/t/data/p={n}/f" for n in range(40)] + ["wh/t/data/g"]
    store = Store(keys, page=20)
    with serving(store) as bucket:
        listing = list_prefixes(bucket, ["s3://b/wh/t/data"], timeout_seconds=30)
    assert paths_of(listing) == sorted(f"s3://b/{key}" for key in keys) and store.asked < 10


FLAT = [f"wh/t/data/{n:04}.parquet" for n in range(300)]


def test_a_prefix_that_takes_too_long_is_given_up_between_two_pages() -> None:
    """Also while folders are looked for: the files of a table without partitions lie in one level."""
    for root in ("wh/t/data", "wh"):
        with serving(Store(FLAT, before_page=lambda _: time.sleep(0.5))) as bucket:
            began = time.monotonic()
            listing = list_prefixes(bucket, [f"s3://b/{root}"], timeout_seconds=1)
        assert time.monotonic() - began < 20
        # On a busy machine perhaps already a folder that leads there.
        assert all(f.timed_out and "s3://b/wh/t/data".startswith(f.prefix) for f in listing.failures)
        assert listing.failures
        assert len(listing) < 100


def trickle(handler: loopback.Handler) -> None:
    for _ in range(1000):
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(0.1)


def test_a_page_that_comes_byte_by_byte_uses_up_the_time_of_its_prefix() -> None:
    with serving(Store(FLAT, before_page=trickle)) as bucket:
        began = time.monotonic()
        listing = list_prefixes(bucket, ["s3://b/wh"], timeout_seconds=1)
        level, _ = list_level(bucket, "s3://b/wh", timeout_seconds=1)
    assert time.monotonic() - began < 20
    assert [(f.prefix, f.timed_out) for f in (*listing.failures, *level.failures)] == [("s3://b/wh", True)] * 2


class CalledOff(Exception):
    pass


def test_a_run_that_is_called_off_does_not_wait_for_the_listing() -> None:
    until = time.monotonic() + 0.8

    def check() -> None:
        if time.monotonic() > until:
            raise CalledOff

    with serving(Store(FLAT, before_page=lambda _: time.sleep(0.1))) as bucket:
        with pytest.raises(CalledOff):
            list_prefixes(bucket, ["s3://b/wh/t/data"], timeout_seconds=600, check=check)
        with pytest.raises(CalledOff):
            list_level(bucket, "s3://b/wh/t/data", timeout_seconds=600, check=check)
    with serving(Store(FLAT, before_page=trickle)) as bucket, pytest.raises(CalledOff):
        list_prefixes(bucket, ["s3://b/wh/t/data"], timeout_seconds=600, check=check)
    assert time.monotonic() < until + 20


def test_what_a_store_refuses_is_told_without_the_request() -> None:
    class Refusing(Store):
        def answer(self, asked: dict[str, str]) -> str:
            return f"<Error><Code>AccessDenied</Code><X>{asked['X-Amz-Signature']}</X></Error>"

    with serving(Refusing([])) as bucket:
        listing = list_prefixes(bucket, ["s3://b/wh"], timeout_seconds=30)
    ((failure),) = listing.failures
    assert failure.why == "the store's answer is not a listing" and failure.prefix == "s3://b/wh"
    away = ListedBucket("b", S3Settings("http://127.0.0.1:9", "us-east-1", "k", "s"))
    ((failure),) = list_prefixes(away, ["s3://b/wh"], timeout_seconds=30).failures
    assert "ConnectError" in failure.why and "Signature" not in failure.why
