"""1,000 new rows of a large table as an Arrow table, beside DuckDB and Polars: a limit for one machine.

They are given the names of the table's files, and look for the rows by their sequence numbers. So they know nothing of
snapshots, deleted rows or what is settled, and pay for none of it.
"""

from __future__ import annotations

from bench import lakes
from bench.measure import Bench, Measurement, in_turn, seconds_of
from bench.peers.environment import running, versions
from bench.read.new_rows import NAMES, NEW, Table
from bench.results import Figure, Samples
from strandline.core.read_token import decode
from strandline.lake import Lake

SAMPLES = 15
PEERS = {"duckdb": "DuckDB", "polars": "Polars"}
_PINNED = versions(*PEERS)
FIGURES = {
    peer: Figure(
        f"1,000 new rows of a table of {NAMES['large']} rows as an Arrow table, beside {name}",
        "s",
        f"{name} {_PINNED[peer]}, given the names of the files",
        None,
    )
    for peer, name in PEERS.items()
}


def data_files(lake: Lake, name: str) -> list[str]:
    """Of the table as it is now, as paths."""
    files = lake.spark.table(f"lake.default.{name}.files").select("file_path").collect()
    return [row.file_path.removeprefix("file://").removeprefix("file:") for row in files]


def measure(bench: Bench) -> dict[str, Samples]:
    lake = lakes.new_lake(bench.work / "lake")
    table = Table(lake, "large", bench.sized(20_000_000, 200_000))
    table.fill(bench)
    token = table.add_new_rows()
    question = {
        "files": data_files(lake, table.name),
        "after": decode(token).after,
        "columns": lake.read_since(table.name, token).df.columns,
    }
    with running("single_machine", bench.work / "peers") as process:

        def ours(_: int) -> float:
            return seconds_of(lambda: _expect(lake.read_since(table.name, token).df.toArrow().num_rows))

        def other(peer: str) -> float:
            answer = process.ask(f"{peer}_range", **question)
            _expect(answer["found"])
            return float(answer["seconds"])

        sides = (ours, *((lambda n, peer=peer: other(peer)) for peer in PEERS))
        for side in sides:  # warm-up
            side(0)
        taken, *others = in_turn(bench, SAMPLES, *sides)
    shape = {"rows": table.rows, "new_rows": NEW, "data_files": len(question["files"])}
    return {FIGURES[peer].name: Samples(taken, found, shape) for peer, found in zip(PEERS, others, strict=True)}


def _expect(rows: int) -> None:
    if rows != NEW:
        raise RuntimeError(f"{rows} rows instead of {NEW}")


MEASUREMENT = Measurement(tuple(FIGURES.values()), measure)
