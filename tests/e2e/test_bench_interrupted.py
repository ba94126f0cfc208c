"""What an interrupted `make bench` leaves: nothing. A real measurement, with a JVM at work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.processes import ROOT

SECONDS_MAX = 180
BENCH = """
import sys
from pathlib import Path
from bench import __main__ as bench
bench.WORK, bench.RESULTS = Path(sys.argv[1]) / "work", Path(sys.argv[1]) / "results"
bench.end_at_sigterm()
sys.exit(bench.main(["--only", "read", "--quick"]))
"""


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_of_a_measurement_whose_jvm_was_at_work(tmp_path: Path, sign: signal.Signals) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environ = os.environ | {"TMPDIR": str(temporary)}
    command = [sys.executable, "-c", BENCH, str(tmp_path)]
    with (tmp_path / "log").open("wb") as log:
        bench = psutil.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT, env=environ)
    started: set[psutil.Process] = set()
    try:
        seen = _watched(bench, started)
        assert any(_spark_runs(process) for process in seen), (tmp_path / "log").read_text()
        assert list(temporary.iterdir()), "it has folders of its own meanwhile"
        bench.send_signal(sign)
        assert bench.wait(SECONDS_MAX) != 0
        assert psutil.wait_procs(started, 10)[1] == []
        assert not (tmp_path / "work").exists() and not (tmp_path / "results").exists()
        assert list(temporary.iterdir()) == []
    finally:
        for process in (bench, *started):
            with suppress(psutil.NoSuchProcess):
                process.kill()


def _watched(bench: psutil.Popen, started: set[psutil.Process]) -> Iterator[psutil.Process]:
    """Whatever it starts, until it ends or takes too long."""
    deadline = time.monotonic() + SECONDS_MAX
    while bench.poll() is None and time.monotonic() < deadline:
        started.update(bench.children(recursive=True))
        yield from list(started)
        time.sleep(0.1)


def _spark_runs(process: psutil.Process) -> bool:
    """A JVM that has got to work: Spark has made its folders."""
    with suppress(psutil.Error):
        if process.name() == "java":
            folder = process.environ().get("SPARK_LOCAL_DIRS", "")
            return bool(folder) and any(Path(folder).glob("blockmgr-*"))
    return False
