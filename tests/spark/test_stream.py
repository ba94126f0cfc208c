"""Structured Streaming into a dataset: exactly once per query and epoch, however often Spark repeats an epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from strandline.core.errors import UsageError
from strandline.lake import Lake
from tests.conftest import MakeHome
from tests.spark.lakes import create, in_main, new_lake, numbers, open_blocks, values


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, make_home: MakeHome) -> Iterator[Lake]:
    with new_lake(tmp_path_factory.mktemp("stream"), make_home) as lake:
        yield lake


Write = Callable[[DataFrame, int], None]


def run(lake: Lake, source: Path, checkpoint: Path, write: Write) -> None:
    """Everything that is there, one file per epoch, then stop."""
    stream = lake.spark.readStream.schema("n long").option("maxFilesPerTrigger", 1).json(str(source))
    query = (
        stream.writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    )
    started = query.start()
    try:
        started.awaitTermination()
    finally:
        started.stop()


def put(source: Path, name: str, *ns: int) -> None:
    source.mkdir(exist_ok=True)
    (source / name).write_text("".join(f'{{"n": {n}}}\n' for n in ns), "utf-8")


def test_every_epoch_goes_in_once_also_when_spark_repeats_one(lake: Lake, tmp_path: Path) -> None:
    create(lake, "events", {"n": "long"})
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    for k in range(3):
        put(source, f"{k}.json", *range(k * 10, k * 10 + 10))
    write = lake.stream_writer("events")
    failed: list[int] = []

    def dies_after_the_publish(df: DataFrame, epoch: int) -> None:
        write(df, epoch)
        if epoch == 1 and not failed:
            failed.append(epoch)
            raise RuntimeError("died before Spark knew")

    with pytest.raises(StreamingQueryException, match="died before Spark knew"):
        run(lake, source, checkpoint, dies_after_the_publish)
    assert failed == [1] and len(in_main(lake, "events")) == 20
    put(source, "3.json", 30, 31)
    run(lake, source, checkpoint, dies_after_the_publish)
    assert sorted(values(lake, "events")) == list(range(32))
    assert [s for s, _ in in_main(lake, "events")] == sorted({s for s, _ in in_main(lake, "events")})
    run(lake, source, checkpoint, write)
    assert len(in_main(lake, "events")) == 32 and open_blocks(lake, "events") == []


def test_two_queries_into_one_dataset_do_not_take_each_other_for_a_repeat(lake: Lake, tmp_path: Path) -> None:
    """Both begin at epoch 0, with the same rows."""
    create(lake, "both", {"n": "long"})
    put(tmp_path / "in", "0.json", 1, 2, 3)
    write = lake.stream_writer("both")
    for query in ("a", "b"):
        run(lake, tmp_path / "in", tmp_path / query, write)
    assert sorted(values(lake, "both")) == [1, 1, 2, 2, 3, 3]


def test_an_epoch_without_rows_takes_no_block_and_stateful_plans_are_stamped(lake: Lake, tmp_path: Path) -> None:
    create(lake, "stateful", {"n": "long"})
    put(tmp_path / "in", "0.json", 5, 5, 6)
    put(tmp_path / "in", "1.json", 6, 6, 7)
    put(tmp_path / "in", "2.json", 5)
    seen: list[int] = []
    write = lake.stream_writer("stateful")

    def once(df: DataFrame, epoch: int) -> None:
        write(df.dropDuplicates(["n"]), epoch)
        write(df.dropDuplicates(["n"]), epoch)  # again within one epoch
        seen.append(epoch)

    run(lake, tmp_path / "in", tmp_path / "checkpoint", once)
    assert seen == [0, 1, 2] and sorted(values(lake, "stateful")) == [5, 5, 6, 6, 7]


def test_a_stream_writer_outside_of_a_stream_is_refused(lake: Lake) -> None:
    create(lake, "outside", {"n": "long"})
    with pytest.raises(UsageError, match="foreachBatch"):
        lake.stream_writer("outside")(numbers(lake, 1, 2), 0)
