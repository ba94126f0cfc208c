"""Sites under `strandline run --receive` that are promoted and rejoin, without a restart. They have no rows, and so no
JVM."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from strandline.cli.commands.daemon import site_loops
from strandline.cli.daemon_log import DaemonLog
from strandline.core.errors import StrandlineError
from strandline.jobs.loop import LoopControl
from strandline.lake import Lake
from strandline.lake_admin import follow_lake, init_lake, rejoin_lake
from strandline.ledger.replicate import leader_contact
from strandline.replicate.check_tables import SiteTables
from strandline.replicate.take_over.promote import Promotion
from tests.conftest import MakeHome
from tests.receive.conftest import lines, some
from tests.waiting import eventually

SETTINGS: dict[str, dict[str, Any]] = {"follow": {"poll_seconds": 0.05}, "receive": {"port": 0}}
TERM = 17


class Heard(DaemonLog):
    """Keeps what it writes."""

    def __init__(self) -> None:
        super().__init__(as_json=True)
        self.events: list[str] = []
        self.url = ""

    def write(self, event: str, **values: object) -> None:
        self.url = str(values["url"]) if event == "listening" else self.url
        self.events.append(event)


@dataclass
class Running:
    """A site, and the loops of its daemon in threads."""

    lake: Lake
    journal: Heard = field(default_factory=Heard)
    troubles: dict[str, StrandlineError] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)

    def run(self, name: str, loop: Callable[[LoopControl], None], stopping: threading.Event) -> None:
        def troubled(error: StrandlineError) -> None:
            self.troubles[name] = error

        def well() -> None:
            self.troubles.pop(name, None)

        try:
            loop(LoopControl(stopping, troubled, well))
        finally:
            self.ended.append(name)

    def post(self) -> httpx.Response:
        """A body for a dataset that no site has, with a token that only the first one has."""
        eventually(lambda: self.journal.url)
        headers = {"Authorization": "Bearer sl_of_the_leader", "Idempotency-Key": "k"}
        return httpx.post(f"{self.journal.url}/v1/datasets/none/rows", content=lines(some(1)), headers=headers)

    def has_asked(self) -> bool:
        return self.lake.ledger.query(leader_contact.get).answered_at is not None


@contextmanager
def running(lake: Lake) -> Iterator[Running]:
    made, stopping = Running(lake), threading.Event()
    threads = [
        threading.Thread(target=made.run, args=(loop.name, loop.run, stopping), daemon=True)
        for loop in site_loops(lake, made.journal, receive=True)
    ]
    for thread in threads:
        thread.start()
    try:
        yield made
        assert made.ended == []
    finally:
        stopping.set()
        for thread in threads:
            thread.join(60)


def promote(lake: Lake) -> None:
    no_spark: Any = SimpleNamespace(work=None)  # there is nothing that Spark would have to publish
    tables = SiteTables(lake.id, lake.ledger, lake)
    promoted = Promotion(lake.config, lake.ledger, lake.witness, no_spark, None, tables).run(leader_is_stopped=True)
    assert promoted.term == TERM


def test_sites_under_run_that_are_promoted_and_rejoin_go_on_as_what_they_are_then(
    tmp_path: Path, make_home: MakeHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    homes = [make_home(tmp_path / name, SETTINGS).home for name in ("first", "second", "third")]
    with ExitStack() as opened:
        first = opened.enter_context(init_lake(homes[0]))
        for home in homes[1:]:
            monkeypatch.setenv(f"TOKEN_{home.name}", first.followers.add(home.name)[1])
        second, third = (
            opened.enter_context(follow_lake(home, str(homes[0]), token=f"env:TOKEN_{home.name}")) for home in homes[1:]
        )
        one, two, three = (opened.enter_context(running(lake)) for lake in (first, second, third))
        eventually(lambda: two.has_asked() and three.has_asked())
        assert one.post().status_code == 401
        for follower in (two, three):
            refused = follower.post()
            assert refused.status_code == 503 and "this site follows another one" in refused.json()["why"]
        assert not (one.troubles or two.troubles or three.troubles)

        promote(second)
        eventually(lambda: "leads" in two.journal.events)
        eventually(lambda: not two.troubles)
        assert two.post().status_code == 401, "it looks at tokens, and so takes rows"
        for lake in (first, third):
            rejoin_lake(lake.config, str(homes[1]))
        # Only the new leader can tell them its term.
        eventually(lambda: first.replication.site.term == third.replication.site.term == TERM)
        assert "follows" in one.journal.events and "leads" not in three.journal.events
        eventually(lambda: not (one.troubles or two.troubles or three.troubles))
        eventually(lambda: one.post().status_code == 503)
