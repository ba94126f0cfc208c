"""A sink whose table in PostgreSQL lost its rows stops; `sink recover` says how many, and does what it is told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from strandline.core import failpoints
from strandline.core.delivery_types import LanePlan
from strandline.core.errors import RefusedError, SinkStopped
from strandline.core.types import Seq, SeqRange
from strandline.deliver.context import DeliverContext
from strandline.deliver.recover_sink import SinkRecovered, recover_sink
from strandline.deliver.sink import ChunkRows, Landed
from strandline.deliver.sink_session import SinkRun
from strandline.iceberg.schema.columns import Column, Primitive
from strandline.ledger.deliver import sinks
from tests.ledger.conftest import LAKE, LakeState
from tests.ledger.delivery import Delivery, landed, new_delivery, one_chunk, open_shared, planned
from tests.no_tables import NoTables


@pytest.fixture(scope="module")
def shared(request: pytest.FixtureRequest) -> Iterator[LakeState]:
    yield from open_shared(request, "sqlite")


def context_of(shared: LakeState) -> DeliverContext:
    return DeliverContext(LAKE, shared.config, shared.ledger, NoTables())


def recover(shared: LakeState, delivery: Delivery, *, resend: bool = False, accept_loss: bool = False) -> SinkRecovered:
    sinks.leases.release(shared.ledger, delivery.lease)
    try:
        return recover_sink(
            context_of(shared), delivery.dataset, delivery.sink.name, resend=resend, accept_loss=accept_loss
        )
    finally:
        delivery.refresh()
        delivery.lease = delivery.take()


@dataclass
class InTable:
    shared: LakeState
    delivery: Delivery
    url: str

    def run(self) -> SinkRun:
        made = SinkRun(context_of(self.shared), self.delivery.sink, self.delivery.dataset, self.delivery.lease, _quiet)
        made.claim()
        made.sink().prepare([Column("_ingest_seq", Primitive("long"), required=True)])
        return made

    def send(self, lo: int, hi: int) -> None:
        made = self.run()
        numbers = pa.array(range(lo, hi + 1), pa.int64())
        rows = pa.table({"_ingest_seq": numbers, "line": numbers.cast(pa.string())})
        sender = made.sink().sender(made.pass_token)
        outcome = sender.send(ChunkRows(made.address(""), SeqRange(Seq(lo), Seq(hi)), rows))
        assert isinstance(outcome, Landed) and not outcome.repeat, outcome
        sender.close()
        made.close()

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []


def _quiet(*_: object) -> None:
    return None


@pytest.fixture
def table(shared: LakeState, postgres_database: str) -> InTable:
    """1..60 delivered, and 61..80 landed of a plan that is under way."""
    delivery = new_delivery(shared, partitioned=False)
    delivery.damage("UPDATE sink SET kind = 'postgres' WHERE id = :sink")
    options = {"dsn": postgres_database, "table": "events", "create": "true"}
    with shared.ledger.write() as connection:
        sinks.set_options(connection, delivery.sink.id, options, f"postgresql://{delivery.sink.id}/events")
    delivery.refresh()
    made = InTable(shared, delivery, postgres_database)
    made.send(1, 60)
    delivery.deliver(60, one_chunk("", None, 60))
    made.send(61, 80)
    stored = delivery.plan(100, LanePlan("", Seq(60), Seq(100), (planned(61, 80), planned(81, 100))), **options)
    assert stored is not None and delivery.acknowledge(landed(stored[0].chunks[0]))
    return made


EMPTIED = pytest.mark.parametrize("how", ["TRUNCATE events", "DROP TABLE events"])


@EMPTIED
def test_a_table_that_lost_its_rows_stops_and_recover_says_how_much(table: InTable, how: str) -> None:
    table.ask(how)
    with pytest.raises(SinkStopped, match="of 80 rows that it acknowledged it has none"):
        table.run()
    with pytest.raises(RefusedError, match="80 of 80 rows that it acknowledged are missing"):
        recover(table.shared, table.delivery)
    assert table.delivery.marks() == {"": 60} and len(table.delivery.open()) == 1


@EMPTIED
def test_what_a_table_lost_is_sent_again_in_a_new_generation(table: InTable, how: str) -> None:
    table.ask(how)
    done = recover(table.shared, table.delivery, resend=True)
    assert (done.generation, done.lost_rows, table.delivery.marks()) == (2, 80, {"": None})
    table.send(1, 100)
    assert table.ask("SELECT count(*), count(DISTINCT _ingest_seq) FROM events") == [(100, 100)]
    assert table.run().record.generation == 2


@EMPTIED
@pytest.mark.parametrize("point", ["recover.before_accept_loss"])
def test_what_a_table_lost_is_given_up_once_and_never_sent(table: InTable, how: str, point: str) -> None:
    table.ask(how)
    failpoints.arm(f"{point}=fail")
    try:
        with pytest.raises(failpoints.FailpointError):
            recover(table.shared, table.delivery, accept_loss=True)
    finally:
        failpoints.arm("")
    with pytest.raises(SinkStopped, match="of 80 rows"):
        table.run()  # nobody told the table: it stops again, and the person says it again
    done = recover(table.shared, table.delivery, accept_loss=True)
    assert (done.generation, done.lost_rows, table.delivery.marks()) == (1, 80, {"": 80})
    run = table.run()
    assert [h.rows for h in run.sink().held([(run.address(""), None)])[0].ranges] == [
        SeqRange(Seq(1), Seq(60)), SeqRange(Seq(61), Seq(80))
    ]  # fmt: skip
    table.send(81, 100)
    assert table.ask("SELECT min(_ingest_seq), count(*) FROM events") == [(81, 20)]


def test_rows_that_are_still_there_are_not_sent_again(table: InTable) -> None:
    table.ask("CREATE TABLE other AS SELECT * FROM events WHERE _ingest_seq BETWEEN 30 AND 75")
    table.ask("DROP TABLE events")
    table.ask("ALTER TABLE other RENAME TO events")
    with pytest.raises(RefusedError, match="34 of 80"):
        recover(table.shared, table.delivery)
    with pytest.raises(RefusedError, match=r"some rows of 1\.\.60, 61\.\.80 are still there"):
        recover(table.shared, table.delivery, resend=True)
    assert recover(table.shared, table.delivery, accept_loss=True).lost_rows == 34


@pytest.mark.parametrize("landed_since", [0, 20])
def test_rows_of_older_generations_that_the_present_one_builds_on_are_missed_too(
    table: InTable, landed_since: int
) -> None:
    """Generation 2 begins behind 60, and 1..60 are rows of generation 1."""
    table.ask("CREATE TABLE other AS SELECT * FROM events WHERE _ingest_seq <= 60")
    table.ask("DROP TABLE events")
    table.ask("ALTER TABLE other RENAME TO events")
    done = recover(table.shared, table.delivery, resend=True)
    assert (done.generation, done.lost_rows, table.delivery.marks()) == (2, 20, {"": 60})
    table.run().close()
    if landed_since:
        table.send(61, 80)
    given = 60 + landed_since
    table.ask("TRUNCATE events")
    with pytest.raises(SinkStopped, match=f"of {given} rows that it acknowledged it has none"):
        table.run()
    table.ask("DROP TABLE events")
    with pytest.raises(RefusedError, match=f"{given} of {given} rows that it acknowledged are missing"):
        recover(table.shared, table.delivery)
    done = recover(table.shared, table.delivery, resend=True)
    assert (done.generation, done.lost_rows, table.delivery.marks()) == (3, given, {"": None})
    table.send(1, 100)
    assert table.ask("SELECT count(*), count(DISTINCT _ingest_seq) FROM events") == [(100, 100)]


def test_what_an_older_generation_keeps_is_built_on_again_and_given_up_with_the_rest(table: InTable) -> None:
    table.ask("CREATE TABLE kept AS SELECT * FROM events WHERE _ingest_seq <= 60")
    table.ask("DROP TABLE events; CREATE TABLE events AS SELECT * FROM kept")
    recover(table.shared, table.delivery, resend=True)
    table.send(61, 80)
    table.ask("DROP TABLE events; CREATE TABLE events AS SELECT * FROM kept")
    done = recover(table.shared, table.delivery, resend=True)
    assert (done.generation, done.lost_rows, table.delivery.marks()) == (3, 20, {"": 60}), "1..60 are not sent again"
    table.send(61, 70)
    table.ask("TRUNCATE events")
    done = recover(table.shared, table.delivery, accept_loss=True)
    assert (done.generation, done.lost_rows, table.delivery.marks()) == (3, 70, {"": 70})
    table.send(71, 90)
    assert table.ask("SELECT min(_ingest_seq), count(*) FROM events") == [(71, 20)]
