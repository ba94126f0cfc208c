"""Expiry on real tables: ours, and anyone's at any moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from strandline import Lake
from strandline.core.errors import TableUnfit, UsageError
from strandline.core.settings.lake_config import LakeConfig
from strandline.maintain.compact import compact
from strandline.maintain.expire import Expired, expire
from strandline.maintain.expire_plan import ExpireOptions
from tests.spark.protocol import (
    assert_sound,
    audit_events,
    branches,
    crash_at,
    expire_everything,
    frame,
    ids,
    new_lake,
    outlive_lease,
    states,
)

NOW = ExpireOptions(timedelta(0), 1)
BEFORE = list(range(30))


@pytest.fixture
def lake(tmp_path: Path, make_home: Callable[..., LakeConfig]) -> Iterator[Lake]:
    with new_lake(tmp_path, make_home) as made:
        for n in range(3):
            made.append("events", frame(made, 10 * n))
        yield made


def run(lake: Lake, options: ExpireOptions = NOW, **more: Any) -> Expired:
    return expire(lake.maintenance.context, lake.dataset("events"), options, **more)


def snapshots(lake: Lake) -> int:
    return lake.spark.table("lake.default.events.snapshots").count()


def data_files(lake: Lake) -> int:
    return sum(1 for _ in Path(lake.config.warehouse_folder or "").rglob("data/**/*.parquet"))


def test_old_snapshots_go_with_the_files_that_only_they_had(lake: Lake) -> None:
    compact(lake.maintenance.context, lake.dataset("events"))
    there = snapshots(lake)
    assert there >= 4 and data_files(lake) == 7
    would = run(lake, dry_run=True)
    assert (would.snapshots_expired, would.data_files_deleted, len(would.sample)) == (there - 1, None, there - 1)
    assert (snapshots(lake), data_files(lake)) == (there, 7), "a dry run changed something"
    done = run(lake)
    assert (done.snapshots_before, done.snapshots_expired, done.data_files_deleted) == (there, there - 1, 6)
    assert done.sample == would.sample
    assert (snapshots(lake), data_files(lake)) == (1, 1)
    assert "maintain.expired" in audit_events(lake)
    assert_sound(lake, BEFORE)
    assert run(lake).snapshots_expired == 0


def test_young_snapshots_and_the_newest_few_stay(lake: Lake) -> None:
    assert run(lake, ExpireOptions()).snapshots_expired == 0
    run(lake, ExpireOptions(timedelta(0), 2))
    assert snapshots(lake) == 2
    with pytest.raises(UsageError):
        run(lake, ExpireOptions(timedelta(0), 0))


def test_branches_and_tags_stay(lake: Lake) -> None:
    lake.spark.sql("ALTER TABLE lake.default.events CREATE TAG first")
    lake.spark.sql("ALTER TABLE lake.default.events CREATE BRANCH theirs")
    for n in range(3, 6):
        lake.append("events", frame(lake, 10 * n))
    done = run(lake)
    assert (done.branches_kept, done.tags_kept) == (1, 1)
    assert lake.spark.sql("SELECT * FROM lake.default.events VERSION AS OF 'first'").count() == 30
    assert lake.spark.sql("SELECT * FROM lake.default.events VERSION AS OF 'theirs'").count() == 30
    assert ids(lake) == list(range(60))


def test_a_tag_on_a_published_snapshot_is_not_taken_for_a_rollback_after_expiry(lake: Lake) -> None:
    lake.spark.sql("ALTER TABLE lake.default.events CREATE TAG first")
    lake.append("events", frame(lake, 30))
    lake.append("events", frame(lake, 40))
    expire_everything(lake)
    assert_sound(lake, list(range(50)))


def test_a_staged_block_whose_writer_is_gone_is_published_first(lake: Lake) -> None:
    crash_at(lake, "stage.after_mark", lambda: lake.append("events", frame(lake, 100), batch_id="a"))
    run(lake)
    assert states(lake)[-1] == "published"
    assert_sound(lake, BEFORE + list(range(100, 110)))


def test_a_branch_that_may_still_have_a_writer_survives_and_is_published_later(lake: Lake) -> None:
    crash_at(lake, "stage.after_commit", lambda: lake.append("events", frame(lake, 100), batch_id="a"))
    assert run(lake).branches_kept == 1
    assert len(branches(lake)) == 1 and ids(lake) == BEFORE
    outlive_lease(lake)
    run(lake)
    assert_sound(lake, BEFORE + list(range(100, 110)))


def test_a_table_that_would_lose_more_than_snapshots_is_refused(lake: Lake) -> None:
    there = snapshots(lake)
    table = "ALTER TABLE lake.default.events"
    for spoil, undo in (
        (
            "SET TBLPROPERTIES ('history.expire.max-ref-age-ms' = '1')",
            "UNSET TBLPROPERTIES ('history.expire.max-ref-age-ms')",
        ),
        ("CREATE BRANCH theirs RETAIN 1 DAYS", "DROP BRANCH theirs"),
        ("CREATE TAG theirs RETAIN 1 DAYS", "DROP TAG theirs"),
        ("SET TBLPROPERTIES ('gc.enabled' = 'false')", "UNSET TBLPROPERTIES ('gc.enabled')"),
    ):
        lake.spark.sql(f"{table} {spoil}")
        with pytest.raises(TableUnfit, match="are not expired"):
            run(lake)
        assert snapshots(lake) == there
        lake.spark.sql(f"{table} {undo}")
    assert run(lake).snapshots_expired == there - 1


@pytest.mark.parametrize("point", ["expire.after_settle", "expire.after_expire"])
def test_an_expiry_that_dies_leaves_the_table_whole(lake: Lake, point: str) -> None:
    crash_at(lake, point, lambda: run(lake))
    assert_sound(lake, BEFORE)
    run(lake)
    assert snapshots(lake) == 1
    assert_sound(lake, BEFORE)


@pytest.mark.parametrize("point", ["stage.after_commit", "publish.after_commit"])
def test_anyones_expiry_in_the_middle_of_a_batch_harms_nothing(lake: Lake, point: str) -> None:
    crash_at(lake, point, lambda: lake.append("events", frame(lake, 100), batch_id="a"))
    expire_everything(lake)
    outlive_lease(lake)
    lake.recover()
    expire_everything(lake)
    lake.append("events", frame(lake, 100), batch_id="a")
    assert_sound(lake, BEFORE + list(range(100, 110)))
