"""A receiver to measure against: a process of its own, with a lake of its own. It ingests nothing meanwhile: what is
measured ends where rows are durable."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench import frames, lakes

DATASET = "events"


@dataclass(frozen=True, slots=True)
class Receiver:
    url: str
    token: str
    pid: int

    @property
    def rss_mb(self) -> float:
        """What it holds right now."""
        shown = subprocess.run(["ps", "-o", "rss=", "-p", str(self.pid)], capture_output=True, text=True, check=True)
        return int(shown.stdout) / 1024


@contextmanager
def receiving(home: Path) -> Iterator[Receiver]:
    with lakes.new_lake(home) as lake:
        lakes.create(lake, DATASET, frames.EVENT_COLUMNS)
        _, token = lake.receiver.create_token("bench")
    command = [sys.executable, "-m", "strandline.cli.main", "receive", "--no-ingest", "--port", "0", "--json"]
    unbounded = dict.fromkeys(("SPOOL_BYTES_MAX", "SPOOL_DATASET_BYTES_MAX"), str(1 << 40))
    environ = os.environ | {f"STRANDLINE_RECEIVE__{name}": value for name, value in unbounded.items()}
    child = subprocess.Popen(
        [*command, "--config", str(home)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=environ
    )
    try:
        assert child.stdout is not None
        base = next(said["url"] for said in map(json.loads, child.stdout) if said["event"] == "listening")
        threading.Thread(target=child.stdout.read, daemon=True).start()  # else it would wait for a reader one day
        yield Receiver(f"{base}/v1/datasets/default.{DATASET}/rows", token, child.pid)
    finally:
        child.terminate()
        child.wait(30)
