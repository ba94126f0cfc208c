"""The one door: batches, numbers, and what happens to those that fail."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.sql import functions as F

from strandline import Lake
from strandline.core.errors import BatchConflict, FailedError, SchemaError, StampMismatch, TableRolledBack, TableUnfit
from strandline.core.settings.lake_config import LakeConfig
from strandline.core.types import SnapshotId
from strandline.iceberg.schema.alteration import AddColumn, WidenColumn
from strandline.iceberg.schema.columns import Primitive
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.ledger.ingest import blocks
from tests.spark.protocol import assert_sound, branches, expire_everything, frame, ids, new_lake, rows, states
from tests.spark.writer_by_hand import staged_by_hand


@pytest.fixture
def lake(tmp_path: Path, make_home: Callable[..., LakeConfig]) -> Iterator[Lake]:
    with new_lake(tmp_path, make_home) as made:
        yield made


def test_a_batch_is_numbered_densely_and_published(lake: Lake) -> None:
    first = lake.append("events", frame(lake, 0, 10, 3), batch_id="a")
    second = lake.append("events", frame(lake, 10, 5), batch_id="b")
    assert (str(first.rows), str(second.rows)) == ("1..10", "11..15")
    assert [n for n, _ in rows(lake)] == list(range(1, 16))
    assert_sound(lake, list(range(15)))


def test_the_same_batch_twice_is_one_block_whatever_the_order_of_its_rows(lake: Lake) -> None:
    first = lake.append("events", frame(lake, 0, 100, 2), batch_id="a")
    again = lake.append("events", frame(lake, 0, 100, 7).orderBy(F.desc("id")), batch_id="a")
    assert again.duplicate and again.rows == first.rows and again.row_count == 100
    assert_sound(lake, list(range(100)))


def test_the_same_batch_id_with_other_rows_is_refused(lake: Lake) -> None:
    lake.append("events", frame(lake, 0), batch_id="a")
    with pytest.raises(BatchConflict):
        lake.append("events", frame(lake, 1), batch_id="a")
    with pytest.raises(BatchConflict):
        lake.append("events", frame(lake, 0).withColumn("text", F.lit("x")), batch_id="a")
    assert_sound(lake, list(range(10)))


def test_a_repeat_of_a_batch_that_is_in_writes_no_file(lake: Lake, tmp_path: Path) -> None:
    lake.append("events", frame(lake, 0), batch_id="a")
    before = sorted(tmp_path.rglob("*.parquet"))
    assert lake.append("events", frame(lake, 0), batch_id="a").duplicate
    with pytest.raises(BatchConflict):
        lake.append("events", frame(lake, 1), batch_id="a")
    assert before and sorted(tmp_path.rglob("*.parquet")) == before


@pytest.mark.parametrize("start", [0, 1], ids=["same rows", "other rows"])
def test_a_batch_that_is_offered_again_while_it_is_written_is_compared_when_it_is_in(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, start: int
) -> None:
    """The ledger has no digest of the first one yet when the second one reserves."""
    waits, found = threading.Event(), list[object]()

    def wait(seconds: float) -> None:
        waits.set()
        second_waits.wait(seconds)

    def again() -> None:
        try:
            found.append(lake.append("events", frame(lake, start), batch_id="a").duplicate)
        except BatchConflict:
            found.append("refused")

    def meet() -> None:
        second.start()
        assert waits.wait(120)

    second, second_waits = threading.Thread(target=again), threading.Event()
    monkeypatch.setattr("strandline.ingest.append.time", SimpleNamespace(sleep=wait))
    lake.ingestion.append("events", frame(lake, 0), "a", last_check=meet)
    second.join()
    assert found == [True if start == 0 else "refused"]
    assert_sound(lake, list(range(10)))


def test_batches_without_an_id_are_never_taken_for_one_another(lake: Lake) -> None:
    assert not lake.append("events", frame(lake, 0)).duplicate
    assert not lake.append("events", frame(lake, 0)).duplicate
    assert len(ids(lake)) == 20


def test_an_empty_batch_has_no_block(lake: Lake) -> None:
    done = lake.append("events", frame(lake, 0).where("id < 0"), batch_id="a")
    assert done.rows is None and done.row_count == 0 and states(lake) == []
    assert lake.sealed("events") is None


def test_columns_that_do_not_fit_are_refused_before_anything_is_reserved(lake: Lake) -> None:
    good = frame(lake, 0)
    for bad, what in [
        (good.withColumn("_ingest_seq", F.lit(1)), "_ingest_seq"),
        (good.withColumn("_ingest_partition", F.lit("x")), "_ingest_partition"),
        (good.withColumn("_sl_reject", F.lit("x")), "_sl_reject"),
        (good.withColumn("surprise", F.lit(1)), "surprise"),
        (good.drop("id"), "id"),
    ]:
        with pytest.raises(SchemaError, match=what):
            lake.append("events", bad)
    assert states(lake) == []


def test_a_missing_optional_column_is_null(lake: Lake) -> None:
    lake.append("events", frame(lake, 0, 3).drop("text"))
    assert lake.spark.table("lake.default.events").where("text IS NULL").count() == 3


def test_rows_of_the_wrong_type_are_refused_and_nothing_of_them_is_visible(lake: Lake) -> None:
    with pytest.raises(FailedError):
        lake.append("events", frame(lake, 0).withColumn("id", F.lit("not a number")), batch_id="a")
    with pytest.raises(FailedError):
        lake.append("events", frame(lake, 0).withColumn("id", F.lit(None).cast("long")), batch_id="a")
    assert ids(lake) == [] and branches(lake) == [] and set(states(lake)) <= {"abandoned"}
    lake.append("events", frame(lake, 0), batch_id="a")
    assert_sound(lake, list(range(10)))


def test_a_batch_that_failed_half_way_is_given_up_at_once_and_may_come_again(lake: Lake) -> None:
    def boom(batches: Iterator[object]) -> Iterator[object]:
        yield from batches
        raise ValueError("the source broke")

    broken = frame(lake, 0).mapInArrow(boom, "id long, text string")
    with pytest.raises(FailedError):
        lake.append("events", broken, batch_id="a")
    assert lake.append("events", frame(lake, 0), batch_id="a").rows is not None
    assert_sound(lake, list(range(10)))


@pytest.mark.parametrize("change", ["more", "fewer", "more here and fewer there"])
def test_a_source_that_changes_between_counting_and_writing_fails_the_batch(
    lake: Lake, tmp_path: Path, change: str
) -> None:
    seen = tmp_path / "seen"
    seen.mkdir()

    def changing(batches: Iterator[object]) -> Iterator[object]:
        import pyarrow as pa
        from pyspark import TaskContext

        for _ in batches:
            pass
        context = TaskContext.get()
        assert context is not None
        partition = context.partitionId()
        marker = seen / str(partition)
        count = 10
        if marker.exists():
            count += {"more": 1, "fewer": -1}.get(change, 1 if partition == 0 else -1)
        marker.touch()
        yield pa.record_batch({"id": pa.array(range(count), pa.int64()), "text": pa.array(["x"] * count)})

    df = frame(lake, 0, 10, 2).mapInArrow(changing, "id long, text string")  # type: ignore[arg-type]
    with pytest.raises(StampMismatch):
        lake.append("events", df, batch_id="a")
    assert rows(lake) == [] and branches(lake) == [] and states(lake) == ["abandoned"]


def test_several_writers_at_once_lose_and_double_nothing(lake: Lake) -> None:
    failures: list[BaseException] = []

    def write(worker: int) -> None:
        try:
            for i in range(3):
                lake.append("events", frame(lake, worker * 1000 + i * 10), batch_id=f"{worker}-{i}")
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=write, args=(w,)) for w in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert failures == []
    assert_sound(lake, [w * 1000 + i * 10 + k for w in range(4) for i in range(3) for k in range(10)])


def test_the_same_batch_from_two_writers_at_once_is_one_block(lake: Lake) -> None:
    outcomes = []

    def write() -> None:
        outcomes.append(lake.append("events", frame(lake, 0, 50), batch_id="shared"))

    threads = [threading.Thread(target=write) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(o.duplicate for o in outcomes) == [False, True, True]
    assert len({o.rows for o in outcomes}) == 1
    assert_sound(lake, list(range(50)))


def test_a_writer_that_holds_lower_numbers_keeps_the_seal_until_it_is_settled(lake: Lake) -> None:
    dataset = lake.dataset("events")
    held, _ = blocks.reserve(lake.ledger, lake.witness, blocks.NewBlock(dataset.id, 100, "A", None), lease_seconds=60)
    assert isinstance(held, blocks.Reserved)
    lake.append("events", frame(lake, 0, 100), batch_id="B")
    assert len(ids(lake)) == 100 and lake.sealed("events") is None
    assert list(lake.read_since("events")) == []
    blocks.abandon(lake.ledger, lake.witness, held, "a test")
    assert lake.sealed("events") == 200
    assert len(list(lake.read_since("events"))) == 100


def test_a_table_that_lost_its_not_null_is_noticed(lake: Lake) -> None:
    lake.spark.sql("ALTER TABLE lake.default.events ALTER COLUMN _ingest_seq DROP NOT NULL")
    with pytest.raises(TableUnfit, match="required"):
        lake.append("events", frame(lake, 0))


def test_a_table_whose_branches_would_expire_is_refused(lake: Lake) -> None:
    lake.spark.sql("ALTER TABLE lake.default.events SET TBLPROPERTIES ('history.expire.max-ref-age-ms'='1000')")
    with pytest.raises(TableUnfit, match="max-ref-age"):
        lake.append("events", frame(lake, 0))


def test_rows_deleted_by_a_user_and_their_history_expired_do_not_lock_the_dataset(lake: Lake) -> None:
    lake.append("events", frame(lake, 0), batch_id="a")
    lake.spark.sql("DELETE FROM lake.default.events WHERE id = 3")
    expire_everything(lake)
    assert len(list(lake.read_since("events"))) == 9
    lake.append("events", frame(lake, 20), batch_id="b")
    assert len(list(lake.read_since("events"))) == 19


def test_a_rollback_is_noticed_whatever_the_order_in_which_blocks_were_published(lake: Lake) -> None:
    dataset = lake.dataset("events")
    lake.append("events", frame(lake, 500), batch_id="first")
    low, snapshot = staged_by_hand(lake, "low", 0)
    lake.append("events", frame(lake, 100), batch_id="high")
    before_low = lake.work.tables.view(dataset.name).main
    blocks.mark_staged(lake.ledger, lake.witness, low, SnapshotId(snapshot))
    lake.recover()
    lake.spark.sql(f"CALL lake.system.rollback_to_snapshot('default.events', {before_low})")
    with pytest.raises(TableRolledBack):
        lake.read_since("events")
    with pytest.raises(TableRolledBack):
        lake.append("events", frame(lake, 900))
    lake.accept_table("events", "rolled back on purpose")
    assert len(list(lake.read_since("events"))) == 20
    lake.append("events", frame(lake, 900))
    assert len(list(lake.read_since("events"))) == 30


def test_a_batch_is_the_same_after_a_column_was_added_or_widened(lake: Lake) -> None:
    lake.create_dataset("narrow", parse_columns([{"name": "id", "type": "int"}, {"name": "f", "type": "float"}]))
    df = lake.spark.range(10).selectExpr("CAST(id AS INT) AS id", "CAST(id AS FLOAT) / 4 AS f")
    lake.append("narrow", df, batch_id="a")
    lake.alter_dataset("narrow", [WidenColumn("id", Primitive("long")), AddColumn("note", Primitive("string"))])
    again = df.selectExpr("CAST(id AS LONG) AS id", "f", "CAST(NULL AS STRING) AS note")
    assert lake.append("narrow", again, batch_id="a").duplicate
    with pytest.raises(BatchConflict):
        lake.append("narrow", again.withColumn("note", F.lit("x")), batch_id="a")


def test_an_append_that_landed_does_not_fail_because_a_watch_does(lake: Lake) -> None:
    watch = lake.watch("events")

    def boom(_: int) -> None:
        raise ValueError("a subscriber's own fault")

    watch.subscribe(boom)
    assert lake.append("events", frame(lake, 0)).row_count == 10
    watch.close()
