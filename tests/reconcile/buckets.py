"""Objects, put through S3 as everybody does it: a file that is put on the server's disk past it has no tag."""

from __future__ import annotations

import obstore
from obstore.store import S3Store

from strandline.core.settings import WarehouseSettings
from tests.servers import S3


def settings_of(server: S3, bucket: str) -> WarehouseSettings:
    return WarehouseSettings(
        url=f"s3://{bucket}/lake", endpoint=server.endpoint, access_key=server.access_key, secret_key=server.secret_key
    )


def put_object(server: S3, bucket: str, key: str, content: bytes) -> str:
    objects = S3Store(
        bucket,
        endpoint=server.endpoint,
        access_key_id=server.access_key,
        secret_access_key=server.secret_key,
        region=server.region,
        client_options={"allow_http": True},
        virtual_hosted_style_request=False,
    )
    obstore.put(objects, key, content)
    return f"s3://{bucket}/{key}"
