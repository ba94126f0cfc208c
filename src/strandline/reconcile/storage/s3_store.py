"""A bucket, as the sweep acts on it. Files are quarantined by a copy, then a delete. Times are whole seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from strandline.core import failpoints
from strandline.core.errors import StorageError
from strandline.core.records.reconcile_records import StorageKind
from strandline.core.settings.lake_config import WarehouseSettings
from strandline.reconcile.model import Move, Stat
from strandline.reconcile.storage.s3_copy import copy, tag
from strandline.storage.cross_device_move import CHANGED
from strandline.storage.s3_client import RequestFailed, S3Client
from strandline.storage.s3_settings import RECONCILE_LIMITS, S3Settings, split_url

_COMPARED_BYTES = 8 << 20
_SECOND_NS = 1_000_000_000
_BUCKET_SEEN_SECONDS = 10.0
_S = TypeVar("_S")
_T = TypeVar("_T")


class S3Store:
    def __init__(self, warehouse: WarehouseSettings, *, requests_at_once: int) -> None:
        self._client = S3Client(S3Settings.of_warehouse(warehouse), RECONCILE_LIMITS)
        self._at_once = requests_at_once
        self._buckets: dict[str, float] = {}

    @property
    def kind(self) -> StorageKind:
        return StorageKind.S3

    def find_file(self, path: str) -> Stat | None:
        found = self._head(path)
        return None if found is None else _stat(found)

    def same(self, listed: Stat, now: Stat) -> bool:
        if listed.modified_ns is None or now.modified_ns is None:
            return False
        return listed.size == now.size and listed.modified_ns // _SECOND_NS == now.modified_ns // _SECOND_NS

    def set_aside(self, files: Sequence[Move]) -> Mapping[str, str | None]:
        """Copies all, checks that each is still what was copied, then deletes up to a thousand per request."""
        outcome = dict(zip((f.path for f in files), self._each(files, self._copy_expected), strict=True))
        copied = {path: made for path, (why, made) in outcome.items() if why is None and made is not None}
        still = self._each(list(copied.items()), lambda found: self._still(*found))
        result: dict[str, str | None] = {path: why for path, (why, _) in outcome.items()}
        result |= {path: CHANGED for path, same in zip(copied, still, strict=True) if not same}
        failpoints.hit("move_file.before_original_goes")
        result |= dict(self.delete([path for path, same in zip(copied, still, strict=True) if same]))
        return result

    def _copy_expected(self, file: Move) -> tuple[str | None, str | None]:
        try:
            found = self._head(file.path)
            if found is None or not self.same(file.expected, _stat(found)):
                return CHANGED, None
            if self._head(file.to) is not None:
                return "there is an object in quarantine already where it was to go", None
            copy(self._ask, self._head, file.path, file.to, found)
        except StorageError as e:
            return e.message, None
        return None, tag(found)

    def _still(self, path: str, copied: str) -> bool:
        try:
            found = self._head(path)
        except StorageError:
            return False
        return found is not None and tag(found) == copied

    def bring_back(self, kept_at: str, to: str) -> bool:
        kept = self._head(kept_at)
        if kept is None or self._head(to) is not None:
            return False
        copy(self._ask, self._head, kept_at, to, kept)
        failpoints.hit("move_file.before_kept_goes")
        failed = self.delete([kept_at])
        if failed:
            raise StorageError(f"{to} is back, and its copy in quarantine cannot be deleted: {failed[kept_at]}")
        return True

    def delete(self, paths: Sequence[str]) -> Mapping[str, str]:
        failed: dict[str, str] = {}
        by_bucket: dict[str, list[str]] = {}
        for path in paths:
            by_bucket.setdefault(split_url(path)[0], []).append(split_url(path)[1])
        for bucket, keys in by_bucket.items():
            failed |= {f"s3://{bucket}/{key}": e.message for key, e in self._client.delete(bucket, keys).items()}
        return failed

    def same_content(self, one: str, other: str) -> bool:
        heads = self._head(one), self._head(other)
        if heads[0] is None or heads[1] is None or heads[0]["ContentLength"] != heads[1]["ContentLength"]:
            return False
        tags = [head.get("ETag") for head in heads if head]
        if tags[0] and tags[0] == tags[1]:
            return True
        # A copy may have another ETag: of a multipart or an encrypted object.
        size = int(heads[0]["ContentLength"])
        spans = [f"bytes={start}-{start + _COMPARED_BYTES - 1}" for start in range(0, size, _COMPARED_BYTES)]
        return all(self._get(one, span) == self._get(other, span) for span in spans)

    def tail(self, path: str, count: int) -> bytes:
        return self._get(path, f"bytes=-{count}")

    def _get(self, path: str, span: str) -> bytes:
        bucket, key = split_url(path)
        with _about(path):
            found = self._client.get(bucket, key, Range=span)
        if found is None:
            raise StorageError(f"{path} does not exist")
        return found[0]

    def files_under(self, folder: str) -> Iterator[str]:
        bucket, key = split_url(folder)
        prefix, last = f"{key.rstrip('/')}/", ""
        with _about(folder):
            for found in self._client.list_objects(bucket, prefix):
                last = max(last, found["Key"])
                yield f"s3://{bucket}/{found['Key']}"
            # A truncated page may claim to be the last: check that nothing follows it.
            asked = {"Bucket": bucket, "Prefix": prefix, "StartAfter": last, "MaxKeys": 1}
            if last and self._client.retry("list_objects_v2", **asked).get("Contents"):
                raise StorageError(f"{folder}: the listing ends early")

    def _head(self, path: str) -> Mapping[str, Any] | None:
        bucket, key = split_url(path)
        with _about(path):
            found: Mapping[str, Any] | None = self._client.head(bucket, key)
        if found is None:
            self._check_bucket(bucket)
        return found

    def _check_bucket(self, bucket: str) -> None:
        """For an object, a missing bucket answers like one that lacks the object."""
        now = time.monotonic()
        if now - self._buckets.get(bucket, -_BUCKET_SEEN_SECONDS) >= _BUCKET_SEEN_SECONDS:
            self._ask("head_bucket", bucket, Bucket=bucket)
            self._buckets[bucket] = now

    def _ask(self, operation: str, what: str, /, **parameters: Any) -> Any:
        with _about(what):
            return self._client.retry(operation, **parameters)

    def _each(self, items: Sequence[_S], work: Callable[[_S], _T]) -> list[_T]:
        with ThreadPoolExecutor(self._at_once) as pool:
            return list(pool.map(work, items))


@contextmanager
def _about(what: str) -> Iterator[None]:
    try:
        yield
    except RequestFailed as e:
        raise RequestFailed(e.failure, f"{what}: {e.message}", status=e.status) from e


def _stat(head: Mapping[str, Any]) -> Stat:
    return Stat(int(head["ContentLength"]), int(head["LastModified"].timestamp()) * _SECOND_NS)
