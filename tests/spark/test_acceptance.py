"""Real compaction, retention and expiry between, during and after ticks, by Strandline and by others, for every kind of
sink and with several writers: each row is at each sink once. Iceberg's own streaming read goes beside it."""

from __future__ import annotations

import importlib.util
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType

import pytest

import strandline
from strandline.core import failpoints
from tests.campaign import in_torture
from tests.conftest import MakeHome
from tests.servers import S3, Postgres
from tests.spark.deliveries import Received, dies_at, outlive_lease
from tests.spark.shore import Shore, open_shore
from tests.spark.upkeep import compact_as_anyone, expire_as_anyone

COMPARISON = Path(__file__).resolve().parents[2] / "examples" / "streaming_read" / "compare.py"


@pytest.fixture(scope="module")
def shore(
    tmp_path_factory: pytest.TempPathFactory, make_home: MakeHome, s3: S3, postgres_server: Postgres
) -> Iterator[Shore]:
    """Delivered in one lane. Each test leaves it whole."""
    with open_shore(tmp_path_factory.mktemp("shore"), make_home, s3, postgres_server, by_lane=False) as made:
        yield made


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("streaming_read_comparison", COMPARISON)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def by_anyone(shore: Shore) -> None:
    """What others do to our table, and what is done at the other end of `forward`."""
    compact_as_anyone(shore.lake, "events")
    expire_as_anyone(shore.lake, "events")


def test_maintenance_between_ticks_costs_no_sink_a_row_and_icebergs_streaming_read_its_life(
    shore: Shore, example: ModuleType, tmp_path: Path
) -> None:
    stream = example.StreamingRead(shore.lake, tmp_path)
    steps: dict[str, Callable[[], None]] = {
        "compact": shore.compact,
        "retain": shore.retain,
        "compacted by others": lambda: compact_as_anyone(shore.lake, "events"),
        "expire": shore.expire,
        "expired by others": lambda: expire_as_anyone(shore.lake, "events"),
    }
    failed: dict[str, bool] = {}
    for name, step in steps.items():
        shore.ingest(12)
        shore.deliver()
        shore.ingest(5)  # which is delivered from what the step leaves
        step()
        shore.deliver()
        failed[name] = stream.run() is not None
    for name, destination in shore.sinks.items():
        assert destination.see().rows == shore.wanted(name), name
    assert not any(failed[name] for name in list(steps)[:3]), "it gets along with what leaves its snapshots alone"
    assert failed["expire"] and failed["expired by others"]
    assert len(set(stream.delivered())) < shore.rows, "what it had not read by then it never will"


STEPS = ("deliver.before_plan", "deliver.after_plan", "deliver.before_acknowledge", "deliver.after_mark")


def test_maintenance_at_every_step_of_a_tick_costs_no_sink_a_row(shore: Shore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the deliverer read of table or ledger just before has changed when it goes on."""
    by_others: list[Callable[[], None]] = [
        lambda: compact_as_anyone(shore.lake, "events"),
        lambda: expire_as_anyone(shore.lake, "events"),
    ]
    turns = itertools.cycle([shore.compact, shore.retain, shore.expire, *by_others])
    reached: set[str] = set()

    def maintain(point: str) -> None:
        if point in STEPS:
            reached.add(point)
            next(turns)()

    shore.ingest(20)
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(failpoints, "hit", maintain)
        for sink in shore.sinks:  # one after the other, so that no two take the same turn
            [report] = shore.lake.tick(sink).sinks
            # Where the very files that are being read are removed, the next tick reads those that took their place.
            assert report.did == "delivered" or "exist" in (report.reason or ""), report
    shore.drain()
    assert reached == set(STEPS)
    for name, destination in shore.sinks.items():
        assert destination.see().rows == shore.wanted(name), name


DEATHS = [
    ("files", "deliver.after_plan"),
    in_torture("files", "deliver.before_acknowledge"),
    in_torture("files", "deliver.after_mark"),
    ("s3", "deliver.after_pin"),
    in_torture("s3", "s3.after_put"),
    ("postgres", "postgres.after_commit"),
    ("forward", "forward.after_post"),
]


@pytest.mark.parametrize(("sink", "at"), DEATHS)
def test_a_deliverer_that_died_is_gone_on_from_though_the_table_was_maintained_since(
    shore: Shore, sink: str, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shore.ingest()
    promised = [seq for seq, _ in shore.known[-10:]]
    dies_at(shore, sink, at, monkeypatch)
    held = shore.sinks[sink].see()
    for other in set(shore.sinks) - {sink}:
        shore.lake.tick(other)
    shore.maintain()
    by_anyone(shore)
    # They may be at the sink already: nobody knows, until it is asked.
    assert set(promised) <= set(shore.left()), "retention waits for what a dead deliverer has promised"
    shore.ingest()
    outlive_lease(shore.lake)
    shore.drain()
    after = shore.sinks[sink].see()
    assert after.rows == shore.wanted(sink)
    assert held.things.items() <= after.things.items(), "what was there is as it was"


def test_what_is_delivered_is_deleted_and_the_proof_still_holds(shore: Shore) -> None:
    shore.ingest()
    shore.drain()
    shore.maintain()
    assert shore.left() == [], "every sink has every row"
    shore.ingest(3)
    shore.deliver()
    shore.is_whole()


class Hand(threading.Thread):
    """Does something again and again until told to stop; whatever goes wrong ends it and is told."""

    def __init__(self, *steps: Callable[[], object], times: int | None = None) -> None:
        super().__init__(daemon=True)
        self.steps = itertools.cycle(steps) if times is None else itertools.islice(itertools.cycle(steps), times)
        self.done = 0
        self.wrong: BaseException | None = None
        self.stopping = threading.Event()

    def run(self) -> None:
        try:
            for step in self.steps:
                if self.stopping.is_set():
                    return
                step()
                self.done += 1
        except BaseException as e:
            self.wrong = e

    def end(self) -> None:
        self.stopping.set()
        self.join(120)
        assert not self.is_alive()
        assert self.wrong is None, repr(self.wrong)


def forgiving(step: Callable[[], None]) -> Callable[[], None]:
    """A step that loses against another's commit, or whose files another has just expired, says so and is repeated."""

    def attempt() -> None:
        try:
            step()
        except Exception as e:
            assert any(word in str(e) for word in ("Commit", "commit", "Validation", "missing", "does not exist")), e

    return attempt


def test_several_writers_a_deliverer_and_maintenance_all_at_once_lose_and_double_nothing(
    tmp_path: Path, make_home: MakeHome, s3: S3, postgres_server: Postgres
) -> None:
    """Delivered in lanes. Each hand has the lake open for itself, as processes have."""
    with ExitStack() as opened:
        shore = opened.enter_context(open_shore(tmp_path, make_home, s3, postgres_server, by_lane=True))
        home = shore.lake.config.home
        lakes = [opened.enter_context(strandline.open(home)) for _ in range(4)]
        received = shore.sinks["forward"]
        assert isinstance(received, Received)
        writers = [
            Hand(lambda: shore.write(lakes[0], 10), times=4),
            Hand(lambda: shore.write(lakes[1], 7), times=4),
        ]
        deliverer = Hand(lambda: lakes[2].tick())
        care = Shore(lakes[3])
        there = Shore(received.to.lake)
        helpers = [
            Hand(*map(forgiving, (care.compact, care.retain, care.expire))),
            Hand(
                forgiving(lambda: compact_as_anyone(shore.lake, "events")),
                forgiving(lambda: expire_as_anyone(shore.lake, "events")),
                there.compact,
                there.expire,
            ),
        ]
        hands = [*writers, deliverer, *helpers]
        for hand in hands:
            hand.start()
        for writer in writers:
            writer.join(120)
        for hand in hands:
            hand.end()
        assert deliverer.done > 0 and all(helper.done > 0 for helper in helpers)
        shore.drain()
        care.maintain()
        shore.is_whole()
        assert shore.left() == []
