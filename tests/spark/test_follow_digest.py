"""A follower stages the rows that the leader ingested, or what the leader has of them now: digests prove it, whichever
way the rows came."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from strandline import Lake
from strandline.core.errors import FailedError
from strandline.replicate.source import LeaderSource, RangeContent
from tests.conftest import MakeHome
from tests.spark.followed import Pair, assert_same, follow, new_pair, restarted, table
from tests.spark.lakes import sql

COLUMNS = [
    {"name": "id", "type": "long", "required": True},
    {"name": "text", "type": "string"},
    {"name": "real", "type": "double"},
]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, make_home: MakeHome) -> Iterator[Pair]:
    """As in conftest.py, with columns of its own."""
    with new_pair(tmp_path_factory.mktemp("pair"), make_home, COLUMNS) as made:
        yield made


def append(leader: Lake, start: int, batch: str | None) -> None:
    df = leader.spark.range(start, start + 5).selectExpr("id", "concat('row ', id) AS text", "id / 2 AS real")
    leader.append("events", df, batch_id=batch)


@contextmanager
def content_as(source: LeaderSource, *changes: Callable[[DataFrame], DataFrame]) -> Iterator[list[int]]:
    """Each time that rows are read, the next change is made on the way. Yields how many were read each time."""
    real, left, reads = source.content, list(changes), list[int]()

    @contextmanager
    def content(*args: Any) -> Iterator[RangeContent]:
        reads.append(1)
        change = left.pop(0) if left else (lambda rows: rows)
        with real(*args) as found:
            yield replace(found, frame=lambda schema: change(found.frame(schema)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "content", content)
        yield reads


def changed_value(rows: DataFrame) -> DataFrame:
    last = rows.agg(F.max("_ingest_seq")).collect()[0][0]
    return rows.withColumn("text", F.when(F.col("_ingest_seq") == last, "rot").otherwise(F.col("text")))


def lost_row(rows: DataFrame) -> DataFrame:
    return rows.where("id % 5 <> 3")


def mixed_up_numbers(rows: DataFrame) -> DataFrame:
    ends = rows.agg(F.min("_ingest_seq"), F.max("_ingest_seq")).collect()[0]
    return rows.withColumn("_ingest_seq", F.lit(ends[0] + ends[1]) - F.col("_ingest_seq"))


def test_rows_that_are_those_of_the_batch_are_read_once(pair: Pair) -> None:
    leader, follower = pair
    append(leader, 0, "a")
    with content_as(restarted(follower).context.source) as reads:
        follow(follower)
    assert len(reads) == 1
    assert_same(leader, follower)


@pytest.mark.parametrize("damage", [changed_value, lost_row])
def test_rows_that_changed_on_the_way_are_refused_and_read_again(
    pair: Pair, damage: Callable[[DataFrame], DataFrame]
) -> None:
    leader, follower = pair
    append(leader, 10, damage.__name__)
    before = table(follower)
    with content_as(restarted(follower).context.source, damage) as reads:
        report = follower.replication.follow_once()
        assert [type(e) for e in report.failed] == [FailedError] and "not what the leader has" in str(report.failed[0])
        assert table(follower) == before
        assert len(reads) == 2
    follow(follower)
    assert_same(leader, follower)


def test_what_the_leader_has_changed_since_is_compared_with_what_it_has_now(pair: Pair) -> None:
    leader, follower = pair
    append(leader, 20, "updated")
    sql(leader, "UPDATE lake.default.events SET text = 'other' WHERE id = 22")
    append(leader, 30, "deleted")
    sql(leader, "DELETE FROM lake.default.events WHERE id = 33")
    leader.append("events", leader.spark.range(40, 43).selectExpr("id", "int(id) AS real"), batch_id="other types")
    follow(follower)
    assert_same(leader, follower)
    assert any("other" in r for r in table(follower))
    append(leader, 50, "renumbered")
    with content_as(restarted(follower).context.source, changed_value, mixed_up_numbers):
        assert len(follower.replication.follow_once().failed) == 1
    follow(follower)
    assert_same(leader, follower)


def test_a_damaged_file_of_the_leader_is_refused(pair: Pair) -> None:
    """In a folder: each page has a checksum. Without a batch id there is no digest that would tell."""
    leader, follower = pair
    df = leader.spark.range(60, 1060, 1, 1).selectExpr("id", "repeat(concat('row ', id), 3) AS text")
    last = leader.append("events", df).rows.hi
    files = sql(
        leader, "SELECT file_path, readable_metrics._ingest_seq.upper_bound AS hi FROM lake.default.events.files"
    )
    file = Path(next(f["file_path"] for f in files if f["hi"] == last).removeprefix("file:"))
    whole = file.read_bytes()
    before = table(follower)
    for at in range(100, len(whole) // 2, len(whole) // 8):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        (file.parent / f".{file.name}.crc").unlink(missing_ok=True)
        assert len(restarted(follower).tick().failed) == 1, f"byte {at} of {len(whole)} was not missed"
        assert table(follower) == before
    file.write_bytes(whole)
    follow(follower)
    assert_same(leader, follower)
