"""`strandline serve` as a process of its own, for tests that kill or stop it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fork_server import Forked


@contextmanager
def server_process(
    home: Path, *, failpoint: str = "", module: str = "strandline.cli.main"
) -> Iterator[tuple[Forked, str]]:
    """The process, and where it listens. It is killed at the end, if it lives."""
    process = Forked(
        [module, "serve", "--port", "0", "--config", str(home)],
        stdout=subprocess.PIPE,
        env=os.environ | {"STRANDLINE_FAILPOINT": failpoint, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())  # JSON, since this is no terminal
        assert told["event"] == "listening", told
        yield process, told["url"]
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(60)
