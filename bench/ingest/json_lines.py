"""`strandline ingest` of a file of JSON lines from the shell, against plain Spark that reads and inserts the same file.

Its work begins when Spark has started, and ends when the rows are in the table. From start to end, it is the whole
command. Plain Spark's session is started by our code too, so that it is started as quickly.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bench import frames, lakes
from bench.measure import Bench, Measurement, in_turn, settle_disk
from bench.results import Figure, Goal, Samples
from bench.shell import STRANDLINE, seconds_until_lines

ROWS = 200_000
_PEER = "spark.read.json with a schema, and an insert, in a session started the same way"
WORK = Figure(f"ingest of {ROWS:,} JSON lines, without the start of Spark", "s", _PEER, Goal(1.5, "at most"))
WHOLE = Figure(f"`strandline ingest` of {ROWS:,} JSON lines from the shell", "s", _PEER, Goal(1.2, "at most"))
_STARTED, _DONE = "started", "done"

OURS = """
import sys
from pathlib import Path
from strandline.lake import open_lake

home, file, _ = sys.argv[1:]
with open_lake(home) as lake:
    lake.spark
    print("started", flush=True)
    [outcome] = lake.ingest("events", [Path(file)], again=True)
    if outcome.error is not None:
        raise outcome.error
    print("done", outcome.rows, flush=True)
"""

PEER = """
import sys
from strandline.lake import open_lake

home, file, table = sys.argv[1:]
with open_lake(home) as lake:
    spark = lake.spark
    print("started", flush=True)
    spark.read.schema(spark.table(table).schema).json(file).writeTo(table).append()
    print("done", flush=True)
"""


def measure(bench: Bench) -> dict[str, Samples]:
    rows = bench.sized(ROWS, 2_000)
    home = bench.work / "lake"
    bench.say("making the rows")
    file, table = _prepare(home, bench.work, rows)
    ours, peer = ([sys.executable, "-c", program, str(home), str(file), table] for program in (OURS, PEER))
    command = [STRANDLINE, "ingest", "events", str(file), "--again", "--config", str(home)]
    peer_whole = list[float]()

    def work(program: list[str]) -> tuple[float, float]:
        settle_disk()
        [started, done], ended = seconds_until_lines(program, bench.work, _STARTED, _DONE)
        return done - started, ended

    def peer_work(_: int) -> float:
        worked, ended = work(peer)
        peer_whole.append(ended)
        return worked

    def whole(_: int) -> float:
        settle_disk()
        return seconds_until_lines(command, bench.work)[1]

    sides = (lambda _: work(ours)[0], peer_work, whole)
    bench.say("warming up")
    for side in sides:
        side(0)
    peer_whole.clear()
    worked, peer_worked, from_shell = in_turn(bench, 7, *sides)
    size = {"rows": rows, "bytes": file.stat().st_size}
    return {WORK.name: Samples(worked, peer_worked, size), WHOLE.name: Samples(from_shell, peer_whole, size)}


def _prepare(home: Path, work: Path, rows: int) -> tuple[Path, str]:
    """The file, and the peer's table."""
    from pyspark.sql import functions as F

    from strandline.iceberg.session.lake_session import stop_spark

    with lakes.new_lake(home) as lake:
        dataset = lakes.create(lake, "events", frames.EVENT_COLUMNS)
        table = lakes.plain_table(lake, "events", dataset)
        frame = frames.events(lake.spark, 0, rows, 1)
        lines = frame.select(F.to_json(F.struct(*frame.columns)))
        lines.write.text(str(work / "lines"))
    stop_spark()
    [written] = (work / "lines").glob("part-*")
    return written.rename(work / "events.jsonl"), table


MEASUREMENT = Measurement((WORK, WHOLE), measure)
