"""Lakes that forward to each other within one process: they share its JVM, and speak over real HTTP."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import strandline
from strandline.jobs.loop import LoopControl
from tests.receiver_journal import ReceiverJournal
from tests.spark import bodies
from tests.spark.lakes import create, in_order, numbers, sql
from tests.spark.relay import Relay, relaying
from tests.spark.sinks import tick

if TYPE_CHECKING:
    from strandline.deliver.quarantine.rows import QuarantinedRow
    from strandline.deliver.tick import SinkReport
    from strandline.deliver.verify.verdict import SinkVerdict
    from strandline.lake import Lake
    from tests.conftest import MakeHome

SETTINGS = {
    "forward": {"allow": ["127.0.0.1"]},  # refused unless the settings name it
    "receive": {"batch_wait_seconds_max": 0},
}
_START_SECONDS_MAX = 120


class Receiving:
    """A lake's receiver, which can be stopped and started again at its port. Rows wait in the spool until a test lets
    them in."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.port = 0
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.start()

    def start(self) -> None:
        journal, self._stopping = ReceiverJournal(), threading.Event()
        options = {"port": self.port, "ingest": False}
        self._thread = threading.Thread(
            target=self.lake.receiver.serve, args=(LoopControl(self._stopping), journal), kwargs=options, daemon=True
        )
        self._thread.start()
        assert journal.up.wait(_START_SECONDS_MAX)
        self.port = int(journal.url.rpartition(":")[2])

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def ingest(self) -> None:
        for report in bodies.ingest(self.lake):
            assert report.did == "ingested", report


@contextmanager
def open_end(
    folder: Path, make_home: MakeHome, settings: Mapping[str, Mapping[str, Any]] | None = None
) -> Iterator[Receiving]:
    """A lake that forwards, and receives."""
    make_home(folder, SETTINGS | dict(settings or {}))
    with strandline.init_lake(folder) as lake:
        end = Receiving(lake)
        try:
            yield end
        finally:
            end.stop()


def token_file(end: Receiving, folder: Path, name: str) -> Path:
    """Of a token for all datasets, by which one sink is let in; one that is there is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(end.lake.receiver.create_token(name, replaces=name if path.exists() else None)[1] + "\n")
    return path


@dataclass
class Way:
    """From a dataset of one lake, over a relay, to the dataset of that name in another one. Rows have an `n`, which
    counts from 1, and a `k`, one of two."""

    sender: Lake
    to: Receiving
    name: str
    sink: str
    relay: Relay
    token: Path
    sent: int = 0

    def ingest(self, count: int = 10) -> None:
        rows = numbers(self.sender, self.sent + 1, self.sent + count)
        self.append(rows.selectExpr("n", "concat('lane', n % 2) AS k"))
        self.sent += count

    def append(self, df: Any) -> None:
        self.sender.append(self.name, df)

    def add(self, **options: str) -> None:
        given = {"url": self.relay.url(self.name), "token": f"file:{self.token}", **options}
        self.sender.delivery.add(self.sink, self.name, "forward", given)

    def tick(self) -> SinkReport:
        return tick(self.sender, self.sink)

    def deliver(self) -> None:
        report = self.tick()
        assert report.did == "delivered", report

    def arrived(self, column: str = "n") -> list[Any]:
        """In the table at the other end, in order; a row that stands there twice is there twice."""
        self.to.ingest()
        return [r[0] for r in in_order(sql(self.to.lake, f"SELECT {column} FROM {self.table}"))]

    @property
    def table(self) -> str:
        return f"lake.default.{self.name}"

    @property
    def whole(self) -> list[int]:
        return list(range(1, self.sent + 1))

    def verdict(self) -> SinkVerdict:
        [found] = self.sender.delivery.verify(self.sink).sinks
        return found

    def quarantined(self) -> list[QuarantinedRow]:
        return self.sender.delivery.quarantined(self.sink, contents_max=1000)

    def status(self) -> Any:
        return next(s for s in self.sender.status().sinks if s.name == self.sink)


ROWS = {"n": "long", "k": "string"}


@contextmanager
def open_way(
    sender: Lake,
    to: Receiving,
    name: str,
    *,
    sink: str | None = None,
    columns: Mapping[str, str] = ROWS,
    there: Mapping[str, str] | None = None,
    deliver_by: tuple[str, ...] = (),
) -> Iterator[Way]:
    """Datasets are made where there are none yet."""
    for lake, wanted in ((sender, columns), (to.lake, there or columns)):
        if f"default.{name}" not in [d.name for d in lake.datasets()]:
            create(lake, name, wanted, deliver_by=deliver_by if lake is sender else ())
    sink = sink or name
    token = token_file(to, sender.config.home / "tokens", f"{sender.id[:8]}-{sink}")
    with relaying(to.port) as relay:
        yield Way(sender, to, name, sink, relay, token)
