"""A setting of pyarrow's S3 client that it takes from the environment only."""

from __future__ import annotations

import os

from strandline.core.settings import LakeConfig


def send_no_trailers(config: LakeConfig) -> None:
    """Stores other than Amazon's may leave the checksum that follows a chunked upload unread: where the connection is
    kept, the next request is then refused (seen in one upload of ten). What the user chose there stays. A lake does it
    when it is made: changed later, the environment would change under threads that read it."""
    warehouse = config.settings.warehouse
    if warehouse.is_s3 and warehouse.endpoint is not None:
        os.environ.setdefault("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
