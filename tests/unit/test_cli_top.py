"""`top`: rows per second between two readings, and a frame that fits the window and hides nothing that is wrong."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from strandline.cli.command import Call
from strandline.cli.render.top import frame, old_frame
from strandline.cli.watch import watch
from strandline.lake_admin import init_lake
from strandline.status.report import DatasetStatus, LakeStatus
from strandline.status.sinks import SinkStatus
from strandline.status.throughput import throughput

NOW = datetime(2031, 4, 1, 12, tzinfo=UTC)


def dataset(name: str, rows: int | None) -> DatasetStatus:
    return DatasetStatus(name, rows, rows, rows, 0, 0, 0, False, (), None)


def sink(
    name: str, exported: int | None, *, generation: int = 1, lag: int | None = 0, state: str = "active"
) -> SinkStatus:
    return SinkStatus(
        name, "files", "default.d", None, generation, None, lag, 5.0, state, None, None, 0, 0, exported, None, 0, None,
        "steady", 0, lag, 5.0,
    )  # fmt: skip


def lake(datasets: list[DatasetStatus], sinks: list[SinkStatus]) -> LakeStatus:
    return LakeStatus("lake-id", 1, 1, 1, None, tuple(datasets), tuple(sinks))


def shown(found: LakeStatus, before: LakeStatus | None = None, lines_max: int = 40) -> str:
    out = Console(file=io.StringIO(), width=200)
    out.print(frame(found, throughput(before, found, 2.0), lines_max=lines_max, now=NOW))
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


def test_rates_are_between_two_readings_and_unknown_is_not_zero() -> None:
    before = lake([dataset("a", 100), dataset("b", 50), dataset("c", None)], [sink("s", 10), sink("r", 500)])
    after = lake(
        [dataset("a", 300), dataset("b", 20), dataset("c", 9), dataset("new", 7)],
        [sink("s", 40), sink("r", 30, generation=2), sink("n", 8)],
    )
    flow = throughput(before, after, 2.0)
    assert flow.ingested == {"a": 100.0, "b": None, "c": None, "new": None}, "deleted rows are not negative ones"
    assert flow.delivered == {"s": 15.0, "r": None, "n": None}, "a new generation counts from nothing"
    assert throughput(None, after, 2.0).delivered == {"s": None, "r": None, "n": None}
    assert throughput(before, after, 0.0).ingested["a"] is None


def test_lanes_of_a_sink_are_added_up_and_one_that_is_unknown_makes_the_sum_unknown() -> None:
    two = [replace(sink("s", 10), partition="k=a"), replace(sink("s", 5), partition="k=b")]
    more = [replace(sink("s", 20), partition="k=a"), replace(sink("s", 9), partition="k=b")]
    assert throughput(lake([], two), lake([], more), 2.0).delivered == {"s": 7.0}
    damaged = [replace(sink("s", None), partition="k=a"), more[1]]
    assert throughput(lake([], two), lake([], damaged), 2.0).delivered == {"s": None}


def test_the_frame_fits_the_window_and_shows_the_worst_first() -> None:
    many = [sink(f"s{n:03}", 1, lag=n) for n in range(200)]
    many[150] = sink("broken", 1, lag=None, state="stopped")
    found = lake([dataset(f"d{n:04}", n) for n in range(1000)], many)
    for lines_max in (24, 40, 60):
        text = shown(found, lines_max=lines_max)
        assert len(text.splitlines()) <= lines_max
        assert "sink broken is stopped" in text and "more" in text
        rows = [line for line in text.splitlines() if line.startswith(("s0", "s1", "broken "))]
        assert rows[0].startswith("broken"), "an unknown lag comes first"


def test_an_empty_lake_that_is_well_says_so() -> None:
    text = shown(lake([], []))
    assert "Nothing is wrong." in text and "0 datasets, 0 sinks" in text


def test_figures_that_cannot_be_read_anew_are_called_old_and_still_fit_the_window() -> None:
    found = lake([dataset(f"d{n:04}", n) for n in range(1000)], [sink(f"s{n:03}", 1, lag=n) for n in range(200)])
    out = Console(file=io.StringIO(), width=80)
    why = "the ledger does not answer: " + "a long reason " * 20
    out.print(old_frame(found, throughput(None, found, 2.0), why, lines_max=24, now=NOW))
    assert isinstance(out.file, io.StringIO)
    lines = out.file.getvalue().splitlines()
    assert len(lines) <= 24 and lines[0].startswith("Old figures: the ledger does not answer")
    assert "s000" in "".join(lines) and "d0000" in "".join(lines)


# `top` in a terminal: the ledger is away while the file `away` is there.
PROGRAM = """
import signal
import sys
from pathlib import Path
from strandline.cli.main import run
from strandline.core.errors import StorageError
from strandline.lake import Lake

signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background inherits that it is ignored
status, away = Lake.status, Path(sys.argv[1]) / "away"

def read(lake):
    if away.exists():
        raise StorageError("the ledger does not answer")
    return status(lake)

Lake.status = read
sys.exit(run(["top", "--every", "0.5", "--config", sys.argv[1]]))
"""


def test_top_runs_in_a_terminal_and_outlives_a_ledger_that_is_away(tmp_path: Path) -> None:
    init_lake(tmp_path).close()
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    environ = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ) as process:
        os.close(theirs)
        try:
            read_until(ours, "Nothing is wrong.")
            (tmp_path / "away").touch()
            read_until(ours, "Old figures: the ledger does not answer")
            read_until(ours, "Nothing is wrong.")  # below, the figures stay
            (tmp_path / "away").unlink()
            while "Old figures" in read_until(ours, "Nothing is wrong."):
                pass
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        finally:
            process.kill()
            os.close(ours)


def read_until(terminal: int, words: str) -> str:
    """What is shown from now on until these words are."""
    seen = ""
    while words not in seen:
        readable, _, _ = select.select([terminal], [], [], 300)
        assert readable and len(seen) < 1_000_000, seen[-2000:]
        seen += os.read(terminal, 1 << 16).decode("utf-8", "replace")
    return seen


def test_a_watch_draws_again_until_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    call, drawn = Call(None, as_json=False, yes=False), list[str]()
    call.out = Console(file=io.StringIO(), force_terminal=True, highlight=False)

    def draw() -> str:
        drawn.append(f"frame {len(drawn)}")
        return drawn[-1]

    def sleep(seconds: float) -> None:
        if len(drawn) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("strandline.cli.watch.time", SimpleNamespace(sleep=sleep))
    watch(call, draw, once="strandline status")
    assert isinstance(call.out.file, io.StringIO)
    assert drawn == ["frame 0", "frame 1", "frame 2"] and "frame 2" in call.out.file.getvalue()
