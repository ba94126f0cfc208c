"""Objects, put through S3 as everybody does it: a file that is put on the server's disk past it has no tag."""

from __future__ import annotations

import obstore

from strandline.core.settings.lake_config import WarehouseSettings
from tests.servers import S3


def settings_of(server: S3, bucket: str) -> WarehouseSettings:
    return WarehouseSettings(
        url=f"s3://{bucket}/lake", endpoint=server.endpoint, access_key=server.access_key, secret_key=server.secret_key
    )


def put_object(server: S3, bucket: str, key: str, content: bytes) -> str:
    obstore.put(server.objects(bucket), key, content)
    return f"s3://{bucket}/{key}"
