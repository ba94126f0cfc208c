"""Python processes for tests, without a second of imports for each: forks of one that has imported everything.

`Forked([MODULE, *ARGUMENTS])` starts what `python -m MODULE ARGUMENTS` would. A fork is a process like any other: it is
killed, stopped and waited for. The server starts with the first fork and ends with the process that started it. Tests
of what is imported when, or of how Python itself starts, start it without this.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import select
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path[0] = str(ROOT)  # not the folder of this file

from strandline.cli.start import OBJECTS_BEFORE_A_SEARCH  # noqa: E402
from tests import fork_client  # noqa: E402

PRELOADED = (
    "alembic.command",
    "httpx",
    "pandas",
    "psycopg",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "pyiceberg.catalog.sql",
    "pyiceberg.io.pyarrow",
    "pyspark.java_gateway",
    "pyspark.sql",
    "strandline.cli.main",
    "strandline.deliver.facade",
    "strandline.deliver.send.build_gather",
    "strandline.deliver.sinks.files.sink",
    "strandline.iceberg.parquet_rows",
    "strandline.iceberg.pyiceberg.catalog",
    "strandline.iceberg.row_json",
    "strandline.iceberg.schema.schema_file",
    "strandline.iceberg.session.lake_session",
    "strandline.ingest.append",
    "strandline.ingest.facade",
    "strandline.lake",
    "strandline.maintain.facade",
    "strandline.read.read_files",
    "strandline.read.source.settled_source",
    "strandline.read.source.spark_source",
    "strandline.receive.facade",
    "strandline.reconcile.facade",
    "strandline.replicate.follow.apply_item",
    "strandline.replicate.take_over.promote",
    "strandline.serve.app",
    "strandline.status.metrics",
    "uvicorn",
)


# ---- in the process that wants a fork --------------------------------------------------------------------------------


@cache
def address() -> str:
    """The socket of the server, which is started."""
    folder = tempfile.mkdtemp(prefix="sl-fork-")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.join(folder, "socket"))
        listener.listen(64)
        listener.set_inheritable(True)
        # A server without threads: they would not outlive a fork. It ends when its standard input does.
        server = subprocess.Popen(
            [sys.executable, __file__, str(listener.fileno())],
            stdin=subprocess.PIPE, pass_fds=[listener.fileno()], cwd=ROOT, start_new_session=True,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONUTF8": "1"},
        )  # fmt: skip
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(server.kill)
    return os.path.join(folder, "socket")


class Forked:
    """What a `Popen` of `python -m MODULE ARGUMENTS` would be, as far as tests need it; text goes through its pipes."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: Path = ROOT,
        env: Mapping[str, str] | None = None,
        stdin: int | IO[Any] = subprocess.DEVNULL,
        stdout: int | IO[Any] = subprocess.DEVNULL,
        stderr: int | IO[Any] = subprocess.DEVNULL,
    ) -> None:
        self.args = list(command)
        self.returncode: int | None = None
        self._server = socket.socket(socket.AF_UNIX)
        self._server.connect(address())
        with ExitStack() as theirs:
            self.stdin, given = _pipe(stdin, theirs, "w")
            self.stdout, out = _pipe(stdout, theirs, "r")
            self.stderr, err = (None, out) if stderr == subprocess.STDOUT else _pipe(stderr, theirs, "r")
            environ = dict(os.environ if env is None else env)
            command = [self.args[0], *self.args]
            self.pid = fork_client.ask(self._server, command, os.fspath(cwd), environ, [given, out, err])

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._server], [], [], 0)[0]:
            self.returncode = os.waitstatus_to_exitcode(fork_client.number(self._server))
            self._server.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None and not select.select([self._server], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        code = self.poll()
        assert code is not None
        return code

    def communicate(self, given: str | None = None, timeout: float | None = None) -> tuple[str, str]:
        """One that takes longer is killed."""
        with ThreadPoolExecutor(2) as reading:
            out, err = (reading.submit(pipe.read if pipe else str) for pipe in (self.stdout, self.stderr))
            try:
                if self.stdin is not None:
                    with self.stdin:
                        self.stdin.write(given or "")
                self.wait(timeout)
            except BaseException:
                self.kill()
                raise
        return out.result(), err.result()

    def wait_until_stopped(self, timeout: float) -> None:
        """Until it has stopped itself, as a failpoint does."""
        deadline = time.monotonic() + timeout
        while psutil.Process(self.pid).status() != psutil.STATUS_STOPPED:
            assert self.poll() is None and time.monotonic() < deadline, "it did not stop"
            time.sleep(0.02)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _pipe(wanted: int | IO[Any], theirs: ExitStack, mode: str) -> tuple[IO[str] | None, int]:
    """This side's end, if there is one, and the other's, which is closed here once it was handed over."""
    if wanted == subprocess.PIPE:
        read, write = os.pipe()
        ours, handed = (write, read) if mode == "w" else (read, write)
        theirs.callback(os.close, handed)
        return open(ours, mode, encoding="utf-8"), handed
    if wanted == subprocess.DEVNULL:
        handed = os.open(os.devnull, os.O_RDWR)
        theirs.callback(os.close, handed)
        return None, handed
    return None, wanted if isinstance(wanted, int) else wanted.fileno()


def run_forked(
    command: Sequence[str], *, timeout: float, cwd: Path = ROOT, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` with `capture_output`."""
    process = Forked(command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate(timeout=timeout)
    return subprocess.CompletedProcess(process.args, process.wait(), out, err)


def write_command(folder: Path, name: str, module: str) -> None:
    """A command for shells that runs the module in a fork. Who kills the command kills the fork, a moment later."""
    lines = [f"#!{sys.executable} -IS", "import sys", f"sys.path.append({str(ROOT)!r})"]
    lines += ["from tests.fork_client import main", f"main({address()!r}, {name!r}, {module!r})"]
    (folder / name).write_text("\n".join(lines) + "\n", "utf-8")
    (folder / name).chmod(0o755)


OF_DATA_SOURCES = ("pyspark.daemon", "pyspark.sql.streaming.python_streaming_source_runner")


def write_python(folder: Path) -> Path:
    """A Python for Spark. Spark plans each query of a Python data source, and runs each start of its streams, in a
    process of its own (`OF_DATA_SOURCES`): a fork here. Everything else is what `sys.executable` does."""
    lines = [f"#!{sys.executable} -IS", "import os, sys", f"sys.path.append({str(ROOT)!r})"]
    lines += [f"if sys.argv[1:2] == ['-m'] and sys.argv[2] in {OF_DATA_SOURCES!r}:"]
    lines += ["    from tests.fork_client import main", "    _, _, module, *sys.argv[1:] = sys.argv"]
    lines += [f"    main({address()!r}, module, module)"]
    lines += [f"os.execv({sys.executable!r}, [{sys.executable!r}, *sys.argv[1:]])"]
    (folder / "python").write_text("\n".join(lines) + "\n", "utf-8")
    (folder / "python").chmod(0o755)
    return folder / "python"


# ---- the server ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    command: list[str]
    cwd: str
    environ: dict[str, str]


@dataclass
class Server:
    listener: socket.socket
    forks: dict[int, socket.socket] = field(default_factory=dict)

    def serve(self) -> Request | None:
        """Returns in a fork, with what it is to do, and in the server when it is to end."""
        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        with selectors.DefaultSelector() as selector:
            for source in (0, woken, self.listener):
                selector.register(source, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj == 0:
                        for process in self.forks:
                            os.kill(process, signal.SIGKILL)
                        return None
                    if key.fileobj == woken:
                        os.read(woken, 4096)
                        self.tell_who_ended(selector)
                    elif key.fileobj is self.listener:
                        client, _ = self.listener.accept()
                        if (request := self.fork(client)) is not None:
                            signal.set_wakeup_fd(-1)
                            os.close(woken)
                            os.close(wake)
                            return request
                        selector.register(client, selectors.EVENT_READ)
                    elif isinstance(key.fileobj, socket.socket):
                        self.end(key.fileobj, selector)

    def fork(self, client: socket.socket) -> Request | None:
        """None in the server, which has told the client the number of the process."""
        length, files, _, _ = socket.recv_fds(client, fork_client.NUMBER.size, 3)
        body = client.recv(fork_client.NUMBER.unpack(length)[0], socket.MSG_WAITALL)
        process = os.fork()
        if process == 0:
            for held in (self.listener, client, *self.forks.values()):
                held.close()
            for own, given in enumerate(files):
                os.dup2(given, own)
                os.close(given)
            return Request(**json.loads(body))
        for given in files:
            os.close(given)
        self.forks[process] = client
        client.sendall(fork_client.NUMBER.pack(process))
        return None

    def tell_who_ended(self, selector: selectors.BaseSelector) -> None:
        while self.forks:
            process, status = os.waitpid(-1, os.WNOHANG)
            if process == 0:
                return
            client = self.forks.pop(process)
            if client in selector.get_map():
                selector.unregister(client)
                client.sendall(fork_client.NUMBER.pack(status))
            client.close()

    def end(self, client: socket.socket, selector: selectors.BaseSelector) -> None:
        """Whoever asked for a process has ended, and the process is to end as well."""
        selector.unregister(client)
        [process] = [process for process, asked in self.forks.items() if asked is client]
        os.kill(process, signal.SIGKILL)


def become(request: Request) -> None:
    """What `python -m` would do, in a fork."""
    from tests import processes

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request.cwd)
    os.environ.clear()
    os.environ.update(request.environ)
    time.tzset()
    sys.stdout.reconfigure(line_buffering=os.isatty(1), write_through="PYTHONUNBUFFERED" in os.environ)
    module, *sys.argv = request.command
    sys.modules.pop(module, None)  # it runs as the main program
    processes.run_module(module)


def main() -> None:
    listener = socket.socket(fileno=int(sys.argv[1]))
    for module in PRELOADED:
        importlib.import_module(module)
    importlib.import_module("strandline.cli.main").application()  # which imports every command
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()
    gc.set_threshold(OBJECTS_BEFORE_A_SEARCH)  # as a command of its own sets it
    if (request := Server(listener).serve()) is not None:
        become(request)


if __name__ == "__main__":
    main()
