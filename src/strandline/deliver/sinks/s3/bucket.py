"""A bucket of any S3-compatible store, and what its refusals mean.

botocore rather than obstore, which the witness uses: an object larger than one put is created under a condition, with
its identity as metadata, only by a multipart upload whose completion carries `If-None-Match`, and obstore has either
the condition or the metadata. Nothing that botocore says is passed on as it is: its texts and its causes may hold
signed headers.
"""

from __future__ import annotations

import io
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, auto
from functools import lru_cache
from typing import IO, Any

from strandline.core.errors import StorageError
from strandline.core.types import Seq
from strandline.deliver.sinks.blobs import names
from strandline.deliver.sinks.blobs.blob_sink import Look, looked

_WAIT_SECONDS_MAX = 300.0
"""Of what a store may ask for in `Retry-After`."""
_REFUSED = frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "AccessDenied"})


class Why(Enum):
    """How a request can fail."""

    TAKEN = auto()
    """412: the condition did not hold."""
    BUSY = auto()
    """409: another request for the same key is under way."""
    SLOW = auto()
    """429, 5xx: it was answered, and the answer was no."""
    UNREACHED = auto()
    """Nothing was sent."""
    CUT = auto()
    """It was sent, and no answer came: it may be done, or under way."""
    MISSING = auto()
    NO_UPLOAD = auto()
    DENIED = auto()
    OTHER = auto()


class Trouble(Exception):
    """A request that failed, in words that hold no secrets."""

    def __init__(self, why: Why, words: str, wait_seconds: float | None = None) -> None:
        super().__init__(words)
        self.why = why
        self.words = words
        self.wait_seconds = wait_seconds

    @property
    def passing(self) -> bool:
        """Whether asking again soon may help."""
        return self.why in (Why.SLOW, Why.UNREACHED, Why.CUT)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long one request, and one piece of work with all its attempts, may take."""

    attempts_max: int = 4
    total_seconds_max: float = 15.0
    """No attempt begins later: the executor has other chunks, and the next tick comes."""
    first_pause_seconds: float = 0.2
    connect_timeout_seconds: float = 3.0
    read_timeout_seconds: float = 20.0

    def attempts(self) -> Iterator[int]:
        """Pauses between one and the next: twice as long each time, and never in step with another's."""
        began = time.monotonic()
        for attempt in range(self.attempts_max):
            if attempt:
                pause = self.first_pause_seconds * 2 ** (attempt - 1) * random.uniform(0.5, 1.5)
                if time.monotonic() + pause - began > self.total_seconds_max:
                    return
                time.sleep(pause)
            yield attempt


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    size: int
    modified: datetime


@dataclass(frozen=True, slots=True)
class Bucket:
    """The place of an `s3` sink. Pickled as it is: clients belong to a process."""

    bucket: str
    prefix: str
    endpoint: str | None
    region: str | None
    access_key: str | None = field(repr=False)
    secret_key: str | None = field(repr=False)
    patience: Patience = Patience()

    def key(self, name: str) -> str:
        return f"{self.prefix}/{name}" if self.prefix else name

    def call(self, operation: str, **parameters: Any) -> Any:
        """One request, once."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return getattr(_client(self), operation)(Bucket=self.bucket, **parameters)
        except (BotoCoreError, ClientError) as e:
            raise self._trouble(e) from None

    def ask(self, operation: str, **parameters: Any) -> Any:
        """A request that changes nothing, or the same thing every time: tried again where that may help."""
        trouble: Trouble | None = None
        for _ in self.patience.attempts():
            try:
                return self.call(operation, **parameters)
            except Trouble as t:
                if not t.passing:
                    raise
                trouble = t
        raise trouble or Trouble(Why.UNREACHED, "there was no time to ask")

    def _trouble(self, error: Exception) -> Trouble:
        from botocore import exceptions as boto

        if isinstance(error, boto.ClientError):
            return self._answered(error.response)
        where = names.endpoint_name(self.endpoint)
        match error:
            case boto.NoCredentialsError() | boto.PartialCredentialsError() | boto.CredentialRetrievalError():
                return Trouble(Why.DENIED, "there are no credentials for the bucket")
            case boto.EndpointConnectionError() | boto.ConnectTimeoutError() | boto.ProxyConnectionError():
                return Trouble(Why.UNREACHED, f"the store at {where} cannot be reached")
            case boto.ReadTimeoutError():
                return Trouble(Why.CUT, f"the store at {where} did not answer in time")
            case boto.HTTPClientError() | boto.ResponseStreamingError() | boto.IncompleteReadError():
                return Trouble(Why.CUT, f"the connection to the store at {where} was cut")
            case _:
                return Trouble(Why.OTHER, f"the request could not be made: {type(error).__name__}")

    def _answered(self, response: Any) -> Trouble:
        code = str(response.get("Error", {}).get("Code", ""))
        meta = response.get("ResponseMetadata", {})
        status = int(meta.get("HTTPStatusCode", 0))
        asked = str(meta.get("HTTPHeaders", {}).get("retry-after", ""))
        wait = min(float(asked), _WAIT_SECONDS_MAX) if asked.isascii() and asked.isdigit() else None
        said = f"{status} {code}" if code and code != str(status) else str(status)
        if status in (401, 403) or code in _REFUSED:
            return Trouble(Why.DENIED, f"the credentials were refused for the bucket {self.bucket} ({said})")
        if code == "NoSuchBucket":
            return Trouble(Why.OTHER, f"there is no bucket {self.bucket}")
        if code == "NoSuchUpload":
            return Trouble(Why.NO_UPLOAD, "the upload was called off")
        if status == 404:
            return Trouble(Why.MISSING, f"there is no such object in the bucket {self.bucket}")
        if status == 412:
            return Trouble(Why.TAKEN, "there is an object of that name")
        if status == 409:
            return Trouble(Why.BUSY, f"another request for the same object is under way ({said})", wait)
        if status == 429 or status >= 500 or code in ("SlowDown", "InternalError", "RequestTimeout"):
            return Trouble(Why.SLOW, f"the store is not able to answer now ({said})", wait)
        return Trouble(Why.OTHER, f"the store refused the request ({said})")

    # As a place.

    def look(self, lane: str, after: Seq | None) -> Look:
        """One listing: `_marks/` sorts behind all numbers."""
        objects: list[tuple[str, int | None]] = []
        marks: list[str] = []
        for entry in self._list(f"{lane}/", None if after is None else f"{after:019d}"):
            folder, _, last = entry.name.rpartition("/")
            if folder == names.MARKS:
                marks.append(last)
            elif not folder:
                objects.append((last, entry.size))
        return looked(objects, marks)

    def mark(self, lane: str) -> tuple[Seq, datetime] | None:
        """The lane's mark, and when it was written by the store's clock."""
        found = ((names.mark_of(e.name), e.modified) for e in self._list(f"{lane}/{names.MARKS}/", None))
        return max(((mark, modified) for mark, modified in found if mark is not None), default=None)

    def names(self, folder: str) -> list[str]:
        return [entry.name for entry in self._list(f"{folder}/", None) if "/" not in entry.name]

    def _list(self, folder: str, after: str | None) -> Iterator[_Entry]:
        """What lies below a folder, in the order of names; all that come after a name."""
        prefix = self.key(folder)
        parameters: dict[str, str] = {"Prefix": prefix}
        if after is not None:
            parameters["StartAfter"] = prefix + after
        while True:
            page = self._asked("list_objects_v2", **parameters)
            for entry in page.get("Contents", ()):
                yield _Entry(entry["Key"][len(prefix) :], int(entry["Size"]), entry["LastModified"])
            if not page.get("IsTruncated"):
                return
            parameters["ContinuationToken"] = page["NextContinuationToken"]

    def head(self, name: str) -> Any | None:
        try:
            return self.ask("head_object", Key=self.key(name))
        except Trouble as t:
            if t.why is Why.MISSING:
                return None
            raise BucketError(t) from None

    def fetch(self, name: str) -> tuple[IO[bytes], dict[str, str]] | None:
        """A whole object and its metadata."""
        from botocore.exceptions import BotoCoreError

        trouble: Trouble | None = None
        for _ in self.patience.attempts():
            try:
                found = self.call("get_object", Key=self.key(name))
                return io.BytesIO(found["Body"].read()), found["Metadata"]
            except Trouble as t:
                if t.why is Why.MISSING:
                    return None
                trouble = t
                if not t.passing:
                    break
            except BotoCoreError as e:  # while its body was read
                trouble = self._trouble(e)
        raise BucketError(trouble or Trouble(Why.UNREACHED, "there was no time to ask"))

    def read(self, name: str) -> bytes | None:
        found = self.fetch(name)
        return None if found is None else found[0].read()

    def create(self, name: str, body: bytes) -> bool:
        # A second attempt may meet what the first one left behind: `TAKEN` then says so, and the caller reads it.
        try:
            self._asked("put_object", Key=self.key(name), Body=body, IfNoneMatch="*")
        except Trouble as t:
            if t.why is Why.TAKEN:
                return False
            raise
        return True

    def remove(self, name: str) -> None:
        self._asked("delete_object", Key=self.key(name))

    def _asked(self, operation: str, **parameters: Any) -> Any:
        """As a place raises it; what a condition said stays as it is."""
        try:
            return self.ask(operation, **parameters)
        except Trouble as t:
            if t.why is Why.TAKEN:
                raise
            raise BucketError(t) from None


class BucketError(StorageError):
    """A `StorageError` that a sender can take apart again."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(trouble.words)
        self.trouble = trouble


_making_clients = threading.Lock()


def _client(bucket: Bucket) -> Any:
    with _making_clients:
        return _cached_client(bucket.endpoint, bucket.region, bucket.access_key, bucket.secret_key, bucket.patience)


@lru_cache(maxsize=16)
def _cached_client(
    endpoint: str | None, region: str | None, access_key: str | None, secret_key: str | None, patience: Patience
) -> Any:
    """One for all senders of a process: making one takes a tenth of a second."""
    import botocore.session
    from botocore.config import Config

    session = botocore.session.get_session()
    return session.create_client(
        "s3",
        endpoint_url=endpoint,
        region_name=region or session.get_config_variable("region") or "us-east-1",
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        config=Config(
            connect_timeout=patience.connect_timeout_seconds,
            read_timeout=patience.read_timeout_seconds,
            # Every attempt is counted here and preceded by a look: the library must not send a put by itself again.
            retries={"total_max_attempts": 1},
            max_pool_connections=32,
            # Where it delivers to is what the sink's options say, not what the environment adds.
            ignore_configured_endpoint_urls=True,
            # The signature covers the body, which every store checks; newer checksums are not known to all of them.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"addressing_style": "path" if endpoint else "auto", "payload_signing_enabled": True},
        ),
    )
