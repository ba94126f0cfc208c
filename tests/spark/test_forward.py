"""From one lake to another over HTTP, whatever happens on the way: each row is there once.

Both ends are real and share this process's JVM; a relay between them loses answers, refuses, delays and repeats.
"""

from __future__ import annotations

import itertools
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F
from pyspark.sql import types as T

import strandline
from strandline.core.errors import RefusedError, SchemaError, StorageError, UsageError
from strandline.deliver.context import DeliverContext
from strandline.deliver.sinks.forward.send import ForwardSender
from strandline.deliver.verify.ranges import Fault
from strandline.iceberg.schema.alteration import WidenColumn
from strandline.iceberg.schema.columns import Primitive
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.jobs.loop import LoopControl
from strandline.ledger.deliver import sinks
from strandline.ledger.engine import utc_now
from tests.campaign import in_torture
from tests.conftest import MakeHome
from tests.servers import S3
from tests.sinks.misbehaving import Act, Misbehaving, misbehaving
from tests.spark.deliveries import in_bucket, keys_of
from tests.spark.forwarding import SETTINGS, Receiving, Way, open_end, open_way, token_file
from tests.spark.lakes import create, in_main, numbers, sql
from tests.spark.protocol import copy_ledger, restore_ledger
from tests.spark.relay import Afterwards, Fate, Instead, Keep, Request, Twice
from tests.spark.sinks import tick
from tests.spark.test_types import EVERY, _same
from tests.tls import certificate
from tests.waiting import eventually

FORMATS = ("jsonl", "arrow")


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory, make_home: MakeHome) -> Iterator[Callable[[str], Receiving]]:
    """Lakes of any name, made when they are asked for; each forwards and receives. `a` is where rows come from, `b`
    where they go to, unless a test says otherwise."""
    made: dict[str, Receiving] = {}
    with ExitStack() as opened:

        def end(name: str) -> Receiving:
            if name not in made:
                made[name] = opened.enter_context(open_end(tmp_path_factory.mktemp(name), make_home))
            return made[name]

        yield end


_numbers = itertools.count(1)


@pytest.fixture
def name() -> str:
    """Of the datasets and the sink of one test."""
    return f"events_{next(_numbers)}"


@pytest.fixture
def way(ends: Callable[[str], Receiving], name: str) -> Iterator[Way]:
    with open_way(ends("a").lake, ends("b"), name) as way:
        yield way


@contextmanager
def pair_of_its_own(folder: Path, make_home: MakeHome) -> Iterator[Way]:
    """For tests that put ledgers back: that concerns every dataset of a lake."""
    with (
        open_end(folder / "sender", make_home) as a,
        open_end(folder / "receiver", make_home) as b,
        open_way(a.lake, b, "events") as way,
    ):
        yield way


def each_once(way: Way) -> None:
    assert way.arrived() == way.whole
    assert way.quarantined() == []


def rows_in(bodies: list[Request]) -> int:
    return sum(len(b.numbers) for b in bodies)


def larger_than(rows: int, answer: Fate) -> Callable[[Request], Fate]:
    """What a proxy says to bodies of more rows."""
    return lambda request: answer if len(request.numbers) > rows else None


# --- answers that are lost --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lost", "format"), [(500, "jsonl"), (None, "arrow"), in_torture(500, "arrow"), in_torture(None, "jsonl")]
)
def test_a_commit_whose_answer_is_lost_is_found_and_not_sent_again(way: Way, format: str, lost: int | None) -> None:
    """New rows come before the retry, and do not get into what was promised."""
    way.add(format=format)
    way.ingest()
    way.relay.will(*[Afterwards(lost)] * (1 if lost else 2))
    report = way.tick()
    assert (report.did, report.rows) == ("waiting", 0), report
    first = way.relay.bodies()
    assert len(first) == (1 if lost else 2), "one immediate repeat where nothing was answered, and no other"
    assert len({b.name for b in first}) == 1
    way.ingest(7)
    way.deliver()
    assert rows_in(way.relay.bodies()[len(first) :]) == 7
    each_once(way)
    verdict = way.verdict()
    assert verdict.ok and verdict.rows == 17, verdict.findings


@pytest.mark.parametrize("format", FORMATS)
def test_a_retry_after_new_rows_came_carries_the_identical_id_and_bytes(way: Way, format: str) -> None:
    way.add(format=format, chunk_rows_max="4")
    way.ingest()
    way.relay.rule = lambda request: Instead(503)
    assert way.tick().did == "waiting"
    first = {b.range: b.name for b in way.relay.bodies()}
    assert 1 <= len(first) <= 3, "the rest is given back unsent"
    way.ingest(7)
    way.relay.forget()
    way.relay.rule = lambda request: None
    way.deliver()
    again = {b.range: b.name for b in way.relay.bodies()}
    assert {r: again[r] for r in first} == first
    each_once(way)


@pytest.mark.parametrize("format", ["jsonl", in_torture("arrow")])
def test_a_server_that_cannot_be_asked_gets_the_identical_id_and_bytes_until_it_answers(
    ends: Callable[[str], Receiving], name: str, format: str
) -> None:
    """It committed, answered 500 and later nothing at all; it knows keys, and stores each once."""
    lake = ends("a").lake
    create(lake, name, {"n": "long"})
    with misbehaving() as server:
        lake.delivery.add(name, name, "forward", {"url": server.url(), "format": format, "success_status": "2xx"})
        lake.append(name, numbers(lake, 1, 10))
        server.will(Act(500, commit=True))
        assert tick(lake, name).did == "waiting"
        lake.append(name, numbers(lake, 11, 15))
        server.will(Act(commit=True, end="silent"), Act(commit=True, end="reset"))
        assert tick(lake, name).did == "waiting"
        assert tick(lake, name).did == "delivered"
        sent = [(s.key, s.headers["content-digest"], s.body) for s in server.posts()]
        assert len(sent) == 5 and len(set(sent[:4])) == 1
        assert len(server.stored) == 2
        assert_cannot_be_proven(lake, name, server)


def assert_cannot_be_proven(lake: Any, sink: str, server: Misbehaving) -> None:
    before = len(server.seen)
    report = lake.delivery.verify(sink)
    assert report.exit_code == 3 and not report.ok
    [found] = report.sinks[0].findings
    assert found.kind is Fault.UNREADABLE and "nothing can be proved" in found.detail
    assert {s.method for s in server.seen[before:]} <= {"HEAD"}, "nothing is asked that a stranger takes for rows"


def test_requests_that_are_doubled_or_overtake_each_other_double_and_lose_nothing(way: Way) -> None:
    way.add(chunk_rows_max="3")
    way.ingest(12)
    others = threading.Event()

    def rule(request: Request) -> Fate:
        if lowest in request.numbers:
            others.wait(2)
        else:
            others.set()
        return Twice()

    lowest = numbered(way)
    way.relay.rule = rule
    way.deliver()
    assert sorted(Counter(way.relay.landed()).values()) == [2, 2, 2, 2]
    each_once(way)
    assert way.verdict().ok


def numbered(way: Way) -> int:
    """The number that the first row has at the sender."""
    [row] = way.sender.spark.sql(f"SELECT min(_ingest_seq) FROM {way.table}").collect()
    return int(row[0])


# --- chunks that are cut otherwise ------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [500, None], ids=["answered 500", "connection dropped"])
def test_a_chunk_that_landed_and_whose_retry_a_proxy_finds_too_large_is_not_split(way: Way, lost: int | None) -> None:
    way.add()
    way.ingest()
    way.relay.will(*([Afterwards(lost)] if lost else [Afterwards(lost), Instead(413)]))
    assert way.tick().did == "waiting"
    way.relay.rule = larger_than(5, Instead(413))
    way.ingest(3)
    way.deliver()
    assert way.relay.landed() == [b.range for b in way.relay.bodies() if b.passed]
    each_once(way)
    assert way.verdict().ok


@pytest.mark.parametrize("arrives", [in_torture("before its parts"), "between its parts", "after its parts"])
def test_a_late_parent_of_parts_doubles_nothing(way: Way, arrives: str) -> None:
    """It was under way all the time; its repeat was refused by a proxy, and so it was split."""
    way.add(chunk_rows_max="8")
    way.ingest(8)
    way.relay.will(Keep(), Instead(413))
    assert way.tick().did == "waiting"
    late: list[Any] = []
    parts = itertools.count(1)
    in_turn = threading.Lock()

    def rule(request: Request) -> Fate:
        if len(request.numbers) > 4:
            return Instead(413)
        with in_turn:
            part = next(parts)
            if part == 2:
                eventually(way.relay.landed)
            if (part, arrives) in ((1, "before its parts"), (2, "between its parts")):
                late.extend(way.relay.release())
        return None

    way.relay.rule = rule
    way.deliver()
    late += way.relay.release()
    [answer] = late
    assert answer.status == (409 if arrives == "between its parts" else 202)
    assert (b'"repeat":true' in answer.body) == (arrives == "after its parts")
    way.ingest(2)
    way.deliver()
    each_once(way)
    verdict = way.verdict()
    assert verdict.ok and verdict.rows == 10, verdict.findings


def test_a_parent_that_is_replayed_by_hand_after_its_parts_is_a_repeat(way: Way) -> None:
    way.add()
    way.ingest()
    way.relay.rule = larger_than(5, Instead(413))
    way.deliver()
    parent, *parts = way.relay.bodies()
    assert [p.passed[0].status for p in parts] == [202, 202] and rows_in(parts) == rows_in([parent]) == 10
    for _ in range(2):
        answer = way.relay.passes(parent)
        assert answer.status == 202 and b'"repeat":true' in answer.body
    each_once(way)


def test_a_restored_ledger_that_cuts_differently_sends_nothing_twice_and_forgets_nothing(
    tmp_path: Path, make_home: MakeHome
) -> None:
    with pair_of_its_own(tmp_path, make_home) as way:
        way.add(chunk_rows_max="7")
        way.ingest(10)
        way.deliver()
        copy = copy_ledger(way.sender, "copy.db")
        way.ingest(20)

        def later(request: Request) -> Fate:
            """After the first trouble a task gives the rest back, so the others are let through first."""
            if 20 not in request.numbers:
                return None
            eventually(lambda: len(way.relay.landed()) >= 4)
            return Instead(503)

        way.relay.rule = later
        assert way.tick().did == "waiting", "there is a hole in what landed"
        restore_ledger(way.sender, copy)
        way.sender.delivery.update(way.sink, {"chunk_rows_max": "4"})
        way.ingest(5)
        before = way.relay.landed()
        way.relay.forget()
        way.relay.rule = lambda request: None
        way.deliver()
        assert max(Counter(before + way.relay.landed()).values()) == 1
        assert rows_in([b for b in way.relay.bodies() if b.passed]) == 7 + 5
        each_once(way)
        verdict = way.verdict()
        assert verdict.ok, verdict.findings


@pytest.mark.parametrize("warehouse", ["kept", "restored as well"])
def test_a_receiver_whose_ledger_is_an_old_copy_finds_what_it_took_or_the_sender_stops(
    tmp_path: Path, make_home: MakeHome, warehouse: str
) -> None:
    with pair_of_its_own(tmp_path, make_home) as way:
        way.add()
        way.ingest()
        way.deliver()
        assert way.arrived() == way.whole
        way.to.stop()
        copy = copy_ledger(way.to.lake, "copy.db")
        way.to.start()
        way.ingest()
        way.deliver()
        assert way.arrived() == way.whole
        way.ingest()
        way.deliver()  # and this is in the spool
        way.to.stop()
        restore_ledger(way.to.lake, copy)
        if warehouse != "kept":
            folder = way.to.lake.config.warehouse_folder
            assert folder is not None
            for name in ("received", "spool"):
                shutil.rmtree(folder / "_strandline" / name)
        way.to.start()
        way.relay.forget()
        way.ingest()
        report = way.tick()
        assert report.did == "waiting" and way.relay.bodies() == [], "it says nothing before its ledger is opened"
        way.to.lake.recover()
        if warehouse == "kept":
            way.deliver()
            assert rows_in(way.relay.bodies()) == 10, "nothing that landed is sent again"
            each_once(way)
            verdict = way.verdict()
            assert verdict.ok and verdict.rows == 40, verdict.findings
            return
        assert way.tick().did == "waiting", "nobody knows which bodies the table has: the receiver holds"
        way.to.lake.receiver.accept(way.name, "a test looks at it")
        report = way.tick()
        assert report.did == "stopped" and "no longer knows of" in (report.reason or ""), report
        assert report.hint and "sink recover" in report.hint
        assert way.relay.bodies() == [], "nothing is sent to a receiver that has forgotten"
        assert not way.verdict().ok
        assert way.arrived() == list(range(1, 21)), "and nothing that was in the table is lost or doubled"


def test_rows_that_an_adopted_table_held_before_arrive_once_and_the_next_tick_does_nothing(
    ends: Callable[[str], Receiving], name: str, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over HTTP, and as objects in a bucket."""
    for key, value in keys_of(s3).items():
        monkeypatch.setenv(key, value)
    lake = ends("a").lake
    create(ends("b").lake, name, {"n": "long"})
    create(lake, f"{name}_first", {"n": "long"})  # makes the namespace
    sql(lake, f"CREATE TABLE lake.default.{name} USING iceberg AS SELECT id AS n FROM range(1, 31, 1, 2)")
    assert lake.adopt_dataset(name).rows == 30
    bucket = in_bucket(s3)
    with open_way(lake, ends("b"), name) as way:
        way.add(chunk_rows_max="8")
        lake.delivery.add(f"{name}_s3", name, "s3", {**bucket.options, "chunk_rows_max": "8"})
        assert {tick(lake, sink).rows for sink in (way.sink, f"{name}_s3")} == {30}
        before, requests = bucket.see(), len(way.relay.seen)
        assert [n for _, n in before.rows] == list(range(1, 31))
        with monkeypatch.context() as idle:
            idle.setattr(DeliverContext, "tables", property(lambda _: pytest.fail("an idle tick reads no table")))
            assert [tick(lake, sink).did for sink in (way.sink, f"{name}_s3")] == ["idle", "idle"]
        assert len(way.relay.seen) == requests, "and asks nobody anything"
        assert bucket.see() == before and way.arrived() == list(range(1, 31))
        lake.append(name, numbers(lake, 31, 33))
        assert {tick(lake, sink).rows for sink in (way.sink, f"{name}_s3")} == {3}
        assert way.arrived() == [n for _, n in bucket.see().rows] == list(range(1, 34))
        assert way.verdict().ok and lake.delivery.verify(f"{name}_s3").ok


# --- several of them --------------------------------------------------------------------------------------------------


def test_two_lakes_forward_to_one_dataset_and_neither_is_taken_for_the_other(
    ends: Callable[[str], Receiving], name: str
) -> None:
    """Their numbers are the same, and their datasets have the same name."""
    with open_way(ends("a").lake, ends("b"), name) as one, open_way(ends("c").lake, ends("b"), name) as other:
        for way, start in ((one, 0), (other, 100)):
            way.add(chunk_rows_max="4")
            way.append(numbers(way.sender, start + 1, start + 10).selectExpr("n", "'' AS k"))
        one.relay.will(Afterwards(500))
        assert one.tick().did == "waiting"
        other.deliver()
        one.deliver()
        assert one.arrived() == [*range(1, 11), *range(101, 111)]
        for way in (one, other):
            verdict = way.verdict()
            assert verdict.ok and verdict.rows == 10, verdict.findings


def test_two_sinks_of_one_lake_forward_to_two_receivers_and_one_that_is_away_does_not_hold_up_the_other(
    ends: Callable[[str], Receiving], name: str
) -> None:
    lake = ends("a").lake
    with (
        open_way(lake, ends("b"), name, sink=f"{name}_b") as one,
        open_way(lake, ends("c"), name, sink=f"{name}_c") as other,
    ):
        one.add(format="arrow")
        other.add(chunk_rows_max="3")
        one.ingest()
        one.relay.will(Afterwards(None), Instead(503))
        other.sent = one.sent
        assert one.tick().did == "waiting"
        other.deliver()
        each_once(other)
        one.deliver()
        each_once(one)
        assert one.verdict().ok and other.verdict().ok


@pytest.mark.parametrize("format", ["arrow", in_torture("jsonl")])
def test_logical_partitions_have_lanes_of_their_own_at_the_receiver(
    ends: Callable[[str], Receiving], name: str, format: str
) -> None:
    with open_way(ends("a").lake, ends("b"), name, deliver_by=("k",)) as way:
        way.add(format=format, chunk_rows_max="3")
        way.ingest(12)
        odd = "k=lane1"

        def rule(request: Request) -> Fate:
            return Afterwards(500) if request.headers["Strandline-Partition"] == odd else None

        way.relay.rule = rule
        assert way.tick().did == "waiting"
        assert {b.headers["Strandline-Partition"] for b in way.relay.bodies()} == {odd, "k=lane0"}
        way.relay.rule = lambda request: None
        way.ingest(6)
        landed = way.relay.bodies()
        way.relay.forget()
        way.deliver()
        assert not {b.headers["Idempotency-Key"] for b in landed} & {
            b.headers["Idempotency-Key"] for b in way.relay.bodies()
        }
        each_once(way)
        verdict = way.verdict()
        assert verdict.ok and (verdict.rows, verdict.lanes) == (18, 2), verdict.findings


def test_a_sink_that_is_added_again_goes_on_and_two_never_share_a_receiver_by_different_addresses(
    ends: Callable[[str], Receiving], name: str
) -> None:
    lake = ends("a").lake
    with open_way(lake, ends("b"), name) as way, open_way(lake, ends("b"), name, sink=f"{name}_other") as other:
        other.token = way.token  # another one would not be let in
        way.add()
        way.ingest()
        way.deliver()
        with pytest.raises(RefusedError, match=f"sink {way.sink} delivers to"):
            other.add()
        lake.delivery.remove(way.sink)
        way.ingest(5)
        other.add(chunk_rows_max="2")
        other.deliver()
        assert rows_in(other.relay.bodies()) == 5
        assert other.arrived() == way.whole
        assert other.verdict().ok


def test_a_sink_that_is_added_again_with_another_format_proves_what_it_can(way: Way) -> None:
    way.add()
    way.ingest()
    way.deliver()
    way.sender.delivery.remove(way.sink)
    way.ingest(5)
    way.add(format="arrow", compression="gzip")
    way.deliver()
    assert way.arrived() == way.whole
    verdict = way.verdict()
    assert verdict.ok and verdict.rows == 15, verdict.findings
    assert [f.kind for f in verdict.findings] == [Fault.NOTE] and "version of the encoder" in verdict.findings[0].detail
    way.to.lake.spark.sql(f"DELETE FROM {way.table} WHERE n = 3")
    assert not way.verdict().ok, "rows are counted whatever made their bytes"


# --- receivers that are away, or do not let us in ---------------------------------------------------------------------


def test_an_outage_of_the_receiver_loses_nothing_and_resends_nothing_that_landed(
    tmp_path: Path, make_home: MakeHome
) -> None:
    with pair_of_its_own(tmp_path, make_home) as way:
        way.add(chunk_rows_max="2")
        way.ingest(12)
        falling, requests = threading.Lock(), itertools.count(1)

        def rule(request: Request) -> Fate:
            with falling:
                if next(requests) > 3:
                    eventually(lambda: len(way.relay.landed()) >= 3)
                    way.to.stop()
            return None

        way.relay.rule = rule
        report = way.tick()
        assert report.did == "waiting" and "502" in (report.reason or ""), report
        landed = way.relay.landed()
        assert len(landed) == 3
        way.ingest(4)
        assert way.tick().did == "waiting"
        assert not way.verdict().ok and way.verdict().unreadable
        way.relay.rule = lambda request: None
        way.to.start()
        way.deliver()
        assert Counter(way.relay.landed()) == Counter(set(way.relay.landed())), "each was taken once"
        assert len(way.relay.landed()) == 8
        each_once(way)
        assert way.verdict().ok


def test_a_destination_that_hangs_or_says_later_holds_back_nobody_else_and_nobody_who_wants_to_stop(
    tmp_path: Path, make_home: MakeHome
) -> None:
    """An answer may take an hour here: whoever waited for it would outlast the test."""
    settings = {
        "forward": {"allow": ["127.0.0.1"], "answer_seconds_max": 3600},
        "deliver": {"job_rows_max": 10, "poll_seconds": 0.1, "sink_cores_share_max": 0.5},
    }
    make_home(tmp_path / "lake", settings)
    with (
        strandline.init_lake(tmp_path / "lake") as lake,
        misbehaving() as hanging,
        misbehaving() as silent,
        misbehaving() as busy,
    ):
        create(lake, "events", {"n": "long"})
        lake.append("events", numbers(lake, 1, 40))
        for server in (hanging, silent):
            server.will(*[Act(delay_seconds=3600, end="silent")] * 99)
        busy.will(*[Act(429, (("Retry-After", "3600"),))] * 99)
        for name, server in (("hanging", hanging), ("silent", silent), ("busy", busy)):
            options = {"url": server.url(), "success_status": "2xx", "chunk_rows_max": "1"}
            lake.delivery.add(name, "events", "forward", options)
        lake.delivery.add("files", "events", "files", {"path": str(tmp_path / "out")})
        with lake.ledger.write() as connection:  # as many sinks that hang as many a machine has cores
            for name in ("hanging", "silent"):
                sinks.failed(connection, lake.delivery.get(name).id, "no answer", None, utc_now())
        stopping = threading.Event()
        daemon = threading.Thread(target=lake.delivery.run, args=(LoopControl(stopping),), daemon=True)
        daemon.start()
        try:
            eventually(lambda: len(hanging.posts() + silent.posts()) > 0, 300)
            eventually(lambda: lake.delivery.get("busy").retry_at is not None, 300)
            eventually(lambda: [s.watermark for s in lake.status().sinks if s.name == "files"] == [40], 300)
        finally:
            stopping.set()
        daemon.join(300)
        assert not daemon.is_alive(), "what Spark was at is called off"
        assert len(busy.posts()) <= 2 * ForwardSender.at_once, "the rest of four waves of ten was given back"
        at_once = min(2, max(1, lake.spark.sparkContext.defaultParallelism - 1))
        assert len(hanging.posts() + silent.posts()) <= at_once * ForwardSender.at_once, "each has one task"
        assert {lake.delivery.get(name).failures for name in ("hanging", "silent")} == {1}, "it was only called off"
        for server, name in ((hanging, "hanging"), (silent, "silent"), (busy, "busy")):
            server._acts.clear()
            assert tick(lake, name).did == "delivered"
            assert len(server.stored) == 40


@pytest.mark.parametrize("when", ["before it is asked", "while rows are sent"])
def test_a_token_that_was_revoked_is_waited_for_and_taken_from_its_file_when_it_is_replaced(
    way: Way, when: str
) -> None:
    way.add(chunk_rows_max="5")
    way.ingest()
    way.deliver()
    way.ingest()

    def revoke(request: Request | None = None) -> Fate:
        if way.token.name not in revoked:
            revoked.append(way.token.name)
            way.to.lake.receiver.revoke_token(way.token.name)
        return None

    revoked: list[str] = []
    if when == "before it is asked":
        revoke()
    else:
        way.relay.rule = revoke
    for _ in range(2):
        report = way.tick()
        assert report.did == "waiting" and "401" in (report.reason or ""), report
        status = way.status()
        assert status.state == "waiting" and "401" in (status.reason or "")
    assert way.quarantined() == []
    secret = way.token.read_text().strip()
    assert secret not in (status.reason or "")
    token_file(way.to, way.token.parent, way.token.name)
    way.deliver()
    each_once(way)
    assert way.status().state == "active" and way.status().reason is None
    assert way.verdict().ok


def test_a_token_that_is_replaced_while_rows_are_sent_is_read_again_and_the_same_bytes_go_on(way: Way) -> None:
    way.add(chunk_rows_max="5")
    way.ingest()
    replaced: list[str] = []
    once = threading.Lock()

    def rule(request: Request) -> Fate:
        with once:
            if not replaced:
                way.to.lake.receiver.revoke_token(way.token.name)
                token_file(way.to, way.token.parent, way.token.name)
                replaced.append(way.token.name)
        return None

    way.relay.rule = rule
    way.deliver()
    by_range: dict[str, set[Any]] = {}
    for body in way.relay.bodies():
        by_range.setdefault(body.range, set()).add(body.name)
    assert len(way.relay.bodies()) > 2 and all(len(names) == 1 for names in by_range.values())
    each_once(way)


# --- poison -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
def test_values_that_the_other_table_cannot_hold_are_set_aside_and_replayed_when_it_can(
    ends: Callable[[str], Receiving], name: str, format: str
) -> None:
    with open_way(ends("a").lake, ends("b"), name, there={"n": "int", "k": "string"}) as way:
        way.add(format=format, chunk_rows_max="4")
        bad = F.when(F.col("n").isin(3, 8), F.col("n") + 2**40).otherwise(F.col("n"))
        way.append(numbers(way.sender, 1, 10).select(bad.alias("n"), F.lit("x").alias("k")))
        report = way.tick()
        assert (report.did, report.rows, report.quarantined) == ("delivered", 8, 2), report
        assert way.arrived() == [n for n in range(1, 11) if n not in (3, 8)]
        aside = way.quarantined()
        assert [q.content["n"] for q in aside] == [2**40 + 3, 2**40 + 8]
        assert all("400" in q.row.reason and "n" in q.row.reason for q in aside)
        assert way.status().quarantined == 2
        assert [r.outcome for r in way.sender.delivery.replay(way.sink).rows] == ["refused", "refused"]
        verdict = way.verdict()
        assert verdict.ok and verdict.quarantined == 2, verdict.findings
        way.to.lake.alter_dataset(name, [WidenColumn("n", Primitive("long"))])
        way.relay.will(Afterwards(None), Afterwards(None))
        replayed = way.sender.delivery.replay(way.sink).rows
        assert [r.outcome for r in replayed] == ["unknown", "waiting"], replayed
        assert not way.sender.delivery.replay(way.sink).failed
        assert way.quarantined() == []
        assert way.arrived() == sorted([n for n in range(1, 11) if n not in (3, 8)] + [2**40 + 3, 2**40 + 8])
        verdict = way.verdict()
        assert verdict.ok and (verdict.quarantined, verdict.replayed) == (0, 2), verdict.findings


@pytest.mark.parametrize("format", FORMATS)
def test_rows_without_a_value_that_the_other_table_requires_are_set_aside(
    ends: Callable[[str], Receiving], name: str, format: str
) -> None:
    required = [{"name": "n", "type": "long"}, {"name": "k", "type": "string", "required": True}]
    ends("b").lake.create_dataset(name, parse_columns(required))
    with open_way(ends("a").lake, ends("b"), name) as way:
        way.add(format=format)
        k = F.when(F.col("n") != 5, F.lit("x"))
        way.append(numbers(way.sender, 1, 8).withColumn("k", k))
        report = way.tick()
        assert (report.did, report.rows, report.quarantined) == ("delivered", 7, 1), report
        [aside] = way.quarantined()
        assert aside.content["n"] == 5 and '"k" is' in aside.row.reason and "required" in aside.row.reason
        assert way.arrived() == [n for n in range(1, 9) if n != 5]
        assert way.verdict().ok


def test_a_stranger_that_refuses_what_may_have_landed_stops_the_sink_until_a_person_has_looked(
    ends: Callable[[str], Receiving], name: str
) -> None:
    """Parts have other keys: had the chunk landed, a server that only knows keys would take its rows once more."""
    lake = ends("a").lake
    create(lake, name, {"n": "long"})
    with misbehaving() as server:
        lake.delivery.add(name, name, "forward", {"url": server.url(), "success_status": "2xx"})
        lake.append(name, numbers(lake, 1, 10))
        server.will(Act(500))
        assert tick(lake, name).did == "waiting"
        server.will(Act(413))
        report = tick(lake, name)
        assert report.did == "stopped" and "may have landed" in (report.reason or ""), report
        assert report.hint and "in_doubt=split" in report.hint and f"sink resume {name}" in report.hint
        lake.delivery.resume(name)
        server.will(Act(413))
        assert tick(lake, name).did == "stopped", "nothing has changed"
        assert server.stored == {}
        lake.delivery.update(name, {"in_doubt": "split"})
        lake.delivery.resume(name)
        server.will(Act(413))
        assert tick(lake, name).did == "delivered"
        parts = sorted(tuple(map(int, s.headers["strandline-range"].split("-"))) for s in server.posts()[-2:])
        assert parts[0][1] + 1 == parts[1][0], "halves of the one that was refused"
        assert len(server.stored) == 2
        with pytest.raises(UsageError, match="in_doubt"):
            lake.delivery.update(name, {"in_doubt": "perhaps"})


def test_a_gateway_that_refuses_everything_stops_the_sink_and_quarantines_nothing(way: Way) -> None:
    way.add(quarantine_rows_max="2")
    way.ingest(16)
    for status in (200, 400):  # nobody but the receiver itself says that it took rows, or that they are bad
        way.relay.rule = lambda request, said=status: Instead(said, b"back soon")
        report = way.tick()
        assert (report.did, report.rows) == ("waiting", 0) and "lacks the header" in (report.reason or ""), report
    way.relay.forget()
    way.relay.rule = lambda request: Instead(413, b"too large, all of them")
    report = way.tick()
    assert report.did == "stopped" and "too large, all of them" in (report.reason or ""), report
    assert way.quarantined() == [] and way.status().state == "stopped"
    assert len(way.relay.bodies()) <= 1 + 2 + 4
    way.sender.delivery.update(way.sink, {"quarantine_rows_max": "100"})
    way.sender.delivery.resume(way.sink)
    report = way.tick()  # split until the rows stand alone, and then they wait
    assert report.did == "waiting" and "lacks the header" in (report.reason or ""), report
    assert way.quarantined() == [] and min(len(b.numbers) for b in way.relay.bodies()) == 1
    way.relay.rule = lambda request: None
    way.deliver()
    each_once(way)
    assert way.verdict().ok


# --- TLS --------------------------------------------------------------------------------------------------------------


def test_a_receiver_that_speaks_https_is_trusted_by_its_own_certificate_and_by_no_other(
    ends: Callable[[str], Receiving], name: str, tmp_path: Path, make_home: MakeHome
) -> None:
    sender, (cert, key), (other, _) = ends("a").lake, certificate(tmp_path / "one"), certificate(tmp_path / "other")
    settings = {"receive": SETTINGS["receive"] | {"tls_certificate": str(cert), "tls_key": str(key)}}
    with open_end(tmp_path / "secure", make_home, settings) as to:
        create(sender, name, {"n": "long"})
        create(to.lake, name, {"n": "long"})
        token = token_file(to, tmp_path / "tokens", "sender")
        url = f"https://127.0.0.1:{to.port}/v1/datasets/{name}/rows"
        options = {"url": url, "token": f"file:{token}"}
        for wrong in (options, options | {"ca": str(other)}):
            with pytest.raises(StorageError, match="certificate is not trusted"):
                sender.delivery.add(name, name, "forward", wrong)
        sender.delivery.add(name, name, "forward", options | {"ca": str(cert)})
        sender.append(name, numbers(sender, 1, 10))
        assert tick(sender, name).did == "delivered"
        to.ingest()
        assert sorted(n for _, n in in_main(to.lake, name)) == list(range(1, 11))
        [proven] = sender.delivery.verify(name).sinks
        assert proven.ok and proven.rows == 10
        sender.delivery.update(name, {"ca": str(other)})
        sender.append(name, numbers(sender, 11, 12))
        assert tick(sender, name).did == "waiting"
        told = next(s for s in sender.status().sinks if s.name == name)
        assert told.state == "waiting" and "certificate is not trusted" in (told.reason or ""), told
        plain = {"url": url.replace("https", "http"), "token": f"file:{token}"}
        with pytest.raises(StorageError):
            sender.delivery.add(f"{name}_plain", name, "forward", plain)


# --- proof ------------------------------------------------------------------------------------------------------------


def test_verify_proves_what_is_there_and_names_a_row_that_is_gone_and_one_that_is_there_twice(way: Way) -> None:
    way.add(chunk_rows_max="8")
    way.ingest(20)
    way.deliver()
    spooled = way.verdict()
    assert spooled.ok and spooled.rows == 20, spooled.findings
    way.to.ingest()
    ingested = way.verdict()
    assert ingested.ok and (ingested.rows, ingested.ranges) == (20, 3), ingested.findings
    lo = numbered(way)
    sql = way.to.lake.spark.sql
    sql(f"DELETE FROM {way.table} WHERE n = 11")
    [gone] = [f for f in way.verdict().findings if f.is_fault]
    assert (
        str(gone.range) == f"{lo + 8}..{lo + 15}"
        and f"(sequence number {lo + 10} at the sender) is gone" in gone.detail
    )
    sql(f"INSERT INTO {way.table} SELECT * FROM {way.table} WHERE n = 18")
    sql(f"DELETE FROM {way.table} WHERE n = 3")
    report = way.sender.delivery.verify(way.sink)
    assert report.exit_code == 1
    by_place, gone, twice = [f for f in report.sinks[0].findings if f.is_fault]
    assert f"(sequence number {lo + 10} at the sender) is gone" in gone.detail
    assert str(twice.range) == f"{lo + 16}..{lo + 19}" and "is there twice" in twice.detail
    assert f"(sequence number {lo + 17} at the sender)" in twice.detail
    # Of a range that has fewer rows than numbers, a receiver can only tell the place of a row.
    assert str(by_place.range).endswith(f"..{lo + 7}") and "row 3 " in by_place.detail


# --- types ------------------------------------------------------------------------------------------------------------

NOT_IN_JSON = {"map<struct<k:int,d:date>,string>"}
"""JSON's keys are text, and how a struct is spelled as one is nobody's standard."""


def test_what_json_has_no_form_for_is_refused_before_a_sink_is_made(way: Way, name: str) -> None:
    create(way.sender, f"{name}_odd", {"n": "long", "m": "list<map<struct<k:int>,string>>"})
    given = {"url": way.relay.url(f"{name}_odd"), "token": f"file:{way.token}"}
    create(way.to.lake, f"{name}_odd", {"n": "long", "m": "list<map<struct<k:int>,string>>"})
    with pytest.raises(SchemaError, match="column m has a map whose keys are not plain values") as refused:
        way.sender.delivery.add("odd", f"{name}_odd", "forward", given)
    assert refused.value.hint and "format=arrow" in refused.value.hint
    way.sender.delivery.add("odd", f"{name}_odd", "forward", given | {"format": "arrow"})
    with pytest.raises(SchemaError, match="column m"):
        way.sender.delivery.update("odd", {"format": "jsonl"})


@pytest.mark.parametrize("format", FORMATS)
def test_every_type_arrives_as_it_was(ends: Callable[[str], Receiving], name: str, format: str) -> None:
    kinds = {k: v for k, v in EVERY.items() if format == "arrow" or k not in NOT_IN_JSON}
    columns = {"n": "int"} | {f"c{i}": kind for i, kind in enumerate(kinds)}
    with open_way(ends("a").lake, ends("b"), name, columns=columns) as way:
        way.add(format=format)
        fields = [f for f in way.sender.spark.table(way.table).schema.fields if f.name in columns]
        rows = [
            (k, *(v[k] if k < len(v) else None for v in kinds.values()))
            for k in range(max(map(len, kinds.values())) + 1)
        ]
        plain = T.StructType([T.StructField(f.name, f.dataType) for f in fields])
        way.append(way.sender.spark.createDataFrame(rows, plain))
        way.deliver()
        way.to.ingest()
        got = [row for row, _ in way.to.lake.read_since(name)]
        assert len(got) == len(rows)
        differing = {
            kind: [(_same(g[at]), _same(r[at])) for g, r in zip(got, rows, strict=True) if _same(g[at]) != _same(r[at])]
            for at, kind in enumerate(kinds, 1)
        }
        assert {k: v for k, v in differing.items() if v} == {}
        assert way.verdict().ok


@pytest.mark.parametrize("format", FORMATS)
def test_dates_and_times_arrive_over_the_whole_range_of_their_type(
    ends: Callable[[str], Receiving], name: str, format: str
) -> None:
    """As numbers on both sides: Python has no years before 1 or after 9999."""
    days = [-(2**31), -735160, -719529, 0, 3672207, 2**31 - 1]
    micros = [-(2**63), -63554961546000000, -62167219200000000, 1, 253402300800000000, 2**63 - 1]
    with open_way(ends("a").lake, ends("b"), name, columns={"d": "date", "t": "timestamp", "z": "timestamptz"}) as way:
        way.add(format=format)
        rows = way.sender.spark.createDataFrame(list(zip(days, micros, strict=True)), "days int, micros long")
        instant = F.timestamp_micros("micros")
        given = [F.date_from_unix_date("days").alias("d"), instant.cast("timestamp_ntz").alias("t"), instant.alias("z")]
        way.append(rows.select(*given))
        way.deliver()
        way.to.ingest()
        written = [F.unix_date("d"), F.unix_micros(F.col("t").cast("timestamp")), F.unix_micros("z")]
        got = way.to.lake.spark.table(way.table).orderBy("d").select(*written).collect()
        assert [tuple(row) for row in got] == [(d, m, m) for d, m in zip(days, micros, strict=True)]
        assert way.quarantined() == [] and way.verdict().ok
