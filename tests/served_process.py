"""`strandline serve`, or `run --serve`, as a process of its own, for tests that kill or stop it."""

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
    home: Path, *command: str, failpoint: str = "", module: str = "strandline.cli.main"
) -> Iterator[tuple[Forked, str]]:
    """The process, and where it listens. It is killed at the end, if it lives. `command`: another than `serve`."""
    process = Forked(
        [module, *(command or ["serve"]), "--port", "0", "--config", str(home)],
        stdout=subprocess.PIPE,
        env=os.environ | {"STRANDLINE_FAILPOINT": failpoint, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        lines = map(json.loads, process.stdout)  # JSON, since this is no terminal
        yield process, next(told["url"] for told in lines if told["event"] == "listening")
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(60)
