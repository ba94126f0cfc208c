"""One reading of the lake serves all who ask: never two at once, never one that hides what this process has changed."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from strandline.core.errors import LedgerBusy
from strandline.core.roles import Role
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.serve.snapshot import StatusSnapshot, StatusSnapshots
from strandline.status.report import LakeStatus
from tests.serve.conftest import API, COLUMNS, Served


class Lake:
    """Counts how often it is read; the counter is the number that a reading returns."""

    def __init__(self) -> None:
        self.readings = 0
        self.at_once = self.at_once_max = 0
        self.now = 100.0
        self.go = threading.Event()
        self.go.set()
        self.error: Exception | None = None
        self.pool = ThreadPoolExecutor(8)

    def load(self) -> LakeStatus:
        self.at_once += 1
        self.at_once_max = max(self.at_once_max, self.at_once)
        self.readings += 1
        number = self.readings
        try:
            assert self.go.wait(30)
            if self.error is not None:
                raise self.error
            return LakeStatus("lake", number, None, 1, None, ())
        finally:
            self.at_once -= 1

    def snapshots(self, refresh_seconds: float = 10) -> StatusSnapshots:
        async def in_thread(do: Callable[[], StatusSnapshot]) -> StatusSnapshot:
            return await asyncio.get_running_loop().run_in_executor(self.pool, do)

        return StatusSnapshots(self.load, in_thread, refresh_seconds=refresh_seconds, clock=lambda: self.now)


def test_many_who_ask_at_once_share_one_reading() -> None:
    lake = Lake()

    async def ask() -> None:
        snapshots = lake.snapshots()
        found = await asyncio.gather(*(snapshots.newest() for _ in range(50)))
        assert {s.status.sequence for s in found} == {1}
        lake.now += 10
        assert (await snapshots.newest()).status.sequence == 1 and lake.readings == 1

    asyncio.run(ask())
    assert lake.at_once_max == 1


def test_a_reading_that_is_due_is_made_while_the_last_one_is_shown_and_nobody_waits() -> None:
    lake = Lake()

    async def ask() -> None:
        snapshots = lake.snapshots()
        await snapshots.newest()
        lake.now += 11
        lake.go.clear()
        for _ in range(3):
            old = await snapshots.newest()
            assert old.status.sequence == 1 and snapshots.age_seconds(old) == 11
        lake.go.set()
        while (await snapshots.newest()).status.sequence == 1:
            await asyncio.sleep(0.01)
        assert lake.readings == 2

    asyncio.run(ask())


def test_one_that_is_too_old_is_never_shown_and_what_went_wrong_is_said() -> None:
    lake = Lake()

    async def ask() -> None:
        snapshots = lake.snapshots()
        await snapshots.newest()
        lake.now += 21
        lake.error = LedgerBusy("held")
        with pytest.raises(LedgerBusy):
            await snapshots.newest()
        lake.error = None
        assert (await snapshots.newest()).status.sequence == 3

    asyncio.run(ask())


def test_a_change_is_seen_by_whoever_asks_after_it_even_if_a_reading_was_under_way() -> None:
    lake = Lake()

    async def ask() -> None:
        snapshots = lake.snapshots()
        await snapshots.newest()
        lake.now += 15
        lake.go.clear()
        assert (await snapshots.newest()).status.sequence == 1  # the second reading is under way
        while lake.at_once == 0:
            await asyncio.sleep(0.01)
        lake.now += 1
        snapshots.outdate()
        after = asyncio.create_task(snapshots.newest())
        await asyncio.sleep(0)
        lake.go.set()
        assert (await after).status.sequence == 3

    asyncio.run(ask())
    assert lake.at_once_max == 1


def test_without_a_time_every_request_reads() -> None:
    lake = Lake()

    async def ask() -> None:
        snapshots = lake.snapshots(refresh_seconds=0)
        for number in (1, 2, 3):
            lake.now += 0.001
            assert (await snapshots.newest()).status.sequence == number

    asyncio.run(ask())


@pytest.mark.parametrize("settings", [{"serve": {"refresh_seconds": 3600}}])
def test_the_api_answers_from_it_and_shows_its_own_changes_at_once(served: Served, admin: httpx.Client) -> None:
    def names(client: httpx.Client = admin) -> list[str]:
        return [d["name"] for d in client.get(f"{API}/status").json()["datasets"]]

    assert names() == []
    for name in ("default.a", "default.b"):
        made = admin.post(f"{API}/datasets", json={"name": name, "columns": COLUMNS})
        assert made.status_code == 201
        assert name in names()
    served.lake.create_dataset("default.c", parse_columns(COLUMNS))
    assert names() == ["default.a", "default.b"], "others' changes come with the next reading"
    assert admin.get(f"{API}/status").headers["age"].isdigit()
    limited = served.token("limited", Role.READ, ["default.b"])
    with served.client(limited) as client:
        assert names(client) == names(client) == ["default.b"]
    assert names() == ["default.a", "default.b"], "the cut for one token is not shown to another"


@pytest.mark.parametrize("settings", [{"serve": {"refresh_seconds": 3600}}])
def test_what_followers_say_all_the_time_makes_nobody_read_the_lake_again(served: Served, admin: httpx.Client) -> None:
    def names() -> list[str]:
        return [d["name"] for d in admin.get(f"{API}/status").json()["datasets"]]

    _, secret = served.lake.followers.add("east")
    assert names() == []
    served.lake.create_dataset("events", parse_columns(COLUMNS))  # past the API
    with served.client(secret) as follower:
        told = {"term": 1, "instance": "its site"}
        assert follower.post(f"{API}/replication/acknowledge", json=told).status_code == 200
    assert names() == [], "it is the reading from before"


def test_a_client_that_takes_gzip_gets_it(served: Served) -> None:
    head = {"Authorization": f"Bearer {served.secrets[Role.READ]}"}
    with (
        httpx.Client(base_url=served.url, headers=head) as client,
        client.stream("GET", f"{API}/status", headers={"Accept-Encoding": "gzip"}) as packed,
    ):
        raw = b"".join(packed.iter_raw())
        assert packed.headers["content-encoding"] == "gzip" and packed.headers["vary"] == "Accept-Encoding"
        plain = client.get(f"{API}/status", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert json.loads(gzip.decompress(raw))["lake"] == plain.json()["lake"]
