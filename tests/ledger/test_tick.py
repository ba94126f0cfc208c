"""Ticks over sinks whose destination is in trouble, before there is anything to do for Spark."""

from __future__ import annotations

import itertools
import random
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import ExitStack, closing, suppress
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import psycopg
import pyarrow as pa
import pytest

from strandline.core.delivery_types import SinkState
from strandline.core.errors import RefusedError, StorageError
from strandline.core.types import Seq, SeqRange
from strandline.deliver.context import DeliverContext
from strandline.deliver.recover_sink import recover_sink
from strandline.deliver.sink import Address, ChunkRows, Claim, Landed, SinkContext
from strandline.deliver.sinks.postgres.sink import KIND
from strandline.deliver.tick import Deliverer, TickReport
from strandline.iceberg.schema.columns import Column, Primitive
from strandline.ledger.deliver import sinks
from strandline.ledger.engine import utc_now
from strandline.status import sinks as sink_status
from strandline.status.problems.lake_problems import find_sink_problems
from tests.ledger.conftest import LAKE, LakeState
from tests.ledger.delivery import Delivery, new_delivery, open_shared
from tests.no_tables import NoTables
from tests.servers import Postgres, free_port

HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def shared(request: pytest.FixtureRequest) -> Iterator[LakeState]:
    # So long that a test which waits for an answer never ends.
    given = {"forward": {"allow": ["127.0.0.1"], "answer_seconds_max": 3600}, "deliver": {"sinks_at_once_max": 3}}
    yield from open_shared(request, "sqlite", given)


@pytest.fixture
def lake(shared: LakeState) -> DeliverContext:
    return DeliverContext(LAKE, shared.config, shared.ledger, NoTables())


def forwarding_to(shared: LakeState, port: int) -> Delivery:
    made = new_delivery(shared, partitioned=False)
    url = f"http://127.0.0.1:{port}/{made.sink.name}"
    with shared.ledger.write() as connection:
        connection.exec_driver_sql(f"UPDATE sink SET kind = 'forward' WHERE id = {made.sink.id}")
        sinks.set_options(connection, made.sink.id, {"url": url}, url)
    sinks.leases.release(shared.ledger, made.lease)
    made.refresh()
    return made


def did(report: TickReport, delivery: Delivery) -> str:
    delivery.refresh()
    return next(s.did for s in report.sinks if s.name == delivery.sink.name)


def fail_since(delivery: Delivery, age: timedelta) -> None:
    with delivery.ledger.write() as connection:
        sinks.failed(connection, delivery.sink.id, str(delivery.sink.reason), None, utc_now() - age)
        connection.exec_driver_sql(f"UPDATE sink SET failures = 99 WHERE id = {delivery.sink.id}")
    delivery.refresh()


def serve_garbage(listening: socket.socket) -> None:
    """Another kind of nonsense for each connection, with other words in it each time."""
    dice = random.Random(26)
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%s"
    for kind in itertools.cycle([b"%s", b"HTTP/1.1 %s", b"HTTP/1.1 500 %s\r\n\r\n", chunked, b""]):
        try:
            connection, _ = listening.accept()
        except OSError:
            return
        with connection, suppress(OSError):
            connection.recv(65536)
            words = bytes(dice.choices(range(33, 127), k=dice.randint(5, 60)))
            connection.sendall(kind % words if kind else b"")


@pytest.mark.parametrize("destination", ["refuses connections", "answers garbage"])
def test_a_sink_that_fails_for_long_is_tried_less_often_and_status_says_so(
    shared: LakeState, lake: DeliverContext, destination: str
) -> None:
    with ExitStack() as stack:
        port = free_port()
        if destination == "answers garbage":
            garbage = stack.enter_context(closing(socket.create_server(("127.0.0.1", port))))
            threading.Thread(target=serve_garbage, args=(garbage,), daemon=True).start()
        _fail_for_long(shared, lake, port)


def _fail_for_long(shared: LakeState, lake: DeliverContext, port: int) -> None:
    delivery = forwarding_to(shared, port)
    name = delivery.sink.name
    before = utc_now()
    assert did(Deliverer(lake).tick(name), delivery) == "waiting"
    first = delivery.sink.failing_since
    assert first is not None and first >= before and delivery.sink.failures == 1
    for failures in range(2, 7):
        assert did(Deliverer(lake).tick(name), delivery) == "waiting", "whoever names it does not wait"
        assert (delivery.sink.failing_since, delivery.sink.failures) == (first, failures), delivery.sink.reason

    fail_since(delivery, 10 * HOUR)
    now = utc_now()
    assert did(Deliverer(lake).tick(name), delivery) == "waiting"
    assert delivery.sink.retry_at is not None and delivery.sink.retry_at >= now + HOUR / 2
    assert did(Deliverer(lake).tick(), delivery) == "waiting" and delivery.sink.failures == 100, "it waits"
    [told] = find_sink_problems(sink_status.load_sinks(shared.ledger, LAKE, name))
    assert "has failed for 10 h" in told.line and f"strandline tick --sink {name}" in told.line

    with shared.ledger.write() as connection:
        sinks.set_options(connection, delivery.sink.id, delivery.sink.options, delivery.sink.destination)
    delivery.refresh()
    assert delivery.sink.retry_at is None, "a person may have mended it"
    assert did(Deliverer(lake).tick(name), delivery) == "waiting"
    assert delivery.sink.failing_since is not None and delivery.sink.failing_since >= now, "it counts from there"
    with shared.ledger.write() as connection:
        assert sinks.clear_failures(connection, delivery.sink.id)
        sinks.pause(connection, delivery.sink.id)
    delivery.refresh()
    assert delivery.sink.failing_since is None


def test_the_daemon_asks_an_idle_table_now_and_then_whether_it_was_emptied(
    shared: LakeState, lake: DeliverContext, postgres_server: Postgres
) -> None:
    url = postgres_server.create_database()
    delivery = new_delivery(shared, settled=None, partitioned=False)
    name, options = delivery.sink.name, {"dsn": url, "table": "events", "create": "true"}
    sinks.leases.release(shared.ledger, delivery.lease)
    with shared.ledger.write() as connection:
        connection.exec_driver_sql(f"UPDATE sink SET kind = 'postgres' WHERE id = {delivery.sink.id}")
        sinks.set_options(connection, delivery.sink.id, options, url)
    delivery.refresh()
    sink = KIND.open(SinkContext(Path(), delivery.dataset.name, 1, options))
    sink.prepare([Column("_ingest_seq", Primitive("long"), required=True)])
    sink.claim(Claim(LAKE, delivery.sink.instance, delivery.dataset.name, delivery.dataset.uuid), 1)
    address = Address(LAKE, delivery.sink.instance, 1, delivery.dataset.name, "")
    with closing(sink), closing(sink.sender("t")) as sender:
        rows = pa.table({"_ingest_seq": pa.array([1, 2], pa.int64()), "line": ["1", "2"]})
        assert isinstance(sender.send(ChunkRows(address, SeqRange(Seq(1), Seq(2)), rows)), Landed)

    now = [0.0]
    deliverer = Deliverer(lake, clock=lambda: now[0])

    def told_after(seconds: float) -> list[tuple[str, str]]:
        now[0] += seconds
        deliverer.keep_delivering()
        wait([*deliverer._running.values()])
        return [(s.name, s.did) for s in deliverer.keep_delivering().sinks if s.name == name]

    try:
        assert told_after(0) == [] and told_after(599) == [], "no sink is asked at every tick"
        assert told_after(1) == [(name, "idle")]
        with psycopg.connect(url, autocommit=True) as person:
            person.execute("DELETE FROM events")
        assert told_after(1) == []
        assert told_after(600) == [(name, "stopped")]
        delivery.refresh()
        assert delivery.sink.state is SinkState.STOPPED and "was emptied" in str(delivery.sink.reason)
        with pytest.raises(RefusedError, match="2 rows that it acknowledged are missing"):
            recover_sink(lake, delivery.dataset, name, resend=False, accept_loss=False)
        recover_sink(lake, delivery.dataset, name, resend=False, accept_loss=True)
        assert told_after(600) == [(name, "idle")], "that loss was accepted"
    finally:
        deliverer.close()
        postgres_server.drop_database(url)


def test_a_question_that_nobody_answers_ends_when_the_deliverer_is_told_to_stop(
    shared: LakeState, lake: DeliverContext
) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        delivery = forwarding_to(shared, silent.getsockname()[1])
        stopping = threading.Event()
        asked: list[bytes] = []

        def stop_once_asked() -> None:
            connection, _ = silent.accept()
            with connection:
                asked.append(connection.recv(1000))
                stopping.set()
                connection.recv(1000)  # until the other side has had enough

        waiting = threading.Thread(target=stop_once_asked, daemon=True)
        waiting.start()
        assert did(Deliverer(lake, stopping=stopping).tick(delivery.sink.name), delivery) == "idle"
        assert asked[0].startswith(b"HEAD") and (delivery.sink.failures, delivery.sink.reason) == (0, None)
        waiting.join()
    with shared.ledger.write() as connection:
        sinks.pause(connection, delivery.sink.id)


def test_a_ledger_that_is_away_for_a_moment_takes_no_report_with_it(
    shared: LakeState, lake: DeliverContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivery = forwarding_to(shared, free_port())
    deliverer = Deliverer(lake)
    try:
        deliverer.keep_delivering()
        wait([*deliverer._running.values()])
        with monkeypatch.context() as patched, pytest.raises(StorageError):
            patched.setattr(sinks, "due", _raise_away)
            deliverer.keep_delivering()
        ended = [s.did for s in deliverer.keep_delivering().sinks if s.name == delivery.sink.name]
        assert ended == ["waiting"], "and it is told once"
    finally:
        deliverer.close()
        with shared.ledger.write() as connection:
            sinks.pause(connection, delivery.sink.id)


@pytest.mark.parametrize("goes_on", [False, True], ids=["a tick", "the daemon"])
def test_options_that_cannot_be_read_stop_only_the_sink_that_has_them(
    shared: LakeState, lake: DeliverContext, tmp_path: Path, goes_on: bool
) -> None:
    broken, other = new_delivery(shared, partitioned=False), forwarding_to(shared, free_port())
    sinks.leases.release(shared.ledger, broken.lease)
    with shared.ledger.write() as connection:
        options = {"path": str(tmp_path), "batch_rows_min": "many"}
        sinks.set_options(connection, broken.sink.id, options, tmp_path.as_uri())
    deliverer = Deliverer(lake)
    try:
        report = _poll_until_all_ended(deliverer) if goes_on else deliverer.tick()
        assert did(report, broken) == did(report, other) == "waiting", "both were tried"
        assert "batch_rows_min is a whole number" in str(broken.sink.reason) and broken.sink.failures == 1
        assert "no connection" in str(other.sink.reason)
    finally:
        deliverer.close()
        with shared.ledger.write() as connection:
            for delivery in (broken, other):
                sinks.pause(connection, delivery.sink.id)


def _poll_until_all_ended(deliverer: Deliverer) -> TickReport:
    deliverer.keep_delivering()
    wait([*deliverer._running.values()])
    return deliverer.keep_delivering()


def _raise_away(connection: object) -> NoReturn:
    raise StorageError("the ledger is away")


def test_sinks_that_failed_the_last_time_leave_a_place_to_those_that_did_not(
    shared: LakeState, lake: DeliverContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = [forwarding_to(shared, 1) for _ in range(4)]
    for delivery in hanging:
        fail_since(delivery, HOUR)
    healthy = forwarding_to(shared, 1)
    names = {d.sink.name for d in (*hanging, healthy)}
    release, started = threading.Event(), threading.Semaphore(0)
    begun: list[str] = []

    def deliver(self: Deliverer, work: sinks.SinkWork, *, plans_max: int | None = None) -> object:
        if work.sink.name in names:
            begun.append(work.sink.name)
            started.release()
            if work.sink.name != healthy.sink.name:
                release.wait()
        from strandline.deliver.tick import SinkReport

        return SinkReport(work.sink.name, "idle")

    monkeypatch.setattr(Deliverer, "_deliver", deliver)
    deliverer = Deliverer(lake)
    try:
        for _ in range(3):
            deliverer.keep_delivering()
        for _ in range(3):
            assert started.acquire(timeout=60)
        assert healthy.sink.name in begun and len(set(begun)) == 3
    finally:
        release.set()
        deliverer.close()
    with shared.ledger.write() as connection:
        for delivery in (*hanging, healthy):
            sinks.pause(connection, delivery.sink.id)
