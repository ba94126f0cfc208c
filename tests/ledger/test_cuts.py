"""What a cut does in the ledger, on both: recorded it settles nothing, and one transaction carries it out."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sqlalchemy as sa

from strandline.core import failpoints
from strandline.core.errors import BlockLost, ResyncNeeded, TermPassed, WatermarkMoved
from strandline.core.records.audit_events import Event
from strandline.core.sites.takeover_cuts import NumberedCut
from strandline.core.types import Abandoned, BlockId, Reserved, Seq, SeqRange, SnapshotId, Staged
from strandline.ledger import audit
from strandline.ledger.ingest import blocks, sequence
from strandline.ledger.replicate import cuts, following, sites
from tests.ledger.conftest import LakeState
from tests.ledger.test_following import apply, cut, follower, offer, purge, record, segment, sharded, take

__all__ = ["follower"]

CUT = 17 * 2**40


def term(lake: LakeState) -> int:
    return next(f.term for f in lake.ledger.query(following.list_followed) if f.dataset.id == lake.dataset.id)


def sealed(lake: LakeState) -> int | None:
    return lake.ledger.query(blocks.sealed, lake.dataset.id)


def open_cut(lake: LakeState, n: int = 0) -> cuts.OpenCut:
    return lake.ledger.query(cuts.open_cuts, lake.dataset.id)[n]


def settle(lake: LakeState, held: Reserved, at: NumberedCut, *, epoch: int | None = None) -> bool:
    now = lake.ledger.query(sequence.read).epoch
    return cuts.settle(
        lake.ledger, lake.witness, lake.dataset, held, at, epoch=now + 1 if epoch is None else epoch
    )  # fmt: skip


def carry_out(lake: LakeState) -> None:
    found = open_cut(lake)
    assert settle(lake, take(lake, found.at.number), found.at)


def states(lake: LakeState) -> dict[int, str]:
    with lake.ledger.read() as connection:
        found = [blocks.of_number(connection, lake.dataset.id, n) for n in (1, 11, 21, 31, CUT, CUT + 5)]
        gone = [blocks.get(connection, BlockId(n)) for n in range(1, 9)]
    here = {int(b.head.rows.lo): type(b).__name__ for b in found if b is not None}
    return here | {int(b.head.rows.lo): f"Abandoned {b.reason}" for b in gone if isinstance(b, Abandoned)}


@pytest.fixture
def cut_off(follower: LakeState) -> LakeState:
    """1..10 is sealed, 11..20 published, 21..30 staged, 31..40 recorded; the new leader had 1..10 and 11..20."""
    record(follower, offer(follower.dataset, 0, 40, *(segment(n, n + 9) for n in (1, 11, 21, 31))))
    apply(follower, 1)
    apply(follower, 11)
    assert blocks.mark_staged(follower.ledger, follower.witness, take(follower, 21), SnapshotId(7))
    return follower


def test_recording_a_cut_settles_nothing_and_moves_the_dataset_to_its_term(cut_off: LakeState) -> None:
    assert sealed(cut_off) == 20 and term(cut_off) == 1
    record(cut_off, offer(cut_off.dataset, 40, CUT, cut(CUT, 20), term=17))
    assert term(cut_off) == 17 and sealed(cut_off) == 20
    assert states(cut_off) == {1: "Published", 11: "Published", 21: "Staged", 31: "Reserved", CUT: "Reserved"}
    assert cut_off.ledger.query(sites.get).term == 1, "the other dataset has not got there"
    other = sharded(cut_off)
    record(cut_off, offer(other, 0, CUT + 1, cut(CUT + 1, 0), term=17))
    assert cut_off.ledger.query(sites.get).term == 17


def test_items_of_a_later_leader_that_lie_below_its_cut_are_recorded_in_the_term_before(cut_off: LakeState) -> None:
    record(cut_off, offer(cut_off.dataset, 40, 50, segment(41, 50), term=17))
    assert term(cut_off) == 1
    record(cut_off, offer(cut_off.dataset, 50, CUT, cut(CUT, 50), term=17))
    assert term(cut_off) == 17


def test_a_leader_whose_term_is_over_is_refused(cut_off: LakeState) -> None:
    record(cut_off, offer(cut_off.dataset, 40, CUT, cut(CUT, 20), term=17))
    before = cut_off.ledger.query(sequence.read)
    with pytest.raises(TermPassed, match=r"term 1.*term 17"):
        record(cut_off, offer(cut_off.dataset, CUT, CUT + 9, segment(CUT + 1, CUT + 9), term=1))
    assert cut_off.ledger.query(sequence.read) == before


def test_one_transaction_abandons_what_is_cut_out_and_the_seal_jumps_to_the_cut(cut_off: LakeState) -> None:
    record(cut_off, offer(cut_off.dataset, 40, CUT, cut(CUT, 10, (21, 30)), term=17))
    published = take(cut_off, 31)
    assert sealed(cut_off) == 20
    epoch = cut_off.ledger.query(sequence.read).epoch
    found = open_cut(cut_off)
    held = take(cut_off, CUT)
    staged = cut_off.ledger.query(blocks.of_number, cut_off.dataset.id, 21)
    assert isinstance(staged, Staged)
    assert blocks.mark_published(cut_off.ledger, staged, row_count=10, snapshot=SnapshotId(7))
    assert settle(cut_off, held, found.at)
    assert sealed(cut_off) == CUT
    out = f"Abandoned cut:{CUT}"
    assert states(cut_off) == {1: "Published", 11: out, 21: "Published", 31: out, CUT: "Published"}
    after = cut_off.ledger.query(sequence.read)
    assert after.epoch == epoch + 1 and cut_off.witness.read().highest == after.last
    assert not blocks.mark_staged(cut_off.ledger, cut_off.witness, published, SnapshotId(9))
    assert not settle(cut_off, held, found.at), "once is enough"


def test_who_applies_what_a_cut_cuts_out_cannot_commit_it(cut_off: LakeState) -> None:
    held = take(cut_off, 31)
    record(cut_off, offer(cut_off.dataset, 40, CUT, cut(CUT, 20), term=17))
    assert not blocks.mark_staged(cut_off.ledger, cut_off.witness, held, SnapshotId(9))
    assert sealed(cut_off) == 20


def test_what_a_cut_keeps_is_still_committed_by_whoever_has_it(cut_off: LakeState) -> None:
    held = take(cut_off, 31)
    record(cut_off, offer(cut_off.dataset, 40, CUT, cut(CUT, 20, (31, 40)), term=17))
    assert blocks.mark_staged(cut_off.ledger, cut_off.witness, held, SnapshotId(9))


def test_a_cut_keeps_other_cuts_and_two_are_settled_in_order(cut_off: LakeState) -> None:
    later = 33 * 2**40
    items = (cut(CUT, 20), segment(CUT + 5, CUT + 6), cut(later, 20, term=33))
    record(cut_off, offer(cut_off.dataset, 40, later, *items, term=33))
    assert term(cut_off) == 33
    assert [c.at.number for c in cut_off.ledger.query(cuts.open_cuts, cut_off.dataset.id)] == [CUT, later]
    carry_out(cut_off)
    assert sealed(cut_off) == CUT
    assert states(cut_off)[CUT + 5] == "Reserved"
    carry_out(cut_off)
    assert sealed(cut_off) == later
    assert states(cut_off)[CUT] == "Published" and states(cut_off)[CUT + 5] == f"Abandoned cut:{later}"


def test_a_purge_that_the_leader_has_not_is_abandoned_with_the_rest(cut_off: LakeState) -> None:
    record(cut_off, offer(cut_off.dataset, 40, CUT, purge(41, 1, 5), cut(CUT, 20), term=17))
    carry_out(cut_off)
    opened = cut_off.ledger.query(following.open_items)
    assert [i for i in opened if i.head.dataset == cut_off.dataset.id] == [] and sealed(cut_off) == CUT


def test_a_purge_that_the_leader_has_not_is_named_until_the_leader_has_purged_the_same(cut_off: LakeState) -> None:
    def given_up() -> list[tuple[int, list[tuple[int, int]]]]:
        found = cut_off.ledger.query(cuts.purges_given_up, [cut_off.dataset])
        return [(p.number, [(r.lo, r.hi) for r in p.ranges]) for p in found]

    record(cut_off, offer(cut_off.dataset, 40, CUT, purge(41, 1, 5), cut(CUT, 20), term=17))
    assert given_up() == []
    carry_out(cut_off)
    assert given_up() == [(41, [(1, 5)])]
    said = cut_off.ledger.query(audit.newest, Event.CUT_CARRIED_OUT)
    assert said is not None and said.detail["purges"] == [41]
    record(cut_off, offer(cut_off.dataset, CUT, CUT + 1, purge(CUT + 1, 1, 3), term=17))
    assert following.settle_without_rows(cut_off.ledger, cut_off.witness, take(cut_off, CUT + 1), row_count=0)
    assert given_up() == [(41, [(1, 5)])], "another purge, of fewer rows"
    same = replace(purge(CUT + 2, 4, 9), ranges=(SeqRange(Seq(4), Seq(4)), SeqRange(Seq(9), Seq(9))))
    record(cut_off, offer(cut_off.dataset, CUT + 1, CUT + 2, same, term=17))
    assert given_up() == [(41, [(1, 5)])], "not carried out here yet"
    assert following.settle_without_rows(cut_off.ledger, cut_off.witness, take(cut_off, CUT + 2), row_count=0)
    assert given_up() == [], "the new leader may not have had all of the rows"


def test_a_cut_whose_epoch_others_have_reached_is_not_settled(cut_off: LakeState) -> None:
    record(cut_off, offer(cut_off.dataset, 40, CUT, cut(CUT, 20), term=17))
    held, at = take(cut_off, CUT), open_cut(cut_off).at
    with pytest.raises(WatermarkMoved):
        settle(cut_off, held, at, epoch=cut_off.ledger.query(sequence.read).epoch)
    assert sealed(cut_off) == 20


def test_who_lost_a_cut_cannot_settle_it(cut_off: LakeState) -> None:
    record(cut_off, offer(cut_off.dataset, 40, CUT, cut(CUT, 20), term=17))
    held, at = take(cut_off, CUT), open_cut(cut_off).at
    assert following.release_item(cut_off.ledger, held)
    again = take(cut_off, CUT)
    with cut_off.ledger.read() as connection, pytest.raises(BlockLost):
        cuts.check_held(connection, held)
    with cut_off.ledger.read() as connection:
        cuts.check_held(connection, again)
    assert not settle(cut_off, held, at) and sealed(cut_off) == 20
    assert settle(cut_off, again, at)


@pytest.mark.parametrize("point", ["cut.before_settle", "cut.before_witness", "cut.after_witness", "cut.after_settle"])
def test_a_site_that_dies_when_it_settles_a_cut_has_settled_all_of_it_or_nothing(
    cut_off: LakeState, point: str
) -> None:
    record(cut_off, offer(cut_off.dataset, 40, CUT, cut(CUT, 20), term=17))
    held, at = take(cut_off, CUT), open_cut(cut_off).at
    failpoints.arm(f"{point}=fail")
    with pytest.raises(failpoints.FailpointError):
        settle(cut_off, held, at)
    failpoints.arm("")
    done = point == "cut.after_settle"
    assert sealed(cut_off) == (CUT if done else 20)
    if point == "cut.after_witness":
        with pytest.raises(ResyncNeeded):
            settle(cut_off, held, at)
    elif not done:
        assert settle(cut_off, held, at) and sealed(cut_off) == CUT


def test_the_ledger_refuses_to_abandon_a_cut_or_what_no_cut_cut_out(cut_off: LakeState) -> None:
    record(cut_off, offer(cut_off.dataset, 40, CUT, cut(CUT, 20), term=17))
    carry_out(cut_off)
    for lo, reason in ((CUT, "cut:99"), (1, "a mistake")):
        found = cut_off.ledger.query(blocks.of_number, cut_off.dataset.id, lo)
        assert found is not None
        values = {"state": "abandoned", "reason": reason, "row_count": None, "snapshot_id": None}
        with pytest.raises(sa.exc.IntegrityError, match="forward_only"):
            cut_off.ledger.change(blocks.change_block, found.head, "published", None, **values)


def test_what_was_set_aside_is_on_record(follower: LakeState) -> None:
    with follower.ledger.write() as connection:
        of = follower.dataset
        cuts.record_cut_folder(connection, of, number=Seq(CUT), place="/w/_strandline/cut/1", rows=4, files=1)
        cuts.record_cut_folder(connection, of, number=None, place="/w/_strandline/cut/2", rows=None, files=3)
    found = follower.ledger.query(cuts.list_cut_folders)
    assert [(f.dataset, f.number, f.rows, f.files) for f in found] == [
        (of.name, None, None, 3), (of.name, CUT, 4, 1),
    ]  # fmt: skip
