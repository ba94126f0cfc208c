"""Compaction on real tables, alone and beside others who change them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame

from strandline import Lake
from strandline.core import failpoints
from strandline.core.errors import FailedError
from strandline.core.settings.lake_config import LakeConfig
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.iceberg.spark import maintenance
from strandline.maintain.compact import Compacted, compact
from strandline.maintain.compact_plan import CompactOptions
from tests.spark.lakes import in_order
from tests.spark.protocol import (
    COLUMNS,
    assert_sound,
    audit_events,
    branches,
    compact_everything,
    crash_at,
    expire_everything,
    frame,
    ids,
    new_lake,
    outlive_lease,
    rows,
)

BLOCKS = 3
ROWS = BLOCKS * 10


@pytest.fixture
def lake(tmp_path: Path, make_home: Callable[..., LakeConfig]) -> Iterator[Lake]:
    with new_lake(tmp_path, make_home) as made:
        fill(made)
        yield made


def fill(lake: Lake, dataset: str = "events") -> None:
    """Two files a block."""
    for n in range(BLOCKS):
        lake.append(dataset, frame(lake, 10 * n))


def run(lake: Lake, dataset: str = "events", options: CompactOptions = CompactOptions(), **more: Any) -> Compacted:
    return compact(lake.maintenance.context, lake.dataset(dataset), options, **more)


def spans(lake: Lake, dataset: str = "events") -> list[tuple[int, int]]:
    """Lowest and highest number of each file, from the rows themselves; fails where one is out of order inside."""
    found = in_order(lake.spark.sql(f"SELECT _file, _pos, _ingest_seq FROM lake.default.{dataset}").collect())
    files: dict[str, list[int]] = {}
    for row in found:
        files.setdefault(row[0], []).append(row[2])
    assert all(numbers == sorted(numbers) for numbers in files.values()), "rows of a file are out of order"
    return sorted((numbers[0], numbers[-1]) for numbers in files.values())


def deletes(lake: Lake, dataset: str = "events") -> int:
    return lake.spark.table(f"lake.default.{dataset}.delete_files").count()


def row_ids(lake: Lake) -> list[Any]:
    return in_order(lake.spark.sql("SELECT _ingest_seq, _row_id FROM lake.default.events").collect())


def meanwhile(monkeypatch: pytest.MonkeyPatch, action: Callable[[], Any], *, often: int = 1) -> list[str]:
    """Someone acts when new files are written and not committed yet."""
    real = failpoints.hit
    acted: list[str] = []

    def hit(name: str) -> None:
        if name == "compact.before_commit" and len(acted) < often:
            acted.append(name)
            action()
        real(name)

    monkeypatch.setattr(failpoints, "hit", hit)
    return acted


def test_small_files_become_one_with_every_row_as_it_was(lake: Lake) -> None:
    before, sealed = rows(lake), lake.sealed("events")
    token = lake.read_since("events", limit=15).continuation
    would = run(lake, dry_run=True)
    assert (would.files_before, would.files_after, would.commits) == (6, 1, 0)
    assert len(spans(lake)) == 6, "a dry run changed something"
    done = run(lake)
    assert (done.files_rewritten, done.files_written, done.files_after, done.rows_written) == (6, 1, 1, ROWS)
    assert (done.commits, done.lost, done.left) == (1, 0, 0)
    assert spans(lake) == [(1, ROWS)]
    assert rows(lake) == before and lake.sealed("events") == sealed
    assert [r["id"] for r, _ in lake.read_since("events", token)] == list(range(15, ROWS))
    assert "maintain.compacted" in audit_events(lake)
    again = run(lake)
    assert (again.commits, again.files_rewritten, again.skipped_files) == (0, 0, 1), "the same bytes were written anew"


def test_an_empty_table_has_nothing_to_compact(lake: Lake) -> None:
    lake.create_dataset("empty", parse_columns(COLUMNS))
    assert run(lake, "empty").files_before == 0


def test_new_files_of_a_large_table_are_in_order_and_apart_commit_by_commit(lake: Lake) -> None:
    size = lake.spark.table("lake.default.events.files").selectExpr("sum(file_size_in_bytes)").collect()[0][0]
    done = run(lake, options=CompactOptions(file_bytes_target=size // 3, commit_files_max=1))
    assert done.commits == done.files_written == 3
    assert all(a[1] < b[0] for a, b in pairwise(spans(lake)))
    assert_sound(lake, list(range(ROWS)))


def test_several_new_files_of_one_commit_are_in_order_and_apart(lake: Lake) -> None:
    size = lake.spark.table("lake.default.events.files").selectExpr("sum(file_size_in_bytes)").collect()[0][0]
    done = run(lake, options=CompactOptions(file_bytes_target=size // 3))
    assert (done.commits, done.files_written) == (1, 3)
    assert all(a[1] < b[0] for a, b in pairwise(spans(lake)))
    assert_sound(lake, list(range(ROWS)))


def test_partitions_of_a_table_stay_apart_and_in_order(lake: Lake) -> None:
    lake.create_dataset("parted", parse_columns(COLUMNS), partition_by="bucket(2, id)")
    fill(lake, "parted")
    done = run(lake, "parted")
    assert (done.files_after, done.lost) == (2, 0)
    assert len(spans(lake, "parted")) == 2
    assert_sound(lake, list(range(ROWS)), "parted")


def test_files_that_someone_left_in_no_order_are_sorted(lake: Lake) -> None:
    lake.spark.sql(
        "CALL lake.system.rewrite_data_files(table => 'default.events', strategy => 'sort', sort_order => 'text', "
        "options => map('rewrite-all', 'true'))"
    )
    lake.spark.sql("UPDATE lake.default.events SET text = concat(text, '!') WHERE id % 7 = 3")
    fill_again = range(ROWS, ROWS + 40)
    for n in range(4):
        lake.append("events", frame(lake, ROWS + 10 * n))
    run(lake)
    assert all(a[1] < b[0] for a, b in pairwise(spans(lake)))
    assert_sound(lake, [*range(ROWS), *fill_again])


def _without(id: int) -> Any:
    """A compaction that reads one row too few."""
    read = maintenance.Rewrite._reading

    @contextmanager
    def reading(*args: Any) -> Iterator[DataFrame]:
        with read(*args) as df:
            yield df.where(f"id <> {id}")

    return reading


@pytest.mark.parametrize("version", [2, 3])
def test_deleted_rows_stay_deleted_and_no_other_row_is_lost_and_their_delete_files_go(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    lake.spark.sql(
        "ALTER TABLE lake.default.events SET TBLPROPERTIES "
        f"('write.delete.mode' = 'merge-on-read', 'format-version' = '{version}')"
    )
    lake.spark.sql("DELETE FROM lake.default.events WHERE id IN (3, 17)")
    assert deletes(lake) > 0
    lineage = row_ids(lake) if version == 3 else []
    with monkeypatch.context() as patched:
        patched.setattr(maintenance.Rewrite, "_reading", _without(5))
        with pytest.raises(FailedError, match=f"{ROWS - 3} rows were written of {ROWS - 2}"):
            run(lake)
    done = run(lake)
    assert version == 2 or row_ids(lake) == lineage, "rows got other ids"
    assert (done.rows_written, done.delete_files_after, deletes(lake)) == (ROWS - 2, 0, 0)
    assert ids(lake) == [i for i in range(ROWS) if i not in (3, 17)]
    assert len(spans(lake)) == 1


def test_a_block_that_is_published_meanwhile_is_not_lost(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    acted = meanwhile(monkeypatch, lambda: lake.append("events", frame(lake, ROWS)))
    done = run(lake)
    assert acted and (done.commits, done.lost) == (1, 0)
    assert_sound(lake, list(range(ROWS + 10)))


def test_a_compaction_that_loses_is_planned_again_and_undoes_nothing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = set(Path(lake.config.warehouse_folder or "").rglob("*.parquet"))
    acted = meanwhile(monkeypatch, lambda: lake.spark.sql("DELETE FROM lake.default.events WHERE id < 10"))
    done = run(lake, options=CompactOptions(files_min=2))
    assert acted and (done.commits, done.lost, done.left) == (1, 1, 0)
    assert ids(lake) == list(range(10, ROWS)), "a deleted row came back"
    written = set(Path(lake.config.warehouse_folder or "").rglob("*.parquet")) - files
    live = {r[0] for r in lake.spark.sql("SELECT file_path FROM lake.default.events.files").collect()}
    assert {p for p in written if not any(f.endswith(p.name) for f in live)} == set(), "what lost was not removed"


def test_a_compaction_that_loses_each_time_says_what_it_left(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = iter(range(0, ROWS, 10))
    meanwhile(monkeypatch, lambda: lake.spark.sql(f"DELETE FROM lake.default.events WHERE id = {next(gone)}"), often=3)
    done = run(lake)
    assert (done.commits, done.lost) == (0, 3)
    assert done.left > 0
    assert ids(lake) == [i for i in range(ROWS) if i not in (0, 10, 20)]


def test_snapshots_that_someone_expires_meanwhile_do_no_harm(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    def others() -> None:
        lake.append("events", frame(lake, ROWS))
        lake.append("events", frame(lake, ROWS + 10))
        expire_everything(lake)

    acted = meanwhile(monkeypatch, others)
    done = run(lake)
    assert acted and (done.commits, done.lost) == (1, 0)
    expire_everything(lake)
    assert_sound(lake, list(range(ROWS + 20)))


def test_rows_deleted_and_history_expired_meanwhile_stay_deleted(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.spark.sql("ALTER TABLE lake.default.events SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")

    def others() -> None:
        lake.spark.sql("DELETE FROM lake.default.events WHERE id = 3")
        lake.spark.sql("DELETE FROM lake.default.events WHERE id = 23")
        expire_everything(lake)

    acted = meanwhile(monkeypatch, others)
    done = run(lake)
    assert acted and done.lost == 1
    assert ids(lake) == [i for i in range(ROWS) if i not in (3, 23)]


def test_a_commit_whose_answer_is_lost_is_found_and_not_repeated(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = maintenance.Rewrite._replace, []
    jvm: Any = lake.spark._jvm

    def replace(self: Any, table: Any, since: Any) -> None:
        real(self, table, since)
        calls.append(since)
        lost = jvm.org.apache.iceberg.exceptions.CommitStateUnknownException(jvm.java.lang.RuntimeException("reset"))
        raise Py4JJavaError("the answer was lost", lost)

    monkeypatch.setattr(maintenance.Rewrite, "_replace", replace)
    done = run(lake)
    assert (len(calls), done.commits, done.lost) == (1, 1, 0)
    assert spans(lake) == [(1, ROWS)]
    assert_sound(lake, list(range(ROWS)))


def test_a_staged_block_is_left_alone_and_can_be_published_afterwards(lake: Lake) -> None:
    crash_at(lake, "stage.after_mark", lambda: lake.append("events", frame(lake, ROWS), batch_id="a"))
    [staged] = branches(lake)
    run(lake)
    assert branches(lake) == [staged]
    assert ids(lake) == list(range(ROWS))
    outlive_lease(lake)
    lake.recover()
    assert_sound(lake, list(range(ROWS + 10)))


@pytest.mark.parametrize(
    "point", ["compact.before_rewrite", "compact.before_commit", "compact.after_rewrite", "compact.after_manifests"]
)
def test_a_compaction_that_dies_leaves_the_table_whole_and_the_next_one_goes_on(lake: Lake, point: str) -> None:
    options = CompactOptions(manifests_max=1, commit_files_max=1, file_bytes_target=4000)
    crash_at(lake, point, lambda: run(lake, options=options))
    assert_sound(lake, list(range(ROWS)))
    assert run(lake, options=CompactOptions(files_min=2)).left == 0
    assert len(spans(lake)) == 1
    assert_sound(lake, list(range(ROWS)))


def test_manifests_are_rewritten_when_they_are_many(lake: Lake) -> None:
    few = run(lake, options=CompactOptions(files_min=100))
    assert few.manifests_after == few.manifests_before >= BLOCKS, "they were not many"
    done = run(lake, options=CompactOptions(files_min=100, manifests_max=BLOCKS - 1))
    assert (done.commits, done.manifests_after) == (0, 1)
    assert_sound(lake, list(range(ROWS)))


def test_a_table_that_does_not_say_it_gets_small_row_groups(lake: Lake) -> None:
    lake.spark.sql(f"ALTER TABLE lake.default.events UNSET TBLPROPERTIES ('{maintenance.ROW_GROUP_PROPERTY}')")
    run(lake)
    assert lake.work.tables.view("default.events").properties[maintenance.ROW_GROUP_PROPERTY] == str(16 << 20)


def test_what_anyone_compacts_is_taken_as_it_is(lake: Lake) -> None:
    compact_everything(lake)
    assert run(lake).commits == 0
    assert_sound(lake, list(range(ROWS)))
