"""One process for a site: loops, API and receiver together, how it says what is not ready, and how it ends."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import httpx
import pytest

from strandline.cli.command import Call
from strandline.cli.daemon_log import DaemonLog
from strandline.cli.log_lines import log_lines
from strandline.cli.loops import open_log
from strandline.core.errors import StorageError
from strandline.core.text.masking import note_secret
from strandline.jobs.loop import LoopStates
from strandline.lake import Lake
from strandline.lake_admin import init_lake
from tests.serve.conftest import serving
from tests.serve.test_serve_command import PROGRAM

LOOPS = ["delivery", "maintenance", "reconcile", "intake"]
HANGING = """
import threading
from strandline.maintain.facade import Maintenance

def hang(*_):
    print('{"event": "hangs"}', flush=True)
    threading.Event().wait()

Maintenance.run_what_is_due = hang
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    init_lake(tmp_path).close()
    return tmp_path


@contextmanager
def running(
    home: Path, *arguments: str, program: str = PROGRAM, stdout: int | IO[bytes] = subprocess.PIPE, **environ: str
) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", program, "run", "--config", str(home), *arguments],
        stdout=stdout, stderr=subprocess.PIPE, text=True, env={**os.environ, **environ},
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def heard(process: subprocess.Popen[str], event: str) -> dict[str, Any]:
    """The next line of this event."""
    assert process.stdout is not None
    for line in process.stdout:
        if (told := json.loads(line))["event"] == event:
            found: dict[str, Any] = told
            return found
    raise AssertionError(f"it ended without {event}")


def test_one_command_runs_a_site_without_a_jvm_and_ends_as_one(home: Path) -> None:
    environ = {"STRANDLINE_RECEIVE__PORT": "0"}
    with running(home, "--serve", "--receive", "--port", "0", **environ) as process:
        urls = {told["what"]: told["url"] for told in (heard(process, "listening"), heard(process, "listening"))}
        assert httpx.get(f"{urls['receiver']}/v1/health", timeout=60).json() == {"ok": True}
        assert httpx.get(f"{urls['api']}/healthz", timeout=60).status_code == 200
        ready = httpx.get(f"{urls['api']}/readyz", timeout=60)
        checks = {check["name"]: check["ready"] for check in ready.json()["checks"]}
        assert ready.status_code == 200 and checks.keys() >= {*LOOPS, "api", "ledger"} and all(checks.values())
        process.send_signal(signal.SIGTERM)
        rest, loaded = process.communicate(timeout=60)
    assert process.returncode == 0, loaded
    assert [json.loads(line)["event"] for line in rest.splitlines()] == ["stopping", "stopped"]
    assert loaded.splitlines()[-1] == "no JVM"


def test_a_process_whose_job_hangs_ends_all_the_same_and_names_it(home: Path) -> None:
    environ = {"STRANDLINE_RUN__STOP_SECONDS_MAX": "1"}
    with running(home, program=HANGING + PROGRAM, **environ) as process:
        heard(process, "hangs")
        process.send_signal(signal.SIGTERM)
        rest, said = process.communicate(timeout=60)
    told = [json.loads(line) for line in rest.splitlines()]
    assert [t["event"] for t in told] == ["stopping", "cut_off"], said
    assert process.returncode == 1 and told[-1]["loops"] == ["maintenance"]


def test_a_process_whose_log_nobody_reads_ends_all_the_same(home: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "log"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    filling = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    program = HANGING.replace("flush=True", "flush=True, file=sys.stderr").replace(
        "import threading", "import sys, threading"
    )
    try:
        with pipe.open("wb") as log:
            with running(home, program=program + PROGRAM, stdout=log, STRANDLINE_RUN__STOP_SECONDS_MAX="1") as process:
                assert process.stderr is not None
                assert any('"hangs"' in line for line in process.stderr)
                for size in (4096, 1):
                    with contextlib.suppress(BlockingIOError):
                        while os.write(filling, b"x" * size):
                            pass
                process.send_signal(signal.SIGTERM)
                assert process.wait(60) == 1
    finally:
        os.close(reading)
        os.close(filling)


def test_what_is_logged_is_json_and_has_no_secret(home: Path) -> None:
    program = """
import logging
from strandline.core.text.masking import note_secret
from strandline.maintain.facade import Maintenance

def speak(*_):
    note_secret('c4n4ry "quoted"')
    try:
        raise ValueError('c4n4ry "quoted"')
    except ValueError:
        logging.getLogger("any.library").error('it said c4n4ry "quoted"', exc_info=True)

Maintenance.run_what_is_due = speak
"""
    with running(home, program=program + PROGRAM) as process:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "any.library" in line)
        process.send_signal(signal.SIGTERM)
        rest, said = process.communicate(timeout=60)
    told = json.loads(line)
    assert (told["event"], told["level"], told["logger"]) == ("log", "error", "any.library")
    assert told["message"] == "it said ***" and told["exception"].endswith("ValueError: ***")
    assert "c4n4ry" not in line + rest + said and process.returncode == 0


def test_a_line_of_the_log_for_people_has_no_secret_either(capsys: pytest.CaptureFixture[str]) -> None:
    note_secret("c4n4ry in plain")
    with log_lines(as_json=False):
        logging.getLogger("strandline.any").warning("it said %s", "c4n4ry in plain")
    DaemonLog(as_json=False).write("failed", reason="it said c4n4ry in plain")
    said = capsys.readouterr()
    assert said.err.rstrip().endswith("warning strandline.any: it said ***") and len(said.err.splitlines()) == 1
    assert "***" in said.out and "c4n4ry" not in said.out + said.err


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_log_is_json_unless_a_person_watches(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    for asked in (False, True):
        open_log(Call(None, as_json=asked, yes=False)).write("stopping", signal="SIGTERM")
        line = capsys.readouterr().out
        assert line.startswith("{") == (asked or not is_terminal), line
        assert "stopping" in line and "SIGTERM" in line


def test_an_address_in_use_ends_the_whole_process(home: Path) -> None:
    with running(home, "--serve", "--host", "203.0.113.9", "--insecure-http") as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 2 and "serve.host" in said


def test_a_loop_in_trouble_is_not_ready_and_is_again_by_itself(lake: Lake) -> None:
    states = LoopStates()
    with serving(lake, loops=states) as url:

        def asked() -> tuple[int, dict[str, str | None]]:
            answer = httpx.get(f"{url}/readyz", timeout=60)
            return answer.status_code, {check["name"]: check["reason"] for check in answer.json()["checks"]}

        states.begun("delivery")
        assert asked() == (200, {"ledger": None, "witness": None, "catalog": None, "stopping": None, "delivery": None})
        states.troubled("delivery", StorageError("no answer from /secret/place"))
        code, reasons = asked()
        assert (code, reasons["delivery"]) == (503, "it fails and is tried again (StorageError)")
        states.begun("delivery")
        assert asked()[0] == 200
        states.ended("delivery")
        assert asked()[1]["delivery"] == "it has ended"
