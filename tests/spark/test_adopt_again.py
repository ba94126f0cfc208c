"""Adopting under a name that is known already: the same terms, or another table."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from strandline.core import failpoints
from strandline.core.errors import TokenError, UsageError
from strandline.core.failpoints import FailpointError
from strandline.core.types import History, Staged
from strandline.lake import Lake
from strandline.ledger import audit
from strandline.ledger.ingest import blocks, datasets
from tests.conftest import MakeHome
from tests.spark.lakes import create, new_lake, numbers, sql, status, values


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, make_home: MakeHome, spark: object) -> Iterator[Lake]:
    with new_lake(tmp_path_factory.mktemp("again"), make_home, lease_seconds=1) as lake:
        create(lake, "first", {"n": "long"})  # makes the namespace
        yield lake


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.arm("")


def legacy(lake: Lake, name: str, lo: int, hi: int) -> None:
    sql(lake, f"CREATE TABLE lake.default.{name} USING iceberg AS SELECT id AS n FROM range({lo}, {hi + 1}, 1, 1)")


def test_the_terms_of_the_first_time_stay_and_others_are_refused(lake: Lake) -> None:
    legacy(lake, "terms", 1, 5)
    lake.adopt_dataset("terms", history=History.SKIP, deliver_by=["n"])
    for wrong in ({"history": History.DELIVER}, {"deliver_by": ["n", "n"]}, {"deliver_by": []}):
        with pytest.raises(UsageError):
            lake.adopt_dataset("terms", **wrong)  # type: ignore[arg-type]
    assert lake.adopt_dataset("terms").rows == 0
    assert lake.adopt_dataset("terms", history=History.SKIP, deliver_by=["n"]).rows == 0
    found = lake.dataset("terms")
    assert (found.history, found.deliver_by) == (History.SKIP, ("n",))


def test_another_table_under_a_known_name_is_another_dataset(lake: Lake) -> None:
    legacy(lake, "replaced", 1, 5)
    lake.adopt_dataset("replaced")
    old, token = lake.dataset("replaced"), lake.read_since("replaced").continuation
    failpoints.arm("stage.after_mark=fail")
    with pytest.raises(FailpointError):
        lake.append("replaced", numbers(lake, 6, 7))
    failpoints.arm("")
    with lake.ledger.read() as connection:
        [stranded] = blocks.open_blocks(connection, old.id)
    assert isinstance(stranded, Staged)
    sql(lake, "DROP TABLE lake.default.replaced")
    legacy(lake, "replaced", 100, 102)

    assert lake.adopt_dataset("replaced", history=History.SKIP).rows == 3
    new = lake.dataset("replaced")
    assert new.id != old.id and new.table_uuid != old.table_uuid and new.history is History.SKIP
    assert values(lake, "replaced") == [100, 101, 102]
    assert (status(lake, "replaced").foreign, status(lake, "replaced").open_blocks) == (0, 0)
    with pytest.raises(TokenError, match="another dataset"):
        lake.read_since("replaced", token)
    with lake.ledger.read() as connection:
        [said] = [e for e in audit.latest(connection) if e.event == "dataset.replaced"]
        assert [d.id for d in datasets.list_datasets(connection) if d.name == old.name] == [new.id]
    assert said.detail["open_blocks"] == [str(stranded.head.rows)] and said.detail["table"] == old.table_uuid
    lake.append("replaced", numbers(lake, 103, 104))
    assert values(lake, "replaced") == [100, 101, 102, 103, 104]
    assert lake.adopt_dataset("replaced").rows == 0
