"""A bucket, as the sweep acts on it. Setting aside is a copy within the store, and then a delete; times are whole
seconds. Nothing that botocore says is passed on as it is: its texts may hold signed headers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, TypeVar

from strandline.config import WarehouseSettings, resolve_secret
from strandline.drift import StorageKind
from strandline.errors import StorageError
from strandline.reconcile.local_store import CHANGED
from strandline.reconcile.model import Move, Stat

DELETES_AT_ONCE_MAX = 1_000
COPY_BYTES_MAX = 5 << 30
_SECOND_NS = 1_000_000_000
_BUCKET_SEEN_SECONDS = 10.0
_NO_CONDITIONS = frozenset({400, 412, 501})
_S = TypeVar("_S")
_T = TypeVar("_T")


class _Refused(StorageError):
    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


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
            aws_access_key_id=resolve_secret(w.access_key),
            aws_secret_access_key=resolve_secret(w.secret_key),
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
        copied = {path: tag for path, (why, tag) in outcome.items() if why is None and tag is not None}
        still = self._each(list(copied.items()), lambda found: self._still(*found))
        told: dict[str, str | None] = {path: why for path, (why, _) in outcome.items()}
        told |= {path: CHANGED for path, same in zip(copied, still, strict=True) if not same}
        told |= dict(self.delete([path for path, same in zip(copied, still, strict=True) if same]))
        return told

    def _copy_expected(self, file: Move) -> tuple[str | None, str | None]:
        try:
            found = self._head(file.path)
            if found is None or not self.same(file.expected, _stat(found)):
                return CHANGED, None
            if self._head(file.to) is not None:
                return "there is an object in quarantine already where it was to go", None
            self._copy(file.path, file.to, found)
        except StorageError as e:
            return e.message, None
        return None, _tag(found)

    def _still(self, path: str, tag: str) -> bool:
        try:
            found = self._head(path)
        except StorageError:
            return False
        return found is not None and _tag(found) == tag

    def _copy(self, source: str, target: str, head: Mapping[str, Any]) -> None:
        if head["ContentLength"] > COPY_BYTES_MAX:
            raise StorageError(f"{source} is larger than the store copies at once")
        bucket, key = _place(source)
        to_bucket, to_key = _place(target)
        ask: dict[str, Any] = {"Bucket": to_bucket, "Key": to_key, "CopySource": {"Bucket": bucket, "Key": key}}
        if tag := head.get("ETag"):
            try:
                self._ask("copy_object", source, **ask, CopySourceIfMatch=tag)
                return
            except _Refused as e:
                if e.status not in _NO_CONDITIONS:
                    raise
        # Not every store has tags, or takes a condition for a copy. Then a look right before has to do, and for what is
        # set aside there is another one after the copy, before the original goes. It is enough: nobody writes a data or
        # metadata file of a table twice under one name, and whatever is that young is not touched at all.
        now = self._head(source)
        if now is None or _tag(now) != _tag(head):
            raise StorageError(f"{source}: {CHANGED}")
        self._ask("copy_object", source, **ask)

    def bring_back(self, kept_at: str, to: str) -> bool:
        kept = self._head(kept_at)
        if kept is None or self._head(to) is not None:
            return False
        self._copy(kept_at, to, kept)
        failed = self.delete([kept_at])
        if failed:
            raise StorageError(f"{to} is back, and its copy in quarantine cannot be deleted: {failed[kept_at]}")
        return True

    def delete(self, paths: Sequence[str]) -> Mapping[str, str]:
        failed: dict[str, str] = {}
        by_bucket: dict[str, list[str]] = {}
        for path in paths:
            by_bucket.setdefault(_place(path)[0], []).append(_place(path)[1])
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

    def _head(self, path: str) -> Mapping[str, Any] | None:
        bucket, key = _place(path)
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
            raise _Refused(f"{what}: the store refused ({status} {code})", status) from None
        except BotoCoreError as e:
            raise StorageError(f"{what}: the store cannot be reached ({type(e).__name__})") from None

    def _each(self, items: Sequence[_S], work: Callable[[_S], _T]) -> list[_T]:
        with ThreadPoolExecutor(self._at_once) as pool:
            return list(pool.map(work, items))


def _tag(head: Mapping[str, Any]) -> str:
    """What tells one content from another. A gateway over a folder has none for a file that was put there past it."""
    return f"{head.get('ETag') or ''} {head['ContentLength']} {head['LastModified']}"


def _stat(head: Mapping[str, Any]) -> Stat:
    return Stat(int(head["ContentLength"]), int(head["LastModified"].timestamp()) * _SECOND_NS)


def _place(path: str) -> tuple[str, str]:
    bucket, _, key = path.removeprefix("s3://").partition("/")
    return bucket, key
