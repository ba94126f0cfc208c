"""The name of this process in records of runs and tasks."""

from __future__ import annotations

import os
import socket


def node() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"
