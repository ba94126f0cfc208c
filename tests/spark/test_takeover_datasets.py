"""Datasets that one leader made and the next one has never heard of."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from strandline.core.errors import NotLeader, RefusedError
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.lake_admin import rejoin_lake
from strandline.ledger.deliver import sinks
from strandline.replicate.take_over.promote_plan import Refuse
from tests.conftest import MakeHome
from tests.spark.followed import assert_same, follow, restarted, table
from tests.spark.protocol import COLUMNS, frame
from tests.spark.test_promote import made


def test_datasets_that_two_leaders_made_stay_apart_and_one_name_is_for_a_person_to_settle(
    tmp_path: Path, make_home: MakeHome
) -> None:
    """The old leader made `late` just before it was cut off. The new one makes a `late` of its own, and another one."""
    with ExitStack() as stack:
        found = made(tmp_path, make_home, arbiter=False, stack=stack, followers=1)
        old, [new] = found.leader, found.followers
        old.create_dataset("late", parse_columns(COLUMNS), shards=3)
        old.append("late", frame(old, 0, 5), batch_id="only here")
        old.delivery.add("archive", "late", "files", {"path": str(tmp_path / "out")})
        found.promote(new)
        for name in ("more", "late"):
            new.create_dataset(name, parse_columns(COLUMNS), shards=2)
            new.append(name, frame(new, 10, 5), batch_id="b")
        joined = rejoin_lake(old.config, str(new.config.home), token=None)
        assert joined.led is not None and joined.led.not_at_the_leader == ("default.late",)
        report = restarted(old).tick()
        assert [e.message for e in report.failed] == [
            "default.late: the leader has a dataset of this name, and this site another one that the leader does not "
            "know, from when another site led; so the leader's is not replicated"
        ]
        assert_same(new, old, "more")
        assert len(table(old, "late")) == 5
        with pytest.raises(NotLeader):
            old.drop_dataset("more")
        old.drop_dataset("late", dry_run=True)
        old.drop_dataset("late")
        assert old.ledger.query(sinks.list_sinks) == []
        follow(old)
        assert_same(new, old, "late")
        with pytest.raises(RefusedError):
            old.append("late", frame(old, 50, 2), batch_id="c")


def test_a_site_whose_table_is_lost_is_not_promoted_unless_a_person_gives_its_rows_up(
    tmp_path: Path, make_home: MakeHome
) -> None:
    """Its ledger stayed, and says that the rows are here."""
    with ExitStack() as stack:
        found = made(tmp_path, make_home, arbiter=False, stack=stack, followers=1)
        old, [lake] = found.leader, found.followers
        old.append("events", frame(old, 0, 5), batch_id="a")
        follow(lake)
        lake.catalog.drop("default.events")
        forecast = lake.replication.promotion.forecast(leader_is_stopped=True)
        assert isinstance(forecast.step, Refuse) and "default.events does not have what" in forecast.step.message
        with pytest.raises(RefusedError, match=r"default\.events does not have what the ledger of this site says"):
            found.promote(lake)
        site = lake.replication.site
        assert site.follows and site.promoting_term is None
        assert found.promote(lake, force=True).term == 17
