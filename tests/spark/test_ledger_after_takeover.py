"""A site whose witness or ledger is made anew when the lake was taken over: it leads or follows as before, and nobody
who follows it misses what the take-over cut out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import strandline
from strandline import Lake
from strandline.core.errors import RefusedError
from strandline.core.sites.replication import SiteRole
from strandline.core.sites.terms import numbers_of
from strandline.core.types import BlockKind
from strandline.lake_admin import rebuild_ledger
from strandline.ledger.replicate import cuts
from tests.conftest import MakeHome
from tests.spark.followed import (
    Sites,
    assert_same,
    follow,
    follow_another,
    new_follower,
    restarted,
    three_sites,
)
from tests.spark.protocol import every_block, frame

TERM = 17


@pytest.fixture
def sites(tmp_path: Path, make_home: MakeHome) -> Iterator[Sites]:
    with three_sites(tmp_path, make_home, is_added=True) as made:
        yield made


def promote(lake: Lake) -> None:
    restarted(lake)
    assert lake.replication.promotion.run(leader_is_stopped=True).term == TERM


def lose_witness(lake: Lake) -> None:
    folder = lake.config.warehouse_folder
    assert folder is not None
    (folder / "_strandline" / "witness").unlink()


def test_a_witness_that_is_made_again_says_who_follows_and_who_leads(sites: Sites) -> None:
    old, new, other = sites
    lose_witness(other)
    rebuild_ledger(other.config, lost_witness=True)
    mark = other.witness.read()
    assert (mark.role, mark.term) == (SiteRole.FOLLOWER, 1)
    with pytest.raises(RefusedError, match="follows another one"):
        rebuild_ledger(other.config, force=True)
    old.append("events", frame(old, 10, 5), batch_id="b")
    restarted(other)
    follow(other)
    assert_same(old, other)
    follow(new)
    promote(new)
    lose_witness(new)
    rebuild_ledger(new.config, lost_witness=True)
    mark = new.witness.read()
    assert (mark.role, mark.term) == (SiteRole.LEADER, TERM)
    with strandline.open(new.config.home) as again:
        done = again.append("events", frame(again, 100, 3), batch_id="c")
        assert done.rows is not None and done.rows.lo in numbers_of(TERM)
        follow_another(other, again)
        follow(other)
        assert_same(again, other)


def test_a_promoted_leader_whose_ledger_is_made_anew_still_tells_what_its_take_over_left(
    sites: Sites, tmp_path: Path, make_home: MakeHome
) -> None:
    old, new, other = sites
    old.append("events", frame(old, 10, 5), batch_id="b")
    follow(other)
    promote(new)
    new.append("events", frame(new, 100, 3), batch_id="n")
    with new_follower(tmp_path, make_home, new, "third") as third:
        follow(third)  # somebody has asked: the cut stands on the table from here on
        rebuild_ledger(new.config, force=True)
        with strandline.open(new.config.home) as again:
            assert again.replication.site.term == TERM
            first = numbers_of(TERM).lo
            recovered = [b.head.rows for b in every_block(again) if b.head.kind is BlockKind.RECOVERED]
            assert [(r.lo, r.hi > first) for r in recovered] == [(1, False), (first + 1, True)]
            assert again.append("events", frame(again, 100, 3), batch_id="n").duplicate
            follow_another(other, again)
            follow(other)
            assert [s.rows for s in other.ledger.query(cuts.list_cut_folders)] == [5], "the new leader never had them"
            restarted(third)
            follow(third)
            for site in (other, third):
                assert_same(again, site)
