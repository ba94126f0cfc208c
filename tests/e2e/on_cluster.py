"""A driver on a real cluster that does what it is told: `python -m tests.e2e.on_cluster HOME`.

A line of standard input is a step and its arguments, a line of standard output the answer to one. Steps run beside each
other. A task of a step can be held: it takes the file `HOME/armed-WHAT` by giving it the name `HOME/held-WHAT-PROCESS`,
where PROCESS is its executor, and then waits to be killed.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

import strandline
from strandline.deliver import sink_kinds
from strandline.deliver.sink import ChunkRows, Outcome, Sender, Sink, SinkContext, SinkKind
from strandline.deliver.sinks.files import sink as files
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.lake import Lake

HELD_SECONDS_MAX = 300
SEND = "send"
TASKS, ROWS = 4, 10
"""Of a batch, and of a task of it."""


def hold(folder: Path, what: str) -> None:
    """Once for each time that it is armed."""
    armed = folder / f"armed-{what}"
    if not armed.exists():
        return
    here = next(p for p in psutil.Process().parents() if "CoarseGrainedExecutorBackend" in " ".join(p.cmdline()))
    try:
        armed.rename(folder / f"held-{what}-{here.pid}")
    except FileNotFoundError:
        return  # another task was first
    time.sleep(HELD_SECONDS_MAX)


@dataclass
class HoldingSender:
    inner: Sender
    home: Path

    def send(self, parcel: ChunkRows) -> Outcome:
        hold(self.home, SEND)
        return self.inner.send(parcel)

    def close(self) -> None:
        self.inner.close()


def _open(context: SinkContext) -> Sink:
    sink: Any = files.KIND.open(context)
    sender = sink.sender
    sink.sender = lambda token: HoldingSender(sender(token), context.home)
    return sink  # type: ignore[no-any-return]


KIND = SinkKind(files.KIND.options, _open)
"""A files sink whose tasks can be held before they send."""


@dataclass
class Steps:
    lake: Lake
    home: Path

    def begin(self) -> dict[str, Any]:
        columns = parse_columns([{"name": "n", "type": "long"}, {"name": "p", "type": "string"}])
        self.lake.create_dataset("events", columns, deliver_by=["p"])
        self.lake.delivery.add("out", "events", "holding", {"path": str(self.home / "out")})
        rows = self.lake.spark.sql("SELECT id AS n, 'p' || id % 2 AS p FROM range(0, 1000, 1, 4)")
        self.lake.append("events", rows, batch_id="first")
        token = self.lake.read_since("events").continuation
        # A foreign row, so that reading needs Python on the workers too.
        self.lake.spark.sql("INSERT INTO lake.default.events VALUES (-1, 'p=p0', -1, 'p0')")
        context = self.lake.spark.sparkContext
        executors = context._jsc.sc().getExecutorMemoryStatus().size() - 1  # type: ignore[union-attr]
        return {"master": context.master, "executors": executors, "token": token}

    def append(self, batch: str) -> dict[str, Any]:
        """A batch of rows that its name alone decides; a task can be held when it has given its rows."""
        home, first = self.home, 1000 * int(batch)

        def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from pyspark import TaskContext

            context = TaskContext.get()
            at = 0 if context is None else context.partitionId()
            for _ in batches:
                pass
            numbers = [first + at * ROWS + i for i in range(ROWS)]
            yield pa.RecordBatch.from_pydict({"n": pa.array(numbers), "p": ["x"] * ROWS})
            if (home / f"writing-{batch}").exists():
                hold(home, batch)

        frame = self.lake.spark.range(0, TASKS, 1, TASKS).mapInArrow(rows, "n long, p string")
        done = self.lake.append(
            "events", frame, batch_id=batch, progress=lambda step, _: (home / f"{step}-{batch}").touch()
        )
        return {"rows": done.row_count, "duplicate": done.duplicate}

    def tick(self) -> dict[str, Any]:
        [out] = self.lake.tick().sinks
        return {"did": out.did, "rows": out.rows, "reason": out.reason}

    def read(self, token: str) -> dict[str, Any]:
        """All rows, those after the token, and a partition."""
        sums = "count(*)", "count(DISTINCT _ingest_seq)", "sum(n)"
        read = self.lake.read_since("events", token, internal=True)
        return {
            "rows": list(self.lake.read_since("events", internal=True).df.selectExpr(*sums).collect()[0]),
            "new": list(read.df.selectExpr(*sums).collect()[0]),
            "ordered": [row.n for row, _ in read],
            "partition": self.lake.read_since("events", partition={"p": "p0"}).df.count(),
            "foreign": self.lake.status().datasets[0].foreign,
        }

    def verify(self) -> dict[str, Any]:
        report = self.lake.delivery.verify()
        return {"ok": report.ok, "rows": report.sinks[0].rows}

    def answer(self, step: str, *arguments: str) -> None:
        try:
            found = {"step": step, **getattr(self, step)(*arguments)}
        except Exception:
            found = {"step": step, "failed": traceback.format_exc()}
        print(json.dumps(found) + "\n", end="", flush=True)


def main(home: Path) -> None:
    sink_kinds._BUILT_IN["holding"] = "tests.e2e.on_cluster:KIND"
    with strandline.open(home) as lake:
        steps = Steps(lake, home)
        threads = []
        for line in sys.stdin:
            threads.append(threading.Thread(target=steps.answer, args=line.split()))
            threads[-1].start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
