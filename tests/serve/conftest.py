"""A real server over a real lake: uvicorn on a free port, SQLite, a folder as warehouse. No JVM."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import jsonschema_rs
import pytest

from strandline.core.documents import json_text
from strandline.core.roles import Role
from strandline.lake import Lake, open_lake
from strandline.lake_admin import init_lake
from strandline.reconcile.fallback import FallbackSurveyor
from strandline.replicate.segment_stream import MEDIA_TYPE
from strandline.serve.app import create_app, describe
from strandline.serve.server import serve_lake

COLUMNS = [{"name": "id", "type": "long", "required": True}, {"name": "text", "type": "string"}]
API = "/api/v1"
TRUST = ssl.create_default_context()  # made once: it reads all certificates of the system


@dataclass
class Served:
    """A lake that is served, with a token for each role."""

    lake: Lake
    url: str
    secrets: dict[Role, str]

    def client(self, secret: str | None = None, **more: Any) -> httpx.Client:
        headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
        more.setdefault("verify", TRUST)
        client = httpx.Client(base_url=self.url, headers=headers, timeout=60, **more)
        client.event_hooks["response"] = [self._check]
        return client

    def as_role(self, role: Role = Role.ADMIN) -> httpx.Client:
        return self.client(self.secrets[role])

    def token(self, name: str, role: Role, only: list[str] | None = None, **more: Any) -> str:
        return self.lake.receiver.create_token(name, only, role=role, **more)[1]

    def raw(self) -> socket.socket:
        host, _, port = self.url.removeprefix("http://").partition(":")
        return socket.create_connection((host, int(port)), timeout=60)

    def _check(self, response: httpx.Response) -> None:
        """Every answer that a test sees is one that the description has, in the form that it says."""
        response.read()
        request = response.request
        check_answer(request.method, request.url.path, response)


@cache
def description() -> dict[str, Any]:
    """Of the API: the same for every lake, and made in half a second."""
    with TemporaryDirectory() as folder, init_lake(Path(folder)) as lake:
        app = create_app(lake)
        try:
            found: dict[str, Any] = json.loads(json_text(describe(app)))
            return found
        finally:
            app.state.context.close()


def check_answer(method: str, path: str, response: httpx.Response) -> None:
    operation = _operation(method, path)
    if operation is None and response.headers.get("content-type", "").startswith("text/html"):
        assert not path.startswith("/api/") and response.status_code < 500, f"{method} {path} answered {response}"
        return
    if operation is None:
        assert response.status_code in (404, 405, 413, 408, 429), f"{method} {path} answered {response.status_code}"
        schema: Any = {"$ref": "#/components/schemas/Problem"}
        kind = "application/problem+json"
    else:
        answers = operation["responses"]
        assert str(response.status_code) in answers, f"{method} {path}: {response.status_code} is not described"
        content = answers[str(response.status_code)].get("content", {})
        kind = response.headers["content-type"].partition(";")[0]
        assert kind in content, f"{method} {path}: {kind} is not described for {response.status_code}"
        schema = content[kind]["schema"]
    assert response.headers["content-type"].partition(";")[0] == kind
    if kind in ("text/plain", MEDIA_TYPE):
        assert schema["type"] == "string"
        return
    _validator(json.dumps(schema)).validate(response.json())


@cache
def _validator(schema: str) -> Any:
    return jsonschema_rs.validator_for({**json.loads(schema), "components": description()["components"]})


def _operation(method: str, path: str) -> dict[str, Any] | None:
    parts = path.split("/")
    for known, operations in description()["paths"].items():
        wanted = known.split("/")
        same = len(wanted) == len(parts) and all(
            w.startswith("{") or w == p for w, p in zip(wanted, parts, strict=True)
        )
        if same and method.lower() in operations:
            found: dict[str, Any] = operations[method.lower()]
            return found
    return None


@contextmanager
def serving(lake: Lake, **options: Any) -> Iterator[str]:
    stopping, listening = threading.Event(), threading.Event()
    at, failed = list[str](), list[BaseException]()

    def told(url: str) -> None:
        at.append(url)
        listening.set()

    def run() -> None:
        try:
            serve_lake(lake, stopping, port=0, on_listening=told, **options)
        except BaseException as e:
            failed.append(e)
        finally:
            listening.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    listening.wait(60)
    try:
        if failed:
            raise failed[0]
        yield at[0]
    finally:
        stopping.set()
        thread.join(60)
        assert not thread.is_alive()


@pytest.fixture
def settings() -> dict[str, dict[str, Any]]:
    """What a test wants otherwise: overridden by parametrising it."""
    return {}


@pytest.fixture
def lake(tmp_path: Path, settings: dict[str, dict[str, Any]]) -> Iterator[Lake]:
    with init_lake(tmp_path) as made:
        path = tmp_path / "strandline.toml"
    text = "".join(
        f"[{section}]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in values.items())
        for section, values in settings.items()
    )
    path.write_text(path.read_text("utf-8") + text, "utf-8")
    with open_lake(path) as made:
        yield made


@pytest.fixture
def served(lake: Lake) -> Iterator[Served]:
    secrets = {role: lake.receiver.create_token(f"the {role}", role=role)[1] for role in Role}
    with serving(lake) as url:
        yield Served(lake, url, secrets)


@pytest.fixture
def admin(served: Served) -> Iterator[httpx.Client]:
    with served.as_role() as client:
        yield client


@pytest.fixture
def dataset(admin: httpx.Client) -> str:
    made = admin.post(f"{API}/datasets", json={"name": "events", "columns": COLUMNS})
    assert made.status_code == 201, made.text
    name: str = made.json()["name"]
    return name


@pytest.fixture
def quick_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever holds a lease renews it all the time, and so hears soon of what another process has stored. The lease
    itself is long: a machine that stands still for a while takes nobody for dead."""
    monkeypatch.setattr("strandline.jobs.heartbeat.BEATS_PER_LEASE", 1000)


class Gate(threading.Event):
    """Whoever comes to it waits until it is set."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = threading.Event()


@pytest.fixture
def surveying(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """Runs of the reconciler wait in their survey until the gate is set, or until they are called off."""
    let, real = Gate(), FallbackSurveyor.survey

    def survey(self: FallbackSurveyor, context: Any, watch: Any) -> Any:
        let.reached.set()
        while not let.wait(0.01):
            watch.check()
        return real(self, context, watch)

    monkeypatch.setattr(FallbackSurveyor, "survey", survey)
    yield let
    let.set()
