"""A site that is promoted by force: it is no member, or has not recorded the last take-over. What it lacks is given up
and named; the seal of no site moves back; and who has gone past rows that are here again is told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from strandline import Lake
from strandline.core.errors import FailedError, RefusedError, TokenError
from strandline.core.sites.terms import numbers_of
from strandline.lake_admin import rejoin_lake
from strandline.ledger.replicate import cuts
from strandline.ledger.replicate.promotions import Lack
from tests.conftest import MakeHome
from tests.spark.followed import assert_same, follow, restarted, table
from tests.spark.protocol import crash_at, frame
from tests.spark.test_promote import Sites, made, update_members


@pytest.fixture
def judged(tmp_path: Path, make_home: MakeHome) -> Iterator[Sites]:
    with ExitStack() as stack:
        yield made(tmp_path, make_home, arbiter=True, stack=stack, followers=2)


def rejoin(leader: Lake, lake: Lake, folder: Path) -> None:
    name = lake.config.home.name
    (folder / f"again-{name}").write_text(leader.followers.add(name)[1])
    rejoin_lake(lake.config, str(leader.config.home), token=f"file:{folder / f'again-{name}'}")
    restarted(lake)


def test_by_force_a_site_that_is_no_member_leads_and_who_has_more_sets_it_aside(judged: Sites, tmp_path: Path) -> None:
    leader, [lake, ahead] = judged.leader, judged.followers
    leader.append("events", frame(leader, 0, 5), batch_id="both")
    follow(lake)
    leader.append("events", frame(leader, 5, 5), batch_id="not here")
    follow(ahead)
    with pytest.raises(RefusedError, match="not a member"):
        judged.promote(lake)
    seal = ahead.sealed("events")
    crash_at(lake, "promote.after_begin", lambda: judged.promote(lake, force=True))
    done = judged.promote(lake)  # it was confirmed before
    assert done.term == 17 and done.led is not None
    above = done.led.cuts[0][1].cut.above
    assert done.led.lacks == (Lack("default.events", above, above, ()),), "it was told of nothing that it lacks"
    lake.append("events", frame(lake, 20, 3), batch_id="mine")
    for other in (ahead, leader):
        rejoin(lake, other, tmp_path)
        follow(other)
        assert_same(lake, other)
        now = other.sealed("events")
        assert now is not None and seal is not None and now > seal
        [aside] = other.ledger.query(cuts.list_cut_folders)
        assert aside.rows == 5


def test_by_force_a_site_leads_that_has_not_recorded_the_last_take_over(judged: Sites, tmp_path: Path) -> None:
    """The leader of term 17 gave up rows that are here, and consumers have gone past them."""
    first, [between, lake] = judged.leader, judged.followers
    first.append("events", frame(first, 0, 5), batch_id="all")
    out = tmp_path / "out"
    first.delivery.add("archive", "events", "files", {"path": str(out), "format": "jsonl"})
    follow(between)
    follow(lake)
    assert update_members(first) == frozenset({1, 2})
    first.append("events", frame(first, 5, 5), batch_id="given up by term 17")
    follow(lake)
    assert judged.promote(between).term == 17
    between.append("events", frame(between, 10, 5), batch_id="of term 17")
    between.tick()
    token = between.read_since("events").continuation
    assert token is not None
    with pytest.raises(RefusedError, match="not a member"):
        judged.promote(lake)
    done = judged.promote(lake, force=True)
    assert done.term == 18 and len(table(lake)) == 10
    assert done.led is not None and done.led.cuts[0][1].cut.leaves_out(17)
    lake.append("events", frame(lake, 20, 5), batch_id="of term 18")
    before = lake.read_since("events", limit=5).continuation
    assert before is not None
    assert len(list(lake.read_since("events", before))) == 10
    with pytest.raises(TokenError, match="promoted by force"):
        lake.read_since("events", token)
    [stopped] = lake.tick().sinks
    assert stopped.did == "stopped" and "the leader of term 17 delivered" in (stopped.reason or ""), stopped
    rejoin(lake, between, tmp_path)
    seal = between.sealed("events")
    with pytest.raises(FailedError, match="does not know the leader of term 17"):
        follow(between)
    assert between.sealed("events") == seal and len(table(between)) == 10, "it stays as it is, and can be read"
    lake.delivery.reset("archive")
    [sent] = lake.tick().sinks
    assert (sent.did, sent.rows) == ("delivered", 15), "everything that is here, in a generation of its own"
    rejoin(lake, first, tmp_path)  # it has no cut that the leader lacks
    follow(first)
    assert_same(lake, first)
    assert (first.sealed("events") or 0) > numbers_of(18).lo
