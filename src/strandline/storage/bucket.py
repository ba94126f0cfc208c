"""The warehouse's bucket, for the files of a receiver."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from obstore.store import S3Store

_TIMEOUT = "30s"


@cache
def bucket_store(
    bucket: str, region: str, endpoint: str | None, access_key: str | None, secret_key: str | None
) -> S3Store:
    """One per process and bucket: a store keeps its connections, and cannot be pickled."""
    from obstore.store import S3Store

    options = {"region": region, "endpoint": endpoint, "access_key_id": access_key, "secret_access_key": secret_key}
    return S3Store(
        bucket,
        client_options={"allow_http": True, "timeout": _TIMEOUT},
        virtual_hosted_style_request=False,
        **{k: v for k, v in options.items() if v is not None},  # type: ignore[arg-type]
    )
