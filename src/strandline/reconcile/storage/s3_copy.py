"""Copies exactly the object that was checked, within the store: with an ETag condition if the store supports it. An
object that is too large for one request is copied in parts, and appears when all parts are copied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from strandline.core.errors import StorageError
from strandline.storage.cross_device_move import CHANGED
from strandline.storage.s3_client import RequestFailed
from strandline.storage.s3_settings import split_url

COPY_BYTES_MAX = 5 << 30  # the most that stores copy in one request
PART_BYTES = 256 << 20  # small enough to be copied within the request timeout
PARTS_MAX = 10_000
_NO_CONDITIONS = frozenset({400, 412, 501})
_KEPT_HEADERS = ("CacheControl", "ContentDisposition", "ContentEncoding", "ContentLanguage", "ContentType", "Metadata")

SendRequest = Callable[..., Any]  # takes an operation of the store, its subject and its parameters
Condition = Mapping[str, str]


def tag(head: Mapping[str, Any]) -> str:
    """Identifies a content. A gateway over a folder has no ETag for a file that was not written through it."""
    return f"{head.get('ETag') or ''} {head['ContentLength']} {head['LastModified']}"


def copy(
    ask: SendRequest, find: Callable[[str], Mapping[str, Any] | None], source: str, target: str, head: Mapping[str, Any]
) -> None:
    way = _at_once if head["ContentLength"] <= COPY_BYTES_MAX else _in_parts
    if etag := head.get("ETag"):
        try:
            way(ask, source, target, head, {"CopySourceIfMatch": etag}, lambda: None)
            return
        except RequestFailed as e:
            if e.status not in _NO_CONDITIONS:
                raise

    # Not every store has ETags, or supports conditions for a copy. Then a check right before has to do, and for files
    # that go to quarantine another one follows after the copy, before the original is deleted. That is enough: no
    # writer writes a data or metadata file twice under one name, and files so young are not touched at all.
    def check() -> None:
        now = find(source)
        if now is None or tag(now) != tag(head):
            raise StorageError(f"{source}: {CHANGED}")

    way(ask, source, target, head, {}, check)


def _at_once(
    ask: SendRequest, source: str, target: str, head: Mapping[str, Any], condition: Condition, check: Callable[[], None]
) -> None:
    check()
    ask("copy_object", source, **_to(target), **_from(source), **condition)


def _in_parts(
    ask: SendRequest, source: str, target: str, head: Mapping[str, Any], condition: Condition, check: Callable[[], None]
) -> None:
    check()
    size = int(head["ContentLength"])
    part_bytes = max(PART_BYTES, -(-size // PARTS_MAX))
    kept = {name: head[name] for name in _KEPT_HEADERS if head.get(name)}
    upload = {**_to(target), "UploadId": ask("create_multipart_upload", target, **_to(target), **kept)["UploadId"]}
    try:
        parts = []
        for number, start in enumerate(range(0, size, part_bytes), 1):
            span = f"bytes={start}-{min(start + part_bytes, size) - 1}"
            made = ask(
                "upload_part_copy", source, **upload, **_from(source), **condition, PartNumber=number,
                CopySourceRange=span,
            )  # fmt: skip
            parts.append({"PartNumber": number, "ETag": made["CopyPartResult"]["ETag"]})
        check()
        ask("complete_multipart_upload", target, **upload, MultipartUpload={"Parts": parts})
    except BaseException:
        with suppress(StorageError):
            ask("abort_multipart_upload", target, **upload)
        raise


def _to(target: str) -> dict[str, str]:
    bucket, key = split_url(target)
    return {"Bucket": bucket, "Key": key}


def _from(source: str) -> dict[str, Any]:
    bucket, key = split_url(source)
    return {"CopySource": {"Bucket": bucket, "Key": key}}
