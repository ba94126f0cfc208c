"""The streaming source of Strandline against Delta Lake's, which reads the change data feed of a Delta table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bench.measure import Bench, Measurement
from bench.peers import delta
from bench.results import Figure, Samples
from bench.stream.compare import Side, compare

if TYPE_CHECKING:
    from strandline.lake import Lake

PEER = f"Delta Lake {delta.version()}'s streaming read of the change data feed"
MANY = Figure("4 million rows through the streaming source, beside Delta's", "rows/s", PEER, None)
FEW = Figure("1,000 new rows in a trigger of the streaming source, beside Delta's", "s", PEER, None)
IDLE = Figure("an idle trigger of the streaming source, beside Delta's", "s", PEER, None)


def delta_side(lake: Lake, folder: Path) -> Side:
    return Side(
        lambda table, _: delta.change_feed(lake, folder / table),
        lambda *_: None,  # the first rows make the table
        lambda table, rows: delta.append(rows, folder / table),
    )


def measure(bench: Bench) -> dict[str, Samples]:
    lake = delta.lake_with_delta(bench.work / "lake")
    found = compare(bench, lake, delta_side(lake, bench.work / "delta"))
    lake.close()
    return {MANY.name: found.many, FEW.name: found.few, IDLE.name: found.idle}


MEASUREMENT = Measurement((MANY, FEW, IDLE), measure)
