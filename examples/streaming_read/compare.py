"""One table, three ways out of it: Iceberg's own streaming read, Strandline's streaming read, and a sink of Strandline.
Between the passes the table gets the care that every table needs, by Iceberg's own procedures. At the end, who has
which rows?

`python compare.py [FOLDER]`, an empty or a new one; without a folder everything is gone afterwards.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

import strandline
from strandline.iceberg.schema.schema_file import parse_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from strandline import Lake

TABLE = "lake.default.events"
STARTS_MAX = 5


@dataclass
class StreamingRead:
    """As its documentation advises, with every option that makes it more patient, into files, with a checkpoint."""

    lake: Lake
    folder: Path
    checkpoint: str = "checkpoint"

    def run(self) -> str | None:
        """Whatever is new; gives what went wrong."""
        rows = (
            self.lake.spark.readStream.format("iceberg")
            .option("streaming-skip-delete-snapshots", "true")
            .option("streaming-skip-overwrite-snapshots", "true")
            .load(TABLE)
        )
        return copied(rows, self.folder, self.checkpoint)

    def begin_again(self) -> None:
        self.checkpoint = "second-checkpoint"

    def delivered(self) -> list[int]:
        return numbers_in(self.folder / "rows")


@dataclass
class StrandlineRead:
    """The same query, with the other source."""

    lake: Lake
    folder: Path

    def run(self) -> str | None:
        options = {"lake": str(self.lake.config.home), "consumer": "copy"}
        rows = self.lake.spark.readStream.format("strandline").options(**options).load("events")
        return copied(rows, self.folder, "checkpoint")

    def delivered(self) -> list[int]:
        return numbers_in(self.folder / "rows")


def copied(rows: DataFrame, folder: Path, checkpoint: str) -> str | None:
    """Whatever is new, into files; gives what went wrong. Spark gives a Python process 10 s to start: a query that did
    not start on a busy machine is started again."""
    for _ in range(STARTS_MAX):
        query = (
            rows.writeStream.format("parquet")
            .option("path", str(folder / "rows" / checkpoint))
            .option("checkpointLocation", str(folder / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        except Exception as e:
            problem = reason(e)
        else:
            return None
        if "failed to connect" not in problem:
            break
    return problem


@dataclass
class StrandlineSink:
    lake: Lake
    folder: Path

    def add(self) -> None:
        self.lake.delivery.add("out", "events", "files", {"path": str(self.folder)})

    def run(self) -> str | None:
        [report] = self.lake.tick("out").sinks
        return report.reason

    def delivered(self) -> list[int]:
        return numbers_in(self.folder)


def numbers_in(folder: Path) -> list[int]:
    return [n for file in folder.rglob("*.parquet") for n in pq.read_table(file, columns=["n"])["n"].to_pylist()]


def reason(error: Exception) -> str:
    """What Spark tells, in one line."""
    said = str(error).strip().partition("\n")[0]
    return said.rpartition("terminated with exception: ")[2].partition(" SQLSTATE")[0]


class Comparison:
    def __init__(self, lake: Lake, folder: Path) -> None:
        self.lake = lake
        self.stream = StreamingRead(lake, folder / "streaming")
        self.source = StrandlineRead(lake, folder / "source")
        self.sink = StrandlineSink(lake, folder / "sink")
        self.rows = 0

    def run(self) -> None:
        self.lake.create_dataset("events", parse_columns([{"name": "n", "type": "long"}]))
        self.sink.add()
        strandline.register(self.lake.spark)
        self.say("", "Iceberg's read", "Strandline's", "its sink")
        self.come()
        self.all_ways("rows come")
        self.call("rewrite_data_files", "options => map('rewrite-all', 'true')")
        self.come()
        self.all_ways("all files are compacted, more rows come")
        self.lake.spark.sql(f"DELETE FROM {TABLE} WHERE n <= 5")
        self.come()
        self.all_ways("old rows are deleted, more rows come")
        self.come()
        self.come()
        self.call("expire_snapshots", "older_than => TIMESTAMP '2999-01-01 00:00:00', retain_last => 1")
        self.all_ways("more rows come twice, snapshots expire")
        self.stream.begin_again()
        self.all_ways("Iceberg's stream begins anew")
        self.say("rows that were never delivered", *(str(self.missing(w.delivered())) for w in self.ways))
        self.say("rows that were delivered twice", *(str(self.twice(w.delivered())) for w in self.ways))

    @property
    def ways(self) -> tuple[StreamingRead, StrandlineRead, StrandlineSink]:
        return self.stream, self.source, self.sink

    def come(self) -> None:
        """Ten more."""
        numbers = self.lake.spark.range(self.rows + 1, self.rows + 11, 1, 1)
        self.lake.append("events", numbers.withColumnRenamed("id", "n"))
        self.rows += 10

    def call(self, procedure: str, arguments: str) -> None:
        self.lake.spark.sql(f"CALL lake.system.{procedure}(table => 'default.events', {arguments})")

    def all_ways(self, what: str) -> None:
        problems = [way.run() for way in self.ways]
        told = [f"{len(way.delivered())}" for way in self.ways]
        self.say(what, *(f"failed at {n}" if bad else n for n, bad in zip(told, problems, strict=True)))
        for problem in filter(None, problems):
            print(f"    {problem}")

    def say(self, what: str, *ways: str) -> None:
        print(f"{what:42}{''.join(f'{way:>16}' for way in ways)}")

    def missing(self, delivered: list[int]) -> int:
        return len(set(range(1, self.rows + 1)) - set(delivered))

    def twice(self, delivered: list[int]) -> int:
        return sum(n - 1 for n in Counter(delivered).values())


def main(folder: Path) -> None:
    with strandline.init_lake(folder / "lake") as lake:
        Comparison(lake, folder).run()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
