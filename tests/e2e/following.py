"""A leader that is served, its followers, and the network between them: processes of their own that can be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from strandline.core.settings.lake_config import CONFIG_NAME
from strandline.lake import Lake
from strandline.lake_admin import follow_lake, init_lake
from tests.conftest import MakeHome
from tests.fork_server import Forked
from tests.spark.relay import Relay, relaying

WAIT_SECONDS_MAX = 300
Settings = Mapping[str, Mapping[str, Any]]
LEADING: Settings = {"ingest": {"lease_seconds": 60}}
FOLLOWING: Settings = {
    "ingest": {"lease_seconds": 60},  # outlived by moving its time, not by waiting
    "follow": {"items_at_once_max": 2, "offer_items_max": 6, "poll_seconds": 0.1},
}


@dataclass
class Sites:
    leader: Lake
    folder: Path
    relay: Relay
    make_home: MakeHome
    environ: pytest.MonkeyPatch
    following: Callable[[str], Settings] = lambda name: FOLLOWING
    served: Forked | None = None
    processes: list[Forked] = field(default_factory=list)
    logs: dict[int, Path] = field(default_factory=dict)  # by the number of the process

    # --- the leader's server ---

    def serve(self) -> None:
        """On a new port; followers reach it through the relay."""
        log = self._log("server")
        with log.open("wb") as out:
            self.served = Forked(
                ["strandline.cli.main", "serve", "--port", "0", "--config", str(self.leader.config.home)],
                stdout=out, stderr=subprocess.STDOUT,
                env=os.environ | {"STRANDLINE_FAILPOINT": "", "PYTHONUNBUFFERED": "1"},
            )  # fmt: skip

        def urls() -> list[str]:
            lines = [line for line in log.read_text("utf-8").splitlines(keepends=True) if line.endswith("}\n")]
            return [told["url"] for told in map(json.loads, lines) if told.get("event") == "listening"]

        self.wait(lambda: bool(urls()), "the server does not listen", self.served)
        self.relay.upstream = int(urls()[0].rpartition(":")[2])

    def _log(self, name: str) -> Path:
        logs = self.folder / "logs"
        logs.mkdir(exist_ok=True)
        return logs / f"{name}-{len(list(logs.iterdir()))}"

    def kill_server(self) -> None:
        if self.served is not None:
            self.served.kill()
            self.served.wait(WAIT_SECONDS_MAX)
            self.served = None

    # --- followers ---

    def add(self, name: str, transport: str) -> Lake:
        """A new follower of the leader, over `http` through the relay, or over `shared` storage."""
        self.register(name)
        self.make_home(self.folder / name, self.following(name))
        return self.init(name, transport)

    def register(self, name: str) -> str:
        """At whoever leads. Returns where its token is."""
        variable = f"TOKEN_{name.upper()}"
        self.environ.setenv(variable, self.leader.followers.add(name)[1])
        return f"env:{variable}"

    def address(self, transport: str) -> str:
        """Of whoever leads."""
        shared = str(self.leader.config.home / CONFIG_NAME)
        return f"http://127.0.0.1:{self.relay.port}" if transport == "http" else shared

    def init(self, name: str, transport: str) -> Lake:
        """As `strandline follow init`: also for a site whose ledger is gone."""
        return follow_lake(self.folder / name, self.address(transport), token=f"env:TOKEN_{name.upper()}")

    def start(self, follower: Lake, failpoint: str = "") -> Forked:
        """`strandline follow`, until it is killed."""
        return self.command(follower, "strandline.cli.main", "follow", "--json", failpoint=failpoint)

    def command(self, site: Lake, *command: str, failpoint: str = "") -> Forked:
        """A module at a site, with what it says in the logs."""
        log = self._log(site.config.home.name)
        with log.open("wb") as out:
            process = Forked(
                command,
                cwd=site.config.home, stdout=out, stderr=subprocess.STDOUT,
                env=os.environ | {"STRANDLINE_FAILPOINT": failpoint},
            )  # fmt: skip
        self.processes.append(process)
        self.logs[process.pid] = log
        return process

    def killed_at(self, follower: Lake, point: str) -> None:
        """A follower that a failpoint kills."""
        process = self.start(follower, f"{point}=kill")
        code = process.wait(WAIT_SECONDS_MAX)
        assert code == -signal.SIGKILL, f"{point} was not reached: {self.told()}"

    def wait(self, until: Callable[[], bool], what: str, *processes: Forked) -> None:
        """All of the processes must live meanwhile."""
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not until():
            assert all(p.poll() is None for p in processes), f"{what}: a follower ended\n{self.told()}"
            assert time.monotonic() < deadline, f"{what}\n{self.told()}"
            time.sleep(0.05)

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait(WAIT_SECONDS_MAX)
        self.kill_server()

    def told(self) -> str:
        logs = sorted((self.folder / "logs").iterdir(), key=lambda log: log.stat().st_mtime)[-4:]
        return "\n".join(f"{log.name}:\n{log.read_text('utf-8')[-1500:]}" for log in logs)


@contextmanager
def sites(folder: Path, make_home: MakeHome, leading: Settings = LEADING) -> Iterator[Sites]:
    make_home(folder / "leader", leading)
    with init_lake(folder / "leader") as leader, relaying(0) as relay, pytest.MonkeyPatch.context() as environ:
        made = Sites(leader, folder, relay, make_home, environ)
        try:
            made.serve()
            yield made
        finally:
            made.end()
