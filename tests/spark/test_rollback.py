"""A table is refused if somebody rolled it back, and not for any other reason: real tables, as hard as Iceberg lets
anyone delete, rewrite and expire."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from strandline.core.errors import RefusedError, TableRolledBack, TableUnfit
from strandline.core.types import Seq, SeqRange, SnapshotId
from strandline.iceberg.metadata.table_metadata import METRICS_PROPERTY, SETTLED_TAG
from strandline.lake import Lake
from strandline.ledger.ingest import blocks, datasets
from strandline.read.source.options import parse
from strandline.read.source.settled_source import SettledSource
from tests.conftest import MakeHome
from tests.spark.lakes import create, new_lake, numbers, snapshots, sql, status, values
from tests.spark.protocol import crash_at
from tests.spark.upkeep import compact_as_anyone, expire_as_anyone


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, make_home: MakeHome) -> Iterator[Lake]:
    with new_lake(tmp_path_factory.mktemp("rollback"), make_home) as made:
        yield made


@pytest.fixture
def table(lake: Lake, request: pytest.FixtureRequest) -> str:
    """Two batches, of ten rows each."""
    name = f"t{abs(hash(request.node.name)) % 10**9}"
    create(lake, name, {"n": "long"})
    lake.append(name, numbers(lake, 1, 10))
    lake.append(name, numbers(lake, 11, 20))
    return name


def tag(lake: Lake, name: str) -> SnapshotId | None:
    return lake.tables().view(f"default.{name}").refs.get(SETTLED_TAG)


def main(lake: Lake, name: str) -> SnapshotId | None:
    return lake.tables().view(f"default.{name}").main


def roll_back(lake: Lake, name: str, to: int) -> None:
    sql(lake, f"CALL lake.system.set_current_snapshot('default.{name}', {to})")


def delete_by_owner(lake: Lake, name: str) -> None:
    """The newest batch, and every trace of how it went."""
    sql(lake, f"DELETE FROM lake.default.{name} WHERE n > 10")
    sql(lake, f"INSERT INTO lake.default.{name} VALUES (9000000001, 0)")
    compact_as_anyone(lake, name)
    expire_as_anyone(lake, name)


def goes_on(lake: Lake, name: str, expected: list[int]) -> None:
    """Reads, ingests, is maintained."""
    assert values(lake, name) == expected
    lake.append(name, numbers(lake, 101, 105))
    assert values(lake, name) == [*expected, *range(101, 106)]
    assert tag(lake, name) == main(lake, name)
    lake.maintenance.compact(name)
    assert tag(lake, name) == main(lake, name)
    assert status(lake, name).problem is None


def plan_for_spark_source(lake: Lake, name: str, until: Seq) -> object:
    with closing(SettledSource(parse({"lake": str(lake.config.home), "dataset": name}))) as source:
        return source.plan(None, until, None, [])


def refuses(lake: Lake, name: str, error: type[RefusedError] = TableRolledBack) -> str:
    """Everything that reads the table or changes it says the same."""
    dataset = lake.ledger.query(datasets.get, f"default.{name}")
    sealed = lake.ledger.query(blocks.sealed, dataset.id)
    assert sealed is not None
    work: list[Callable[[], object]] = [
        lambda: lake.read_since(name),
        lambda: lake.append(name, numbers(lake, 101, 105)),
        lambda: lake.maintenance.compact(name),
        lambda: lake.maintenance.expire(name, older_than=timedelta(0), keep_min=1),
        lambda: lake.maintenance.purge(name, "n = 1"),
        lambda: lake.maintenance.retain(name, older_than=timedelta(0)),
        lambda: lake.read_lines(name, limit=1),
        lambda: lake.leader.rows(dataset, SeqRange(sealed, sealed)),
        lambda: plan_for_spark_source(lake, name, sealed),
    ]
    said = set()
    for step in work:
        with pytest.raises(error) as refused:
            step()
        said.add(refused.value.message)
    (message,) = said
    return message


@pytest.mark.parametrize("fault", ["rolled back", "unfit"])
def test_a_faulty_table_is_refused_with_the_same_words_by_all_who_use_it(
    lake: Lake, table: str, tmp_path: Path, fault: str
) -> None:
    lake.delivery.add(f"to_{table}", table, "files", {"path": str(tmp_path / "out")})
    if fault == "rolled back":
        roll_back(lake, table, snapshots(lake, table)[0])
    else:
        sql(lake, f"ALTER TABLE lake.default.{table} SET TBLPROPERTIES ('{METRICS_PROPERTY}' = 'counts')")
    message = refuses(lake, table, TableRolledBack if fault == "rolled back" else TableUnfit)
    (delivered,) = lake.tick(f"to_{table}").sinks
    assert delivered.reason is not None and message in delivered.reason


@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
def test_our_own_purge_compaction_and_expiry_are_no_rollback(lake: Lake, table: str, mode: str) -> None:
    sql(lake, f"ALTER TABLE lake.default.{table} SET TBLPROPERTIES ('write.delete.mode' = '{mode}')")
    lake.maintenance.purge(table, "n > 12")
    lake.maintenance.compact(table)
    lake.maintenance.expire(table, older_than=timedelta(0), keep_min=1)
    assert len(lake.tables().view(f"default.{table}").snapshots) == 1, "our tag keeps nothing old"
    goes_on(lake, table, list(range(1, 13)))


def test_a_deletion_by_the_owner_is_no_rollback_whoever_expires_what(lake: Lake, table: str) -> None:
    delete_by_owner(lake, table)
    assert tag(lake, table) != main(lake, table)
    goes_on(lake, table, list(range(1, 11)))


def test_where_nothing_tells_the_work_goes_on_and_the_doubt_is_shown(lake: Lake, table: str) -> None:
    forgetful = "'write.metadata.previous-versions-max'='1', 'write.metadata.delete-after-commit.enabled'='true'"
    sql(lake, f"ALTER TABLE lake.default.{table} SET TBLPROPERTIES ({forgetful})")
    delete_by_owner(lake, table)
    for n in range(2):  # the metadata file from before the expiry goes
        sql(lake, f"ALTER TABLE lake.default.{table} SET TBLPROPERTIES ('theirs' = '{n}')")
    assert values(lake, table) == list(range(1, 11))
    assert "it is unknown whether they were deleted or rolled back" in status(lake, table).problem
    lake.append(table, numbers(lake, 101, 105))
    assert tag(lake, table) == main(lake, table)
    doubt = status(lake, table).problem
    assert "unknown whether they were deleted or rolled back" in doubt, "what is published on top does not cover it"
    roll_back(lake, table, snapshots(lake, table)[-2])
    with pytest.raises(TableRolledBack):
        lake.read_since(table)
    lake.accept_table(table, "it is meant to be so")
    assert status(lake, table).problem is None


@pytest.mark.parametrize(("covered", "tagged"), [(False, True), (True, False)])
def test_a_rollback_is_noticed_whoever_commits_and_expires_after_it(
    lake: Lake, table: str, covered: bool, tagged: bool
) -> None:
    first, newest = snapshots(lake, table)
    if not tagged:
        sql(lake, f"ALTER TABLE lake.default.{table} DROP TAG `{SETTLED_TAG}`")
    roll_back(lake, table, first)
    if covered:
        delete_by_owner(lake, table)
    else:
        expire_as_anyone(lake, table)
    refuses(lake, table)
    assert "rolled back" in status(lake, table).problem
    if tagged:
        roll_back(lake, table, newest)
        assert values(lake, table) == list(range(1, 21)), "our tag kept what was lost"


def test_a_block_that_is_published_on_a_table_that_was_rolled_back_does_not_cover_it(lake: Lake, table: str) -> None:
    crash_at(lake, "stage.after_mark", lambda: lake.append(table, numbers(lake, 101, 105)))
    roll_back(lake, table, snapshots(lake, table)[0])
    assert len(lake.recover().published) == 1
    with pytest.raises(TableRolledBack):
        lake.read_since(table)
    lake.accept_table(table, "rolled back on purpose")
    assert values(lake, table) == [*range(1, 11), *range(101, 106)]
    assert tag(lake, table) == main(lake, table)
