"""A deliverer that dies before and after each durable step: the next one goes on, and each row is at the sink once.

Here it dies by an error that nothing survives: the lease stays taken, and not a word gets into the ledger any more. So
one JVM serves for all points; tests/e2e/test_deliver_crash.py kills real processes at the most telling ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psycopg
import pytest

import strandline
from strandline.core import failpoints
from strandline.ledger.deliver import sinks
from tests.campaign import in_torture
from tests.conftest import MakeHome
from tests.servers import S3, Postgres
from tests.sinks.misbehaving import misbehaving
from tests.spark.deliveries import (
    Delivered,
    Destination,
    Settings,
    Table,
    at_server,
    dies_at,
    in_bucket,
    in_catalog,
    in_folder,
    in_lake,
    in_table,
    keys_of,
    make_lake,
    outlive_lease,
)
from tests.spark.forwarding import ROWS, SETTINGS, open_end
from tests.spark.lakes import create
from tests.spark.sinks import armed

PIN = "deliver.after_pin"
"""Only an object store keeps the cut of a lane itself."""


def points(stage: str) -> list[str]:
    return [p for p in failpoints.POINTS if p.startswith(stage) and p != PIN]


STEPS = {
    # `@2`: the second time, which is between the last object and the mark
    "files": [*points("deliver."), "deliver.after_fence@2", *points("files."), *points("sink.")],
    # the same with two lanes, one of which was through
    "lanes": ["deliver.after_send", "sink.after_mark"],
    "s3": [*points("s3."), PIN, "deliver.before_acknowledge", "sink.after_mark"],
    "postgres": [*points("postgres."), "deliver.before_acknowledge"],
    "iceberg": [*points("iceberg."), "deliver.before_acknowledge"],
    # another lake
    "forward": [*points("forward."), "deliver.after_plan", "deliver.before_acknowledge", "deliver.after_mark"],
    # a server that cannot be asked what it holds; a person recovers the sink, which would cut otherwise by then
    "server": [*points("offer."), "forward.after_post", "deliver.before_acknowledge"],
    # with a row that the table refuses: `@2` is the second round, and the second row that is set aside
    "poison": [*points("split."), "split.after_store@2", *points("quarantine."), "quarantine.after_object@2"],
}


class Poisoned(Delivered):
    """To a table that refuses some rows, until it is told otherwise."""

    replayed: tuple[int, ...] = ()

    def add(self, destination: Destination, **options: str) -> None:
        super().add(destination, **options)
        self.change("ADD CONSTRAINT taste CHECK (n % 10 NOT IN (3, 8))")

    def change(self, how: str) -> None:
        [table] = self.sinks.values()
        assert isinstance(table, Table)
        with psycopg.connect(table.url) as connection:
            connection.execute(f"ALTER TABLE events {how}".encode())

    @property
    def bad(self) -> list[int]:
        return [n for n in range(1, self.rows + 1) if n % 10 in (3, 8) and n not in self.replayed]

    @property
    def expected(self) -> list[tuple[int, int]]:
        """Asked for after a tick: what was refused is set aside, with its content."""
        [sink] = self.sinks
        found = self.lake.delivery.quarantined(sink, contents_max=10_000)
        assert [int(q.row.seq) for q in found] == self.bad and all(q.content for q in found)
        return [(n, n) for n in range(1, self.rows + 1) if n not in self.bad]


@pytest.fixture(scope="module")
def delivered(
    tmp_path_factory: pytest.TempPathFactory, make_home: MakeHome, s3: S3, postgres_server: Postgres
) -> Iterator[Callable[[str], Delivered]]:
    """A lake for each of them, made when it is asked for. The one of `s3` has everything elsewhere: its ledger in
    PostgreSQL, its tables on S3."""
    made: dict[str, Delivered] = {}
    with pytest.MonkeyPatch.context() as environ, ExitStack() as opened:
        for name, value in keys_of(s3).items():
            environ.setenv(name, value)

        def delivers_to(kind: str) -> Delivered:
            if kind not in made:
                folder = tmp_path_factory.mktemp(kind)
                destination: Destination
                settings: Settings = {}
                match kind:
                    case "files" | "lanes":
                        destination = in_folder(folder / "out")
                    case "s3":
                        destination = in_bucket(s3)
                        settings = elsewhere(s3, postgres_server)
                    case "iceberg":
                        destination = in_catalog(folder / "other")
                    case "forward":
                        to = opened.enter_context(open_end(folder / "to", make_home))
                        create(to.lake, "events", ROWS)
                        destination, settings = in_lake(to), SETTINGS
                    case "server":
                        destination, settings = at_server(opened.enter_context(misbehaving())), SETTINGS
                    case _:
                        destination = in_table(postgres_server.create_database())
                lake = make_lake(folder / "lake", make_home, settings, by_lane=kind == "lanes")
                delivered = Poisoned if kind == "poison" else Delivered
                made[kind] = delivered(opened.enter_context(lake))
                made[kind].add(destination, chunk_rows_max="4")
            return made[kind]

        yield delivers_to


def elsewhere(s3: S3, postgres: Postgres) -> dict[str, dict[str, str]]:
    return {
        "ledger": {"url": postgres.create_database()},
        "warehouse": {
            "url": f"s3://{s3.make_bucket()}/lake",
            "endpoint": s3.endpoint,
            "access_key": "env:TEST_ACCESS_KEY",
            "secret_key": "env:TEST_SECRET_KEY",
        },
    }


ALIKE = ("deliver.before_acknowledge", "deliver.after_plan", "deliver.after_mark")
"""Steps of a deliverer that no kind of sink has a part in."""
CASES = [
    in_torture(kind, point) if point in ALIKE and kind not in ("files", "forward", "server") else (kind, point)
    for kind, steps in STEPS.items()
    for point in steps
]


@pytest.mark.parametrize(("kind", "point"), CASES)
def test_a_deliverer_that_dies_at_any_step_loses_and_doubles_nothing(
    delivered: Callable[[str], Delivered], kind: str, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = delivered(kind)
    [sink] = to.sinks
    if kind != "server":
        to.survives(sink, lambda: dies_at(to, sink, point, monkeypatch))
        return

    def dies_and_is_recovered() -> None:
        to.lake.delivery.update(sink, {"chunk_rows_max": "4"})
        dies_at(to, sink, point, monkeypatch)
        outlive_lease(to.lake)
        to.lake.delivery.update(sink, {"chunk_rows_max": "3"})
        to.lake.delivery.recover_sink(sink)

    to.survives(sink, dies_and_is_recovered)


@pytest.mark.parametrize("point", points("replay."))
def test_a_replay_that_dies_at_any_step_loses_and_doubles_nothing(
    delivered: Callable[[str], Delivered], point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = delivered("poison")
    assert isinstance(to, Poisoned)
    to.ingest()
    to.lake.tick()
    [sink] = to.sinks
    bad = to.bad[-2:]
    taken = to.sinks[sink].see().rows
    to.change("DROP CONSTRAINT taste")
    with monkeypatch.context() as dead, armed(dead, f"{point}=fail"):
        dead.setattr(sinks.leases, "release", lambda *_, **__: False)
        with pytest.raises(failpoints.FailpointError, match=point):
            to.lake.delivery.replay(sink, bad)
    outlive_lease(to.lake)
    with strandline.open(to.lake.config.home) as successor:
        assert not successor.delivery.replay(sink, bad).failed
    assert to.sinks[sink].see().rows == sorted(taken + [(n, n) for n in bad])
    proof = to.lake.delivery.verify(sink)
    assert proof.ok, proof
    to.replayed += tuple(bad)
    to.change("ADD CONSTRAINT taste CHECK (n % 10 NOT IN (3, 8)) NOT VALID")  # as it was


def test_rows_that_come_while_a_tick_delivers_are_for_the_next_one(delivered: Callable[[str], Delivered]) -> None:
    """Or a tick would never end where rows come all the time, and nothing else would get its turn."""
    to = delivered("postgres")
    to.lake.tick()
    to.ingest()
    sent: list[int] = []

    def more_come(sink: str, done: int, total: int) -> None:
        if done == total and len(sent) < 3:
            sent.append(total)
            to.ingest()

    [report] = to.lake.delivery.tick("postgres", progress=more_come).sinks
    assert (report.did, report.rows, sent) == ("delivered", 10, [10])
    assert to.lake.tick().sinks[0].rows == 10
    assert to.sinks["postgres"].see().rows == to.expected


def test_a_lake_whose_ledger_tables_and_sink_are_all_elsewhere_delivers_and_proves_it(
    delivered: Callable[[str], Delivered],
) -> None:
    to = delivered("s3")
    to.ingest()
    lo = to.rows - 9
    assert to.lake.tick().sinks[0].did == "delivered"
    bucket = to.sinks["s3"].see()
    assert bucket.rows == to.expected
    newest = sorted(bucket.things)[-3:]
    assert [path.rpartition("/to/")[2] for path in newest] == [
        f"default.events/all/{a:019d}-{b:019d}.parquet" for a, b in ((lo, lo + 3), (lo + 4, lo + 7), (lo + 8, lo + 9))
    ]
    assert to.lake.delivery.verify().ok
