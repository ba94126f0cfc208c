"""The kind `postgres`, under the contract of all sinks and in what only it can get wrong, against a real server."""

from __future__ import annotations

import hashlib
import os
import pickle
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pyarrow as pa
import pytest

from strandline.core import failpoints
from strandline.core.errors import RefusedError, SchemaError, StorageError, UsageError
from strandline.core.retry import RetryPolicy
from strandline.core.types import SEQ_MAX, Seq, SeqRange
from strandline.deliver.sink import (
    Address,
    ChunkRows,
    Claim,
    Conflict,
    HeldRange,
    Inspected,
    Landed,
    Outcome,
    Refused,
    Sink,
    SinkContext,
    TryLater,
    Unknown,
)
from strandline.deliver.sink_kinds import find_kind, resolve
from strandline.deliver.sinks.postgres import connect as postgres_connect
from strandline.deliver.sinks.postgres import send
from strandline.deliver.sinks.postgres.columns import TYPE_RULES, TableName, pg_type
from strandline.deliver.sinks.postgres.connect import check_dsn, parse_server
from strandline.deliver.sinks.postgres.inspect_ranges import PostgresInspector
from strandline.deliver.sinks.postgres.record import RecordTables, pack_numbers
from strandline.deliver.sinks.postgres.send import PostgresSender, load
from strandline.deliver.sinks.postgres.sink import KIND, PostgresSink
from strandline.deliver.sinks.postgres.table_identity import has_rows, holds_only
from strandline.iceberg.schema.columns import Column, ColumnType, ListOf, MapOf, Primitive, Struct
from tests.servers import Postgres, Proxy, Toxiproxy
from tests.sinks.contract import DATASET, Made, RefusesLowerTerms, SinkContract
from tests.waiting import eventually

NUMBER = Column("_ingest_seq", Primitive("long"), required=True)
COLUMNS = (NUMBER, Column("name", Primitive("string")), Column("amount", Primitive("int")))
ADDRESS = Address("lake-1", "instance-1", 1, "default.events", "")


class Database:
    """A database of the test's own, and sinks into it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.person = psycopg.connect(url, autocommit=True)
        self._opened: list[PostgresSink | PostgresSender] = []

    def sink(
        self, columns: Sequence[Column] | None = COLUMNS, *, url: str | None = None, **options: str
    ) -> PostgresSink:
        generation = int(options.pop("generation", "1"))
        given = {"dsn": url or self.url, "table": "events", "create": "true"} | options
        sink = KIND.open(SinkContext(Path(), "default.events", generation, given))
        assert isinstance(sink, PostgresSink)
        self._opened.append(sink)
        if columns is not None:
            sink.prepare(columns)
        return sink

    def sender(self, sink: PostgresSink | None = None, token: str = "t1") -> PostgresSender:
        made = (sink or self.sink()).sender(token)
        self._opened.append(made)
        return made

    def ask(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        cursor = self.person.execute(statement.encode(), values or None)
        return cursor.fetchall() if cursor.description else []

    def numbers(self) -> list[int | None]:
        return [n for (n,) in self.ask("SELECT _ingest_seq FROM events ORDER BY 1")]

    def close(self) -> None:
        for opened in self._opened:
            opened.close()
        self.person.close()


_EMPTY = """
SET client_min_messages = warning;
DO $$ DECLARE kind text; name text; BEGIN
    FOR kind, name IN
        SELECT CASE relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END, relname FROM pg_class
        WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'v')
        AND NOT starts_with(relname, 'strandline_')
    LOOP
        EXECUTE format('DROP %s %I CASCADE', kind, name);
    END LOOP;
    IF to_regclass('strandline_range') IS NOT NULL THEN
        DELETE FROM strandline_range; DELETE FROM strandline_lane; DELETE FROM strandline_sink;
    END IF;
END $$;
DROP SCHEMA IF EXISTS "My %s Schema" CASCADE;
DROP FUNCTION IF EXISTS act;
"""
"""The record's tables stay: making them takes longer than most tests."""


@pytest.fixture(scope="module")
def database_url(postgres_server: Postgres) -> Iterator[str]:
    """One for all tests here, emptied after each."""
    url = postgres_server.create_database()
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    made = Database(database_url)
    yield made
    failpoints.arm("")
    made.close()
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(_EMPTY)
        connection.execute(f"ALTER DATABASE {urlsplit(database_url).path[1:]} RESET ALL".encode())


@pytest.fixture
def cuttable(database_url: str, toxiproxy: Toxiproxy) -> tuple[str, Proxy]:
    """The same database, by a way that can be cut."""
    there = urlsplit(database_url)
    proxy = toxiproxy.proxy_to(there.port or 0)
    return database_url.replace(f":{there.port}", f":{proxy.port}"), proxy


def rng(lo: int, hi: int) -> SeqRange:
    return SeqRange(Seq(lo), Seq(hi))


def field(value: str | None) -> str:
    if value is None:
        return "\\N"
    return value.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")


def parcel(
    lo: int,
    hi: int,
    *,
    numbers: Sequence[int] | None = None,
    address: Address = ADDRESS,
    row: Callable[[int], Sequence[str | None]] = lambda n: (f"name {n}", str(n % 1000)),
) -> ChunkRows:
    held = list(range(lo, hi + 1) if numbers is None else numbers)
    lines = ["\t".join([str(n), *map(field, row(n))]) for n in held]
    table = pa.table({"_ingest_seq": pa.array(held, pa.int64()), "line": pa.array(lines, pa.string())})
    return ChunkRows(address, rng(lo, hi), table)


def held(database: Database, address: Address = ADDRESS) -> list[SeqRange]:
    return [h.rows for h in database.sink(None).held([(address, None)])[0].ranges]


class TestPostgres(RefusesLowerTerms, SinkContract):
    @pytest.fixture
    def made(self, database: Database) -> Made:
        kind = find_kind("postgres")

        def opened(*, place: str = "one", generation: int = 1) -> Sink:
            options = resolve(kind, {"dsn": database.url, "table": place, "create": "true"})
            return kind.open(SinkContext(Path(), DATASET, generation, options))

        def numbers(sink: Sink, address: Address) -> list[int]:
            inspector = sink.inspector()
            assert isinstance(inspector, PostgresInspector)
            ranges = [h.rows for h in sink.held([(address, None)])[0].ranges]
            found = [n for rows in ranges for n in inspector.numbers(address, rows).to_numpy().tolist()]
            inspector.close()
            return found

        return Made(opened, numbers, None)


# --- what lands ------------------------------------------------------------------------------------------------------


def test_rows_and_their_range_land_together_with_the_digest_of_the_text(database: Database) -> None:
    sent = parcel(1, 3)
    text = "".join(f"{line}\n" for line in sent.rows.column("line").to_pylist()).encode()
    digest = f"sha256:{hashlib.sha256(text).hexdigest()}"
    assert database.sender().send(sent) == Landed(3, digest, len(text))
    assert database.ask("SELECT * FROM events ORDER BY 1") == [(n, f"name {n}", n) for n in (1, 2, 3)]
    assert database.sink(None).held([(ADDRESS, None)])[0].ranges == (HeldRange(rng(1, 3), 3, digest, len(text)),)


def test_the_digest_does_not_depend_on_how_the_rows_are_chunked() -> None:
    whole = parcel(1, 1000)
    pieces = pa.concat_tables([whole.rows.slice(0, 7), whole.rows.slice(7, 900), whole.rows.slice(907)])
    wide = whole.rows.set_column(1, "line", whole.rows.column("line").cast(pa.large_string()))
    assert (
        load(whole).held
        == load(ChunkRows(ADDRESS, whole.range, pieces)).held
        == load(ChunkRows(ADDRESS, whole.range, wide)).held
    )


def test_a_repeat_is_answered_with_what_landed_and_changes_nothing(database: Database) -> None:
    sender = database.sender()
    first = sender.send(parcel(1, 5))
    assert isinstance(first, Landed)
    again = sender.send(parcel(1, 5, numbers=[1, 2, 5], row=lambda n: ("other", "0")))
    assert again == Landed(5, first.digest, first.size, repeat=True)
    assert database.numbers() == [1, 2, 3, 4, 5]


def test_rows_that_a_consumer_removed_are_not_delivered_again(database: Database) -> None:
    sink = database.sink()
    database.sender(sink).send(parcel(1, 5))
    database.ask("DELETE FROM events")
    sink.fence("t2")
    assert isinstance(again := database.sender(sink, "t2").send(parcel(1, 5)), Landed) and again.repeat
    assert database.numbers() == [] and held(database) == [rng(1, 5)]


def test_a_range_covered_by_several_is_a_repeat_with_the_right_count(database: Database) -> None:
    sender = database.sender()
    sender.send(parcel(1, 5, numbers=[1, 4]))
    sender.send(parcel(6, 10))
    assert sender.send(parcel(3, 8)) == Landed(4, "", 0, repeat=True)
    assert database.numbers() == [1, 4, 6, 7, 8, 9, 10]


@pytest.mark.parametrize(("lo", "hi"), [(1, 12), (3, 6), (10, 20), (1, 5)])
def test_a_range_that_overlaps_is_a_conflict_that_names_what_is_held(database: Database, lo: int, hi: int) -> None:
    sender = database.sender()
    sender.send(parcel(5, 10))
    assert sender.send(parcel(lo, hi)) == Conflict((rng(5, 10),))
    assert database.numbers() == list(range(5, 11))


def test_the_database_itself_refuses_ranges_that_overlap(database: Database) -> None:
    database.sender().send(parcel(5, 10))
    columns = "(lane_id, lo, hi, rows, digest, size)"
    with pytest.raises(psycopg.errors.ExclusionViolation):
        database.ask(f"INSERT INTO strandline_range {columns} SELECT id, 8, 12, 5, '', 0 FROM strandline_lane")


def test_lanes_are_kept_apart_whatever_their_names_hold(database: Database) -> None:
    sender = database.sender()
    partitions = ["", "k=", "k=~", "k=a%2Fb", "k=a_b", "a=b/c=d", "k=" + "x" * 5000, "k=ünï", "k=" + "x" * 5000 + "y"]
    for n, partition in enumerate(partitions):
        lane = Address("lake-1", "instance-1", 1, "default.events", partition)
        assert sender.send(parcel(1, 50, numbers=[n + 1], address=lane)).__class__ is Landed
    for other in (
        Address("lake-1", "instance-2", 1, "default.events", ""),
        Address("lake-1", "instance-1", 2, "default.events", ""),
    ):
        assert isinstance(sender.send(parcel(1, 50, numbers=[40], address=other)), Landed)
    lanes = [(Address("lake-1", "instance-1", 1, "default.events", p), None) for p in partitions]
    assert [[h.rows for h in one.ranges] for one in database.sink(None).held(lanes)] == [[rng(1, 50)]] * len(partitions)


def test_numbers_reach_to_the_end_of_the_sequence(database: Database) -> None:
    last = Seq(SEQ_MAX)
    assert isinstance(database.sender().send(parcel(last - 2, last)), Landed)
    assert database.sink(None).inspector().inspect(ADDRESS, rng(last - 2, last)).problem is None
    assert database.sender().send(parcel(last, last)) == Landed(1, "", 0, repeat=True)


def test_held_gives_every_lane_its_ranges_beyond_the_number_in_one_query(database: Database) -> None:
    sink = database.sink()
    sender = database.sender(sink)
    other = Address("lake-1", "instance-1", 1, "default.events", "k=1")
    for lo in (1, 11, 21):
        sender.send(parcel(lo, lo + 9))
    sender.send(parcel(5, 8, address=other))
    asked = sink.held([(other, None), (ADDRESS, Seq(15)), (ADDRESS, Seq(30)), (Address("x", "x", 1, "x", ""), None)])
    assert [[h.rows for h in one.ranges] for one in asked] == [[rng(5, 8)], [rng(11, 20), rng(21, 30)], [], []]
    assert all(one.mark is None for one in asked)


def test_a_database_that_was_never_delivered_to_holds_nothing(database: Database) -> None:
    database.ask("DROP TABLE IF EXISTS strandline_range, strandline_lane, strandline_sink")
    sink = database.sink(None)
    assert sink.claimed() is None
    assert sink.held([(ADDRESS, None)])[0].ranges == ()
    assert database.ask("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == [(0,)]


def test_a_table_of_another_sink_has_ranges_of_its_own(database: Database) -> None:
    database.sender().send(parcel(1, 5))
    second = database.sink(table="copies")
    assert second.held([(ADDRESS, None)])[0].ranges == ()
    assert isinstance(database.sender(second).send(parcel(1, 9)), Landed)


@pytest.mark.parametrize("numbers", [[3, 2], [2, 2], [9], [0, 1]])
def test_a_chunk_that_is_not_what_its_range_says_never_leaves(database: Database, numbers: list[int]) -> None:
    with pytest.raises(ValueError, match="chunk"):
        database.sender().send(parcel(1, 5, numbers=numbers))
    assert database.numbers() == []


# --- two at once -----------------------------------------------------------------------------------------------------


def _race(database: Database, offers: Sequence[ChunkRows]) -> list[Outcome]:
    sink = database.sink()
    senders = [pickle.loads(pickle.dumps(sink.sender("t1"))) for _ in offers]
    ready = threading.Barrier(len(offers))
    outcomes: list[Outcome] = [TryLater("never sent")] * len(offers)

    def run(n: int) -> None:
        ready.wait()
        outcomes[n] = senders[n].send(offers[n])
        senders[n].close()

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(offers))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(send, "BEGIN", postgres_connect.BEGIN.replace("'5s'", "'60s'"))
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    return outcomes


def test_of_many_senders_with_the_same_range_one_lands_and_the_others_are_repeats(database: Database) -> None:
    outcomes = _race(database, [parcel(1, 2000) for _ in range(6)])
    assert sorted(o.repeat for o in outcomes if isinstance(o, Landed)) == [False] + [True] * 5
    assert database.numbers() == list(range(1, 2001))


def test_of_many_senders_with_overlapping_ranges_one_lands_and_the_others_are_conflicts(database: Database) -> None:
    outcomes = _race(database, [parcel(1 + n, 2000 + n) for n in range(6)])
    landed = [o for o in outcomes if isinstance(o, Landed)]
    assert len(landed) == 1 and sum(isinstance(o, Conflict) for o in outcomes) == 5
    assert len(database.numbers()) == 2000 and len(held(database)) == 1


def test_a_deliverer_that_stopped_in_the_middle_is_ended_by_the_next_one(database: Database) -> None:
    stopped = database.sender(token="old")
    connection = stopped._connect()
    assert stopped._write(connection, parcel(1, 5), load(parcel(1, 5))) is None  # everything but the commit
    sink = database.sink()
    begun = time.monotonic()
    sink.fence("new")
    assert database.sender(sink, "new").send(parcel(1, 8)) == Landed(8, load(parcel(1, 8)).held.digest or "", 88)
    assert time.monotonic() - begun < postgres_connect.IDLE_SECONDS_MAX / 2
    with pytest.raises(psycopg.OperationalError):
        connection.execute("COMMIT")
    assert stopped.send(parcel(1, 5)) == Landed(5, "", 0, repeat=True)
    assert database.numbers() == list(range(1, 9))


def test_the_fence_spares_the_deliverer_itself_and_other_tables(database: Database) -> None:
    mine, other = database.sender(token="new"), database.sender(database.sink(table="copies"), "old")
    pids = [s._connect().info.backend_pid for s in (mine, other)]
    database.sink().fence("new")
    time.sleep(0.1)
    assert [s._connect().execute("SELECT pg_backend_pid()").fetchone() for s in (mine, other)] == [(p,) for p in pids]


# --- faults ----------------------------------------------------------------------------------------------------------


def test_a_connection_lost_before_the_commit_leaves_nothing_and_is_tried_later(
    database: Database, cuttable: tuple[str, Proxy]
) -> None:
    url, proxy = cuttable
    sender = database.sender(database.sink(url=url))
    proxy.toxic("limit_data", downstream=False, bytes=20_000)
    outcome = sender.send(parcel(1, 5000))
    assert isinstance(outcome, TryLater) and "lost" in outcome.why
    assert database.numbers() == [] and held(database) == []
    proxy.heal()
    assert isinstance(sender.send(parcel(1, 5000)), Landed)


def test_an_idle_connection_that_died_is_replaced_without_a_word(database: Database) -> None:
    sink = database.sink()
    sender = database.sender(sink)
    sender.send(parcel(1, 5))
    database.ask(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'strandline%%' AND %s", True
    )
    assert sender.send(parcel(6, 9)).__class__ is Landed
    assert len(sink.held([(ADDRESS, None)])[0].ranges) == 2


@pytest.mark.parametrize("lands", [True, False])
def test_a_connection_lost_at_the_commit_is_settled_by_asking(
    database: Database, cuttable: tuple[str, Proxy], lands: bool
) -> None:
    """The answer is withheld by the way itself, not by us: the server commits, or never hears of it."""
    url, proxy = cuttable
    sender = database.sender(database.sink(url=url))
    sender.send(parcel(1, 5))
    hit = failpoints.hit

    def cut_at_commit(name: str) -> None:
        if name == "postgres.before_commit":
            # A way that is `limited` after 0 bytes closes as soon as anything wants to pass.
            proxy.toxic("limit_data", downstream=lands, bytes=0)
        hit(name)

    ask = PostgresSender._ask

    def asked(self: PostgresSender, *about: Any) -> Outcome:
        threading.Timer(0.3, proxy.heal).start()
        return ask(self, *about)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failpoints, "hit", cut_at_commit)
        patch.setattr(PostgresSender, "_ask", asked)
        patch.setattr(send, "_AWAY", RetryPolicy(1.0, 1.0, attempts_max=100))
        outcome = sender.send(parcel(6, 9))
    assert isinstance(outcome, Landed if lands else TryLater)
    assert held(database) == ([rng(1, 5), rng(6, 9)] if lands else [rng(1, 5)])
    assert len(database.numbers()) == (9 if lands else 5)
    assert isinstance(sender.send(parcel(6, 9)), Landed) and len(database.numbers()) == 9


def test_a_commit_that_nobody_can_be_asked_about_is_unknown(
    database: Database, cuttable: tuple[str, Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, proxy = cuttable
    monkeypatch.setattr(send, "_AWAY", RetryPolicy(0.01, 0.05, attempts_max=3))
    sender = database.sender(database.sink(url=url))
    sender.send(parcel(1, 5))
    monkeypatch.setattr(failpoints, "hit", lambda name: proxy.enable(False) if name.endswith("before_commit") else None)
    assert isinstance(sender.send(parcel(6, 9)), Unknown)


def test_a_server_that_says_nothing_more_does_not_hold_the_sender(
    database: Database, cuttable: tuple[str, Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, proxy = cuttable
    sender = database.sender(database.sink(url=url))
    sender.send(parcel(1, 5))
    monkeypatch.setattr(send, "SEND_SECONDS_MAX", 0.3)
    proxy.toxic("timeout", downstream=True, timeout=0)
    connect = postgres_connect.PostgresServer.connect

    def refused(server: postgres_connect.PostgresServer, application: str) -> psycopg.Connection:
        proxy.enable(False)  # or else the new connection would wait for its own limit
        return connect(server, application)

    monkeypatch.setattr(postgres_connect.PostgresServer, "connect", refused)
    begun = time.monotonic()
    assert isinstance(sender.send(parcel(6, 9)), TryLater)
    assert 0.3 <= time.monotonic() - begun < 60
    assert held(database) == [rng(1, 5)]


def test_a_server_that_says_nothing_more_does_not_hold_the_inspector(
    database: Database, cuttable: tuple[str, Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, proxy = cuttable
    sink = database.sink(url=url)
    database.sender(sink).send(parcel(1, 5))
    inspector = sink.inspector()
    assert inspector.inspect(ADDRESS, rng(1, 5)).problem is None
    monkeypatch.setattr(postgres_connect, "COUNT_SECONDS_MAX", 0.3)
    proxy.toxic("timeout", downstream=True, timeout=0)
    begun = time.monotonic()
    with pytest.raises(StorageError):
        inspector.inspect(ADDRESS, rng(1, 5))
    assert 0.3 <= time.monotonic() - begun < 60


def test_a_server_that_is_away_is_tried_later(database: Database, cuttable: tuple[str, Proxy]) -> None:
    url, proxy = cuttable
    sink = database.sink(url=url)
    proxy.enable(False)
    outcome = sink.sender("t").send(parcel(1, 5))
    assert isinstance(outcome, TryLater) and "connection" in outcome.why
    with pytest.raises(StorageError):
        sink.held([(ADDRESS, None)])


def test_a_deadlock_is_tried_again_and_lands(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[str | None] = []
    judge = postgres_connect.may_pass_soon

    def judged(error: psycopg.Error) -> str | None:
        met.append(error.sqlstate)
        return judge(error)

    monkeypatch.setattr(postgres_connect, "may_pass_soon", judged)
    name = urlsplit(database.url).path[1:]
    database.ask(f"ALTER DATABASE {name} SET deadlock_timeout = '100ms'")
    sender = database.sender()
    sender.send(parcel(1, 5))
    database.ask("CREATE UNIQUE INDEX ON events (amount)")
    lane = database.ask("SELECT id FROM strandline_lane")[0][0]
    monkeypatch.setattr(send, "BEGIN", postgres_connect.BEGIN.replace("'5s'", "'60s'"))
    copy_in, waiting = send.copy_in, list[threading.Thread]()
    with psycopg.connect(database.url) as other:
        other.execute("SET deadlock_timeout = '60s'")
        other.execute("INSERT INTO events (amount) VALUES (8)")

        def wait_for_its_range() -> None:
            other.execute(
                "INSERT INTO strandline_range (lane_id, lo, hi, rows, digest, size) VALUES (%s, 9, 9, 1, '', 0)",
                (lane,),
            )
            other.rollback()

        def then_copy(*what: Any) -> str:
            # Its range is there, and we wait for it. Now it waits for our row: its clock runs out first.
            if not waiting:
                waiting.append(threading.Thread(target=wait_for_its_range))
                waiting[0].start()
                eventually(lambda: database.ask("SELECT count(*) FROM pg_locks WHERE NOT granted") == [(1,)])
            return copy_in(*what)

        monkeypatch.setattr(send, "copy_in", then_copy)
        outcome = sender.send(parcel(6, 9))
        waiting[0].join()
    assert "40P01" in met
    assert isinstance(outcome, Landed) and database.numbers() == list(range(1, 10))


def test_a_lock_that_is_held_is_waited_for_within_bounds(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send, "BEGIN", postgres_connect.BEGIN.replace("'5s'", "'100ms'"))
    monkeypatch.setattr(send, "_BUSY", RetryPolicy(0.01, 0.05, attempts_max=4))
    sender = database.sender()
    with psycopg.connect(database.url) as other:
        other.execute("LOCK TABLE events IN ACCESS EXCLUSIVE MODE")
        outcome = sender.send(parcel(1, 5))
    assert isinstance(outcome, TryLater) and "lock" in outcome.why
    assert isinstance(sender.send(parcel(1, 5)), Landed)


@pytest.mark.parametrize(
    ("state", "words"), [("53100", "disk is full"), ("53300", "too many"), ("57P01", "shutting down")]
)
def test_what_the_server_lacks_is_tried_later_and_said(database: Database, state: str, words: str) -> None:
    sender = database.sender()
    _trigger(database, f"RAISE EXCEPTION 'no space' USING ERRCODE = '{state}'")
    outcome = sender.send(parcel(1, 5))
    assert isinstance(outcome, TryLater) and words in outcome.why
    assert held(database) == []


def test_a_full_disk_is_tried_later_and_lands_when_there_is_room(database: Database, tmp_path: Path) -> None:
    folder = Path(tempfile.mkdtemp(prefix="strandline-"))  # not of pytest's, which the server may not enter
    folder.chmod(0o755)
    try:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0777", "tmpfs", folder], capture_output=True, check=False
        )
        if mounted.returncode:
            pytest.skip("a file system of one megabyte cannot be mounted here; the error is tested with a trigger too")
        space = f"small_{os.getpid()}"
        inner = folder / "space"
        inner.mkdir(mode=0o700)
        owner = database.ask("SELECT current_setting('data_directory')")[0][0]
        os.chown(inner, Path(owner).stat().st_uid, Path(owner).stat().st_gid)
        database.ask(f"CREATE TABLESPACE {space} LOCATION '{inner}'")
        try:
            sender = database.sender()
            database.ask(f"ALTER TABLE events SET TABLESPACE {space}")
            outcome = sender.send(parcel(1, 30_000))
            assert isinstance(outcome, TryLater) and "disk is full" in outcome.why
            assert held(database) == [] and database.numbers() == []
            database.ask("ALTER TABLE events SET TABLESPACE pg_default")
            assert isinstance(sender.send(parcel(1, 30_000)), Landed)
        finally:
            database.ask("DROP TABLE events")
            database.ask(f"DROP TABLESPACE {space}")
    finally:
        subprocess.run(["umount", folder], capture_output=True, check=False)
        folder.rmdir()


def _trigger(database: Database, body: str) -> None:
    database.ask(
        f"CREATE FUNCTION act() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body}; RETURN NEW; END $$; "
        "CREATE TRIGGER act BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION act()"
    )


def test_rows_that_a_trigger_swallows_are_noticed_and_nothing_lands(database: Database) -> None:
    sender = database.sender()
    _trigger(database, "IF NEW._ingest_seq = 3 THEN RETURN NULL; END IF")
    outcome = sender.send(parcel(1, 5))
    assert isinstance(outcome, TryLater) and "4 of 5 rows" in outcome.why
    assert database.numbers() == [] and held(database) == []


def test_killed_on_either_side_of_the_commit_it_lands_once(database: Database) -> None:
    sender = database.sender()
    for point in ("postgres.before_commit", "postgres.after_commit"):
        failpoints.arm(f"{point}=fail")
        with pytest.raises(failpoints.FailpointError):
            sender.send(parcel(1, 5))
        failpoints.arm("")
        assert len(database.numbers()) == (0 if point.endswith("before_commit") else 5)
    assert isinstance(repeat := sender.send(parcel(1, 5)), Landed) and repeat.repeat
    assert database.numbers() == [1, 2, 3, 4, 5]


def test_commits_are_durable_even_where_the_user_has_them_not(database: Database) -> None:
    database.ask(f"ALTER DATABASE {urlsplit(database.url).path[1:]} SET synchronous_commit = off")
    connection = database.sender()._connect()
    assert connection.execute("SHOW synchronous_commit").fetchone() == ("off",)
    connection.execute(postgres_connect.BEGIN)
    assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)


# --- what is refused for its content ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (("a\x00b", "1"), "0x00"),
        (("a", str(2**31)), "out of range"),
        (("a", "one"), "invalid input syntax"),
        (("a", "-5"), "check"),
        (("a", "7"), "unique"),
        ((None, "8"), "null"),
    ],
)
def test_a_row_that_cannot_be_taken_is_refused_and_its_number_named(
    database: Database, row: tuple[str | None, str], says: str
) -> None:
    sender = database.sender()
    database.ask("ALTER TABLE events ADD CHECK (amount >= 0), ALTER COLUMN name SET NOT NULL, ADD UNIQUE (amount)")
    database.ask("INSERT INTO events VALUES (NULL, 'a row of somebody else', 7)")
    outcome = sender.send(parcel(1, 5, row=lambda n: row if n == 4 else ("fine", str(n + 100))))
    assert isinstance(outcome, Refused) and says in outcome.why and "number 4" in outcome.why
    assert database.numbers() == [None] and held(database) == []


# --- the table -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("ALTER TABLE events DROP COLUMN amount", "column amount"),
        ("ALTER TABLE events RENAME COLUMN name TO title", "column name"),
        ("ALTER TABLE events ALTER COLUMN name TYPE integer USING 0", "column name is integer"),
        ("ALTER TABLE events ALTER COLUMN amount TYPE real", "column amount is real"),
        ("ALTER TABLE events ADD COLUMN must integer NOT NULL", "column must"),
        ("DROP TABLE events", "events is gone"),
        ("ALTER TABLE events SET UNLOGGED", "unlogged"),
    ],
)
def test_a_table_that_was_altered_is_tried_later_and_what_changed_is_named(
    database: Database, change: str, named: str
) -> None:
    """`real` would take every int and round it: nothing but looking finds that."""
    sender = database.sender()
    database.ask(change)
    outcome = sender.send(parcel(1, 5))
    assert isinstance(outcome, TryLater) and named in outcome.why
    assert held(database) == []


def test_a_table_that_takes_more_than_before_is_fine(database: Database) -> None:
    sender = database.sender()
    database.ask("ALTER TABLE events ALTER COLUMN amount TYPE bigint, ADD COLUMN seen timestamptz DEFAULT now()")
    assert isinstance(sender.send(parcel(1, 5)), Landed)


def test_a_missing_table_is_refused_with_the_statement_that_creates_it(database: Database) -> None:
    with pytest.raises(SchemaError) as refused:
        database.sink(create="false")
    assert refused.value.hint is not None
    database.ask(refused.value.hint.partition("create=true: ")[2])
    assert isinstance(database.sender(database.sink(create="false")).send(parcel(1, 5)), Landed)


def test_a_new_column_is_followed_if_it_may_create_and_refused_with_the_statement_if_not(database: Database) -> None:
    database.sender().send(parcel(1, 2))
    wider = (*COLUMNS, Column("Größe %s", Primitive("decimal(38,10)")))
    with pytest.raises(SchemaError, match="Größe") as refused:
        database.sink(wider, create="false")
    sent = parcel(3, 4, row=lambda n: ("x", "1", "9" * 28 + ".0123456789"))
    assert isinstance(database.sender(database.sink(wider)).send(sent), Landed)
    assert (
        database.ask('SELECT "Größe %s"::text FROM events ORDER BY _ingest_seq')
        == [(None,)] * 2 + [("9" * 28 + ".0123456789",)] * 2
    )
    database.ask(refused.value.hint or "")  # says what was done


def test_a_column_that_is_no_longer_delivered_stays_and_gets_nulls(database: Database) -> None:
    database.sender().send(parcel(1, 1))
    assert isinstance(database.sender(database.sink(COLUMNS[:2])).send(parcel(2, 2, row=lambda n: ("x",))), Landed)
    assert database.ask("SELECT amount FROM events ORDER BY _ingest_seq") == [(1,), (None,)]
    database.ask("DELETE FROM events WHERE amount IS NULL; ALTER TABLE events ALTER COLUMN amount SET NOT NULL")
    with pytest.raises(SchemaError, match="amount"):
        database.sink(COLUMNS[:2])


@pytest.mark.parametrize(
    ("table", "fits"),
    [
        ('(_ingest_seq bigint, name text, amount integer)', True),
        ('(_ingest_seq numeric(19), name varchar, amount bigint, own int GENERATED ALWAYS AS IDENTITY)', True),
        ('(_ingest_seq numeric, name text, amount text, own int NOT NULL DEFAULT 1)', True),
        ('(_ingest_seq integer, name text, amount integer)', False),
        ('(_ingest_seq numeric(18), name text, amount integer)', False),
        ('(_ingest_seq bigint, name varchar(20), amount integer)', False),
        ('(_ingest_seq bigint, name char(9), amount integer)', False),
        ('(_ingest_seq bigint, name text, amount smallint)', False),
        ('(_ingest_seq bigint, name text, amount real)', False),
        ('(_ingest_seq bigint, name jsonb, amount integer)', False),
        ('(_ingest_seq bigint, name text, amount integer GENERATED ALWAYS AS (1) STORED)', False),
        ('(_ingest_seq bigint, name text, amount integer, own int NOT NULL)', False),
    ],
)  # fmt: skip
def test_only_a_table_that_loses_nothing_is_accepted(database: Database, table: str, fits: bool) -> None:
    database.ask(f"CREATE TABLE events {table}")
    if fits:
        assert isinstance(database.sender(database.sink(create="false")).send(parcel(1, 3)), Landed)
    else:
        with pytest.raises(SchemaError) as refused:
            database.sink()
        assert "ALTER TABLE" in (refused.value.hint or "")


def test_views_unlogged_tables_and_missing_schemas_are_refused(database: Database) -> None:
    database.ask("CREATE VIEW seen AS SELECT 1 AS _ingest_seq")
    database.ask("CREATE UNLOGGED TABLE fast (_ingest_seq bigint, name text, amount int)")
    for table, says in (("seen", "not a table"), ("fast", "unlogged"), ("nowhere.events", "no schema")):
        with pytest.raises(SchemaError, match=says):
            database.sink(table=table)


def test_a_table_that_vanished_is_not_quietly_made_anew(database: Database) -> None:
    database.sender().send(parcel(1, 5))
    database.ask("DROP TABLE events")
    with pytest.raises(RefusedError, match="gone"):
        database.sink()
    database.sink(generation="2")
    assert database.numbers() == []


# --- rows that a trigger refuses -------------------------------------------------------------------------------------


def raising(database: Database, condition: str, when: str = "BEFORE INSERT ON events", state: str = "P0001") -> None:
    """A trigger that refuses rows with a code that says nothing about whose fault it is."""
    database.ask(
        f"CREATE OR REPLACE FUNCTION act() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF {condition} THEN "
        f"RAISE EXCEPTION 'not today' USING ERRCODE = '{state}'; END IF; RETURN NEW; END $$"
    )
    database.ask("DROP TRIGGER IF EXISTS act ON events")
    kind = "CONSTRAINT TRIGGER" if "DEFERRABLE" in when else "TRIGGER"
    database.ask(f"CREATE {kind} act {when} FOR EACH ROW EXECUTE FUNCTION act()")


def split_down(sender: PostgresSender, sent: ChunkRows) -> list[int]:
    """As a deliverer does: what is refused is split until it stands alone. The numbers that are refused."""
    outcome = sender.send(sent)
    if isinstance(outcome, Landed):
        return []
    assert isinstance(outcome, Refused) and "not today" in outcome.why, outcome
    if sent.range.lo == sent.range.hi:
        return [sent.range.lo]
    middle = (sent.range.lo + sent.range.hi) // 2
    halves = parcel(sent.range.lo, middle), parcel(middle + 1, sent.range.hi)
    return [n for half in halves for n in split_down(sender, half)]


@pytest.mark.parametrize("state", ["P0001", "42501", "38000", "ZZ123"])
@pytest.mark.parametrize("when", ["BEFORE INSERT ON events", "AFTER INSERT ON events DEFERRABLE INITIALLY DEFERRED"])
def test_rows_that_a_trigger_refuses_stand_alone_in_the_end(database: Database, when: str, state: str) -> None:
    sender = database.sender()
    raising(database, "NEW._ingest_seq % 60 = 7", when, state)
    assert split_down(sender, parcel(1, 200)) == [7, 67, 127, 187]
    assert database.numbers() == [n for n in range(1, 201) if n % 60 != 7]


def test_a_trigger_that_refuses_everything_is_trouble_of_the_server(database: Database) -> None:
    sender = database.sender()
    raising(database, "true")
    for hi in (1, 40):
        assert isinstance(sender.send(parcel(1, hi)), TryLater), "nothing was ever taken"
    raising(database, "NEW.amount < 0")
    assert isinstance(sender.send(parcel(1, 40)), Landed)
    raising(database, "true")
    for hi in (41, 90):
        assert isinstance(sender.send(parcel(41, hi)), TryLater)
    raising(database, "NEW._ingest_seq > 40")
    database.ask("CREATE UNIQUE INDEX ON events (_ingest_seq)")
    for hi in (41, 90):
        assert isinstance(sender.send(parcel(41, hi)), Refused), "it takes rows that it has, and none of these"
    assert database.numbers() == list(range(1, 41))


def test_a_bad_row_stands_alone_where_a_trigger_also_refuses_rows_that_exist(database: Database) -> None:
    sender = database.sender()
    exists = "EXISTS (SELECT FROM events e WHERE e._ingest_seq = NEW._ingest_seq)"
    raising(database, f"NEW._ingest_seq % 60 = 7 OR {exists}")
    assert split_down(sender, parcel(1, 70)) == [7, 67]
    raising(database, f"true OR {exists}")
    assert isinstance(sender.send(parcel(71, 71)), TryLater)


def test_what_only_undelivered_rows_can_tell_is_left_to_who_has_them(database: Database) -> None:
    """A trigger that takes neither old names nor copies: nothing that the table holds goes through again."""
    sender = database.sender()
    assert isinstance(sender.send(parcel(1, 6)), Landed)
    raising(database, "NEW.name = 'name 7' OR EXISTS (SELECT FROM events e WHERE e.name = NEW.name)")
    bad = parcel(7, 7)
    outcome = sender.send(bad)
    assert isinstance(outcome, TryLater) and outcome.may_be_rows
    assert not sender.takes_any(bad.rows) and sender.takes_any(parcel(7, 9).rows)
    assert database.numbers() == list(range(1, 7)), "trying changes nothing"
    assert isinstance(sender.blaming_rows().send(bad), Refused)
    assert isinstance(sender.blaming_rows().send(parcel(8, 9)), Landed)
    raising(database, "true", state="57P03")
    outcome = sender.blaming_rows().send(bad)
    assert isinstance(outcome, TryLater) and not outcome.may_be_rows, "the server itself"


# --- a table that lost its rows --------------------------------------------------------------------------------------

_COPIED = "CREATE TABLE other AS TABLE events; DROP TABLE events; ALTER TABLE other RENAME TO events"


def claimed(database: Database, **options: str) -> PostgresSink:
    sink = database.sink(**options)
    sink.claim(Claim("lake-1", "instance-1", "default.events", "uuid-1"), int(options.get("generation", "1")))
    return sink


@pytest.mark.parametrize(
    ("statement", "there"),
    [
        ("TRUNCATE events", 0),
        ("DROP TABLE events", 0),
        ("DROP TABLE events; CREATE TABLE events (_ingest_seq bigint, name text, amount integer)", 0),
        ("DROP TABLE events; CREATE TABLE events (name text)", 0),
        (f"{_COPIED}; DELETE FROM events WHERE _ingest_seq = 4", 4),
        (_COPIED, None),
        ("VACUUM FULL events", None),
        ("DELETE FROM events", 0),
        ("DELETE FROM events; INSERT INTO events (name) VALUES ('of the owner')", 0),
        ("DELETE FROM events; VACUUM FULL events", 0),
        ("DROP INDEX events__ingest_seq_idx; DELETE FROM events", 0),
        ("DELETE FROM events WHERE _ingest_seq < 9", None),
        ("DELETE FROM events WHERE _ingest_seq > 1", None),
        ("DROP INDEX events__ingest_seq_idx; DELETE FROM events WHERE _ingest_seq < 9", None),
        ("DELETE FROM events WHERE _ingest_seq = 4; ALTER TABLE events ALTER COLUMN amount TYPE bigint", None),
    ],
)
def test_a_table_that_is_not_the_one_it_was_is_asked_for_its_rows(
    database: Database, statement: str, there: int | None
) -> None:
    assert claimed(database).find_loss() is None, "nothing was delivered yet"
    sender = database.sender()
    sender.send(parcel(1, 3))
    sender.send(parcel(4, 9, numbers=[4, 9]))
    for one in statement.split(";"):
        database.ask(one)
    sink = database.sink(None)
    loss = sink.find_loss()
    assert (loss and (loss.given, loss.there)) == (None if there is None else (5, there))
    remaining = sink.remaining([ADDRESS])[0]
    if there is None:
        assert database.sink().find_loss() is None, "it is the table from now on"
        return
    assert remaining.missing == 5 - there
    assert [h.rows for h in remaining.held.ranges] == ([rng(1, 3)] if there else [])
    assert remaining.in_part == ((rng(4, 9),) if there else ())
    assert sink.find_loss() == loss, "looking changes nothing"
    sink.accept_loss()
    assert sink.find_loss() is None and held(database) == [rng(1, 3), rng(4, 9)]
    assert sink.remaining([ADDRESS])[0].missing == 0
    if "(name text)" not in statement:
        assert isinstance(database.sender(claimed(database)).send(parcel(10, 11)), Landed)
        database.ask("TRUNCATE events")
        again = sink.find_loss()
        assert again is not None and (again.given, again.there) == (2 + (3 if there else 0), 0)


def test_a_table_that_its_consumers_may_empty_goes_on_without_its_rows(database: Database) -> None:
    sender = database.sender(claimed(database, may_be_empty="true"))
    assert isinstance(sender.send(parcel(1, 5)), Landed)
    for n, emptied in enumerate(("DELETE FROM events", "DELETE FROM events; VACUUM FULL events", "TRUNCATE events")):
        for statement in emptied.split(";"):
            database.ask(statement)
        sink = database.sink(may_be_empty="true")
        assert database.sink().find_loss() is not None and sink.find_loss() is None
        assert isinstance(database.sender(sink).send(parcel(6 + n, 6 + n)), Landed)
    database.ask("DROP TABLE events")
    assert (loss := database.sink(None, may_be_empty="true").find_loss()) is not None and loss.given == 8
    with pytest.raises(UsageError, match="may_be_empty is true or false"):
        database.sink(None, may_be_empty="perhaps")


def test_the_rows_of_a_table_are_looked_for_through_the_index_of_their_numbers(database: Database) -> None:
    """Otherwise every run would read what was deleted by age and not yet vacuumed."""
    claimed(database)
    database.ask("INSERT INTO events SELECT n, 'x', 1 FROM generate_series(1, 20000) n")
    database.ask("DELETE FROM events WHERE _ingest_seq < 20000")
    read = "SELECT seq_scan, idx_scan, idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'events'"
    with database.person.transaction():
        (before,) = database.ask(read)
        assert has_rows(database.person, TableName("public", "events"))
        (after,) = database.ask(read)
    assert [a - b for a, b in zip(after, before, strict=True)] == [0, 1, 1]


def test_nothing_lands_in_a_table_that_was_emptied_or_replaced_meanwhile(database: Database) -> None:
    sender = database.sender(claimed(database))
    assert isinstance(sender.send(parcel(1, 5)), Landed)
    database.ask("TRUNCATE events")
    outcome = sender.send(parcel(6, 9))
    assert isinstance(outcome, TryLater) and "emptied" in outcome.why
    assert database.numbers() == [] and held(database) == [rng(1, 5)]


@pytest.mark.parametrize("index", [True, False])
def test_a_table_whose_rows_are_all_deleted_between_two_chunks_is_noticed(database: Database, index: bool) -> None:
    sink = claimed(database)
    if not index:
        database.ask("DROP INDEX events__ingest_seq_idx")
    sender = database.sender(sink)
    for lo, hi in ((1, 5), (6, 9)):
        assert isinstance(sender.send(parcel(lo, hi)), Landed)
    database.ask("DELETE FROM events WHERE _ingest_seq <> 2")
    assert isinstance(sender.send(parcel(10, 12)), Landed), "one row that it got before is enough"
    database.ask("DELETE FROM events")
    outcome = sender.send(parcel(13, 15))
    assert isinstance(outcome, TryLater) and "was emptied a moment ago" in outcome.why
    assert held(database) == [rng(1, 5), rng(6, 9), rng(10, 12)] and database.numbers() == []
    loss = sink.find_loss()
    assert loss is not None and (loss.given, loss.there) == (12, 0)
    assert isinstance(database.sender(database.sink(may_be_empty="true")).send(parcel(13, 15)), Landed)
    database.ask("DELETE FROM events")
    sink.accept_loss()
    assert isinstance(sender.send(parcel(16, 17)), Landed)
    assert isinstance(sender.send(parcel(18, 19)), Landed)


def test_lanes_that_lie_between_each_other_do_not_look_like_an_emptied_table(database: Database) -> None:
    sender = database.sender(claimed(database))
    lanes = [replace(ADDRESS, partition=f"kind={name}") for name in "ab"]
    for n, lane in enumerate(lanes):
        outcome = sender.send(parcel(1, 10, numbers=list(range(1 + n, 11, 2)), address=lane))
        assert isinstance(outcome, Landed), outcome
    database.ask("DELETE FROM events WHERE _ingest_seq <> 4")
    third = replace(ADDRESS, partition="kind=c")
    assert isinstance(sender.send(parcel(3, 5, numbers=[3, 5], address=third)), Landed)


def test_a_chunk_looks_for_the_row_beside_it_through_the_index(database: Database) -> None:
    """Otherwise every chunk would read what was deleted by age and not yet vacuumed."""
    sink = claimed(database)
    assert isinstance(database.sender(sink).send(parcel(1, 20000)), Landed)
    database.ask("DELETE FROM events WHERE _ingest_seq < 20000")
    database.ask("INSERT INTO events SELECT n, 'x', 1 FROM generate_series(20001, 20010) n")
    read = "SELECT seq_scan, idx_scan, idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'events'"
    record, chunk = RecordTables(TableName("public", "events")), HeldRange(rng(20001, 20010), 10)
    with database.person.transaction():
        (before,) = database.ask(read)
        assert not holds_only(database.person, record, 1, chunk, 1, indexed=True)
        (after,) = database.ask(read)
    assert [a - b for a, b in zip(after, before, strict=True)] == [0, 1, 1]


def test_a_table_in_partitions_is_emptied_when_all_of_them_are(database: Database) -> None:
    database.ask("CREATE TABLE events (_ingest_seq bigint, name text, amount integer) PARTITION BY RANGE (_ingest_seq)")
    database.ask("CREATE TABLE low PARTITION OF events FOR VALUES FROM (1) TO (4)")
    database.ask("CREATE TABLE high PARTITION OF events FOR VALUES FROM (4) TO (100)")
    sink = claimed(database)
    assert isinstance(database.sender(sink).send(parcel(1, 5)), Landed)
    database.ask("DROP TABLE low")  # a rotation is the owner's business
    assert sink.find_loss() is None
    database.ask("TRUNCATE events")
    loss = sink.find_loss()
    assert loss is not None and (loss.given, loss.there) == (5, 0)
    database.ask("DROP TABLE events")


def test_a_new_generation_begins_with_the_table_as_it_is(database: Database) -> None:
    sink = claimed(database)
    database.sender(sink).send(parcel(1, 5))
    database.ask("TRUNCATE events")
    assert claimed(database, generation="2").find_loss() is None
    assert database.sink(None, generation="2").find_loss() is None, "the record has its identity now"


def test_a_record_of_the_first_version_gets_what_it_lacks(database: Database) -> None:
    database.sender(claimed(database)).send(parcel(1, 5))
    database.ask("ALTER TABLE strandline_sink DROP COLUMN table_oid, DROP COLUMN storage, DROP COLUMN term")
    database.ask("ALTER TABLE strandline_range DROP COLUMN given_up")
    database.ask("UPDATE strandline_sink SET version = 1")
    sink = claimed(database)
    assert sink.find_loss() is None and database.ask("SELECT version FROM strandline_sink") == [(3,)]
    assert isinstance(database.sender(sink).send(parcel(6, 9)), Landed)
    database.ask("TRUNCATE events")
    assert (loss := sink.find_loss()) is not None and loss.given == 9


def test_odd_names_of_tables_and_columns_are_taken_as_they_are(database: Database) -> None:
    database.ask('CREATE SCHEMA "My %s Schema"')
    columns = (NUMBER, Column('a "quoted" %s; name', Primitive("string")), Column("SELECT", Primitive("int")))
    sink = database.sink(columns, table="My %s Schema.Ev'ents %")
    sink.claim(CLAIM, 1)
    assert isinstance(database.sender(sink).send(parcel(1, 3)), Landed)
    assert sink.inspector().inspect(ADDRESS, rng(1, 3)).problem is None
    assert database.ask('SELECT count(*) FROM "My %s Schema"."Ev\'ents %"') == [(3,)]


# --- every type ------------------------------------------------------------------------------------------------------

_LONG = "x" * 100_000
_ODD = "tab\tline\nreturn\r\\back\\\\slash\\t"
_FAR = "ünï 漢字 🌊 \u202e \x01\x7f\u2028"
_JSON: tuple[tuple[str | None, object], ...] = (
    ('{"a": "tab\\t, line\\n, \\"quoted\\""}', {"a": 'tab\t, line\n, "quoted"'}),
    ("[]", []),
    (None, None),
)


def same(*texts: str | None) -> list[tuple[str | None, object]]:
    """What is sent is what is read."""
    return [(t, t) for t in texts]


_TYPES: list[tuple[ColumnType, str, Sequence[tuple[str | None, object]]]] = [
    (Primitive("boolean"), "boolean", [("true", True), ("false", False), (None, None)]),
    (Primitive("int"), "integer", [("-2147483648", -(2**31)), ("2147483647", 2**31 - 1)]),
    (Primitive("long"), "bigint", [("-9223372036854775808", -(2**63)), ("9223372036854775807", 2**63 - 1)]),
    (
        Primitive("float"),
        "real",
        [
            *same("NaN", "Infinity", "-Infinity"),
            ("3.4028235E38", "3.4028235e+38"),
            ("1.4E-45", "1e-45"),
            ("-0.0", "-0"),
        ],
    ),
    (
        Primitive("double"),
        "double precision",
        [
            *same("NaN", "-Infinity", "0.1"),
            ("4.9E-324", "5e-324"),
            ("1.7976931348623157E308", "1.7976931348623157e+308"),
        ],
    ),
    (
        Primitive("decimal(38,10)"),
        "numeric(38,10)",
        [*same("9" * 28 + "." + "9" * 10, "-0.0000000001"), ("0E-10", "0.0000000000")],
    ),
    (Primitive("decimal(38,0)"), "numeric(38,0)", same("-" + "9" * 38)),
    (Primitive("date"), "date", same("0001-01-01", "9999-12-31", "1969-07-20", "12024-02-29", "0045-03-15 BC")),
    (Primitive("time"), "time without time zone", same("00:00:00", "23:59:59.999999")),
    (
        Primitive("timestamp"),
        "timestamp without time zone",
        [
            *same("1969-12-31 23:59:59.999999", "12024-02-29 01:02:03.000001"),
            ("0045-03-15 12:00:00.500000 BC", "0045-03-15 12:00:00.5 BC"),
            ("0001-01-01 00:00:00.000000 AD", "0001-01-01 00:00:00"),
        ],
    ),
    (
        Primitive("timestamptz"),
        "timestamp with time zone",
        [
            *same("2026-03-29 02:30:00.123456+00", "12024-02-29 01:02:03.000001+00"),
            ("2026-03-29 02:30:00", "2026-03-29 02:30:00+00"),
            ("0045-03-15 12:00:00.500000+00 BC", "0045-03-15 12:00:00.5+00 BC"),
        ],
    ),
    (
        Primitive("timestamp_ns"),
        "timestamp without time zone",
        [("2026-01-01 00:00:00.123456789", "2026-01-01 00:00:00.123457")],
    ),
    (
        Primitive("timestamptz_ns"),
        "timestamp with time zone",
        [("2026-01-01 00:00:00.123456789+00", "2026-01-01 00:00:00.123457+00")],
    ),
    (Primitive("string"), "text", same("", None, " ", "\\N", "\\.", _ODD, _FAR, _LONG)),
    (Primitive("uuid"), "uuid", same("f79c3e09-677c-4bbd-a479-3f349cb785e7")),
    (Primitive("fixed[4]"), "bytea", same("\\x00ff5c09")),
    (Primitive("binary"), "bytea", same("\\x", "\\x5c0a0009", None)),
    (Struct((Column("a", Primitive("string")),)), "jsonb", _JSON),
    (ListOf(Primitive("long")), "jsonb", [("[9223372036854775807, null]", [2**63 - 1, None])]),
    (MapOf(Primitive("string"), Primitive("int")), "jsonb", [('{"": 1}', {"": 1})]),
    (Primitive("variant"), "jsonb", _JSON),
    (Primitive("unknown"), "text", same(None)),
    (Primitive("geometry(srid:4326)"), "bytea", same("\\x0101")),
    (Primitive("geography"), "bytea", same("\\x0101")),
]


def test_every_type_arrives_with_its_edge_values(database: Database) -> None:
    columns = [Column(f"c{n}", kind) for n, (kind, _, _) in enumerate(_TYPES)]
    assert [pg_type(c) for c in columns] == [created for _, created, _ in _TYPES]
    deep = max(len(values) for _, _, values in _TYPES)
    cells = [[v[0] for v in values] + [None] * (deep - len(values)) for _, _, values in _TYPES]
    sender = database.sender(database.sink((NUMBER, *columns)))
    assert isinstance(sender.send(parcel(1, deep, row=lambda n: [c[n - 1] for c in cells])), Landed)
    database.ask("SET TimeZone = 'UTC'")
    for n, (kind, created, values) in enumerate(_TYPES):
        plain = created in ("boolean", "integer", "bigint", "jsonb")
        found = database.ask(
            f"SELECT c{n}{'' if plain else '::text'} FROM events ORDER BY _ingest_seq LIMIT {len(values)}"
        )
        assert [value for (value,) in found] == [wanted for _, wanted in values], kind


def test_the_table_of_types_names_every_type_of_iceberg() -> None:
    assert len(TYPE_RULES) == len({r.iceberg for r in TYPE_RULES}) == 23
    assert {r.created.partition("(")[0] for r in TYPE_RULES} == {created.partition("(")[0] for _, created, _ in _TYPES}


def test_what_spark_calls_a_year_before_christ_is_refused_not_bent(database: Database) -> None:
    sender = database.sender(database.sink((NUMBER, Column("day", Primitive("date")))))
    for n, day in enumerate(("-0044-03-15", "+12024-01-01", "0000-01-01"), 1):
        assert isinstance(sender.send(parcel(n, n, row=lambda _, day=day: (day,))), Refused)


# --- the claim -------------------------------------------------------------------------------------------------------

CLAIM = Claim("lake-1", "instance-1", "default.events", "uuid-1")


def test_a_claim_is_kept_and_its_generation_only_rises(database: Database) -> None:
    sink = database.sink(None)
    assert [sink.claim(CLAIM, g).generation for g in (1, 3, 2)] == [1, 3, 3]
    found = database.sink(None).claimed()
    assert found is not None and (found.claim, found.generation) == (CLAIM, 3)
    other = sink.claim(Claim("lake-1", "instance-2", "default.events", "uuid-1"), 1)
    assert other.claim == CLAIM


@pytest.mark.parametrize(
    "other", [Claim("lake-2", "i", "default.events", "u"), Claim("lake-1", "i", "default.other", "u")]
)
def test_a_table_of_another_lake_or_dataset_is_refused_and_its_owner_named(database: Database, other: Claim) -> None:
    database.sink(None).claim(CLAIM, 1)
    with pytest.raises(RefusedError, match=r"lake-1, dataset default\.events"):
        database.sink(None).claim(other, 5)
    found = database.sink(None).claimed()
    assert found is not None and found.generation == 1


def test_the_record_of_a_newer_version_is_refused(database: Database) -> None:
    database.sink(None).claim(CLAIM, 1)
    database.ask("UPDATE strandline_sink SET version = 4")
    with pytest.raises(RefusedError, match="newer"):
        database.sink(None).claimed()


# --- verify ----------------------------------------------------------------------------------------------------------


def test_rows_that_are_gone_or_stand_twice_are_counted_and_named(database: Database) -> None:
    sink = database.sink()
    database.sender(sink).send(parcel(1, 1000, numbers=[n for n in range(1, 1001) if n % 7]))
    inspector = pickle.loads(pickle.dumps(sink.inspector()))
    assert inspector.inspect(ADDRESS, rng(1, 1000)) == Inspected(858, None)
    database.ask("DELETE FROM events WHERE _ingest_seq IN (5, 500)")
    database.ask("INSERT INTO events SELECT * FROM events WHERE _ingest_seq = 10 OR _ingest_seq BETWEEN 600 AND 610")
    found = inspector.inspect(ADDRESS, rng(1, 1000))
    assert found.count == 858 - 2 + 10
    assert found.problem == (
        "2 of 858 rows are missing: 5, 500; 10 sequence numbers are there more than once: 10, 600, 601, 603, 604 "
        "and 5 more"
    )
    numbers = inspector.numbers(ADDRESS, rng(1, 12)).to_pylist()
    assert numbers == [1, 2, 3, 4, 6, 8, 9, 10, 10, 11, 12]
    database.ask("INSERT INTO events (_ingest_seq) VALUES (7)")
    assert inspector.inspect(ADDRESS, rng(1, 8)).problem == (
        "1 of 7 rows is missing: 5; 1 row with a sequence number in 1..8 was not delivered"
    )
    inspector.close()


def test_lanes_that_lie_between_each_other_are_told_apart_in_one_table(database: Database) -> None:
    sink = database.sink()
    sender = database.sender(sink)
    lanes = [Address("lake-1", "instance-1", 1, "default.events", f"k={k}") for k in range(3)]
    for k, lane in enumerate(lanes):
        sender.send(parcel(1, 30 + k, numbers=list(range(1 + k, 31, 3)), address=lane))
    database.ask("DELETE FROM events WHERE _ingest_seq = 5")
    database.ask("INSERT INTO events SELECT * FROM events WHERE _ingest_seq = 6")
    inspector = sink.inspector()
    found = [inspector.inspect(lane, rng(1, 30 + k)) for k, lane in enumerate(lanes)]
    assert [f.count for f in found] == [10, 9, 11]
    assert [f.problem for f in found] == [
        None, "1 of 10 rows is missing: 5", "1 sequence number is there more than once: 6",
    ]  # fmt: skip
    assert "does not know" in (inspector.inspect(lanes[0], rng(25, 40)).problem or "")
    database.ask("DROP TABLE events")
    assert "gone" in (inspector.inspect(lanes[0], rng(1, 30)).problem or "")
    inspector.close()


def test_the_record_takes_about_a_byte_a_row_and_nothing_where_no_number_is_left_out() -> None:
    import numpy as np

    numbers = np.cumsum(np.random.default_rng(7).integers(1, 50, 100_000)).astype(np.int64)
    packed = pack_numbers(numbers, rng(1, int(numbers[-1])))
    assert packed is not None and len(packed) < 100_000
    assert pack_numbers(np.arange(5, 10), rng(5, 9)) is None


# --- secrets and options ---------------------------------------------------------------------------------------------


def test_no_error_holds_the_password(database: Database) -> None:
    secret = "p@ss/w%rd"
    url = database.url.replace("postgres@", "postgres:p%40ss%2Fw%25rd@")
    sink = database.sink(url=url)
    sender = database.sender(sink)
    said = [repr(sink), repr(sender), repr(sink.inspector()), sink.destination]
    _trigger(database, f"RAISE EXCEPTION USING MESSAGE = 'cannot log in with {secret} or p%40ss%2Fw%25rd'")
    outcome = sender.send(parcel(1, 5))
    assert isinstance(outcome, TryLater) and "***" in outcome.why
    said.append(outcome.why)
    away = url.replace(f":{urlsplit(url).port}", ":1")
    with pytest.raises(StorageError) as failed:
        database.sink(url=away)
    said += [str(failed.value), str(failed.value.hint), repr(failed.value.__cause__)]
    for broken in (f"host=x password={secret} nonsense", f"postgresql://u:{secret}@[::1/x", f"nonsense {secret}"):
        with pytest.raises(UsageError) as usage:
            parse_server(broken)
        said += [str(usage.value), str(usage.value.hint), repr(usage.value.__cause__)]
    assert not [s for s in said if "ss/w" in s or "%2Fw" in s]


@pytest.mark.parametrize(
    "dsn", ["postgresql://u:secret@h/d", "host=h password=secret", "postgresql://h/d?password=secret"]
)
def test_a_password_in_the_open_is_refused_with_a_hint(dsn: str) -> None:
    with pytest.raises(UsageError) as refused:
        check_dsn(dsn)
    assert "env:NAME" in (refused.value.hint or "") and "secret" not in str(refused.value)


@pytest.mark.parametrize("dsn", ["env:DSN", "postgresql://u@h/d", "host=h dbname=d", "service=mine"])
def test_a_connection_string_without_a_password_may_be_stored(dsn: str) -> None:
    check_dsn(dsn)


def test_a_destination_is_one_text_however_it_is_written() -> None:
    def destination(dsn: str, table: str) -> str:
        return KIND.open(SinkContext(Path(), "d", 1, {"dsn": dsn, "table": table})).destination

    wanted = "postgresql://db.example:5432/lake/public.events"
    assert destination("postgresql://u:pw@DB.example/lake", "events") == wanted
    assert destination("host=db.example port=5432 dbname=lake user=other", "public.events") == wanted


@pytest.mark.parametrize(
    "options",
    [
        {"dsn": "", "table": "t"},
        {"dsn": "host=h"},
        {"dsn": "host=h", "table": "a.b.c"},
        {"dsn": "host=h", "table": 'a"b'},
        {"dsn": "host=h", "table": "x" * 64},
        {"dsn": "host=h", "table": "strandline_range"},
        {"dsn": "host=h", "table": "t", "create": "yes"},
    ],
)
def test_options_that_cannot_be_are_refused_without_a_connection(options: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        KIND.open(SinkContext(Path(), "d", 1, options))


def test_a_sender_travels_with_everything_it_needs(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    there = urlsplit(database.url)
    monkeypatch.setenv("PGHOST", there.hostname or "")
    monkeypatch.setenv("PGPORT", str(there.port))
    monkeypatch.setenv("PGUSER", "postgres")
    sink = database.sink(url=f"dbname={there.path[1:]}")
    sender = database.sender(sink)
    assert isinstance(sender.send(parcel(1, 2)), Landed)
    packed = pickle.dumps(sender)
    for name in ("PGHOST", "PGPORT", "PGUSER"):
        monkeypatch.delenv(name)
    elsewhere = pickle.loads(packed)
    assert isinstance(elsewhere.send(parcel(3, 4)), Landed)
    elsewhere.close()


def test_a_name_too_long_for_the_server_is_refused(database: Database) -> None:
    with pytest.raises(SchemaError, match="63"):
        database.sink((NUMBER, Column("x" * 64, Primitive("int"))))
    assert RecordTables(TableName("a", "b")).key(ADDRESS) != RecordTables(TableName("a", "c")).key(ADDRESS)
