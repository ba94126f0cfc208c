"""`strandline serve` as a process: where it listens, what it loads, how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from strandline.cli.main import run
from strandline.core.actor import Actor, Trigger, current_actor, system_user
from strandline.core.roles import Role
from strandline.lake_admin import init_lake
from tests.serve.conftest import API

PROGRAM = """
import sys
from strandline.cli.main import run
code = run(sys.argv[1:])
print("JVM" if "pyspark" in sys.modules and sys.modules["pyspark"].SparkContext._gateway else "no JVM", file=sys.stderr)
sys.exit(code)
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    init_lake(tmp_path).close()
    return tmp_path


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_server_says_where_it_listens_starts_no_jvm_and_ends_cleanly(home: Path, number: signal.Signals) -> None:
    from strandline.lake import open_lake

    with open_lake(home) as lake:
        secret = lake.receiver.create_token("reader", role=Role.READ)[1]
    command = [sys.executable, "-c", PROGRAM, "serve", "--port", "0", "--config", str(home)]
    environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())  # JSON, since this is no terminal
        assert told["event"] == "listening" and told["url"].startswith("http://127.0.0.1:")
        answer = httpx.get(f"{told['url']}{API}/status", headers={"Authorization": f"Bearer {secret}"}, timeout=60)
        assert answer.status_code == 200
        process.send_signal(number)
        rest, loaded = process.communicate(timeout=60)
    assert process.returncode == 0, loaded
    assert [json.loads(line)["event"] for line in rest.splitlines()] == ["stopping", "stopped"]
    assert secret not in rest + loaded and loaded.splitlines()[-1] == "no JVM"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--host", "0.0.0.0"], 3, "--insecure-http"),
        (["--host", "::"], 3, "--insecure-http"),
        (["--host", "203.0.113.9", "--insecure-http"], 2, "serve.host"),
    ],
)
def test_an_address_that_others_reach_needs_tls_or_a_word(
    home: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, said: str
) -> None:
    assert run(["serve", "--port", "0", "--config", str(home), *arguments]) == code
    assert said in capsys.readouterr().err


def test_an_address_in_use_is_told(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert run(["serve", "--port", str(taken.getsockname()[1]), "--config", str(home)]) == 1
    assert "is in use" in capsys.readouterr().err
    assert current_actor() == Actor(system_user(), Trigger.DAEMON), "what nobody asked for one by one"


SHORT_DEMO = """
import sys
from strandline.cli.demo import ingest_and_read
from strandline.cli.main import run
ingest_and_read.STEPS = (ingest_and_read.make_dataset,)
sys.exit(run(sys.argv[1:]))
"""


def test_the_demo_serves_its_lake_until_it_is_told_to_stop(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SHORT_DEMO, "demo", "--dir", str(tmp_path / "lake"), "--serve"]
    environ = {**os.environ, "PYTHONUNBUFFERED": "1", "STRANDLINE_SERVE__PORT": "0"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stdout is not None
        told = list[str]()
        for line in process.stdout:
            told.append(line)
            if '"listening"' in line:
                break
        secret = re.findall(r"with the token (sl_\S+)", "".join(told))
        answer = httpx.get(json.loads(told[-1])["url"], headers={"Authorization": f"Bearer {secret[0]}"}, timeout=60)
        assert answer.status_code == 200 and "default.events" in answer.text
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert (tmp_path / "lake" / "strandline.toml").exists()
