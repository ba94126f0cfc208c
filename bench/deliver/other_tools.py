"""Rows of a table into Parquet files by a sink, beside tools that are no Spark: dlt with an incremental cursor over the
same table, and DuckDB and Polars copying the same files.

dlt asks the table for rows at or behind the highest timestamp that it has seen. DuckDB and Polars copy once, remember
nothing, and are given the names of the files: a limit for one machine.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from bench import frames, lakes
from bench.deliver.many_rows import DeliveredSide, fill_table
from bench.measure import Bench, Measurement, in_turn, seconds_of, settle_disk
from bench.peers.environment import PeerProcess, running, versions
from bench.read.single_machine import PEERS, data_files
from bench.results import Figure, Samples
from strandline.lake import Lake

NEW = 1000
SAMPLES_MANY = 5
SAMPLES_FEW = 15
CURSOR = "at"
_PINNED = versions("dlt", *PEERS)
_DLT = f"dlt {_PINNED['dlt']}, incremental on a timestamp, to Parquet files"
MANY_DLT = Figure("4 million rows to Parquet files, beside dlt", "rows/s", _DLT, None)
FEW_DLT = Figure("1,000 new rows to Parquet files, beside dlt", "s", _DLT, None)
MANY = {
    peer: Figure(f"4 million rows to Parquet files, beside {name}", "rows/s", f"{name} {_PINNED[peer]}, one file", None)
    for peer, name in PEERS.items()
}


def metadata_of(lake: Lake, name: str) -> str:
    """The metadata file of the table as it is now."""
    return str(lake.catalog.load(name).metadata_location)


def measure(bench: Bench) -> dict[str, Samples]:
    lake = lakes.new_lake(bench.work / "lake")
    with running("dlt_pipeline", bench.work / "dlt") as dlt, running("single_machine", bench.work / "peers") as others:
        return many_rows(bench, lake, dlt, others) | few_rows(bench, lake, dlt)


def many_rows(bench: Bench, lake: Lake, dlt: PeerProcess, others: PeerProcess) -> dict[str, Samples]:
    rows = bench.sized(4_000_000, 20_000)
    fill_table(bench, lake, "events", rows, ordered=True)
    side = DeliveredSide(lake, "events", rows, bench.work)
    files, columns = data_files(lake, "events"), [column["name"] for column in frames.EVENT_COLUMNS]

    def ours(_: int) -> float:
        return side.deliver("files", lambda sink: {"path": str(bench.work / sink)})

    def from_scratch(n: int) -> float:
        target = bench.work / f"dlt-target-{n}"
        dlt.ask("open", name=f"many{n}", destination="filesystem", target=str(target))
        settle_disk()
        answer = dlt.ask("run", name=f"many{n}", metadata=metadata_of(lake, "events"), cursor=CURSOR, columns=columns)
        _expect(rows_below(target), rows)
        shutil.rmtree(target)
        return rows / float(answer["seconds"])

    def copied(peer: str) -> float:
        target = bench.work / "copied.parquet"
        settle_disk()
        answer = others.ask(f"{peer}_copy", files=files, columns=columns, target=str(target))
        _expect(rows_below(target), rows)
        target.unlink()
        return rows / float(answer["seconds"])

    sides = (ours, from_scratch, *((lambda n, peer=peer: copied(peer)) for peer in PEERS))
    for run in sides:  # warm-up
        run(-1)
    delivered, by_dlt, *by_others = in_turn(bench, SAMPLES_MANY, *sides)
    size = {"rows": rows}
    found = {MANY[peer].name: Samples(delivered, taken, size) for peer, taken in zip(PEERS, by_others, strict=True)}
    return {MANY_DLT.name: Samples(delivered, by_dlt, size), **found}


def few_rows(bench: Bench, lake: Lake, dlt: PeerProcess) -> dict[str, Samples]:
    held = bench.sized(1_000_000, 10_000)
    lakes.create(lake, "readings", frames.READING_COLUMNS)
    lake.append("readings", frames.readings(lake.spark, 0, held, 2))
    columns = [column["name"] for column in frames.READING_COLUMNS]
    ours, theirs = bench.work / "few", bench.work / "few-dlt"
    lake.delivery.add("few", "readings", "files", {"path": str(ours)})
    dlt.ask("open", name="few", destination="filesystem", target=str(theirs))
    made = held

    def add_rows() -> None:
        nonlocal made
        lake.append("readings", frames.readings(lake.spark, made, NEW, 1))
        made += NEW

    def tick(_: int) -> float:
        add_rows()
        return seconds_of(lambda: lake.tick("few"))

    def run(_: int) -> float:  # the rows that `tick` has just added
        answer = dlt.ask("run", name="few", metadata=metadata_of(lake, "readings"), cursor=CURSOR, columns=columns)
        return float(answer["seconds"])

    for n in range(3):  # warm-up; the first also takes what was there
        tick(n), run(n)
    taken, by_dlt = in_turn(bench, SAMPLES_FEW, tick, run)
    for target in (ours, theirs):
        _expect(rows_below(target), made)
    return {FEW_DLT.name: Samples(taken, by_dlt, {"rows": NEW, "table_rows": held})}


def rows_below(target: Path) -> int:
    """In the Parquet files of a sink or a tool: what a tool keeps for itself is in other formats, or folders of its
    own."""
    from pyarrow import parquet

    if target.is_file():
        return int(parquet.read_metadata(target).num_rows)
    files = [file for file in target.rglob("*.parquet") if "/_" not in f"/{file.relative_to(target)}"]
    return sum(parquet.read_metadata(file).num_rows for file in files)


def _expect(found: int, rows: int) -> None:
    if found != rows:
        raise RuntimeError(f"{found} rows instead of {rows}")


MEASUREMENT = Measurement((MANY_DLT, FEW_DLT, *MANY.values()), measure)
