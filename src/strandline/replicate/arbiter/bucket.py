"""The arbiter's record as one object in a bucket, replaced with `If-Match`."""

from __future__ import annotations

from strandline.core.errors import StorageError
from strandline.core.sites.arbiter import CellMoved, CellUnclear, StoredRecord
from strandline.storage.s3_client import RequestFailed, RequestFailure, S3Client
from strandline.storage.s3_settings import S3Settings, arbiter_limits, split_url

# Failures of a put after which nothing was written. After any other, the store may have the object.
_NOTHING_DONE = (RequestFailure.NOT_SENT, RequestFailure.NO_BUCKET, RequestFailure.DENIED, RequestFailure.OTHER)
_MOVED = (RequestFailure.CONDITION, RequestFailure.NOT_FOUND)


class BucketCell:
    def __init__(self, url: str, settings: S3Settings, call_seconds_max: float) -> None:
        self._url = url
        self._bucket, self._key = split_url(url)
        self._client = S3Client(settings, arbiter_limits(call_seconds_max))

    @property
    def place(self) -> str:
        return self._url

    def read(self) -> StoredRecord | None:
        try:
            found = self._client.get(self._bucket, self._key)
        except RequestFailed as e:
            raise StorageError(f"the arbiter at {self.place} cannot be read: {e.message}") from e
        return None if found is None else StoredRecord(found[0], str(found[1]["ETag"]))

    def write(self, body: bytes, *, over: str | None) -> str:
        condition = {"IfNoneMatch": "*"} if over is None else {"IfMatch": over}
        try:
            # No retry: a second attempt could not tell its own first put from another writer's.
            answer = self._client.call("put_object", Bucket=self._bucket, Key=self._key, Body=body, **condition)
        except RequestFailed as e:
            if e.failure in _MOVED:
                raise CellMoved from None
            if e.failure in _NOTHING_DONE:
                raise StorageError(f"the arbiter at {self.place} cannot be written: {e.message}") from e
            raise CellUnclear(f"the arbiter at {self.place} did not confirm the write: {e.message}") from e
        return str(answer["ETag"])
