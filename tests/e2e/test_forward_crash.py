"""A sender whose process is killed, `kill -9`, at each step of sending, splitting, setting aside and replaying; and a
receiver of its own that refuses a row of each batch for good."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from strandline.iceberg.schema.alteration import WidenColumn
from strandline.iceberg.schema.columns import Primitive
from tests.conftest import MakeHome
from tests.e2e.route import SINK, WAIT_SECONDS_MAX, Route, route
from tests.sinks.misbehaving import Act, misbehaving
from tests.spark.deliveries import outlive_lease

pytestmark = pytest.mark.timeout(900)

SENDING = [
    "forward.before_post",
    "forward.after_post",
    "split.before_store",
    "split.after_store",
    "quarantine.before_object",
    "quarantine.after_object",
    "quarantine.after_record",
]
REPLAYING = ["replay.after_number", "replay.after_send"]
TOO_LARGE = 2**40


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, make_home: MakeHome, spark_started: object) -> Iterator[Route]:
    with route(tmp_path_factory.mktemp("crash"), make_home, n="int") as it:
        it.start_receiver("--no-ingest")
        it.add_sink(it.port)
        yield it


def ingest_with_a_bad_one(made: Route) -> int:
    """Ten rows, the fourth of which the other table cannot hold; gives its value."""
    lake, first = made.delivered.lake, made.delivered.rows + 1
    bad = TOO_LARGE + first + 3
    n = f"CASE WHEN id = {first + 3} THEN {bad} ELSE id END AS n"
    lake.append("events", lake.spark.range(first, first + 10, 1, 1).selectExpr(n, "'k' AS k"))
    made.delivered.rows += 10
    return bad


def set_aside(made: Route) -> list[int]:
    aside = made.delivered.lake.delivery.quarantined(SINK, contents_max=100)
    return sorted(q.content["n"] for q in aside if q.content is not None)


def arrived(made: Route) -> list[int]:
    time.sleep(0.3)  # so long a body waits for others
    made.collector.receiver.intake().step()
    return sorted(r[0] for r in made.collector.spark.sql("SELECT n FROM lake.default.events").collect())


def killed_at(made: Route, point: str, *command: str) -> None:
    made.start_sender(*command, failpoint=f"{point}=kill")
    made.sender_died()
    outlive_lease(made.delivered.lake)


@pytest.mark.parametrize("point", SENDING)
def test_a_sender_that_is_killed_at_any_step_sends_each_row_once_and_sets_the_bad_one_aside_once(
    made: Route, point: str
) -> None:
    before = set_aside(made)
    bad = ingest_with_a_bad_one(made)
    killed_at(made, point, "tick", "--sink", SINK, "--json")
    [report] = made.delivered.lake.tick(SINK).sinks
    assert report.did == "delivered", report
    assert set_aside(made) == sorted([*before, bad])
    good = [n for n in range(1, made.delivered.rows + 1) if n + TOO_LARGE not in set_aside(made)]
    assert arrived(made) == good


def test_a_replay_that_is_killed_at_any_step_brings_each_row_once(made: Route) -> None:
    if not set_aside(made):
        ingest_with_a_bad_one(made)
        assert [r.did for r in made.delivered.lake.tick(SINK).sinks] == ["delivered"]
    made.collector.alter_dataset("events", [WidenColumn("n", Primitive("long"))])
    waiting, there = set_aside(made), arrived(made)
    for point in REPLAYING:
        killed_at(made, point, "sink", "quarantine", "replay", SINK, "--all", "--json")
        assert set_aside(made) == waiting, "nobody got to note an answer"
    assert not made.delivered.lake.delivery.replay(SINK).failed
    assert set_aside(made) == [] and arrived(made) == sorted(there + waiting)
    [verdict] = made.delivered.lake.delivery.verify(SINK).sinks
    assert verdict.ok, verdict.findings


def test_a_sender_that_was_told_to_wait_an_hour_ends_at_once_when_it_is_told_to(made: Route) -> None:
    with misbehaving() as server:
        made.delivered.lake.delivery.add(
            "asks_to_wait", "events", "forward", {"url": server.url(), "success_status": "2xx"}
        )
        server.will(*[Act(429, (("Retry-After", "3600"),))] * 20)
        sender = made.start_sender("run", "--json")
        made.wait(lambda: len(server.posts()) > 0, "it never asks")
        made.wait(lambda: made.delivered.lake.delivery.get("asks_to_wait").retry_at is not None, "it does not wait")
        sender.send_signal(signal.SIGTERM)
        assert sender.wait(WAIT_SECONDS_MAX) == 0, made.told()
        made.sender = None
    made.delivered.lake.delivery.remove("asks_to_wait")
