"""How an S3-compatible store is used: its address, credentials, path style and time limits, for every library that
speaks S3 here. Everything else asks this module."""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from strandline.core.errors import ConfigError
from strandline.core.settings import WarehouseSettings, resolve_key

TABLE_CONNECT_SECONDS_MAX = 10
TABLE_REQUEST_SECONDS_MAX = 60
"""For the files of tables. pyarrow's own limits are one second for a connection and three for an answer, and a busy
store takes longer."""


@dataclass(frozen=True, slots=True)
class S3Settings:
    """Where a store is and who asks. Can be pickled, and used as a key: clients belong to a process."""

    endpoint: str | None
    """None for Amazon's own."""
    region: str | None
    """None for what AWS's usual chain says."""
    access_key: str | None = field(repr=False, default=None)
    """None, as `secret_key`, for AWS's usual chain."""
    secret_key: str | None = field(repr=False, default=None)
    endpoint_from_environment: bool = False
    """Whether `AWS_ENDPOINT_URL` counts where there is no `endpoint`. A sink delivers to what its options say."""

    @classmethod
    def of_warehouse(cls, warehouse: WarehouseSettings) -> S3Settings:
        access, secret = resolve_key(warehouse.access_key), resolve_key(warehouse.secret_key)
        return cls(warehouse.endpoint, warehouse.region, access, secret, endpoint_from_environment=True)

    @property
    def is_path_style(self) -> bool:
        """Bucket names in the path: a store that is not Amazon's seldom has a host name for each bucket."""
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
        """Catalog options, for Iceberg's `S3FileIO`. Raises `ConfigError` where only one of the two keys is set."""
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
    """Stores other than Amazon's may leave the checksum that follows a chunked upload unread: where the connection is
    kept, the next request is then refused (seen in one upload of ten). pyarrow takes this setting from the environment
    only. What the user chose there stays. A lake calls this when it is made: changed later, the environment would
    change under threads that read it."""
    if warehouse.is_s3 and warehouse.endpoint is not None:
        os.environ.setdefault("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")


def store_name(endpoint: str | None) -> str:
    """For messages and for comparing: two spellings of one address are one."""
    return "aws" if endpoint is None else endpoint.rstrip("/").partition("://")[2].lower()


def split_url(url: str) -> tuple[str, str]:
    """Bucket and key, or bucket and prefix, of `s3://bucket/…`."""
    bucket, _, key = url.removeprefix("s3://").partition("/")
    return bucket, key


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """How long one request, and one piece of work with all its attempts, may take."""

    attempts_max: int
    total_seconds_max: float
    """No attempt begins later."""
    connect_timeout_seconds: float
    read_timeout_seconds: float
    first_pause_seconds: float = 0.2

    def attempts(self) -> Iterator[int]:
        """Pauses between one and the next: twice as long each time, and never in step with another process."""
        began = time.monotonic()
        for attempt in range(self.attempts_max):
            if attempt:
                pause = self.first_pause_seconds * 2 ** (attempt - 1) * random.uniform(0.5, 1.5)
                if time.monotonic() + pause - began > self.total_seconds_max:
                    return
                time.sleep(pause)
            yield attempt


SINK_LIMITS = RequestLimits(4, total_seconds_max=15, connect_timeout_seconds=3, read_timeout_seconds=20)
"""Short: an executor has other chunks to send, and the next tick comes."""
WAREHOUSE_LIMITS = RequestLimits(5, total_seconds_max=30, connect_timeout_seconds=5, read_timeout_seconds=30)
"""For the lake's own objects. A client of the receiver may wait for them."""
RECONCILE_LIMITS = RequestLimits(4, total_seconds_max=120, connect_timeout_seconds=5, read_timeout_seconds=60)
"""Long: a store answers a copy of some gigabytes when it is done."""

LISTING_LIMITS = RequestLimits(4, total_seconds_max=math.inf, connect_timeout_seconds=5, read_timeout_seconds=30)
"""For one page. Whoever lists says how long all of them may take."""


def witness_limits(ledger_wait_seconds: float) -> RequestLimits:
    """Others wait for the ledger while the witness is read and written. Reading it, writing it, and reading whether the
    write landed fit into the time that they wait, with the last attempt of each."""
    share = ledger_wait_seconds / 12
    return RequestLimits(4, share, share, share, first_pause_seconds=min(0.1, share / 10))
