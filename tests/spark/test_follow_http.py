"""A follower over HTTP: the same as over shared storage, from a leader that it reaches by its API only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline import Lake
from strandline.core.errors import FailedError, StorageError
from strandline.iceberg.schema.alteration import AddColumn, RenameColumn
from strandline.iceberg.schema.columns import Primitive
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.lake_admin import follow_lake
from strandline.replicate.transports import http
from tests.conftest import MakeHome
from tests.serve.conftest import serving
from tests.spark.followed import SETTINGS, assert_same, follow, new_leader, table

TYPES = {
    "id": "long", "small": "int", "real": "float", "exact": "decimal(20,4)", "day": "date", "at": "timestamptz",
    "local": "timestamp", "bytes": "binary", "key": "uuid", "yes": "boolean", "list": "list<string>",
    "map": "map<string,long>", "inner": "struct<a:int,b:list<double>>",
}  # fmt: skip
VALUES = (
    "id", "int(id) AS small", "float(id / 3) AS real", "cast(id / 7 AS decimal(20,4)) AS exact",
    "date_add(date'2026-01-01', int(id)) AS day", "timestamp'2026-01-01 00:00:00Z' + make_dt_interval(int(id)) AS at",
    "cast('2026-01-01 01:02:03.000456' AS timestamp_ntz) AS local", "cast(string(id) AS binary) AS bytes",
    "'12345678-9abc-def0-1234-56789abcdef' || (id % 10) AS key", "id % 2 = 0 AS yes",
    "array(string(id), null) AS list", "map('k', id) AS map",
    "if(id % 3 = 0, null, named_struct('a', int(id), 'b', array(double(id)))) AS inner",
)  # fmt: skip


@pytest.fixture
def leader(tmp_path: Path, make_home: MakeHome) -> Iterator[Lake]:
    with new_leader(tmp_path, make_home) as lake:
        columns = [{"name": n, "type": t} for n, t in TYPES.items()]
        lake.create_dataset("events", parse_columns(columns), deliver_by=["yes"])
        yield lake


def test_a_follower_over_http_has_the_leaders_rows_and_says_how_far_it_is(
    leader: Lake, tmp_path: Path, make_home: MakeHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, secret = leader.followers.add("east")
    monkeypatch.setenv("EAST_TOKEN", secret)
    monkeypatch.setenv("WRONG_TOKEN", "nobody")
    monkeypatch.setattr(http, "PART_NUMBERS", 7)
    leader.append("events", leader.spark.range(20).selectExpr(*VALUES), batch_id="a")
    make_home(tmp_path / "follower", SETTINGS)
    with serving(leader) as url:
        with pytest.raises(FailedError, match="refuses"):
            follow_lake(tmp_path / "follower", url, token="env:WRONG_TOKEN")
        with follow_lake(tmp_path / "follower", url, token="env:EAST_TOKEN") as follower:
            follow(follower)
            assert len(table(follower)) == 20
            assert_same(leader, follower)
            leader.alter_dataset("events", [AddColumn("more", Primitive("string")), RenameColumn("small", "little")])
            renamed = [v.replace(" AS small", " AS little") for v in VALUES]
            rows = leader.spark.range(20, 25).selectExpr(*renamed, "'m' AS more")
            leader.append("events", rows, batch_id="b")
            follow(follower)
            assert_same(leader, follower)
            [verdict] = follower.replication.verify()
            assert (verdict.ok, verdict.rows, verdict.extra) == (True, 25, 0)
            follower.spark.sql("UPDATE lake.default.events SET more = 'x' WHERE id = 22")
            [verdict] = follower.replication.verify()
            assert (verdict.ok, verdict.different, verdict.first) == (False, 1, 24)
            follower.spark.sql("INSERT INTO lake.default.events SELECT * FROM lake.default.events WHERE id = 3")
            [verdict] = follower.replication.verify()
            assert (verdict.ok, verdict.different, verdict.doubled, verdict.first) == (False, 1, 1, 5)
        with leader.ledger.read() as connection:
            assert connection.exec_driver_sql("SELECT seal FROM follower_seal").scalars().all() == [26]
    with pytest.raises(StorageError, match="does not answer"):
        follow_lake(tmp_path / "follower", url, token="env:EAST_TOKEN")
