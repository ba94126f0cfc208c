"""Delivery in a Spark whose tasks may fail, in a process of its own: `python -m tests.e2e.deliverer HOME HOW…`.

A local Spark gives up at the first task that fails unless its master says otherwise. Each sink of the lake is named
after the way in which its tasks run twice:

- `before`: a task fails once, before it has sent anything
- `after`: it fails once, when its chunk has landed
- `worker`: its whole worker dies then
- `late`: a twin of it that was slow sends the same chunk when all is delivered, and the consumer has taken it away
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import strandline
from strandline.deliver import sink_kinds
from strandline.deliver.sink import ChunkRows, Outcome, Sender, Sink, SinkContext, SinkKind
from strandline.deliver.sinks.blobs import names
from strandline.deliver.sinks.files import sink as files

TAKEN = "taken"
"""The file that says that the consumer has taken everything."""
TWIN = "twin"
"""What the slow twin was told."""


@dataclass
class TwiceSender:
    inner: Sender
    folder: Path

    def send(self, parcel: ChunkRows) -> Outcome:
        how, marker = self.folder.name, self.folder.parent / f"{self.folder.name}-ran-twice"
        first = parcel.range.lo == 1 and not marker.exists()
        if first:
            marker.touch()
            if how == "before":
                raise RuntimeError("this task fails once")
        twin: Any = pickle.loads(pickle.dumps(self.inner))
        if how == "late":
            lane = names.lane_folder(parcel.address)
            twin._lanes[lane] = twin.folder.list_lane(lane, None)  # it has seen that the chunk is not there
        outcome = self.inner.send(parcel)
        if first and how == "late":
            threading.Thread(target=self._late, args=(twin, parcel), daemon=True).start()
        elif first and how == "worker":
            os._exit(1)
        elif first:
            raise RuntimeError("this task fails once")
        return outcome

    def _late(self, twin: Sender, parcel: ChunkRows) -> None:
        while not (self.folder.parent / TAKEN).exists():
            time.sleep(0.02)
        answer = twin.send(parcel)
        said = self.folder.parent / f"{TWIN}.new"
        said.write_text(repr(answer), "utf-8")
        said.rename(self.folder.parent / TWIN)

    def close(self) -> None:
        self.inner.close()


def _open(context: SinkContext) -> Sink:
    sink: Any = files.KIND.open(context)
    sender = sink.sender
    sink.sender = lambda token: TwiceSender(sender(token), Path(context.options["path"]))
    return sink  # type: ignore[no-any-return]


KIND = SinkKind(files.KIND.options, _open)


def main(home: Path, ways: list[str]) -> None:
    sink_kinds._BUILT_IN["twice"] = "tests.e2e.deliverer:KIND"
    with strandline.open(home) as lake:
        for how in ways:
            options = {"path": str(home.parent / how), "chunk_rows_max": "25"}
            lake.delivery.add(how, "events", "twice", options)
        df = lake.spark.range(1, 101, 1, 2).selectExpr("id AS n", "concat('lane ', id % 2) AS k")
        lake.append("events", df)
        # One after another, `late` last: a task that fails takes its worker with it, and the twin lives in one.
        told = {how: lake.tick(how).sinks[0].did for how in ways}
        if "late" in ways:
            for path in (home.parent / "late").rglob("*.parquet"):
                path.rename(home.parent / path.name)
            (home.parent / TAKEN).touch()
            deadline = time.monotonic() + 60
            while not (home.parent / TWIN).exists() and time.monotonic() < deadline:
                time.sleep(0.05)
    print(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
