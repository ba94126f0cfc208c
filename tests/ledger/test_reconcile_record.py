"""The reconciler's record, on both databases: the lease, runs, files that were set aside, batches of entries."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from strandline.drift import AbortReason, Asked, Counts, Done, FindingKind, Outcome, RunId, StorageKind, SweptState
from strandline.errors import UsageError
from strandline.ledger import delivered, quarantined_files, reconcile_runs, sinks
from strandline.ledger.quarantined_files import NewSwept
from strandline.types import Seq
from tests.ledger.conftest import Bench

ASKED = Asked(act=True)


def new_run(bench: Bench) -> RunId:
    lease = reconcile_runs.take_lease(bench.ledger, seconds=60)
    assert lease is not None
    with bench.ledger.write() as connection:
        run = reconcile_runs.start(connection, lease, ASKED, StorageKind.LOCAL)
    reconcile_runs.release(bench.ledger, lease)
    return run


def ended_run(bench: Bench, **outcome: object) -> RunId:
    run = new_run(bench)
    with bench.ledger.write() as connection:
        assert reconcile_runs.complete(connection, run, Outcome(**outcome))  # type: ignore[arg-type]
    return run


def swept(bench: Bench, run: RunId, count: int = 2) -> list[quarantined_files.Swept]:
    new = [NewSwept(FindingKind.ORPHAN, "t", f"/w/{run}-{n}", f"/q/{run}/{n}", n, None) for n in range(count)]
    with bench.ledger.write() as connection:
        return quarantined_files.begin(connection, run, new)


# ---- the lease -------------------------------------------------------------------------------------------------------


def test_one_holder_at_a_time_and_the_fence_rises_with_each(bench: Bench) -> None:
    first = reconcile_runs.take_lease(bench.ledger, seconds=60)
    assert first is not None and reconcile_runs.take_lease(bench.ledger, seconds=60) is None
    assert reconcile_runs.renew(bench.ledger, first, seconds=60)
    assert reconcile_runs.release(bench.ledger, first) and not reconcile_runs.release(bench.ledger, first)
    second = reconcile_runs.take_lease(bench.ledger, seconds=60)
    assert second is not None and second.fence == first.fence + 1


def test_a_lease_that_ran_out_is_taken_over_and_its_holder_is_fenced(bench: Bench) -> None:
    first = reconcile_runs.take_lease(bench.ledger, seconds=-1)
    assert first is not None
    with bench.ledger.write() as connection:
        assert reconcile_runs.holds(connection, first)  # nobody took it over yet
    second = reconcile_runs.take_lease(bench.ledger, seconds=60)
    assert second is not None
    with bench.ledger.write() as connection:
        assert not reconcile_runs.holds(connection, first) and reconcile_runs.holds(connection, second)
    assert not reconcile_runs.renew(bench.ledger, first, seconds=60)
    assert not reconcile_runs.release(bench.ledger, first)


def test_the_fence_never_goes_back(bench: Bench) -> None:
    reconcile_runs.take_lease(bench.ledger, seconds=60)
    with pytest.raises(sa.exc.IntegrityError), bench.ledger.write() as connection:
        connection.exec_driver_sql("UPDATE sweep_lease SET fence = 0")


# ---- runs ------------------------------------------------------------------------------------------------------------


def test_a_run_is_read_back_as_it_was_written(bench: Bench) -> None:
    run = new_run(bench)
    outcome = Outcome(
        True, True, 7, 8, Counts(1, 2, 3, 4), Counts(1, 1, 1, 1), Done(1, 2, 3, 4, 5, 6, 7),
        {"young": 3}, {"uuid": 9}, ("a: no",), ({"kind": "orphan", "path": "/naïve\n"},), {"list": 0.5},
    )  # fmt: skip
    with bench.ledger.write() as connection:
        assert reconcile_runs.abort(connection, run, outcome, AbortReason.GUARD, "too many")
    with bench.ledger.read() as connection:
        found = reconcile_runs.get(connection, run)
        assert found.outcome == outcome and found.asked == ASKED
        assert (found.aborted, found.why) == (AbortReason.GUARD, "too many")
        assert reconcile_runs.references_before(connection) == {"uuid": 9}
        with pytest.raises(UsageError):
            reconcile_runs.get(connection, run + 1)


def test_a_run_that_ended_does_not_change_and_only_one_is_under_way(bench: Bench) -> None:
    run = ended_run(bench)
    with bench.ledger.write() as connection:
        assert not reconcile_runs.complete(connection, run, Outcome())
        assert not reconcile_runs.abort(connection, run, Outcome(), AbortReason.UNKNOWN, "late")
    with pytest.raises(sa.exc.IntegrityError), bench.ledger.write() as connection:
        connection.exec_driver_sql("UPDATE reconcile_run SET why = 'other'")
    new_run(bench)
    with pytest.raises(sa.exc.IntegrityError):
        new_run(bench)


def test_old_runs_are_forgotten_but_not_those_that_hold_files(bench: Bench) -> None:
    holding = ended_run(bench)
    files = swept(bench, holding)
    with bench.ledger.write() as connection:
        quarantined_files.move(connection, files, SweptState.HELD)
    others = [ended_run(bench) for _ in range(5)]
    with bench.ledger.write() as connection:
        assert reconcile_runs.forget_old(connection, runs_max=2) == 3
    with bench.ledger.read() as connection:
        assert [r.id for r in reconcile_runs.latest(connection, runs_max=9)] == [others[4], others[3], holding]
        assert reconcile_runs.get(connection, holding).held == 2
    with pytest.raises(sa.exc.IntegrityError), bench.ledger.write() as connection:
        connection.exec_driver_sql(f"DELETE FROM swept_file WHERE run_id = {holding}")


# ---- files -----------------------------------------------------------------------------------------------------------


def test_a_thousand_files_are_begun_in_their_order(bench: Bench) -> None:
    run = new_run(bench)
    files = swept(bench, run, 1_000)
    assert [f.size for f in files] == list(range(1_000)) and {f.state for f in files} == {SweptState.BEGUN}
    with bench.ledger.read() as connection:
        assert quarantined_files.begun(connection) == files
        found = quarantined_files.of_paths(connection, [f.path for f in files])
        assert len(found) == 1_000 and quarantined_files.counted(connection, run) == {
            (FindingKind.ORPHAN, SweptState.BEGUN): (1_000, sum(range(1_000)))
        }


def test_a_file_moves_only_from_the_state_that_it_was_read_in(bench: Bench) -> None:
    (file,) = swept(bench, new_run(bench), 1)
    with bench.ledger.write() as connection:
        assert quarantined_files.move(connection, [file], SweptState.LEFT) == 1
        assert quarantined_files.move(connection, [file], SweptState.HELD) == 0


@pytest.mark.parametrize("state", ["begun", "held", "lost"])
def test_what_was_purged_stays_purged(bench: Bench, state: str) -> None:
    (file,) = swept(bench, new_run(bench), 1)
    for step in ("held", "purging", "purged"):
        with bench.ledger.write() as connection:
            connection.exec_driver_sql(f"UPDATE swept_file SET state = '{step}' WHERE id = {file.id}")
    with pytest.raises(sa.exc.IntegrityError), bench.ledger.write() as connection:
        connection.exec_driver_sql(f"UPDATE swept_file SET state = '{state}'")


def test_the_path_of_a_file_never_changes(bench: Bench) -> None:
    swept(bench, new_run(bench), 1)
    for column in ("path", "kept_at"):
        with pytest.raises(sa.exc.IntegrityError), bench.ledger.write() as connection:
            connection.exec_driver_sql(f"UPDATE swept_file SET {column} = '/elsewhere'")


# ---- entries ---------------------------------------------------------------------------------------------------------


def test_a_batch_that_was_taken_for_undone_may_turn_out_done_but_not_the_other_way(bench: Bench) -> None:
    run = new_run(bench)
    with bench.ledger.write() as connection:
        batch = quarantined_files.begin_drop(connection, run, token="t", table="ns.t", entries=3, samples=["/a"])
        assert quarantined_files.begun_drops(connection) == [batch]
        assert quarantined_files.end_drop(connection, batch, None)
        assert quarantined_files.begun_drops(connection) == []
        assert quarantined_files.end_drop(connection, batch, 3)
        assert not quarantined_files.end_drop(connection, batch, None)
        assert [b.dropped for b in quarantined_files.drops_of(connection, run)] == [3]


# ---- what sinks hold -------------------------------------------------------------------------------------------------


def test_what_a_sink_certainly_holds_is_the_lowest_of_its_lanes(bench: Bench) -> None:
    def add(name: str, start: int | None) -> int:
        with bench.ledger.write() as connection:
            return sinks.add(
                connection, instance=name, name=name, kind="files", dataset=bench.dataset.id, options={},
                destination=name, start=None if start is None else Seq(start),
            ).id  # fmt: skip

    def lane(sink: int, partition: str, mark: int | None, generation: int = 1) -> None:
        with bench.ledger.write() as connection:
            connection.exec_driver_sql(
                "INSERT INTO lane (sink_id, generation, partition, continuation, mark, exported, withheld, version, "
                f"updated_at) VALUES ({sink}, {generation}, '{partition}', '', {'NULL' if mark is None else mark}, "
                "0, 0, 1, 0)"
            )

    add("from-now", 40)
    add("new", None)
    ahead = add("ahead", None)
    with bench.ledger.write() as connection:
        connection.exec_driver_sql(f"UPDATE sink SET planned = 30 WHERE id = {ahead}")
    for partition, mark in (("a", 30), ("b", 20)):
        lane(ahead, partition, mark)
    stuck = add("stuck", None)
    with bench.ledger.write() as connection:
        connection.exec_driver_sql(f"UPDATE sink SET planned = 30 WHERE id = {stuck}")
    lane(stuck, "a", None)
    lane(stuck, "b", 30)
    with bench.ledger.read() as connection:
        assert delivered.certain(connection, bench.dataset.id) == {
            "from-now": 40, "new": None, "ahead": 20, "stuck": None,
        }  # fmt: skip
