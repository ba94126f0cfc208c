"""What tables record about followers, for a ledger that is lost. Without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline import Lake
from strandline.core import failpoints
from strandline.core.errors import RefusedError
from strandline.core.types import Seq
from strandline.iceberg.metadata.table_metadata import TableView
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.ingest.resync.run import Resynced
from strandline.lake import open_lake
from strandline.ledger.replicate import followers, offers
from tests.command_line import init_lake_here
from tests.unit.test_cli_render import text as rendered

COLUMNS = [{"name": "id", "type": "long"}]


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    init_lake_here(tmp_path, monkeypatch)
    with open_lake(tmp_path) as opened:
        opened.create_dataset("events", parse_columns(COLUMNS))
        yield opened


def view(lake: Lake, name: str = "events") -> TableView:
    return lake.catalog.load_with_view(f"default.{name}")[1]


def poll(lake: Lake) -> list[str]:
    return [t.name for t in lake.leader.poll({}).made]


@pytest.mark.parametrize("point", ["follower.after_record"])
def test_a_table_records_a_follower_before_the_ledger_has_it(lake: Lake, point: str) -> None:
    failpoints.arm(f"{point}=fail")
    with pytest.raises(failpoints.FailpointError):
        lake.followers.add("east")
    failpoints.arm("")
    assert lake.followers.list() == [] and lake.receiver.list_tokens() == []
    assert view(lake).is_followed and view(lake).followers == {"east"}
    lake.followers.add("east")
    assert view(lake).followers == {"east"}


@pytest.mark.parametrize("point", ["lead.after_followed"])
def test_nothing_is_offered_of_a_table_that_does_not_record_it(lake: Lake, point: str) -> None:
    assert not view(lake).is_followed
    failpoints.arm(f"{point}=fail")
    with pytest.raises(failpoints.FailpointError):
        poll(lake)
    failpoints.arm("")
    assert view(lake).is_followed and view(lake).followers == set(), "also for one that is not registered"
    assert poll(lake) == ["default.events"]


def test_only_the_first_offer_of_a_dataset_changes_its_table(lake: Lake) -> None:
    lake.followers.add("east")
    before = lake.catalog.load("default.events").metadata_location
    assert poll(lake) == ["default.events"]
    assert lake.catalog.load("default.events").metadata_location == before


def test_tables_that_are_made_later_know_their_followers_and_others_only_their_own(lake: Lake) -> None:
    lake.followers.add("east")
    lake.followers.add("west", ["events"])
    lake.create_dataset("others", parse_columns(COLUMNS))
    assert view(lake).followers == {"east", "west"}
    assert view(lake, "others").followers == {"east"}


def test_a_follower_that_was_removed_is_not_brought_back_but_the_table_was_followed(lake: Lake) -> None:
    lake.followers.add("east")
    lake.followers.remove("east")
    assert view(lake).is_followed and view(lake).followers == set()
    lake.followers.add("east")
    assert view(lake).followers == {"east"}


def test_a_forgotten_follower_holds_everything_until_a_person_adds_it_again(lake: Lake) -> None:
    assert lake.ledger.change(followers.add_forgotten, "east")
    assert not lake.ledger.change(followers.add_forgotten, "east"), "once"
    [found] = lake.followers.list()
    assert found.token is None and found.datasets is None
    events = lake.dataset("events")
    assert lake.ledger.query(followers.watermarks_by_title, events) == {"follower east": None}
    again, secret = lake.followers.add("east")
    assert (again.id, again.token is None, bool(secret)) == (found.id, False, True)
    with pytest.raises(RefusedError, match="already"):
        lake.followers.add("east")
    assert not lake.ledger.change(followers.add_forgotten, "east")


def test_a_rebuilt_ledger_says_which_followers_to_add_again() -> None:
    from strandline.cli.render.lake import resynced

    shown = rendered(resynced(Resynced(None, 2, (), 0, (), ("east", "west")), "The ledger is rebuilt"))
    assert "east, west" in shown and "strandline follower add NAME" in shown
    assert "forgotten" not in rendered(resynced(Resynced(None, 2, (), 0, ()), "The ledger is rebuilt"))


def test_a_table_that_cannot_be_read_does_not_keep_other_datasets_out_of_the_answers(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offers, "DATASETS_MAX", 1)
    lake.create_dataset("more", parse_columns(COLUMNS))
    metadata = Path(lake.catalog.load("default.events").metadata_location.removeprefix("file:"))
    content = metadata.read_bytes()
    metadata.write_bytes(b"damaged")
    assert [poll(lake), poll(lake), poll(lake)] == [[], ["default.more"], ["default.more"]]
    metadata.write_bytes(content)
    [more] = lake.leader.poll({}).made
    assert [t.name for t in lake.leader.poll({more.id: Seq(0)}).made] == ["default.events"]
