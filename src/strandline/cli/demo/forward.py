"""The last part of `strandline demo`: a second lake that receives over HTTP, and a connection that breaks midway."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from strandline.cli.demo.delivery import deliver, rows_text
from strandline.cli.demo.scene import DATASET, Demo, count, events, ingest, start_child, write
from strandline.core.errors import FailedError, StrandlineError
from strandline.core.text.wording import plural
from strandline.core.types import SEQ_COLUMN
from strandline.jobs.loop import LoopControl
from strandline.lake import Lake
from strandline.lake_admin import init_lake

if TYPE_CHECKING:
    from strandline.receive.intake import BatchReport

SINK = "collector"
FRIDAY_ROWS, FRIDAY_ID = 250, 200_001
TOKEN = "STRANDLINE_DEMO_TOKEN"
SETTINGS = {
    "STRANDLINE_FORWARD__ALLOW": '["127.0.0.1"]',  # refused unless the settings name it
    "STRANDLINE_RECEIVE__BATCH_WAIT_SECONDS_MAX": "0.5",
}
WAIT_SECONDS_MAX = 180


def forward(demo: Demo) -> None:
    with init_lake(demo.home / SINK) as collector:
        _set_up(demo, collector)
        port = _break_the_connection(demo, collector)
        with _receiving(demo, collector, port):
            _go_on(demo, collector)
            _verify(demo, collector)


def _set_up(demo: Demo, collector: Lake) -> None:
    from strandline.iceberg.schema.infer import infer

    with demo.step("A second lake, which receives over HTTP"):
        collector.create_dataset(DATASET, infer(demo.home / "sample.jsonl").columns)
        _, secret = collector.receiver.create_token("demo")
        os.environ[TOKEN] = secret
        demo.note(f"a lake of its own in {SINK}, with its own ledger; a token lets the first lake in", "dim")


def _break_the_connection(demo: Demo, collector: Lake) -> int:
    """Returns the port, which the next receiver uses again."""
    with demo.step("Forward, and break the connection when the other end has committed and not answered"):
        demo.say("Starting a receiver that is about to die")
        child, port = _doomed_receiver(collector.config.home)
        try:
            url = f"http://127.0.0.1:{port}/v1/datasets/{DATASET}/rows"
            made = demo.lake.delivery.add(SINK, DATASET, "forward", {"url": url, "token": f"env:{TOKEN}"})
            demo.note(f"the new sink begins behind {made.start or 0:,}, up to where rows were deleted", "dim")
            demo.say("Sending rows")
            report = demo.lake.tick(SINK).sinks[0]
            died = child.wait(WAIT_SECONDS_MAX)
        finally:
            child.kill()
        demo.note(f"the receiver died of signal {-died}; the sender says: {report.reason}", "dim")
        waiting = sum(w.rows for w in collector.status().receive or ())
        demo.claim(
            f"{rows_text(waiting)} are durable at the other end, and the sender does not know it",
            waiting > 0 and report.rows == 0 and report.did == "waiting",
        )
        return port


def _go_on(demo: Demo, collector: Lake) -> None:
    with demo.step(f"{FRIDAY_ROWS} new rows arrive, the receiver is back: forward again"):
        write(demo.home / "friday.jsonl", events(FRIDAY_ID, FRIDAY_ROWS))
        demo.say("Ingesting more rows")
        ingest(demo, "friday.jsonl")
        demo.say("Delivering")
        deliver(demo)
        demo.say("The collector ingests what it received")
        _wait_for_rows(collector)
        rows, ids = count(collector)
        demo.claim(
            f"the collector has {plural(rows, 'row')}, {ids:,} different ids: each exactly once",
            rows == ids == _meant_for_it(demo),
        )


def _verify(demo: Demo, collector: Lake) -> None:
    with demo.step("Verify: ask the receiver what is really there, then take a row away from it"):
        demo.say("Asking the receiver")
        verdict = demo.lake.delivery.verify(SINK).sinks[0]
        demo.claim(f"{rows_text(verdict.rows)}, without gap or overlap", verdict.ok)
        collector.spark.sql(f"DELETE FROM lake.default.{DATASET} WHERE id = {FRIDAY_ID}")
        found = [f for f in demo.lake.delivery.verify(SINK).sinks[0].findings if f.is_fault]
        for f in found:
            demo.note(f"  found: {f.what}: {f.detail}", "yellow")
        demo.claim("one row was deleted at the other end: verify finds it, and names its range", len(found) == 1)


def _meant_for_it(demo: Demo) -> int:
    """Rows for a sink that was added after old rows were deleted: it begins above those."""
    start = demo.lake.delivery.get(SINK).start or 0
    return demo.lake.read_since(DATASET, internal=True).df.where(f"{SEQ_COLUMN} > {start}").count()


def _wait_for_rows(collector: Lake) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while collector.status().receive:
        if time.monotonic() > deadline:
            raise FailedError(f"the collector did not ingest what it received in {WAIT_SECONDS_MAX} s")
        time.sleep(0.2)


def _doomed_receiver(home: Path) -> tuple[subprocess.Popen[str], int]:
    """A process of its own, killed for real after it has committed the first rows."""
    command = ("receive", "--no-ingest", "--port", "0", "--json")
    child = start_child(home, *command, failpoint="receive.after_commit=kill")
    for said in map(json.loads, child.stdout or ()):
        if said["event"] == "listening":
            return child, int(said["url"].rpartition(":")[2])
    raise FailedError("the receiver did not start")


class _ReceiverLog:
    """Gets the events of the receiver."""

    def __init__(self, demo: Demo) -> None:
        self._demo = demo
        self.listens = threading.Event()

    def listening(self, url: str, datasets: list[str]) -> None:
        self.listens.set()

    def batch(self, report: BatchReport) -> None:
        if report.reason is not None:
            self._demo.note(f"the collector: {report.reason}", "yellow")

    def trouble(self, error: StrandlineError) -> None:
        self._demo.note(f"the collector: {error.message}", "yellow")


@contextmanager
def _receiving(demo: Demo, collector: Lake, port: int) -> Iterator[None]:
    """In this process, so that both lakes share one JVM."""
    stopping, log = threading.Event(), _ReceiverLog(demo)
    with ThreadPoolExecutor(1, "strandline-demo-receiver") as pool:
        serving = pool.submit(collector.receiver.serve, LoopControl(stopping, log.trouble), log, port=port)
        serving.add_done_callback(lambda _: log.listens.set())
        try:
            log.listens.wait(WAIT_SECONDS_MAX)
            yield
        finally:
            stopping.set()
    serving.result()
