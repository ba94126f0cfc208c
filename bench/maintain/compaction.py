"""Compaction of many small files: how fast it is, and that a read of a few rows stays a read of a few rows."""

from __future__ import annotations

from dataclasses import dataclass

from bench import frames, lakes
from bench.measure import Bench, Measurement, in_turn, seconds_of, settle_disk
from bench.results import Figure, Goal, Samples
from strandline.lake import Lake
from strandline.maintain.compact import compact

NEW = 1000
BLOCKS = 40
SAMPLES = 5
READ_SAMPLES = 15

THROUGHPUT = Figure(
    "compaction of 80 small files",
    "rows/s",
    "Iceberg's rewrite_data_files on the same table, as it is by default",
    Goal(0.9, "at least"),
)
READ = Figure("1,000 new rows after compaction of everything", "s", "before it", Goal(2.0, "at most"))


@dataclass(frozen=True, slots=True)
class Small:
    """A table of small files, as blocks leave them."""

    lake: Lake
    name: str
    rows: int

    def fill(self, bench: Bench) -> None:
        lakes.create(self.lake, self.name, frames.EVENT_COLUMNS)
        each = self.rows // BLOCKS
        for n in range(BLOCKS):
            bench.say(f"filling {self.name}: block {n + 1} of {BLOCKS}")
            self.lake.append(self.name, frames.events(self.lake.spark, n * each, each, 2))

    def add_new_rows(self) -> str:
        """The token that stands right before them."""
        token = self.lake.read_since(self.name).continuation
        self.lake.append(self.name, frames.events(self.lake.spark, self.rows, NEW, 1))
        return token

    def read(self, token: str) -> None:
        self.lake.read_since(self.name, token).df.write.format("noop").mode("overwrite").save()

    def compact(self) -> None:
        """With the table's own target size, as the peer does."""
        compact(self.lake.maintenance.context, self.lake.dataset(self.name))

    def compact_plainly(self) -> None:
        self.lake.spark.sql(f"CALL lake.system.rewrite_data_files(table => 'default.{self.name}')").collect()

    def files(self) -> int:
        return int(self.lake.spark.table(f"lake.default.{self.name}.files").count())

    def head(self) -> int:
        return int(self.lake.tables().load(f"default.{self.name}").currentSnapshot().snapshotId())

    def back_to(self, snapshot: int) -> None:
        """As it was before a compaction, on the disk too: every sample begins with the same."""
        arguments = f"table => 'default.{self.name}'"
        self.lake.spark.sql(f"CALL lake.system.set_current_snapshot({arguments}, snapshot_id => {snapshot})").collect()
        self.lake.accept_table(self.name, "it is measured again")
        late = "older_than => TIMESTAMP '2999-01-01 00:00:00', retain_last => 1"
        self.lake.spark.sql(f"CALL lake.system.expire_snapshots({arguments}, {late})").collect()


def measure_throughput(bench: Bench) -> dict[str, Samples]:
    lake = lakes.new_lake(bench.work / "lake")
    table = Small(lake, "events", bench.sized(6_000_000, 40_000))
    table.fill(bench)
    start, before = table.head(), table.files()
    left: dict[str, int] = {}

    def side(name: str) -> float:
        settle_disk()
        work = table.compact if name == "ours" else table.compact_plainly
        took = seconds_of(work)
        left[name] = table.files()
        if left[name] >= before:
            raise RuntimeError(f"{name}: {before} files became {left[name]}")
        table.back_to(start)
        return table.rows / took

    for name in ("ours", "peer"):  # warm-up
        side(name)
    ours, peer = in_turn(bench, SAMPLES, lambda n: side("ours"), lambda n: side("peer"))
    shape = {"rows": table.rows, "files": before, "files_after": left["ours"], "peer_files_after": left["peer"]}
    return {THROUGHPUT.name: Samples(ours, peer, shape)}


def measure_read(bench: Bench) -> dict[str, Samples]:
    """Two tables with the same rows, of which one is compacted: so that samples can be taken in turn."""
    lake = lakes.new_lake(bench.work / "lake")
    rows = bench.sized(6_000_000, 40_000)
    tables = {state: Small(lake, state, rows) for state in ("compacted", "fresh")}
    tokens: dict[str, str] = {}
    for state, table in tables.items():
        table.fill(bench)
        tokens[state] = table.add_new_rows()
    bench.say("compacting")
    tables["compacted"].compact()

    def read(state: str) -> float:
        return seconds_of(lambda: tables[state].read(tokens[state]))

    for _ in range(3):  # warm-up
        for state in tables:
            read(state)
    ours, peer = in_turn(bench, READ_SAMPLES, lambda n: read("compacted"), lambda n: read("fresh"))
    shape = {
        "rows": rows,
        "new_rows": NEW,
        "files": tables["fresh"].files(),
        "files_after": tables["compacted"].files(),
    }
    return {READ.name: Samples(ours, peer, shape)}


MEASUREMENTS = (Measurement((THROUGHPUT,), measure_throughput), Measurement((READ,), measure_read))
