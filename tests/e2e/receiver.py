"""A receiver in a process of its own, and a client of another make that repeats a body until it is taken."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.processes import start

WAIT_SECONDS_MAX = 300


class Receiver:
    """`strandline receive --json`; what it told is in a file, line by line."""

    def __init__(
        self, home: Path, log: Path, *arguments: str, failpoint: str = "", environ: Mapping[str, str] | None = None
    ) -> None:
        self.log = log
        with log.open("w") as out:
            self.process = start(
                ["strandline.cli.main", "receive", "--json", *arguments],
                cwd=home,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, "STRANDLINE_FAILPOINT": failpoint, **(environ or {})},
            )

    def told(self) -> list[dict[str, Any]]:
        lines = self.log.read_text("utf-8").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n") and line.startswith("{")]

    def wait_for(self, event: str, count: int = 1) -> dict[str, Any]:
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while True:
            found = [e for e in self.told() if e["event"] == event]
            if len(found) >= count:
                return found[-1]
            assert self.process.poll() is None, f"it has ended: {self.log.read_text('utf-8')}"
            assert time.monotonic() < deadline, f"no {event}: {self.log.read_text('utf-8')}"
            time.sleep(0.02)

    @property
    def url(self) -> str:
        return str(self.wait_for("listening")["url"])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def killed(self) -> bool:
        return self.process.wait(WAIT_SECONDS_MAX) == -signal.SIGKILL

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_SECONDS_MAX)


@contextmanager
def receiving(home: Path, log: Path, *arguments: str, **options: Any) -> Iterator[Receiver]:
    made = Receiver(home, log, "--port", "0", *arguments, **options)
    try:
        yield made
    finally:
        made.kill()


def post(url: str, secret: str, key: str, rows: list[dict[str, Any]], dataset: str = "events") -> httpx.Response:
    """One attempt, with nothing of ours in it but the address and the key."""
    body = "".join(json.dumps(row) + "\n" for row in rows)
    return httpx.post(
        f"{url}/v1/datasets/{dataset}/rows",
        content=body,
        headers={
            "Authorization": f"Bearer {secret}",
            "Content-Type": "application/x-ndjson",
            "Idempotency-Key": key,
        },
        timeout=60,
    )
