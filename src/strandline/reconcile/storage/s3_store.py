"""A bucket, as the sweep acts on it. Setting aside is a copy within the store, and then a delete; times are whole
seconds. Nothing that botocore says is passed on as it is: its texts may hold signed headers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, TypeVar

from strandline.core import failpoints
from strandline.core.errors import StorageError
from strandline.core.reconcile_records import StorageKind
from strandline.core.settings import WarehouseSettings, resolve_key
from strandline.reconcile.model import Move, Stat
from strandline.reconcile.storage.cross_device_move import CHANGED
from strandline.reconcile.storage.s3_copy import Refused, copy, place, tag

DELETES_AT_ONCE_MAX = 1_000
_COMPARED_BYTES = 8 << 20
_SECOND_NS = 1_000_000_000
_BUCKET_SEEN_SECONDS = 10.0
_S = TypeVar("_S")
_T = TypeVar("_T")


class S3Store:
    def __init__(self, warehouse: WarehouseSettings, *, requests_at_once: int) -> None:
        self._warehouse = warehouse
        self._at_once = requests_at_once
        self._buckets: dict[str, float] = {}

    @property
    def kind(self) -> StorageKind:
        return StorageKind.S3

    @cached_property
    def _client(self) -> Any:
        import botocore.session
        from botocore.config import Config

        w = self._warehouse
        return botocore.session.get_session().create_client(
            "s3",
            endpoint_url=w.endpoint,
            region_name=w.region,
            aws_access_key_id=resolve_key(w.access_key),
            aws_secret_access_key=resolve_key(w.secret_key),
            config=Config(
                connect_timeout=5,
                read_timeout=60,
                retries={"total_max_attempts": 4, "mode": "standard"},
                max_pool_connections=max(self._at_once, 10),
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                s3={"addressing_style": "path" if w.endpoint else "auto"},
            ),
        )

    def look(self, path: str) -> Stat | None:
        found = self._head(path)
        return None if found is None else _stat(found)

    def same(self, listed: Stat, now: Stat) -> bool:
        if listed.modified_ns is None or now.modified_ns is None:
            return False
        return listed.size == now.size and listed.modified_ns // _SECOND_NS == now.modified_ns // _SECOND_NS

    def set_aside(self, files: Sequence[Move]) -> Mapping[str, str | None]:
        """All copies, a look whether each is still what was copied, and then one delete for up to a thousand."""
        outcome = dict(zip((f.path for f in files), self._each(files, self._copy_expected), strict=True))
        copied = {path: made for path, (why, made) in outcome.items() if why is None and made is not None}
        still = self._each(list(copied.items()), lambda found: self._still(*found))
        told: dict[str, str | None] = {path: why for path, (why, _) in outcome.items()}
        told |= {path: CHANGED for path, same in zip(copied, still, strict=True) if not same}
        failpoints.hit("reconcile.before_original_goes")
        told |= dict(self.delete([path for path, same in zip(copied, still, strict=True) if same]))
        return told

    def _copy_expected(self, file: Move) -> tuple[str | None, str | None]:
        try:
            found = self._head(file.path)
            if found is None or not self.same(file.expected, _stat(found)):
                return CHANGED, None
            if self._head(file.to) is not None:
                return "there is an object in quarantine already where it was to go", None
            copy(self._ask, file.path, file.to, found)
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
        copy(self._ask, kept_at, to, kept)
        failpoints.hit("reconcile.before_kept_goes")
        failed = self.delete([kept_at])
        if failed:
            raise StorageError(f"{to} is back, and its copy in quarantine cannot be deleted: {failed[kept_at]}")
        return True

    def delete(self, paths: Sequence[str]) -> Mapping[str, str]:
        failed: dict[str, str] = {}
        by_bucket: dict[str, list[str]] = {}
        for path in paths:
            by_bucket.setdefault(place(path)[0], []).append(place(path)[1])
        for bucket, keys in by_bucket.items():
            for start in range(0, len(keys), DELETES_AT_ONCE_MAX):
                failed |= self._delete(bucket, keys[start : start + DELETES_AT_ONCE_MAX])
        return failed

    def _delete(self, bucket: str, keys: list[str]) -> dict[str, str]:
        objects = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
        try:
            answer = self._ask("delete_objects", bucket, Bucket=bucket, Delete=objects)
        except StorageError as e:
            return {f"s3://{bucket}/{key}": e.message for key in keys}
        return {f"s3://{bucket}/{e['Key']}": str(e.get("Code", "refused")) for e in answer.get("Errors", ())}

    def same_content(self, one: str, other: str) -> bool:
        heads = self._head(one), self._head(other)
        if heads[0] is None or heads[1] is None or heads[0]["ContentLength"] != heads[1]["ContentLength"]:
            return False
        tags = [head.get("ETag") for head in heads if head]
        if tags[0] and tags[0] == tags[1]:
            return True
        # The tag of a copy may be another one: of an object in parts, or an encrypted one.
        size = int(heads[0]["ContentLength"])
        return all(self._read(one, start) == self._read(other, start) for start in range(0, size, _COMPARED_BYTES))

    def tail(self, path: str, count: int) -> bytes:
        return self._get(path, f"bytes=-{count}")

    def _read(self, path: str, start: int) -> bytes:
        return self._get(path, f"bytes={start}-{start + _COMPARED_BYTES - 1}")

    def _get(self, path: str, span: str) -> bytes:
        from botocore.exceptions import BotoCoreError

        bucket, key = place(path)
        try:
            body: bytes = self._ask("get_object", path, Bucket=bucket, Key=key, Range=span)["Body"].read()
        except BotoCoreError as e:
            raise StorageError(f"{path}: it cannot be read ({type(e).__name__})") from None
        return body

    def files_under(self, folder: str) -> Iterator[str]:
        bucket, key = place(folder)
        asked: dict[str, Any] = {"Bucket": bucket, "Prefix": f"{key.rstrip('/')}/"}
        after: dict[str, Any] = {}
        last = ""
        while True:
            page = self._ask("list_objects_v2", folder, **asked, **after)
            found = [one["Key"] for one in page.get("Contents", ())]
            last = max(last, *found, "")
            yield from (f"s3://{bucket}/{name}" for name in found)
            if not page.get("IsTruncated"):
                break
            if not page.get("NextContinuationToken"):
                raise StorageError(f"{folder}: the listing ends early, and does not say where it goes on")
            after = {"ContinuationToken": page["NextContinuationToken"]}
        # A page that was cut may call itself the last: then something comes after it.
        if last and self._ask("list_objects_v2", folder, **asked, StartAfter=last, MaxKeys=1).get("Contents"):
            raise StorageError(f"{folder}: the listing ends early")

    def _head(self, path: str) -> Mapping[str, Any] | None:
        bucket, key = place(path)
        found: Mapping[str, Any] | None = self._ask("head_object", path, missing_ok=True, Bucket=bucket, Key=key)
        if found is None:
            self._check_bucket(bucket)
        return found

    def _check_bucket(self, bucket: str) -> None:
        """A bucket that is not there answers for an object as one that is and lacks it."""
        now = time.monotonic()
        if now - self._buckets.get(bucket, -_BUCKET_SEEN_SECONDS) >= _BUCKET_SEEN_SECONDS:
            self._ask("head_bucket", bucket, Bucket=bucket)
            self._buckets[bucket] = now

    def _ask(self, operation: str, what: str, /, *, missing_ok: bool = False, **parameters: Any) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return getattr(self._client, operation)(**parameters)
        except ClientError as e:
            status = int(e.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
            code = str(e.response.get("Error", {}).get("Code", ""))
            if missing_ok and status == 404:
                return None
            raise Refused(f"{what}: the store refused ({status} {code})", status) from None
        except BotoCoreError as e:
            raise StorageError(f"{what}: the store cannot be reached ({type(e).__name__})") from None

    def _each(self, items: Sequence[_S], work: Callable[[_S], _T]) -> list[_T]:
        with ThreadPoolExecutor(self._at_once) as pool:
            return list(pool.map(work, items))


def _stat(head: Mapping[str, Any]) -> Stat:
    return Stat(int(head["ContentLength"]), int(head["LastModified"].timestamp()) * _SECOND_NS)
