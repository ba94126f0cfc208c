"""Sends requests to an S3-compatible store through botocore, and classifies its answers.

No text of botocore is passed on: its messages and causes may contain signed headers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from enum import Enum
from functools import lru_cache
from typing import Any

from strandline.core.errors import StorageError
from strandline.storage.s3_settings import RequestLimits, S3Settings, store_name

_WAIT_SECONDS_MAX = 300.0  # upper bound for `Retry-After`
_CONNECTIONS_MAX = 64
_DELETES_AT_ONCE_MAX = 1_000
_REFUSED = frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "AccessDenied"})
_BUSY = frozenset({"SlowDown", "InternalError", "RequestTimeout"})
_NOT_IMPLEMENTED = 501


class RequestFailure(Enum):
    """How a request can fail. The value is a description without names or addresses."""

    CONDITION = "the condition of the request does not hold"  # 412
    CONFLICT = "another request for the same object is under way"  # 409
    UNAVAILABLE = "the store is not able to answer now"  # 429, 5xx: the store answered, and refused
    NOT_SENT = "the store cannot be reached"
    UNKNOWN = "the store did not answer"  # it was sent, and no answer came: it may be done, or under way
    NOT_FOUND = "the object does not exist"
    NO_BUCKET = "there is no such bucket"
    NO_UPLOAD = "the upload was aborted"
    DENIED = "the credentials were refused"
    OTHER = "the store refused the request"


class RequestFailed(StorageError):
    """Its message contains no secrets."""

    def __init__(
        self, failure: RequestFailure, message: str, *, status: int | None = None, wait_seconds: float | None = None
    ) -> None:
        super().__init__(message)
        self.failure = failure
        self.status = status  # of the answer, if there was one
        self.wait_seconds = wait_seconds  # from the store's `Retry-After`
        self.is_final = False  # whether there are no attempts left

    @property
    def is_passing(self) -> bool:
        """Whether a retry soon may help."""
        return self.failure in (RequestFailure.UNAVAILABLE, RequestFailure.NOT_SENT, RequestFailure.UNKNOWN)


class S3Client:
    """Can be pickled: connections belong to the process, and all equal clients share them."""

    def __init__(self, settings: S3Settings, limits: RequestLimits) -> None:
        self.settings = settings
        self.limits = limits

    def call(self, operation: str, /, **parameters: Any) -> Any:
        """Sends one request, once: an operation of botocore's client, and its parameters. Raises RequestFailed."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return getattr(_botocore(self.settings, self.limits), operation)(**parameters)
        except (BotoCoreError, ClientError) as e:
            raise self._failed(e, str(parameters.get("Bucket", ""))) from None

    def retry(self, operation: str, /, **parameters: Any) -> Any:
        """For requests that are idempotent. Raises RequestFailed."""
        return self._send(False, operation, parameters)[0]

    def get(self, bucket: str, key: str, **parameters: Any) -> tuple[bytes, Any] | None:
        """An object, or a range of it, and the store's answer; None if it does not exist. Retries a truncated body."""
        try:
            answer, body = self._send(True, "get_object", {"Bucket": bucket, "Key": key, **parameters})
        except RequestFailed as e:
            if e.failure is RequestFailure.NOT_FOUND:
                return None
            raise
        return body, answer

    def head(self, bucket: str, key: str) -> Any | None:
        """The store's answer about an object; None if there is no such object."""
        try:
            return self.retry("head_object", Bucket=bucket, Key=key)
        except RequestFailed as e:
            if e.failure is RequestFailure.NOT_FOUND:
                return None
            raise

    def delete(self, bucket: str, keys: Sequence[str]) -> dict[str, RequestFailed]:
        """Deletes the objects; returns the keys that could not be deleted, and why. Missing objects are fine."""
        failed: dict[str, RequestFailed] = {}
        for start in range(0, len(keys), _DELETES_AT_ONCE_MAX):
            some = keys[start : start + _DELETES_AT_ONCE_MAX]
            objects = {"Objects": [{"Key": key} for key in some], "Quiet": True}
            try:
                errors = self.retry("delete_objects", Bucket=bucket, Delete=objects).get("Errors", ())
            except RequestFailed as e:
                failed |= dict.fromkeys(some, e)
            else:
                failed |= {e["Key"]: RequestFailed(RequestFailure.OTHER, str(e.get("Code", "refused"))) for e in errors}
        return failed

    def list_objects(self, bucket: str, prefix: str, *, after: str | None = None) -> Iterator[dict[str, Any]]:
        """The objects whose keys begin with `prefix`, in the order of keys, after the key `after`."""
        parameters = {"Prefix": prefix} | ({} if after is None else {"StartAfter": after})
        for page in self._pages(bucket, parameters):
            yield from page.get("Contents", ())

    def list_folders(self, bucket: str, prefix: str) -> set[str]:
        """The names of the folders below `prefix`, which ends with a slash."""
        pages = self._pages(bucket, {"Prefix": prefix, "Delimiter": "/"})
        return {f["Prefix"][len(prefix) : -1] for page in pages for f in page.get("CommonPrefixes", ())}

    def _pages(self, bucket: str, parameters: dict[str, str]) -> Iterator[dict[str, Any]]:
        while True:
            page = self.retry("list_objects_v2", Bucket=bucket, **parameters)
            yield page
            if not page.get("IsTruncated"):
                return
            if not page.get("NextContinuationToken"):
                where = f"s3://{bucket}/{parameters['Prefix']}"
                raise RequestFailed(RequestFailure.OTHER, f"the listing of {where} ends early")
            parameters = parameters | {"ContinuationToken": page["NextContinuationToken"]}

    def _send(self, with_body: bool, operation: str, parameters: dict[str, Any]) -> tuple[Any, bytes]:
        from botocore.exceptions import BotoCoreError

        for attempt in self.limits.attempts():
            try:
                answer = self.call(operation, **parameters)
                return answer, answer["Body"].read() if with_body else b""
            except RequestFailed as e:
                failed = e
            except BotoCoreError as e:  # while the body was read
                failed = self._failed(e, "")
            if attempt.is_last or not failed.is_passing:
                failed.is_final = True
                raise failed from None
        raise AssertionError("unreachable")

    def _failed(self, error: Exception, bucket: str) -> RequestFailed:
        from botocore import exceptions as boto

        if isinstance(error, boto.ClientError):
            return _refused(error.response, bucket)
        where = store_name(self.settings.endpoint)
        match error:
            case boto.NoCredentialsError() | boto.PartialCredentialsError() | boto.CredentialRetrievalError():
                return RequestFailed(RequestFailure.DENIED, "there are no credentials for the bucket")
            case boto.EndpointConnectionError() | boto.ConnectTimeoutError() | boto.ProxyConnectionError():
                return RequestFailed(RequestFailure.NOT_SENT, f"the store at {where} cannot be reached")
            case boto.ReadTimeoutError():
                return RequestFailed(RequestFailure.UNKNOWN, f"the store at {where} did not answer in time")
            case boto.HTTPClientError() | boto.ResponseStreamingError() | boto.IncompleteReadError():
                return RequestFailed(RequestFailure.UNKNOWN, f"the connection to the store at {where} was cut")
            case _:
                return RequestFailed(RequestFailure.OTHER, f"the request could not be made: {type(error).__name__}")


def _refused(response: Any, bucket: str) -> RequestFailed:
    code = str(response.get("Error", {}).get("Code", ""))
    meta = response.get("ResponseMetadata", {})
    status = int(meta.get("HTTPStatusCode", 0))
    retry_after = str(meta.get("HTTPHeaders", {}).get("retry-after", ""))
    wait = min(float(retry_after), _WAIT_SECONDS_MAX) if retry_after.isascii() and retry_after.isdigit() else None
    shown = f"{status} {code}" if code and code != str(status) else str(status)
    if status in (401, 403) or code in _REFUSED:
        failure, words = RequestFailure.DENIED, f"the credentials were refused for the bucket {bucket} ({shown})"
    elif code == "NoSuchBucket":
        failure, words = RequestFailure.NO_BUCKET, f"there is no bucket {bucket}"
    elif code == "NoSuchUpload":
        failure, words = RequestFailure.NO_UPLOAD, "the upload was aborted"
    elif status == 404:
        failure, words = RequestFailure.NOT_FOUND, f"there is no such object in the bucket {bucket}"
    elif status == 412:
        failure, words = RequestFailure.CONDITION, f"the condition of the request does not hold ({shown})"
    elif status == 409:
        failure, words = RequestFailure.CONFLICT, f"another request for the same object is under way ({shown})"
    elif status == 429 or (status >= 500 and status != _NOT_IMPLEMENTED) or code in _BUSY:
        failure, words = RequestFailure.UNAVAILABLE, f"the store is not able to answer now ({shown})"
    else:
        failure, words = RequestFailure.OTHER, f"the store refused the request ({shown})"
    return RequestFailed(failure, words, status=status, wait_seconds=wait)


_making_clients = threading.Lock()


def _botocore(settings: S3Settings, limits: RequestLimits) -> Any:
    with _making_clients:
        return make_client(settings, limits.connect_timeout_seconds, limits.read_timeout_seconds)


@lru_cache(maxsize=16)
def make_client(
    settings: S3Settings,
    connect_timeout_seconds: float,
    read_timeout_seconds: float,
    signature_version: str | None = None,
) -> Any:
    """One for all threads of a process, because creating one takes a tenth of a second."""
    import botocore.session
    from botocore.config import Config

    session = botocore.session.get_session()
    return session.create_client(
        "s3",
        endpoint_url=settings.endpoint,
        region_name=settings.region or session.get_config_variable("region") or "us-east-1",
        aws_access_key_id=settings.access_key,
        aws_secret_access_key=settings.secret_key,
        config=Config(
            connect_timeout=connect_timeout_seconds,
            read_timeout=read_timeout_seconds,
            # `RequestLimits` counts every attempt: the library must not repeat a put by itself.
            retries={"total_max_attempts": 1},
            max_pool_connections=_CONNECTIONS_MAX,
            ignore_configured_endpoint_urls=not settings.endpoint_from_environment,
            # The signature covers the body, and every store checks it; not all stores know the newer checksums.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            signature_version=signature_version,
            s3={"addressing_style": "path" if settings.is_path_style else "auto", "payload_signing_enabled": True},
        ),
    )
