"""A sink of files that fails where a test tells it to: it reads a file beside its folder that says which chunks."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strandline.core.types import SEQ_COLUMN
from strandline.deliver.sink import (
    ChunkRows,
    Outcome,
    Refused,
    Sender,
    Sink,
    SinkContext,
    SinkKind,
    TryLater,
    Unknown,
)
from strandline.deliver.sinks.files import sink as files

TROUBLE = "trouble"
"""`later FROM`: chunks that begin at or above it are not sent. `lost FROM`: they land, and nobody hears of it.
`slow FROM`: they wait until the file is gone. `raise FROM`: the sink itself is broken. What is offered is written down
in any case."""
REFUSES = "refuses"
"""A file beside the folder, too. `bad N…`: chunks with one of these numbers are refused. `large N`: those with more
rows. `all`: every one. `late N`: one with more rows lands and is then refused, as by a proxy, its answer being lost."""


@dataclass
class FlakySender:
    inner: Sender
    folder: Path

    def send(self, parcel: ChunkRows) -> Outcome:
        with (self.folder.parent / "offered").open("a") as log:
            log.write(f"{parcel.address.partition}/{parcel.range.lo}-{parcel.range.hi}\n")
        trouble = self.folder.parent / TROUBLE
        kind, _, start = trouble.read_text().partition(" ") if trouble.exists() else ("", "", "0")
        if (refused := self._refuses(parcel)) is not None:
            return refused
        if kind and parcel.range.lo >= int(start):
            if kind == "later":
                return TryLater("told to")
            if kind == "raise":
                raise KeyError("a fault of the sink")
            while kind == "slow" and trouble.exists():
                time.sleep(0.05)
            if kind == "slow":
                return self.inner.send(parcel)
            self.inner.send(parcel)
            return Unknown("told to")
        return self.inner.send(parcel)

    def _refuses(self, parcel: ChunkRows) -> Refused | None:
        rule = self.folder.parent / REFUSES
        kind, *given = rule.read_text().split() if rule.exists() else [""]
        numbers = parcel.rows[SEQ_COLUMN].to_pylist()
        if kind == "late" and len(numbers) > int(given[0]):
            self.inner.send(parcel)
            return Refused("too large (413)")
        if kind == "large" and len(numbers) > int(given[0]):
            return Refused("too large (413)")
        if kind == "all" or (kind == "bad" and any(n in map(int, given) for n in numbers)):
            return Refused("not to its taste (400)")
        return None

    def close(self) -> None:
        self.inner.close()


def _open(context: SinkContext) -> Sink:
    sink: Any = files.KIND.open(context)
    sender = sink.sender
    sink.sender = lambda token: FlakySender(sender(token), Path(context.options["path"]))
    return sink  # type: ignore[no-any-return]


KIND = SinkKind(files.KIND.options, _open)
