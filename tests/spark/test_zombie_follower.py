"""A process of a follower that stands still while the site goes on without it, and then goes on itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from strandline import Lake
from strandline.core import failpoints
from strandline.core.errors import RefusedError, WatermarkMoved
from strandline.iceberg.schema.alteration import DropColumn
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.lake import open_lake
from strandline.ledger.ingest import sequence
from strandline.ledger.replicate import following, promotion_claims, promotions
from strandline.ledger.replicate import sites as ledger_sites
from strandline.replicate.take_over import carry_out_cut as carrying_out
from tests.conftest import MakeHome
from tests.spark.followed import Sites, assert_same, follow, follow_another, restarted, take_over, three_sites
from tests.spark.protocol import COLUMNS, audit_events, crash_at, frame, outlive_lease
from tests.spark.test_cut import FIRST, cut_off, numbers


@pytest.fixture
def sites(tmp_path: Path, make_home: MakeHome) -> Iterator[Sites]:
    with three_sites(tmp_path, make_home) as made:
        yield made


@contextmanager
def stands_still(point: str, meanwhile: Callable[[], object]) -> Iterator[list[str]]:
    """Whoever comes to the point first stands still there until `meanwhile` is done. The list then has the point."""
    stood: list[str] = []
    hit = failpoints.hit

    def hit_or_stand(name: str) -> None:
        if name == point and not stood:
            stood.append(name)
            meanwhile()
        hit(name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failpoints, "hit", hit_or_stand)
        yield stood
    assert stood == [point]


def epochs(lake: Lake) -> tuple[int, int]:
    """That of the table, and that of the ledger."""
    table = lake.work.tables.view("default.events").epoch
    return table, lake.ledger.query(sequence.read).epoch


def end_promotion(lake: Lake) -> None:
    with lake.ledger.read_consistent() as connection:
        claim = promotions.read(connection).claim
    promotion_claims.end(lake.ledger, lake.witness, "a person has chosen another site", of=claim)


# --- the epoch of a table (docs/adr/0089) ----------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["follow.after_take", "cut.after_epoch", "cut.before_settle"])
def test_a_cut_that_another_process_has_carried_out_keeps_nobody_from_publishing(sites: Sites, point: str) -> None:
    _, new, other = sites
    cut_off(sites)
    with open_lake(other.config.home) as second:

        def carry_out() -> None:
            outlive_lease(other)
            follow(second)

        crash_at(other, "record.after_commit", lambda: follow(other))
        zombie = restarted(other)
        with stands_still(point, carry_out):
            assert zombie.tick().failed == []
        table, ledger = epochs(other)
        assert table <= ledger
        new.append("events", frame(new, 103, 3), batch_id="m")
        follow(other)
        assert_same(new, other)
        assert numbers(other) == [*range(1, 11), *range(FIRST + 1, FIRST + 7)]


def test_a_promotion_that_another_process_has_finished_keeps_nobody_from_publishing(sites: Sites) -> None:
    """It stands still before it raises the epoch for a purge that it gives up, or for a cut."""
    _, _, other = sites
    cut_off(sites)
    crash_at(other, "record.after_commit", lambda: follow(other))
    other.ledger.change(ledger_sites.take_number, 2)
    with open_lake(other.config.home) as second:
        raise_epoch, stood = carrying_out.raise_epoch, []

        def slowly(*args: object, **more: object) -> int:
            if not stood:
                stood.append(True)
                take_over(second, 18)
            return raise_epoch(*args, **more)  # type: ignore[arg-type]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(carrying_out, "raise_epoch", slowly)
            with pytest.raises(WatermarkMoved):
                other.replication.promotion.run(leader_is_stopped=True)
        assert stood
        table, ledger = epochs(other)
        assert table <= ledger
        other.append("events", frame(other, 200, 3), batch_id="o")
        assert len(numbers(other)) == 13


@pytest.mark.parametrize("point", ["cut.after_epoch", "promote.after_cuts"])
def test_a_promotion_that_died_and_was_ended_leaves_no_table_that_nobody_can_publish_to(
    sites: Sites, point: str
) -> None:
    """It does not wait for items below its cuts. The site follows on, and the items that the cut keeps come."""
    old, new, other = sites
    old.append("events", frame(old, 10, 5), batch_id="b")
    follow(new)
    old.append("events", frame(old, 15, 5), batch_id="c")
    crash_at(other, "record.after_commit", lambda: follow(other))
    take_over(new, 17)
    new.append("events", frame(new, 100, 3), batch_id="n")
    follow_another(other, new)
    crash_at(other, "record.after_commit", lambda: follow(other))
    other.ledger.change(ledger_sites.take_number, 2)
    crash_at(other, point, lambda: other.replication.promotion.run(leader_is_stopped=True))
    table, ledger = epochs(other)
    assert table > ledger
    end_promotion(other)
    outlive_lease(other)
    restarted(other)
    follow(other)
    assert_same(new, other)
    assert numbers(other) == [*range(1, 16), *range(FIRST + 1, FIRST + 4)]
    assert "follow.epoch_found" in audit_events(other)
    table, ledger = epochs(other)
    assert table <= ledger


def test_a_purge_goes_on_after_a_promotion_that_was_about_to_give_it_up(sites: Sites) -> None:
    old, new, _ = sites
    old.maintenance.purge("events", "id IN (1, 4)")
    crash_at(new, "record.after_commit", lambda: follow(new))
    new.ledger.change(ledger_sites.take_number, 1)
    crash_at(new, "cut.after_epoch", lambda: new.replication.promotion.run(leader_is_stopped=True))
    end_promotion(new)
    restarted(new)
    follow(new)
    assert_same(old, new)
    assert len(numbers(new)) == 8


# --- what a leader says outside of its items (docs/adr/0071, rule 36) ------------------------------------------------


@pytest.mark.parametrize("point", ["follow.before_drop", "follow.after_table", "follow.before_alter"])
def test_a_site_that_leads_by_now_changes_nothing_that_its_old_leader_said(sites: Sites, point: str) -> None:
    """The old leader dropped the dataset, made another one, or dropped a column. Then this site took rows."""
    old, new, _ = sites
    match point:
        case "follow.before_drop":
            old.drop_dataset("events")
        case "follow.after_table":
            old.create_dataset("more", parse_columns(COLUMNS))
        case _:
            old.alter_dataset("events", [DropColumn("text")])
            old.append("events", old.spark.range(10, 12), batch_id="b")
    with open_lake(new.config.home) as second:

        def lead() -> None:
            take_over(second, 17)
            second.append("events", frame(second, 100, 3), batch_id="n")

        zombie = restarted(new)
        with stands_still(point, lead), suppress(RefusedError):
            assert zombie.tick().failed != []
    assert [d.name for d in new.datasets()] == ["default.events"]
    assert new.ledger.query(following.list_followed) == []
    found = new.spark.table("lake.default.events").select("id", "text").collect()
    assert sorted(tuple(r) for r in found) == [(n, f"row {n}") for n in [*range(10), *range(100, 103)]]
