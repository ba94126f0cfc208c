"""Looking at what sinks hold, from outside: only what a consumer could see."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from strandline.core import failpoints

if TYPE_CHECKING:
    from strandline.deliver.tick import SinkReport
    from strandline.lake import Lake

_NAME = re.compile(r"(\d{19})-(\d{19})\.(\w+)(\.\w+)?")


def objects(folder: Path) -> dict[str, Path]:
    """`<partition>/<lo>-<hi>` of everything that was delivered below a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        named = _NAME.fullmatch(path.name)
        if named and path.is_file():
            lane = str(path.parent.relative_to(folder)).partition("/")[2]
            found[f"{lane}/{int(named[1])}-{int(named[2])}"] = path
    return found


def names(folder: Path) -> list[str]:
    return list(objects(folder))


def rows(folder: Path, column: str = "n") -> list[tuple[int, Any]]:
    """Number and value of every row, in the order of the objects' names."""
    found = []
    for path in objects(folder).values():
        table = pq.read_table(path)
        found += list(zip(table["_ingest_seq"].to_pylist(), table[column].to_pylist(), strict=True))
    return found


def digests(folder: Path) -> dict[str, str]:
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in objects(folder).items()}


def json_rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in objects(folder).values() for line in path.read_text("utf-8").splitlines()]


def tick(lake: Lake, sink: str) -> SinkReport:
    """One tick of one sink, without waiting for its turn after a failure."""
    with lake.ledger.write() as connection:
        connection.exec_driver_sql("UPDATE sink SET retry_at = NULL")
    return next(s for s in lake.tick(sink).sinks if s.name == sink)


class armed:
    """With a failpoint armed, here and in the workers."""

    def __init__(self, monkeypatch: Any, spec: str) -> None:
        self.monkeypatch, self.spec = monkeypatch, spec

    def __enter__(self) -> None:
        self.monkeypatch.setenv("STRANDLINE_FAILPOINT", self.spec)
        failpoints.arm(self.spec)

    def __exit__(self, *exc: object) -> None:
        self.monkeypatch.delenv("STRANDLINE_FAILPOINT")
        failpoints.arm("")
