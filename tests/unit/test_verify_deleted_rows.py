"""Rows that retention or a purge took from the lake: proved by what the ledger recorded, or said to be unprovable; and
whatever else is wrong is still found."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from strandline.core.delivery_types import SinkId
from strandline.core.types import Seq, SeqRange
from strandline.deliver.sink import Inspected
from strandline.deliver.verify.compare import LakeRows, LakeSide, LaneProof, prove
from strandline.deliver.verify.ranges import Fault, LaneRanges, lay_out
from strandline.deliver.verify.undelivered import forgotten, passed_over
from strandline.ledger.deliver.losses import Reason, RecordedLoss
from tests.unit.test_verify_compare import empty, held, intent, landed, lane, name, planned, rows, seen_as_recorded

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def layout(*chunks: object, mark: int, there: tuple[SeqRange, ...], lost: tuple[SeqRange, ...] = ()) -> LaneRanges:
    promised = intent(None, mark, *chunks)  # type: ignore[arg-type]
    return lay_out("s", lane(mark), None, [promised], held(*there), name, lost=lost)


def proof(
    laid: LaneRanges, lake: dict[SeqRange, int], *, floor: int = 0, purged: tuple[SeqRange, ...] = ()
) -> LaneProof:
    found = {r: LakeRows(n, 0, f"sha256:{r.lo}" if n == len(r) else "sha256:fewer") for r, n in lake.items()}
    return prove(laid, seen_as_recorded(laid), LakeSide(found, False, False, floor, purged))


def kinds(of: LaneProof) -> list[Fault]:
    return [f.kind for f in of.findings]


A, B = rows(1, 10), rows(11, 20)


def delivered() -> LaneRanges:
    return layout(landed(1, 10), landed(11, 20), mark=20, there=(A, B))


def test_rows_below_the_floor_are_proved_by_what_the_ledger_recorded() -> None:
    done = proof(delivered(), {A: 0, B: 4}, floor=15)
    assert (kinds(done), done.rows, done.gone, done.unprovable) == ([], 20, 16, 0)
    assert kinds(proof(delivered(), {A: 0, B: 10}, floor=0)) == [Fault.COUNT], "nothing explains it"
    assert kinds(proof(delivered(), {A: 0, B: 4}, floor=10)) == [Fault.COUNT], "not those above it"


def test_rows_between_purged_numbers_are_proved_the_same_way() -> None:
    done = proof(delivered(), {A: 10, B: 9}, purged=(rows(13, 13),))
    assert (kinds(done), done.gone) == ([], 1)
    assert kinds(proof(delivered(), {A: 9, B: 9}, purged=(rows(13, 13),))) == [Fault.COUNT]


def test_a_sink_that_differs_from_the_record_is_found_though_the_lake_cannot_tell() -> None:
    laid = delivered()
    seen = seen_as_recorded(laid)
    seen[A] = replace(seen[A], digest="sha256:other")
    done = prove(laid, seen, LakeSide({A: LakeRows(0, 0, None), B: LakeRows(10, 0, "sha256:11")}, False, False, 10))
    assert kinds(done) == [Fault.DIGEST]
    lacking = layout(landed(1, 10), landed(11, 20), mark=20, there=(B,))
    assert kinds(proof(lacking, {A: 0, B: 10}, floor=10)) == [Fault.MISSING]


def test_more_rows_in_the_lake_than_were_delivered_are_a_fault_below_the_floor_too() -> None:
    laid = layout(landed(1, 10, count=6), landed(11, 20), mark=20, there=(A, B))
    assert Fault.COUNT in kinds(proof(laid, {A: 8, B: 10}, floor=10))


def test_what_was_never_recorded_and_is_gone_is_said_to_be_unprovable_and_is_no_fault() -> None:
    unrecorded = replace(landed(1, 10), count=None, digest=None, found=True)
    laid = layout(unrecorded, landed(11, 20), mark=20, there=(A, B))
    seen = {r: Inspected(10, f"sha256:{r.lo}", None) for r in (A, B)}
    side = LakeSide({A: LakeRows(3, 0, "sha256:fewer"), B: LakeRows(10, 0, "sha256:11")}, False, False, 10)
    done = prove(laid, seen, side)
    assert (kinds(done), done.unprovable) == ([Fault.UNPROVABLE], 1)
    assert not done.findings[0].is_fault


def test_withheld_rows_that_are_gone_are_no_difference() -> None:
    laid = layout(empty(1, 10, withheld=10), landed(11, 20), mark=20, there=(B,))
    assert kinds(proof(laid, {A: 0, B: 10}, floor=10)) == []
    again = layout(empty(1, 10, withheld=10), landed(11, 20), mark=20, there=(B,))
    assert kinds(proof(again, {A: 0, B: 10})) == [Fault.COUNT]


def test_a_chunk_that_was_never_sent_is_a_gap_unless_it_is_counted_as_lost() -> None:
    assert Fault.GAP in [f.kind for f in layout(planned(1, 10), landed(11, 20), mark=20, there=(B,)).findings]
    told = layout(planned(1, 10), landed(11, 20), mark=20, there=(B,), lost=(A,))
    assert told.findings == [] and told.under_way == 0 and told.holes() == []
    assert Fault.GAP in [
        f.kind for f in layout(planned(1, 10), landed(11, 20), mark=20, there=(B,), lost=(rows(1, 9),)).findings
    ]


def loss(reason: Reason, until: int, partition: str = "", after: int | None = None) -> RecordedLoss:
    at = None if after is None else Seq(after)
    return RecordedLoss(partition, at, Seq(until), None, sink=SinkId(1), generation=1, reason=reason, at=NOW)


def test_only_where_a_mark_was_moved_nothing_was_sent() -> None:
    found = [loss(Reason.DROPPED, 5), loss(Reason.DELETED, 9), loss(Reason.PURGED, 9), loss(Reason.DROPPED, 9, "k=a")]
    assert passed_over(found, "") == [rows(1, 5)] and passed_over(found, "k=a") == [rows(1, 9)]


def test_what_a_restored_ledger_forgot_is_said_unless_as_many_rows_are_there_as_came_in() -> None:
    def found(until: int, published: int | None, reason: Reason = Reason.FORGOTTEN) -> list[Fault]:
        lost = loss(reason, until)
        return [f.kind for f in forgotten("s", [lost], [delivered()], {lost.range: published})]

    assert found(20, 20) == [] and found(10, 10) == []
    assert found(20, 21) == [Fault.UNPROVABLE]
    assert found(15, 15) == [Fault.UNPROVABLE], "a range that goes beyond may be empty below"
    assert found(20, None) == [Fault.UNPROVABLE]
    assert found(20, 99, Reason.DROPPED) == []
