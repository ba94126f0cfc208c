"""Secrets in every place where one may be, and then a search for them: outputs, files, logs, tables, arguments."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg
import pytest

from strandline.iceberg.session.runtime import cache_folder
from tests import loopback
from tests.conftest import QUICK_SPARK, MakeHome
from tests.e2e.cli import TIMEOUT_SECONDS
from tests.e2e.receiver import receiving
from tests.processes import ROOT, own_jvm
from tests.servers import S3

CANARY = "c4n4ry"
"""In every secret below."""


class Parrot(loopback.Handler):
    """Refuses everything, and repeats all that it was told."""

    def do_HEAD(self) -> None:
        self.answer(405)

    def do_GET(self) -> None:
        """As a REST catalog that lets nobody in."""
        said = {"message": f"not you: {self.path} {self._heads()}", "type": "NotAuthorizedException", "code": 401}
        self.answer(401, json.dumps({"error": said}).encode())

    def do_POST(self) -> None:
        told = self.read_body().decode("latin-1")
        if "oauth" in self.path:  # where REST clients take their credential to
            said = {"error": "invalid_client", "error_description": f"not you: {told} {self._heads()}"}
            self.answer(401, json.dumps(said).encode())
        else:
            self.answer(503, f"not now: {self.path} {self._heads()}".encode())

    def _heads(self) -> str:
        return str(self.headers).replace("\n", " ")


@pytest.fixture
def parrot() -> Iterator[int]:
    with loopback.serving(Parrot) as port:
        yield port


class Watch:
    """What others on the machine see of a process and its children, as long as they run."""

    def __init__(self, pid: int, temporary: Path) -> None:
        self.arguments: set[str] = set()
        self.handed_over: set[tuple[str, str]] = set()
        self._process = psutil.Process(pid)
        self._temporary = temporary
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(0.05):
            try:
                for process in [self._process, *self._process.children(recursive=True)]:
                    self.arguments.update(process.cmdline())
            except psutil.Error:
                pass
            for file in self._temporary.glob("strandline-spark-*/spark.conf"):
                try:
                    self.handed_over.add((oct(file.stat().st_mode)[-3:], oct(file.parent.stat().st_mode)[-3:]))
                except FileNotFoundError:
                    pass

    def close(self) -> None:
        self._ended.set()
        self._thread.join()


REST = ("rest-token", "rest-credential")
"""Lakes at a REST catalog that refuses them, and says why at length."""


WRONG_KEYS = "wrong-keys"
"""A lake whose warehouse lets nobody in with these keys."""


def commands(s3: S3, bucket: str, token_file: Path) -> list[list[str]]:
    at_rest = (
        ["init"],
        ["dataset", "create", "events", "--like", "a.jsonl"],
        ["dataset", "adopt", "default.there"],
        ["dataset", "list"],
        ["recover"],
        ["status", "--json"],
        ["reconcile", "--json"],
        ["doctor", "--json"],
    )
    add = ["sink", "add", "--dataset", "events", "--kind"]
    web = ["--option", f"token=file:{token_file}", "--option", "success_status=2xx"]
    literal = f"url=http://127.0.0.1:1/rows?key={CANARY}-literal"
    return [
        ["init", "."],
        ["dataset", "create", "events", "--like", "a.jsonl"],
        ["ingest", "events", "a.jsonl", "--json"],
        [*add, "forward", "web", "--option", "url=env:WEB_URL", *web],
        [*add, "forward", "other", "--option", literal, *web],
        ["sink", "update", "web", "--option", literal],
        [*add, "postgres", "pg", "--option", "dsn=env:PG_DSN", "--option", "table=t", "--option", "create=true"],
        [*add, "postgres", "pg2", "--option", f"dsn=postgresql://u:{CANARY}@127.0.0.1/d", "--option", "table=t"],
        [*add, "s3", "bucket", "--option", f"url=s3://{bucket}/x", "--option", f"endpoint={s3.endpoint}",
         "--option", "access_key=env:S3_ACCESS", "--option", "secret_key=env:S3_SECRET"],
        ["tick", "--json"],
        ["tick"],
        ["status", "--json"],
        ["status"],
        ["sink", "show", "web", "--json"],
        ["sink", "show", "web"],
        ["sink", "list", "--json"],
        ["verify", "--json"],
        ["doctor", "--json"],
        ["audit", "--json"],
        ["metrics"],
        ["ledger", "backup", "copy.db"],
        ["reconcile", "--json"],
        *([*command, "--config", f"../{name}"] for name in REST for command in at_rest),
        *([command, "--config", f"../{WRONG_KEYS}"] for command in ("init", "status", "doctor", "recover")),
        ["token", "create", "sender", "--dataset", "events", "--json"],
        ["token", "list", "--json"],
    ]  # fmt: skip


def test_no_secret_is_stored_shown_logged_or_an_argument(
    tmp_path: Path, make_home: MakeHome, postgres_database: str, parrot: int, s3: S3
) -> None:
    home, temporary, token_file = tmp_path / "home", tmp_path / "tmp", tmp_path / "token"
    temporary.mkdir()
    token_file.write_text(f"{CANARY}-token\n")
    server = postgres_database.partition("@")[2]
    stored = s3.make_bucket()
    warehouse = {"url": f"s3://{stored}/lake", "endpoint": s3.endpoint, "access_key": "env:STORE_ACCESS",
                 "secret_key": "env:STORE_SECRET"}  # fmt: skip
    own = {"ledger": {"url": "env:LEDGER_URL"}, "forward": {"allow": ["127.0.0.1"]}, "warehouse": warehouse}
    make_home(home, own)
    for name in REST:
        options = {name.removeprefix("rest-"): "env:REST_SECRET", "header.X-Api": "env:REST_HEADER"}
        catalog = {"kind": "rest", "uri": f"http://127.0.0.1:{parrot}/catalog", "options": options}
        make_home(tmp_path / name, {"catalog": catalog})
    wrong = warehouse | {"access_key": "env:WRONG_ACCESS", "secret_key": "env:WRONG_SECRET"}
    make_home(tmp_path / WRONG_KEYS, {"warehouse": wrong})
    (home / "a.jsonl").write_text('{"id": 1}\n{"id": 2}\n')
    options = QUICK_SPARK | {
        "spark.hadoop.fs.s3a.secret.key": f"{CANARY}-literal in the settings, with = : # ! \\ and ü",
        "spark.hadoop.my.plain.name": "env:SPARK_SECRET",
    }
    environ = {
        "STRANDLINE_SPARK__OPTIONS": json.dumps(options),
        "LEDGER_URL": f"postgresql://postgres:{CANARY}-ledger@{server}?sslpassword={CANARY}-ssl",
        "SPARK_SECRET": f"{CANARY}-spark",
        "WEB_URL": f"http://127.0.0.1:{parrot}/rows?key={CANARY}%2Dweb&plain=yes",
        "STORE_ACCESS": s3.access_key,
        "STORE_SECRET": s3.secret_key,
        "WRONG_ACCESS": f"{CANARY}-store-access",
        "WRONG_SECRET": f"{CANARY}-store-secret",
        "REST_SECRET": f"{CANARY}-rest:{CANARY}-secret",
        "REST_HEADER": f"{CANARY}-header",
        "PG_DSN": f"postgresql://postgres:{CANARY}-dsn@{server}",
        "S3_ACCESS": f"{CANARY}-access",
        "S3_SECRET": f"{CANARY}-key",
        "TMPDIR": str(temporary),
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    logs = cache_folder() / "logs"
    before = {file: file.stat().st_mtime_ns for file in logs.glob("*")} if logs.is_dir() else {}
    asked = commands(s3, s3.make_bucket(), token_file)
    with subprocess.Popen(
        own_jvm("tests.e2e.several_commands"), cwd=home, env=os.environ | environ, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        watch = Watch(process.pid, temporary)
        said, errors = process.communicate(json.dumps(asked), timeout=2 * TIMEOUT_SECONDS)
        watch.close()
    assert process.returncode == 0, errors
    done = json.loads(said)
    assert len(done) == len(asked) and "fault of the program" not in said
    assert done[2]["code"] == 0 and done[3]["code"] == 0, done[2:4]
    assert done[4]["code"] == 2 and "query" in done[4]["err"] and done[5]["code"] == 2
    assert done[9]["code"] == 1 and "not now" in done[9]["out"], "the server's words are there, without the secrets"

    refused = [d for command, d in zip(asked, done, strict=True) if "--config" in command]
    assert sum("not you" in d["out"] + d["err"] for d in refused) >= len(REST), "the catalog's words are there, too"
    secret = json.loads(done[-2]["out"])["secret"]
    done[-2]["out"] = ""  # the one place that shows it
    printed = json.dumps(done) + errors
    answers, arguments, receiver_said = _receive(home, environ, temporary, secret)

    seen = {"what was printed": printed, "arguments": "\0".join(watch.arguments | arguments)}
    seen |= {"answers of the receiver": answers, "what the receiver printed": receiver_said}
    bucket = s3.server.folder / "data" / stored
    for folder in (home, temporary, bucket, *(tmp_path / name for name in (*REST, WRONG_KEYS))):
        seen |= {f"file {file.relative_to(folder.parent)}": _text(file) for file in _files(folder)}
    assert any(name.endswith(".metadata.json") for name in seen)
    seen |= {f"log {file.name}": _text(file) for file in logs.glob("*") if before.get(file) != file.stat().st_mtime_ns}
    seen |= _tables(postgres_database)
    assert len([name for name in seen if name.startswith("log ")]) >= 1
    assert "table sink" in seen and "env:WEB_URL" in seen["table sink"]
    secrets = (CANARY, secret, s3.access_key, s3.secret_key)
    leaks = [(name, s, text) for name, text in seen.items() for s in secrets if s in text]
    assert [(name, text[max(0, text.index(s) - 200) :][:300]) for name, s, text in leaks] == []
    assert any("SparkSubmit" in argument for argument in watch.arguments), "the JVM was seen"
    assert watch.handed_over == {("600", "700")}, "the settings were handed over in a file of our own"
    assert not list(temporary.glob("strandline-spark-*"))


def _receive(home: Path, environ: dict[str, str], temporary: Path, secret: str) -> tuple[str, set[str], str]:
    """What a receiver answers to clients with good and bad tokens, its arguments, and what it printed."""
    answers = []
    log = temporary.parent / "receiver.log"
    with receiving(home, log, "--no-ingest", environ=environ) as receiver:
        watch = Watch(receiver.process.pid, temporary)
        rows = f"{receiver.url}/v1/datasets/events/rows"
        good, bad = {"Authorization": f"Bearer {secret}"}, {"Authorization": f"Bearer {CANARY}-guess"}
        line = b'{"id": 3}\n'
        for headers, url, body in [
            (good, rows, line),
            (good, rows, b'{"id": "x"}\n'),
            (good, rows, b"{"),
            (bad, rows, line),
            (bad, f"{rows}?token={CANARY}-query", line),
            (good, f"{rows}?token={CANARY}-query", line),
            (good | {"Content-Encoding": secret}, rows, line),
            (good | {"Idempotency-Key": secret * 20}, rows, line),
            ({"Authorization": f"Basic {CANARY}"}, rows, line),
        ]:
            named = {"Content-Type": "application/x-ndjson", "Idempotency-Key": f"k{len(answers)}", **headers}
            answer = httpx.post(url, content=body, headers=named, timeout=60)
            answers.append(f"{answer.status_code} {answer.headers} {answer.text}")
        assert answers[0].startswith("202"), answers[0]
        assert receiver.end() == 0
        watch.close()
    return "\n".join(answers), watch.arguments, log.read_text("utf-8")


def _files(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file()]


def _text(file: Path) -> str:
    return file.read_bytes().decode("latin-1")


def _tables(url: str) -> dict[str, str]:
    """Every row of every table, as text."""
    query = "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
    with psycopg.connect(url) as connection:
        names: list[Any] = [name for (name,) in connection.execute(query)]
        return {
            f"table {name}": "\n".join(row[0] for row in connection.execute(f'SELECT t::text FROM public."{name}" t'))
            for name in names
        }
