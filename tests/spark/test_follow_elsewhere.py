"""A follower in a bucket with a REST catalog follows a leader in a folder, and the other way round."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from strandline import Lake
from strandline.iceberg.schema.alteration import AddColumn
from strandline.iceberg.schema.columns import Primitive
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.lake_admin import follow_lake, init_lake
from tests.conftest import MakeHome
from tests.rest_catalog import RestCatalogs
from tests.serve.conftest import serving
from tests.spark.followed import SETTINGS, assert_same, follow
from tests.spark.protocol import COLUMNS, frame


@pytest.mark.parametrize("leads", ["folder", "bucket"])
def test_a_leader_and_its_followers_need_not_be_in_the_same_kind_of_place(
    rest_catalogs: RestCatalogs, tmp_path: Path, make_home: MakeHome, monkeypatch: pytest.MonkeyPatch, leads: str
) -> None:
    bucket: dict[str, Any] = SETTINGS | dict(rest_catalogs.take(bucket=True).settings())
    make_home(tmp_path / "leader", bucket if leads == "bucket" else SETTINGS)
    with init_lake(tmp_path / "leader") as leader, serving(leader) as url, ExitStack() as opened:
        leader.create_dataset("events", parse_columns(COLUMNS), shards=3)
        addresses = [str(leader.config.home), url] if leads == "bucket" else [str(leader.config.home)]
        followers = []
        for n, address in enumerate(addresses):
            monkeypatch.setenv(f"TOKEN_{n}", leader.followers.add(f"f{n}")[1])
            make_home(tmp_path / f"f{n}", SETTINGS if leads == "bucket" else bucket)
            made = follow_lake(tmp_path / f"f{n}", address, token=f"env:TOKEN_{n}")
            followers.append(opened.enter_context(made))
        walk(leader, followers)


def walk(leader: Lake, followers: list[Lake]) -> None:
    for n in range(3):
        leader.append("events", frame(leader, n * 10, 5), batch_id=str(n))
    for follower in followers:
        follow(follower)
        assert_same(leader, follower)
    leader.alter_dataset("events", [AddColumn("more", Primitive("long"))])
    leader.append("events", frame(leader, 40, 5).selectExpr("*", "id AS more"), batch_id="more")
    leader.maintenance.compact("events")
    leader.maintenance.purge("events", "id = 21")
    for follower in followers:
        follow(follower)
        assert_same(leader, follower)
        [verdict] = follower.replication.verify()
        assert (verdict.ok, verdict.rows, verdict.extra) == (True, 19, 0)
