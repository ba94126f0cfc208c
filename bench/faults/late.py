"""Rows that arrive late: their timestamps are lower than one that a cursor has already seen. Half of a second batch is
so, as from a device that was offline, or a transaction that was open for long. dlt's cursor is the timestamp."""

from __future__ import annotations

from pathlib import Path

from bench import lakes
from bench.deliver.other_tools import metadata_of
from bench.faults.counting import COLUMNS, Arrived, arrived, count, figures, numbers_below
from bench.measure import Bench, Measurement
from bench.peers.environment import PeerProcess, running, versions
from bench.results import Samples
from strandline.lake import Lake

FIGURES = {
    "dlt": figures("half of a batch has timestamps of an hour ago", f"dlt {versions('dlt')['dlt']}, incremental on it")
}
_LATE_SECONDS = 3600


def measure(bench: Bench) -> dict[str, Samples]:
    lake = lakes.new_lake(bench.work / "lake")
    batch = bench.sized(10_000, 1_000)
    with running("dlt_pipeline", bench.work / "dlt") as dlt:
        found = count(bench, 2 * batch, FIGURES, lambda n: _once(lake, dlt, bench.work / str(n), f"events_{n}", batch))
    lake.close()
    return found


def _once(lake: Lake, dlt: PeerProcess, folder: Path, name: str, batch: int) -> dict[str, Arrived]:
    lakes.create(lake, name, COLUMNS)
    lake.delivery.add(name, name, "files", {"path": str(folder / "ours")})
    dlt.ask("open", name=name, destination="filesystem", target=str(folder / "dlt"))
    for which in range(2):
        late = f"IF({which} = 1 AND id % 2 = 0, {_LATE_SECONDS}, 0)"
        numbers = lake.spark.range(which * batch, (which + 1) * batch, 1, 2)
        lake.append(name, numbers.selectExpr("id AS n", f"timestamp_seconds(1700000000 + id - {late}) AS at"))
        lake.tick(name)
        dlt.ask("run", name=name, metadata=metadata_of(lake, name), cursor="at", columns=["n", "at"])
    return {which: arrived(numbers_below(folder / which), 2 * batch) for which in ("ours", "dlt")}


MEASUREMENT = Measurement(FIGURES["dlt"], measure)
