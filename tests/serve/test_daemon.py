"""One process for a site: loops, API and receiver together, how it says what is not ready, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from strandline.core.errors import StorageError
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

Maintenance.take_turns = hang
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    init_lake(tmp_path).close()
    return tmp_path


@contextmanager
def running(home: Path, *arguments: str, program: str = PROGRAM, **environ: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", program, "run", "--config", str(home), *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environ},
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
        assert asked() == (200, {"ledger": None, "witness": None, "stopping": None, "delivery": None})
        states.troubled("delivery", StorageError("no answer from /secret/place"))
        code, reasons = asked()
        assert (code, reasons["delivery"]) == (503, "it fails and is tried again (StorageError)")
        states.begun("delivery")
        assert asked()[0] == 200
        states.ended("delivery")
        assert asked()[1]["delivery"] == "it has ended"
