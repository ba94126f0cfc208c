"""How to use an S3-compatible store: address, credentials, path style and time limits, for every library."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from strandline.core.errors import ConfigError
from strandline.core.retry import Attempt, RetryPolicy
from strandline.core.secrets import resolve_key
from strandline.core.settings.lake_config import WarehouseSettings

TABLE_CONNECT_SECONDS_MAX = 10
# for the files of tables; pyarrow's own limits, 1 s to connect and 3 s for an answer, are too short for a busy store
TABLE_REQUEST_SECONDS_MAX = 60


@dataclass(frozen=True, slots=True)
class S3Settings:
    """Address and credentials of a store. Can be pickled, and used as a key: clients belong to a process."""

    endpoint: str | None  # None for Amazon S3
    region: str | None  # None: as in AWS's default chain
    access_key: str | None = field(repr=False, default=None)  # None, like `secret_key`: from AWS's default chain
    secret_key: str | None = field(repr=False, default=None)
    # whether `AWS_ENDPOINT_URL` counts without an `endpoint`; not for a sink, which delivers to what its options say
    endpoint_from_environment: bool = False

    @classmethod
    def of_warehouse(cls, warehouse: WarehouseSettings) -> S3Settings:
        access, secret = resolve_key(warehouse.access_key), resolve_key(warehouse.secret_key)
        return cls(warehouse.endpoint, warehouse.region, access, secret, endpoint_from_environment=True)

    @property
    def is_path_style(self) -> bool:
        """Bucket names in the path: a store other than Amazon's seldom has a host name for each bucket."""
        return self.endpoint is not None

    def pyarrow_options(self) -> dict[str, Any]:
        """For `pyarrow.fs.S3FileSystem`, which chooses the path style by itself in the same way."""
        found = {
            "endpoint_override": self.endpoint,
            "region": self.region,
            "access_key": self.access_key,
            "secret_key": self.secret_key,
            "connect_timeout": TABLE_CONNECT_SECONDS_MAX,
            "request_timeout": TABLE_REQUEST_SECONDS_MAX,
        }
        return {key: value for key, value in found.items() if value is not None}

    def pyiceberg_options(self) -> dict[str, str]:
        """Catalog options, for PyIceberg's `PyArrowFileIO`."""
        found = {
            "s3.endpoint": self.endpoint,
            "s3.region": self.region,
            "s3.access-key-id": self.access_key,
            "s3.secret-access-key": self.secret_key,
            "s3.connect-timeout": str(TABLE_CONNECT_SECONDS_MAX),
            "s3.request-timeout": str(TABLE_REQUEST_SECONDS_MAX),
        }
        return {key: value for key, value in found.items() if value is not None}

    def spark_options(self) -> dict[str, str]:
        """Catalog options, for Iceberg's `S3FileIO`. Raises `ConfigError` if only one of the two keys is set."""
        if (self.access_key is None) != (self.secret_key is None):
            raise ConfigError(
                "warehouse.access_key and warehouse.secret_key belong together, and only one is set",
                hint="Set both, or none to use the usual chain of AWS.",
            )
        found = {
            "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
            "client.region": self.region,
            "s3.endpoint": self.endpoint,
            "s3.path-style-access": "true" if self.is_path_style else None,
            "s3.access-key-id": self.access_key,
            "s3.secret-access-key": self.secret_key,
        }
        return {key: value for key, value in found.items() if value is not None}


def send_no_trailers(warehouse: WarehouseSettings) -> None:
    """Keeps pyarrow from sending a checksum after a chunked upload. Stores other than Amazon's may not read it, and
    then refuse the next request on the same connection (seen in one upload of ten). pyarrow reads this setting only
    from the environment. The user's own setting stays. A lake calls this when it is created, because a later change
    would affect threads that read the environment."""
    if warehouse.is_s3 and warehouse.endpoint is not None:
        no_trailers()


def no_trailers() -> None:
    os.environ.setdefault("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")


def store_name(endpoint: str | None) -> str:
    """For messages and comparisons: two spellings of one address become one."""
    return "aws" if endpoint is None else endpoint.rstrip("/").partition("://")[2].lower()


def split_url(url: str) -> tuple[str, str]:
    """Bucket and key, or bucket and prefix, of `s3://bucket/…`."""
    bucket, _, key = url.removeprefix("s3://").partition("/")
    return bucket, key


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """How long one request may take, and an operation with all its attempts."""

    attempts_max: int
    total_seconds_max: float  # no attempt begins later
    connect_timeout_seconds: float
    read_timeout_seconds: float
    first_pause_seconds: float = 0.2

    def attempts(self, pause: Callable[[float], object] | None = None) -> Iterator[Attempt]:
        policy = RetryPolicy(self.first_pause_seconds, math.inf, self.attempts_max, self.total_seconds_max)
        return policy.attempts(pause)


# short: an executor has other chunks to send, and the next tick comes soon
SINK_LIMITS = RequestLimits(4, total_seconds_max=15, connect_timeout_seconds=3, read_timeout_seconds=20)
# for the lake's own objects; a client of the receiver may wait for them
WAREHOUSE_LIMITS = RequestLimits(5, total_seconds_max=30, connect_timeout_seconds=5, read_timeout_seconds=30)
# long: a store answers a copy of some gigabytes only when it is done
RECONCILE_LIMITS = RequestLimits(4, total_seconds_max=120, connect_timeout_seconds=5, read_timeout_seconds=60)

# for one page; the caller limits the time for all pages
LISTING_LIMITS = RequestLimits(4, total_seconds_max=math.inf, connect_timeout_seconds=5, read_timeout_seconds=30)


def arbiter_limits(call_seconds_max: float) -> RequestLimits:
    """A call to the arbiter, with its second attempt, ends within this time."""
    share = call_seconds_max / 3
    return RequestLimits(2, share, share, share, first_pause_seconds=share / 10)


def witness_limits(ledger_wait_seconds: float) -> RequestLimits:
    """Others wait for the ledger while the witness is read and written. To read it, write it, and read whether the
    write landed fits into the time that they wait, including the last attempt of each."""
    share = ledger_wait_seconds / 12
    return RequestLimits(4, share, share, share, first_pause_seconds=min(0.1, share / 10))
