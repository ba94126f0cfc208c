"""The bucket of an `s3` sink: lists its lanes, and writes objects conditionally."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import IO, Any
from urllib.parse import urlsplit

from strandline.core.errors import UsageError
from strandline.core.types import Seq
from strandline.deliver.sinks.blobs import names
from strandline.deliver.sinks.blobs.blob_sink import LaneListing, lane_listing
from strandline.storage.s3_client import RequestFailed, RequestFailure, S3Client
from strandline.storage.s3_settings import SINK_LIMITS, RequestLimits, S3Settings


@dataclass(frozen=True, slots=True)
class SinkBucket:
    """The place of an `s3` sink. It is pickled as it is."""

    bucket: str
    prefix: str
    settings: S3Settings
    limits: RequestLimits = SINK_LIMITS

    def key(self, name: str) -> str:
        return f"{self.prefix}/{name}" if self.prefix else name

    def call(self, operation: str, **parameters: Any) -> Any:
        """One request, without retries."""
        return self._client().call(operation, Bucket=self.bucket, **parameters)

    def retry(self, operation: str, **parameters: Any) -> Any:
        """For a request that changes nothing, or the same thing every time: retried if that may help."""
        return self._client().retry(operation, Bucket=self.bucket, **parameters)

    def _client(self) -> S3Client:
        return S3Client(self.settings, self.limits)

    def destination(self, dataset: str) -> str:
        return names.s3_destination(self.bucket, self.prefix, dataset, self.settings.endpoint)

    def list_lane(self, lane: str, after: Seq | None) -> LaneListing:
        """One listing is enough: `_marks/` sorts after all numbers."""
        objects: list[tuple[str, int | None]] = []
        marks: list[str] = []
        for name, entry in self._list(f"{lane}/", None if after is None else f"{after:019d}"):
            folder, _, last = name.rpartition("/")
            if folder == names.MARKS:
                marks.append(last)
            elif not folder:
                objects.append((last, int(entry["Size"])))
        return lane_listing(objects, marks)

    def mark(self, lane: str) -> tuple[Seq, datetime] | None:
        """The lane's watermark, and when it was written by the store's clock."""
        found = (
            (names.parse_watermark_name(name), e["LastModified"]) for name, e in self._list(f"{lane}/{names.MARKS}/")
        )
        return max(((mark, modified) for mark, modified in found if mark is not None), default=None)

    def names(self, folder: str) -> list[str]:
        return [name for name, _ in self._list(f"{folder}/") if "/" not in name]

    def _list(self, folder: str, after: str | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
        """Objects below a folder with their attributes, ordered by name; those after the name `after`."""
        prefix = self.key(folder)
        for entry in self._client().list_objects(self.bucket, prefix, after=None if after is None else prefix + after):
            yield entry["Key"][len(prefix) :], entry

    def head(self, name: str) -> Any | None:
        return self._client().head(self.bucket, self.key(name))

    def fetch(self, name: str) -> tuple[IO[bytes], dict[str, str]] | None:
        """A whole object and its metadata."""
        found = self._client().get(self.bucket, self.key(name))
        return None if found is None else (io.BytesIO(found[0]), found[1]["Metadata"])

    def read(self, name: str) -> bytes | None:
        found = self.fetch(name)
        return None if found is None else found[0].read()

    def create(self, name: str, body: bytes) -> bool:
        # A retry may meet the object of the first attempt: the condition then fails, and the caller reads the object.
        try:
            self.retry("put_object", Key=self.key(name), Body=body, IfNoneMatch="*")
        except RequestFailed as e:
            if e.failure is RequestFailure.CONDITION:
                return False
            raise
        return True

    def remove(self, name: str) -> None:
        self.retry("delete_object", Key=self.key(name))


def parse_url(url: str) -> tuple[str, str]:
    scheme, _, rest = url.partition("://")
    bucket, _, prefix = rest.partition("/")
    prefix = prefix.strip("/")
    if scheme != "s3" or not bucket or "@" in bucket:
        raise UsageError("url is not the address of a bucket", hint="Write it as s3://bucket or s3://bucket/prefix.")
    if prefix and any(part in ("", ".", "..") for part in prefix.split("/")):
        raise UsageError(f"the prefix of {url} has an empty part, `.` or `..` in it")
    if names.names_a_generation(prefix):
        raise UsageError(
            f"{url} lies inside a prefix `generation=N`", hint="Sinks keep their later generations under such prefixes."
        )
    return bucket, prefix


def parse_endpoint(endpoint: str | None) -> str | None:
    if endpoint is None:
        return None
    hint = "Write it as https://host or http://host:port."
    try:
        parts = urlsplit(endpoint)
        host = parts.hostname
    except ValueError:
        raise UsageError("endpoint is not the address of a store", hint=hint) from None
    if parts.scheme not in ("http", "https") or not host:
        raise UsageError("endpoint is not the address of a store", hint=hint)
    if parts.username is not None or parts.password is not None or parts.query:
        raise UsageError("endpoint holds more than an address", hint="Credentials go into access_key and secret_key.")
    return endpoint.rstrip("/")
