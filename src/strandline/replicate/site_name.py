"""This site's name, for messages and for the arbiter's record."""

from __future__ import annotations

import socket

from strandline.core.settings.lake_config import LakeConfig


def site_name(config: LakeConfig) -> str:
    return config.settings.replication.name or socket.gethostname()
