"""The reconciler's record, on both databases: the lease, runs, files that were set aside, batches of entries."""

from __future__ import annotations

from datetime import timedelta

import pytest
import sqlalchemy as sa

from strandline.core.delivery_types import SinkId
from strandline.core.errors import UsageError
from strandline.core.records.reconcile_records import (
    AbortReason,
    Asked,
    Counts,
    Done,
    FindingKind,
    ReconcileRunId,
    StorageKind,
    SweepOutcome,
    SweptState,
)
from strandline.core.types import Seq, SeqRange
from strandline.ledger import audit
from strandline.ledger.deliver import lanes, losses, sinks
from strandline.ledger.deliver.lanes import SinkWatermark
from strandline.ledger.engine import utc_now
from strandline.ledger.reconcile import dropped_entries, quarantined_files, reconcile_runs
from strandline.ledger.reconcile.dropped_entries import GoneRows, NewBatch, SinkLoss, losses_above_watermarks
from strandline.ledger.reconcile.quarantined_files import NewSwept
from strandline.ledger.schema.core import partition_hash
from tests.ledger.conftest import LakeState

ASKED = Asked(act=True)


def new_run(lake: LakeState) -> ReconcileRunId:
    lease = reconcile_runs.take_lease(lake.ledger, seconds=60)
    assert lease is not None
    with lake.ledger.write() as connection:
        run = reconcile_runs.start(connection, ASKED, StorageKind.LOCAL)
    reconcile_runs.leases.release(lake.ledger, lease)
    return run


def ended_run(lake: LakeState, **outcome: object) -> ReconcileRunId:
    run = new_run(lake)
    with lake.ledger.write() as connection:
        assert reconcile_runs.complete(connection, run, SweepOutcome(**outcome))  # type: ignore[arg-type]
    return run


def swept(lake: LakeState, run: ReconcileRunId, count: int = 2) -> list[quarantined_files.Swept]:
    new = [NewSwept(FindingKind.ORPHAN, "t", f"/w/{run}-{n}", f"/q/{run}/{n}", n, None) for n in range(count)]
    with lake.ledger.write() as connection:
        return quarantined_files.begin(connection, run, new)


# ---- the lease -------------------------------------------------------------------------------------------------------


def test_one_holder_at_a_time_and_the_fence_rises_with_each(lake: LakeState) -> None:
    def fence() -> int:
        with lake.ledger.read() as connection:
            return int(connection.exec_driver_sql("SELECT fence FROM sweep_lease").scalar_one())

    first = reconcile_runs.take_lease(lake.ledger, seconds=60)
    before = fence()
    assert first is not None and reconcile_runs.take_lease(lake.ledger, seconds=60) is None
    assert reconcile_runs.leases.renew(lake.ledger, first, seconds=60)
    assert reconcile_runs.leases.release(lake.ledger, first) and not reconcile_runs.leases.release(lake.ledger, first)
    second = reconcile_runs.take_lease(lake.ledger, seconds=60)
    assert second is not None and second.token != first.token and fence() == before + 1


def test_a_lease_that_ran_out_is_taken_over_and_its_holder_is_fenced(lake: LakeState) -> None:
    first = reconcile_runs.take_lease(lake.ledger, seconds=-1)
    assert first is not None
    with lake.ledger.write() as connection:
        assert reconcile_runs.leases.holds(connection, first)  # nobody took it over yet
    second = reconcile_runs.take_lease(lake.ledger, seconds=60)
    assert second is not None
    with lake.ledger.write() as connection:
        assert not reconcile_runs.leases.holds(connection, first) and reconcile_runs.leases.holds(connection, second)
    assert not reconcile_runs.leases.renew(lake.ledger, first, seconds=60)
    assert not reconcile_runs.leases.release(lake.ledger, first)


def test_the_fence_never_goes_back(lake: LakeState) -> None:
    reconcile_runs.take_lease(lake.ledger, seconds=60)
    with pytest.raises(sa.exc.IntegrityError), lake.ledger.write() as connection:
        connection.exec_driver_sql("UPDATE sweep_lease SET fence = 0")


# ---- runs ------------------------------------------------------------------------------------------------------------


def test_a_run_is_read_back_as_it_was_written(lake: LakeState) -> None:
    run = new_run(lake)
    outcome = SweepOutcome(
        True, True, 7, 8, Counts(1, 2, 3, 4), Counts(1, 1, 1, 1), Done(1, 2, 3, 4, 5, 6, 7),
        {"young": 3}, {"uuid": 9}, ("a: no",), ({"kind": "orphan", "path": "/naïve\n"},), {"list": 0.5},
    )  # fmt: skip
    with lake.ledger.write() as connection:
        assert reconcile_runs.abort(connection, run, outcome, AbortReason.GUARD, "too many")
    with lake.ledger.read() as connection:
        found = reconcile_runs.get(connection, run)
        assert found.outcome == outcome and found.asked == ASKED
        assert (found.aborted, found.why) == (AbortReason.GUARD, "too many")
        assert reconcile_runs.contents_before(connection) == {"uuid": 9}
        with pytest.raises(UsageError):
            reconcile_runs.get(connection, run + 1)


def test_a_run_that_ended_does_not_change_and_only_one_is_under_way(lake: LakeState) -> None:
    run = ended_run(lake)
    with lake.ledger.write() as connection:
        assert not reconcile_runs.complete(connection, run, SweepOutcome())
        assert not reconcile_runs.abort(connection, run, SweepOutcome(), AbortReason.UNKNOWN, "late")
    with pytest.raises(sa.exc.IntegrityError), lake.ledger.write() as connection:
        connection.exec_driver_sql("UPDATE reconcile_run SET why = 'other'")
    new_run(lake)
    with pytest.raises(sa.exc.IntegrityError):
        new_run(lake)


@pytest.mark.parametrize("how", ["released", "run out", "taken over"])
def test_a_run_without_the_lease_is_told_as_died_before_the_next_one_begins(lake: LakeState, how: str) -> None:
    lease = reconcile_runs.take_lease(lake.ledger, seconds=60)
    assert lease is not None

    def told() -> list[AbortReason | None]:
        with lake.ledger.read() as connection:
            listed = reconcile_runs.latest(connection, runs_max=1)
            assert reconcile_runs.get(connection, run).aborted is listed[0].aborted
        assert (listed[0].ended_at is None) == (listed[0].aborted is None)
        return [one.aborted for one in listed]

    with lake.ledger.write() as connection:
        run = reconcile_runs.start(connection, ASKED, StorageKind.LOCAL)
    assert told() == [None]
    match how:
        case "released":
            reconcile_runs.leases.release(lake.ledger, lease)
        case "run out":
            reconcile_runs.leases.renew(lake.ledger, lease, seconds=-1)
        case _:
            reconcile_runs.leases.seize(lake.ledger, lease.row, seconds=60)
    assert told() == [AbortReason.DIED]
    if how == "run out":
        assert reconcile_runs.leases.renew(lake.ledger, lease, seconds=60) and told() == [None], "it lives after all"


def test_only_a_run_that_was_taken_for_dead_may_say_that_it_lost_its_lease(lake: LakeState) -> None:
    dead, own = new_run(lake), SweepOutcome(done=Done(orphans=7))
    with lake.ledger.write() as connection:
        assert not reconcile_runs.record_late_end(connection, dead, own), "it is under way"
        assert reconcile_runs.close_dead(connection, dead, SweepOutcome())
        assert reconcile_runs.get(connection, dead).aborted is AbortReason.DIED
        assert reconcile_runs.record_late_end(connection, dead, own)
        assert not reconcile_runs.record_late_end(connection, dead, own), "once"
        found = reconcile_runs.get(connection, dead)
        assert (found.aborted, found.outcome) == (AbortReason.LEASE_LOST, own)
        told = [e.detail["reason"] for e in audit.latest(connection) if e.event == "reconcile.run_aborted"]
        assert told == ["lease_lost", "died"]
    completed = ended_run(lake)
    with lake.ledger.write() as connection:
        assert not reconcile_runs.record_late_end(connection, completed, own)


def test_what_a_run_did_that_ended_early_may_be_corrected_but_not_why_it_ended(lake: LakeState) -> None:
    failed = new_run(lake)
    with lake.ledger.write() as connection:
        reconcile_runs.abort(connection, failed, SweepOutcome(listed=3), AbortReason.COMMIT_FAILED, "no answer")
    completed = ended_run(lake)
    with lake.ledger.write() as connection:
        assert reconcile_runs.correct(connection, failed, Done(missing=2))
        assert not reconcile_runs.correct(connection, completed, Done(missing=2))
        found = reconcile_runs.get(connection, failed)
        assert found.outcome == SweepOutcome(listed=3, done=Done(missing=2)) and found.why == "no answer"
    for change in ("reason = 'lease_lost'", "state = 'completed', reason = NULL", "state = 'running', ended_at = NULL"):
        with pytest.raises(sa.exc.IntegrityError), lake.ledger.write() as connection:
            connection.exec_driver_sql(f"UPDATE reconcile_run SET {change} WHERE id = {failed}")


def test_old_runs_are_forgotten_but_not_those_that_hold_files(lake: LakeState) -> None:
    holding = ended_run(lake)
    files = swept(lake, holding)
    with lake.ledger.write() as connection:
        quarantined_files.move(connection, files, SweptState.HELD)
    others = [ended_run(lake) for _ in range(5)]
    with lake.ledger.write() as connection:
        assert reconcile_runs.forget_old(connection, runs_max=2) == 3
    with lake.ledger.read() as connection:
        assert [r.id for r in reconcile_runs.latest(connection, runs_max=9)] == [others[4], others[3], holding]
        assert reconcile_runs.get(connection, holding).held == 2
    with pytest.raises(sa.exc.IntegrityError), lake.ledger.write() as connection:
        connection.exec_driver_sql(f"DELETE FROM swept_file WHERE run_id = {holding}")


def test_a_run_is_not_forgotten_before_its_batches_of_entries_are_settled(lake: LakeState) -> None:
    run = new_run(lake)
    with lake.ledger.write() as connection:
        batch = dropped_entries.begin(connection, run, NewBatch("t", "ns.t", 1, ["/a"]))
        reconcile_runs.abort(connection, run, SweepOutcome(), AbortReason.COMMIT_FAILED, "no answer")
    ended_run(lake)
    with lake.ledger.write() as connection:
        assert reconcile_runs.forget_old(connection, runs_max=1) == 0
        assert dropped_entries.end(connection, batch, None) and reconcile_runs.forget_old(connection, runs_max=1) == 1


# ---- files -----------------------------------------------------------------------------------------------------------


def test_a_thousand_files_are_begun_in_their_order(lake: LakeState) -> None:
    run = new_run(lake)
    files = swept(lake, run, 1_000)
    assert [f.size for f in files] == list(range(1_000)) and {f.state for f in files} == {SweptState.BEGUN}
    with lake.ledger.read() as connection:
        assert quarantined_files.in_state(connection, SweptState.BEGUN) == files
        assert quarantined_files.of_run(connection, run, [SweptState.BEGUN]) == files
        assert len(quarantined_files.of_paths(connection, [f.path for f in files])) == 1_000


def test_a_file_moves_only_from_the_state_that_it_was_read_in(lake: LakeState) -> None:
    (file,) = swept(lake, new_run(lake), 1)
    with lake.ledger.write() as connection:
        assert quarantined_files.move(connection, [file], SweptState.LEFT) == 1
        assert quarantined_files.move(connection, [file], SweptState.HELD) == 0


@pytest.mark.parametrize("state", ["begun", "held", "lost"])
def test_what_was_purged_stays_purged(lake: LakeState, state: str) -> None:
    (file,) = swept(lake, new_run(lake), 1)
    for step in ("held", "purging", "purged"):
        with lake.ledger.write() as connection:
            connection.exec_driver_sql(f"UPDATE swept_file SET state = '{step}' WHERE id = {file.id}")
    with pytest.raises(sa.exc.IntegrityError), lake.ledger.write() as connection:
        connection.exec_driver_sql(f"UPDATE swept_file SET state = '{state}'")


def test_the_path_of_a_file_never_changes(lake: LakeState) -> None:
    swept(lake, new_run(lake), 1)
    for column in ("path", "kept_at"):
        with pytest.raises(sa.exc.IntegrityError), lake.ledger.write() as connection:
            connection.exec_driver_sql(f"UPDATE swept_file SET {column} = '/elsewhere'")


# ---- entries ---------------------------------------------------------------------------------------------------------


def test_a_batch_that_was_taken_for_undone_may_turn_out_done_but_not_the_other_way(lake: LakeState) -> None:
    run = new_run(lake)
    with lake.ledger.write() as connection:
        batch = dropped_entries.begin(connection, run, NewBatch("t", "ns.t", 3, ["/a"]))
        assert dropped_entries.begun(connection) == [batch]
        assert dropped_entries.end(connection, batch, None)
        assert dropped_entries.begun(connection) == []
        assert dropped_entries.end(connection, batch, 3)
        assert not dropped_entries.end(connection, batch, None)
        assert [b.dropped for b in dropped_entries.of_run(connection, run)] == [3]


def span(lo: int, hi: int) -> SeqRange:
    return SeqRange(Seq(lo), Seq(hi))


def test_what_a_sink_loses_is_what_lies_above_its_mark() -> None:
    def lost(mark: int | None, *gone: tuple[int, int, int]) -> list[tuple[int, int, int]]:
        at = SinkWatermark(SinkId(1), "s", 2, None if mark is None else Seq(mark))
        found = losses_above_watermarks([at], [GoneRows(span(lo, hi), count) for lo, hi, count in gone])
        assert all((x.sink, x.name, x.generation) == (1, "s", 2) for x in found)
        return [(x.rows.lo, x.rows.hi, x.count) for x in found]

    assert lost(None, (1, 10, 10)) == [(1, 10, 10)]
    assert lost(10, (1, 10, 10)) == []
    assert lost(4, (1, 10, 10)) == [(5, 10, 6)]
    assert lost(4, (1, 10, 3)) == [(5, 10, 3)], "which of them it has got cannot be told: so many at most"
    assert lost(None, (1, 10, 10), (11, 20, 10), (31, 40, 4)) == [(1, 20, 20), (31, 40, 4)]
    assert lost(None, (1, 10, 5), (2, 9, 5)) == [(1, 10, 10)], "files whose rows interleave"
    assert lost(None) == []


def test_a_batch_that_landed_says_what_is_gone_and_what_each_sink_will_not_get_and_says_it_once(
    lake: LakeState,
) -> None:
    run = new_run(lake)
    with lake.ledger.write() as connection:
        sink = sinks.add(
            connection, instance="s", name="s", kind="files", dataset=lake.dataset.id, options={}, destination="s",
            start=None,
        )  # fmt: skip
        lost = [SinkLoss(sink.id, "s", 1, span(1, 3), 3), SinkLoss(sink.id, "s", 1, span(8, 9), 2)]
        new = NewBatch("t", lake.dataset.name, 2, ["/a"], [GoneRows(span(1, 3), 3), GoneRows(span(7, 9), 3)], lost)
        batch = dropped_entries.begin(connection, run, new)
        assert losses.of_sink(connection, sink) == [] and losses.purged(connection, lake.dataset.id) == []
        assert dropped_entries.end(connection, batch, None)
        assert losses.of_sink(connection, sink) == [], "it did not land"
        (known,) = dropped_entries.of_run(connection, run)
        assert dropped_entries.end(connection, known, 2), "it did, after all"
        assert not dropped_entries.end(connection, known, 2)
        assert losses.purged(connection, lake.dataset.id) == [span(1, 3), span(7, 9)]
        assert sum(x.rows or 0 for x in losses.of_sink(connection, sink)) == 5
        assert [(x.after, x.until) for x in losses.of_sink(connection, sink)] == [(None, 3), (7, 9)]
        told = [e for e in audit.latest(connection) if e.event == "sink.rows_lost"]
        assert len(told) == 1


# ---- what sinks hold -------------------------------------------------------------------------------------------------


def test_what_a_sink_certainly_holds_is_the_lowest_of_its_lanes(lake: LakeState) -> None:
    def add(name: str, start: int | None) -> int:
        with lake.ledger.write() as connection:
            return sinks.add(
                connection, instance=name, name=name, kind="files", dataset=lake.dataset.id, options={},
                destination=name, start=None if start is None else Seq(start),
            ).id  # fmt: skip

    def lane(sink: int, partition: str, mark: int | None, generation: int = 1) -> None:
        with lake.ledger.write() as connection:
            connection.exec_driver_sql(
                "INSERT INTO lane (sink_id, generation, partition, partition_hash, continuation, mark, exported, "
                f"withheld, version, updated_at) VALUES ({sink}, {generation}, '{partition}', "
                f"'{partition_hash(partition)}', '', {'NULL' if mark is None else mark}, 0, 0, 1, 0)"
            )

    add("from-now", 40)
    add("new", None)
    ahead = add("ahead", None)
    with lake.ledger.write() as connection:
        connection.exec_driver_sql(f"UPDATE sink SET planned = 30 WHERE id = {ahead}")
    for partition, mark in (("a", 30), ("b", 20)):
        lane(ahead, partition, mark)
    stuck = add("stuck", None)
    with lake.ledger.write() as connection:
        connection.exec_driver_sql(f"UPDATE sink SET planned = 30 WHERE id = {stuck}")
    lane(stuck, "a", None)
    lane(stuck, "b", 30)
    with lake.ledger.read() as connection:
        assert lanes.watermarks_by_title(connection, lake.dataset.id) == {
            "from-now": 40, "new": None, "ahead": 20, "stuck": None,
        }  # fmt: skip


# ---- pages -----------------------------------------------------------------------------------------------------------


def test_runs_and_files_in_quarantine_of_several_pages_come_once(lake: LakeState) -> None:
    made = [ended_run(lake) for _ in range(5)]
    files = [file for run in made[:2] for file in swept(lake, run, 3)]
    with lake.ledger.write() as connection:
        assert quarantined_files.page(connection, run=None, after=None, files_max=9) == [], "none has moved yet"
        quarantined_files.move(connection, files, SweptState.HELD)
        runs: list[int] = []
        before = None
        while page := reconcile_runs.latest(connection, runs_max=2, before=before):
            runs += [run.id for run in page]
            before = page[-1].id
        held: list[int] = []
        after = None
        while some := quarantined_files.page(connection, run=None, after=after, files_max=4):
            held += [file.id for file in some]
            after = some[-1].id
        of_one = quarantined_files.page(connection, run=made[1], after=None, files_max=9)
    assert (runs, held) == (made[::-1], [file.id for file in files])
    assert [file.id for file in of_one] == [file.id for file in files[3:]]


def test_the_lease_is_held_until_it_is_released_or_runs_out(lake: LakeState) -> None:
    now = utc_now()
    with lake.ledger.read() as connection:
        assert not reconcile_runs.is_lease_held(connection, now)
    lease = reconcile_runs.take_lease(lake.ledger, seconds=60)
    assert lease is not None
    with lake.ledger.read() as connection:
        assert reconcile_runs.is_lease_held(connection, now)
        assert not reconcile_runs.is_lease_held(connection, now + timedelta(hours=1))
    reconcile_runs.leases.release(lake.ledger, lease)
    with lake.ledger.read() as connection:
        assert not reconcile_runs.is_lease_held(connection, now)
