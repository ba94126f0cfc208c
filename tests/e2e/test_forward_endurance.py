"""Rows from lake to lake over HTTP while sender and receiver, processes of their own, are killed again and again."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from strandline.cli.main import run
from strandline.core.types import Seq, SeqRange
from strandline.deliver.send.digests import bare
from strandline.lake import Lake
from strandline.ledger.deliver import quarantine
from strandline.ledger.receive import spool_files
from tests.campaign import scaled
from tests.conftest import MakeHome
from tests.e2e.recording import recording
from tests.e2e.route import SINK, WAIT_SECONDS_MAX, Route, route
from tests.spark.deliveries import outlive_lease

pytestmark = pytest.mark.timeout(900)

BATCH_ROWS = 750
JOB_BATCHES = 8
"""Many jobs for few rows cost most of the time here; few, and nobody is killed between two of them."""
KILLS = scaled(1, 4)
"""Of each of the two."""
FIRST_ROWS, MEANWHILE_ROWS, MORE_ROWS = 12_000, 7_500, 9_000
"""What is there at the start; what comes while somebody is dead; what comes while all are at work."""


def rows_of(lake: Lake) -> pa.Table:
    """All that stand in the table, in order."""
    return lake.spark.sql("SELECT n, k FROM lake.default.events").toArrow().sort_by("n")


def assert_each_row_is_there_once(made: Route) -> None:
    ingested, there = rows_of(made.delivered.lake), rows_of(made.collector)
    assert ingested["n"].to_pylist() == list(range(1, made.delivered.rows + 1))
    assert there.num_rows == ingested.num_rows and there.equals(ingested)


# --- endurance ---


def killed_at_work(made: Route, victim: str, choose: random.Random, *, ingests: bool) -> int:
    """Kill it when it has had a part in some bodies, and while more are on their way. How many bodies were recorded
    then."""
    before = made.bodies()
    made.start()
    with ThreadPoolExecutor(1) as pool:
        if ingests:  # its JVM is up: it may die of the kill in the middle of a batch, too
            assert made.receiver is not None
            made.receiver.wait_for("ingested")
            before = made.bodies()
            feeding = pool.submit(made.delivered.ingest, MORE_ROWS)
        few = choose.randint(1, JOB_BATCHES - 1)
        made.wait(
            lambda: made.bodies() >= before + few and len(made.under_way()) > JOB_BATCHES, "it is never in the middle"
        )
        time.sleep(choose.uniform(0, 0.05))
        if victim == "sender":
            made.kill_sender()
        else:
            made.kill_receiver()
        left, recorded = made.under_way(), made.bodies()
        if ingests:
            feeding.result()
    assert left, f"the {victim} had nothing to do when it was killed"
    return recorded


def test_every_row_arrives_once_though_sender_and_receiver_are_killed_again_and_again(
    tmp_path: Path, make_home: MakeHome, spark_started: object, capsys: pytest.CaptureFixture[str]
) -> None:
    choose = random.Random(20261117)
    victims = ["sender", "receiver"] * KILLS
    choose.shuffle(victims)
    ingests = itertools.cycle((True, False))
    waiting = 0
    with route(tmp_path, make_home, job_rows_max=JOB_BATCHES * BATCH_ROWS) as made:
        made.start_receiver()
        made.add_sink(made.port, chunk_rows_max=str(BATCH_ROWS))
        made.delivered.ingest(FIRST_ROWS)
        recorded = 0
        for victim in victims:
            at_death = killed_at_work(made, victim, choose, ingests=victim == "receiver" and next(ingests))
            assert at_death > recorded, "who came next went on"
            recorded = at_death
            waiting += sum(w.rows for w in made.collector.status().receive)
            made.delivered.ingest(MEANWHILE_ROWS)  # before whoever comes next can go on
        made.start()
        made.wait(lambda: made.delivered.is_done and not made.collector.status().receive, "it does not get done")
        assert made.bodies() > recorded
        assert waiting > 0, "no kill left rows that were answered for and not ingested"
        assert_each_row_is_there_once(made)
        assert_verified(made, capsys)
        assert made.sender is not None and made.receiver is not None
        made.sender.send_signal(signal.SIGTERM)
        assert made.sender.wait(WAIT_SECONDS_MAX) == 0 and made.receiver.end() == 0
        with made.collector.ledger.read() as connection:
            assert spool_files.waiting_bytes(connection) == {}, "files whose rows are published are left"


def assert_verified(made: Route, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    rows = made.delivered.rows
    with pytest.MonkeyPatch.context() as environ:
        environ.setenv("STRANDLINE_DELIVER__JOB_ROWS_MAX", str(rows))  # it builds everything again: in one job
        code = run(["verify", SINK, "--json", "--config", str(made.home)])
    said = capsys.readouterr().out
    assert code == 0, said
    [verdict] = json.loads(said)["sinks"]
    assert verdict["ok"] and (verdict["rows"], verdict["watermark"], verdict["quarantined"]) == (rows, rows, 0)
    lake = made.delivered.lake
    with lake.ledger.read() as connection:
        assert quarantine.list_quarantined(connection, lake.delivery.get(SINK)) == []


# --- the retry ---


def test_rows_that_arrive_before_the_retry_do_not_change_it_though_both_ends_are_killed(
    tmp_path: Path, make_home: MakeHome, spark_started: object
) -> None:
    """The receiver dies when it has committed and not answered; the sender, when the answer to its retry has come."""
    with (
        route(tmp_path, make_home, job_rows_max=JOB_BATCHES * BATCH_ROWS) as made,
        recording(made.port) as (port, posted),
    ):
        made.start_receiver("--no-ingest", failpoint="receive.after_commit=kill")
        made.add_sink(port)
        made.delivered.ingest(40)
        made.start_sender("tick", "--sink", SINK, "--json", failpoint="forward.after_post=kill")
        made.receiver_died()
        made.delivered.ingest(60)
        first, digest = (1, 40), made.digests()[1, 40]
        assert {p.answer is None for p in posted} == {True} and made.digests().keys() == {first}
        made.start_receiver("--no-ingest")
        made.sender_died()
        assert [c.rows for c in made.under_way()] == [SeqRange(Seq(1), Seq(40))], "it did not get to note the answer"
        made.delivered.ingest(60)
        outlive_lease(made.delivered.lake)
        [report] = made.delivered.lake.tick(SINK).sinks
        assert (report.did, report.rows) == ("delivered", 160), report

        lost = [p for p in posted if p.answer is None]  # its retry may still reach the process that dies
        repeated, *others = posted[len(lost) :]
        assert {p.request for p in lost} == {repeated.request}
        assert repeated.answer["repeat"] and (repeated.answer["rows"], repeated.answer["digest"]) == (40, digest)
        keys = [repeated.key, *(p.key for p in others)]
        assert len(keys) == len(set(keys)), "what landed was sent again"
        kept = {p.key: f"sha256:{hashlib.sha256(p.content).hexdigest()}" for p in posted}
        assert sorted(made.digests().values()) == sorted(kept.values()) and kept[repeated.key] == digest
        assert {(c.rows.lo, c.rows.hi): bare(c.digest or "") for c in made.chunks()} == made.digests()
        time.sleep(0.3)  # so long a body waits for others
        assert sum(r.rows for r in made.collector.receiver.intake().step()) == 160
        assert_each_row_is_there_once(made)
