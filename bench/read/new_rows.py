"""1,000 new rows out of tables of two sizes: the time must not follow the table, fresh or compacted."""

from __future__ import annotations

from dataclasses import dataclass

from bench import frames, lakes
from bench.measure import Bench, Measurement, in_turn, seconds_of
from bench.read.scan_metrics import data_files_opened
from bench.results import Figure, Goal, Samples
from strandline.lake import Lake

NEW = 1000
SAMPLES = 15
_BLOCK = 4_000_000
STATES = ("fresh", "compacted")
NAMES = {"large": "20 million", "small": "1 million"}


def _time(state: str) -> Figure:
    name = f"1,000 new rows from a table of 20 million rows, {state}"
    return Figure(name, "s", "from a table of 1 million rows", Goal(1.3, "at most"))


def _files(state: str, size: str) -> Figure:
    name = f"data files opened for 1,000 new rows of {NAMES[size]}, {state}"
    return Figure(name, "files", "files that hold new rows", Goal(1.0, "exactly"))


@dataclass(frozen=True, slots=True)
class Table:
    lake: Lake
    name: str
    rows: int

    def fill(self, bench: Bench) -> None:
        lakes.create(self.lake, self.name, frames.READING_COLUMNS)
        for first in range(0, self.rows, _BLOCK):
            bench.say(f"filling a table of {self.rows:,} rows")
            count = min(_BLOCK, self.rows - first)
            self.lake.append(self.name, frames.readings(self.lake.spark, first, count, 2))

    def add_new_rows(self) -> str:
        """The token that stands right before them."""
        token = self.lake.read_since(self.name).continuation
        self.lake.append(self.name, frames.readings(self.lake.spark, self.rows, NEW, 1))
        return token

    def read(self, token: str) -> None:
        self.lake.read_since(self.name, token).df.write.format("noop").mode("overwrite").save()

    def files_with_new_rows(self, token: str) -> int:
        """From the rows themselves, not from what is known about files."""
        from strandline.core.read_token import decode

        after = decode(token).after
        found = self.lake.spark.sql(
            f"SELECT count(DISTINCT _file) AS files, count(*) AS rows FROM lake.default.{self.name} "
            f"WHERE _ingest_seq > {after}"
        ).collect()[0]
        if found["rows"] != NEW:
            raise RuntimeError(f"{found['rows']} rows behind the token, expected {NEW}")
        return int(found["files"])

    def compact(self, bench: Bench) -> None:
        bench.say(f"compacting the table of {self.rows:,} rows")
        self.lake.spark.sql(
            f"CALL lake.system.rewrite_data_files(table => 'default.{self.name}', strategy => 'sort', "
            "sort_order => '_ingest_seq', options => map('rewrite-all', 'true'))"
        )


def measure(bench: Bench) -> dict[str, Samples]:
    lake = lakes.new_lake(bench.work / "lake")
    tables = {
        "large": Table(lake, "large", bench.sized(20_000_000, 200_000)),
        "small": Table(lake, "small", bench.sized(1_000_000, 10_000)),
    }
    tokens = {}
    for size, table in tables.items():
        table.fill(bench)
        tokens[size] = table.add_new_rows()
    found: dict[str, Samples] = {}
    for state in STATES:
        if state == "compacted":
            for table in tables.values():
                table.compact(bench)
        found |= _measure(bench, tables, tokens, state)
    return found


def _measure(bench: Bench, tables: dict[str, Table], tokens: dict[str, str], state: str) -> dict[str, Samples]:
    opened: dict[str, list[float]] = {size: [] for size in tables}

    def read(size: str) -> float:
        took = seconds_of(lambda: tables[size].read(tokens[size]))
        opened[size].append(data_files_opened(tables[size].lake.spark))
        return took

    for _ in range(3):  # warm-up
        for size in tables:
            read(size)
    for taken in opened.values():
        taken.clear()
    large, small = in_turn(bench, SAMPLES, lambda n: read("large"), lambda n: read("small"))
    shape = {"rows": tables["large"].rows, "peer_rows": tables["small"].rows, "new_rows": NEW}
    found = {_time(state).name: Samples(large, small, shape)}
    for size, table in tables.items():
        holding = table.files_with_new_rows(tokens[size])
        files = {"rows": table.rows, "new_rows": NEW, "data_files": _data_files(table)}
        found[_files(state, size).name] = Samples(opened[size], [holding] * SAMPLES, files)
    return found


def _data_files(table: Table) -> int:
    return int(table.lake.spark.table(f"lake.default.{table.name}.files").count())


MEASUREMENT = Measurement(
    tuple(_time(state) for state in STATES) + tuple(_files(state, size) for state in STATES for size in NAMES), measure
)
