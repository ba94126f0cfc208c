"""The Python environment of peers that are Python packages. It is made when the first measurement needs it, and has
nothing to do with the one that Strandline runs in."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
HOME = ROOT / ".cache" / "bench-peers"
LOCK = Path(__file__).with_name("requirements.lock")
_END_SECONDS_MAX = 20


def versions(*names: str) -> dict[str, str]:
    """As the lock file pins them."""
    pinned = (line.split()[0].partition("==") for line in LOCK.read_text("utf-8").splitlines() if "==" in line)
    found = {name: version for name, _, version in pinned}
    return {name: found[name] for name in names}


def python() -> Path:
    """The interpreter that has the peers; installs them first if need be."""
    subprocess.run([ROOT / "scripts" / "bench_peers.sh"], stdin=subprocess.DEVNULL, check=True)
    return HOME / "bin" / "python"


class PeerFailed(Exception):
    pass


class PeerProcess:
    """A program of this room that runs on while samples are taken, so that its start is in none of them. It gets
    questions, and gives answers, as lines of JSON."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, what: str, **arguments: Any) -> dict[str, Any]:
        """Raises PeerFailed if the program ended instead; what it said is in the log of the measurement."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": what, **arguments}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass
        answer = self._process.stdout.readline()
        if not answer:
            raise PeerFailed(f"the peer's process ended with {self._process.wait(_END_SECONDS_MAX)} at {what!r}")
        found: dict[str, Any] = json.loads(answer)
        return found


@contextmanager
def running(program: str, work: Path) -> Iterator[PeerProcess]:
    """`program`: a module of this room that needs nothing but the peer."""
    work.mkdir(parents=True, exist_ok=True)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    # dlt keeps what it knows in the home folder, and reports to its makers, unless it is told not to.
    environ |= {"DLT_DATA_DIR": str(work / "dlt"), "RUNTIME__DLTHUB_TELEMETRY": "false"}
    command = [str(python()), "-m", f"bench.peers.{program}"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environ)
    try:
        yield PeerProcess(process)
    finally:
        process.kill()
        process.communicate()
