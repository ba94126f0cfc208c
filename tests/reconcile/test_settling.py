"""What a run left that died, or only seemed to: who may settle it, what cannot be settled yet, and what is said of a
batch of entries whose commit failed, or landed without an answer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import CommitStateUnknownException, ServiceUnavailableError
from sqlalchemy.exc import OperationalError

from strandline.core import failpoints
from strandline.core.errors import CommitUnknown, FailedError, LeaseLost, StorageError, StrandlineError
from strandline.core.records.reconcile_records import AbortReason, Asked, FindingKind, ReconcileRunId, SweptState
from strandline.core.types import Seq, SeqRange
from strandline.iceberg.metadata.table_metadata import VOID_PREFIX
from strandline.ledger.deliver import losses, sinks
from strandline.ledger.reconcile import dropped_entries, quarantined_files, reconcile_runs
from strandline.ledger.reconcile.dropped_entries import DroppedBatch, NewBatch
from strandline.ledger.reconcile.quarantined_files import NewSwept
from strandline.reconcile import sweep as sweep_module
from strandline.reconcile.references.lake_catalog import LakeCatalog
from strandline.reconcile.settle import close_dead_run
from tests.reconcile.test_crash import go_on, killed_at, stopped_at
from tests.reconcile.whole_lakes import ACT, REPORT, MakeLake, WholeLake, there

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def lake(make_lake: MakeLake) -> Iterator[WholeLake]:
    yield make_lake(4, lease_seconds=1, batch_size=3)
    failpoints.arm("")


def batches(lake: WholeLake, run: int) -> list[DroppedBatch]:
    with lake.lake.ledger.read() as connection:
        return dropped_entries.of_run(connection, ReconcileRunId(run))


def begun(lake: WholeLake) -> int:
    with lake.lake.ledger.read() as connection:
        return len(dropped_entries.begun(connection))


# ---- who may settle --------------------------------------------------------------------------------------------------


class Successor:
    """A run that takes the lease over, and has a file and a batch of entries in hand."""

    def __init__(self, lake: WholeLake) -> None:
        with lake.lake.ledger.write() as connection:
            connection.exec_driver_sql("UPDATE sweep_lease SET token = NULL, until = NULL")
        lease = reconcile_runs.take_lease(lake.lake.ledger, seconds=60)
        assert lease is not None
        orphan = lake.put("in-hand.parquet")
        with lake.lake.ledger.write() as connection:
            close_dead_run(connection)
            self.run = reconcile_runs.start(connection, ACT, lake.lake.reconciler.storage.kind)
            new = NewSwept(FindingKind.ORPHAN, None, orphan, f"{orphan}.kept", 6, None)
            quarantined_files.begin(connection, self.run, [new])
            dropped_entries.begin(connection, self.run, NewBatch("its-token", lake.dataset.name, 1, ["/x"]))


@pytest.mark.parametrize("moment", ["before it began", "before settling", "after settling"])
def test_a_run_whose_lease_was_taken_over_leaves_the_other_one_alone(
    lake: WholeLake, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    begin, settle, others = sweep_module._begin, sweep_module.settle_dead_runs, list[Successor]()

    def take_over(now: str) -> None:
        if now == moment:
            others.append(Successor(lake))

    def began(*arguments: Any) -> ReconcileRunId:
        take_over("before it began")
        return begin(*arguments)

    def slept(*arguments: Any, **options: Any) -> list[str]:
        take_over("before settling")
        answer = settle(*arguments, **options)
        take_over("after settling")
        return answer

    monkeypatch.setattr(sweep_module, "_begin", began)
    monkeypatch.setattr(sweep_module, "settle_dead_runs", slept)
    if moment == "before it began":
        with pytest.raises(LeaseLost):
            lake.run(ACT)
    else:
        assert lake.run(ACT).aborted is AbortReason.LEASE_LOST
    run, *own = lake.lake.reconciler.runs()
    assert len(own) == (moment != "before it began")
    assert run.id == others[0].run and run.ended_at is None, "it has the lease"
    assert set(lake.states(run.id).values()) == {SweptState.BEGUN} and begun(lake) == 1
    assert not [ref for ref in lake.table().metadata.refs if ref.startswith(VOID_PREFIX)]


def test_a_run_is_on_record_before_it_settles_what_another_left(
    lake: WholeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settling may take long: whoever began the run has its id, and the dead one is told as died already."""
    orphans = lake.puts(5)
    killed_at(lake, "reconcile.after_files_moved", "act")
    settle, told = sweep_module.settle_dead_runs, list[tuple[ReconcileRunId, ...]]()

    def slow(*arguments: Any, **options: Any) -> list[str]:
        told.append(tuple(run.id for run in lake.lake.reconciler.runs() if run.ended_at is None))
        assert set(lake.states(dead).values()) == {SweptState.BEGUN}
        return settle(*arguments, **options)

    (dead,) = (run.id for run in lake.lake.reconciler.runs())
    monkeypatch.setattr(sweep_module, "settle_dead_runs", slow)
    begun_runs: list[ReconcileRunId] = []
    run = lake.run(REPORT, on_begun=begun_runs.append)
    assert told == [(run.id,)] and begun_runs == [run.id]
    found = lake.lake.reconciler.show(dead)[0]
    assert found.aborted is AbortReason.DIED
    assert found.outcome.done.orphans == sum(not is_there for is_there in there(orphans)) > 0


def test_what_a_dead_run_did_stays_on_record_though_a_person_has_undone_it_before_the_next_run(lake: WholeLake) -> None:
    lake.puts(2)
    killed_at(lake, "reconcile.after_files_moved", "act")
    (dead,) = (run.id for run in lake.lake.reconciler.runs())
    assert lake.lake.reconciler.restore(dead).restored == 2
    lake.run(REPORT)
    assert lake.lake.reconciler.show(dead)[0].outcome.done.orphans == 2


def test_what_an_acting_run_left_is_settled_though_runs_after_it_died_before_they_had(lake: WholeLake) -> None:
    """The last of them only reported: that it had nothing to settle itself says nothing of those before it."""
    lake.puts(5)
    first = lake.run(ACT)
    brought = lake.lake.reconciler.show(first.id)[1]
    killed_at(lake, "reconcile.after_start", "act")
    for file in brought:  # the dead run has brought them back, and not recorded it
        Path(file.kept_at).rename(file.path)
    failpoints.arm("reconcile.after_start=fail")
    with pytest.raises(failpoints.FailpointError):
        lake.run(REPORT)
    failpoints.arm("")
    lake.run(REPORT)
    assert set(lake.states(first.id).values()) == {SweptState.RESTORED}


@pytest.mark.parametrize("point", ["reconcile.after_files", "reconcile.between_files", "reconcile.before_end"])
def test_a_run_that_was_taken_for_dead_says_that_it_lost_its_lease_and_what_it_did(lake: WholeLake, point: str) -> None:
    orphans = lake.puts(5)
    process = stopped_at(lake, point, "act")
    other = lake.run(REPORT)
    stopped = other.id - 1
    assert lake.lake.reconciler.show(stopped)[0].aborted is AbortReason.DIED, "nobody knows better yet"
    go_on(process)
    run = lake.lake.reconciler.show(stopped)[0]
    assert run.aborted is AbortReason.LEASE_LOST
    assert run.outcome.done.orphans == sum(not is_there for is_there in there(orphans))
    assert [detail["reason"] for detail in lake.details("reconcile.run_aborted")] == ["died", "lease_lost"]
    assert lake.lake.reconciler.show(other.id)[0].aborted is None


# ---- what cannot be settled yet --------------------------------------------------------------------------------------


def unanswered(lake: WholeLake, monkeypatch: pytest.MonkeyPatch, error: StrandlineError | None = None) -> int:
    """A run whose commit of entries got no answer, and did not land."""

    def no_answer(*_: Any, **__: Any) -> int:
        raise error or CommitUnknown("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(LakeCatalog, "drop_entries", no_answer)
        run = lake.run(ACT)
    assert run.aborted is AbortReason.COMMIT_FAILED and begun(lake) == 1
    return run.id


def test_a_batch_of_a_table_that_cannot_be_read_waits_and_holds_nothing_else_up(
    lake: WholeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    orphan = lake.put("stray.parquet")
    first = lake.run(ACT)
    os.unlink(lake.data_files()[0])
    failed = unanswered(lake, monkeypatch)
    metadata = Path(lake.table().metadata_location.removeprefix("file://"))
    content = metadata.read_bytes()
    metadata.write_bytes(b"{ no JSON")
    for _ in range(2):
        run = lake.run(ACT)
        assert run.aborted is None and run.outcome.partial and begun(lake) == 1
        assert any(f"of run {failed}" in failure for failure in run.outcome.failures)
    assert lake.lake.reconciler.restore(first.id).restored == 1 and Path(orphan).exists()
    assert lake.lake.reconciler.purge().purged == 0
    metadata.write_bytes(content)
    assert lake.run(ACT).outcome.done.missing == 1 and begun(lake) == 0


def test_a_run_without_a_catalog_is_on_record_and_restore_needs_none(lake: WholeLake) -> None:
    orphan = lake.put("stray.parquet")
    first = lake.run(ACT)
    lake.put("another.parquet")
    second = lake.run(ACT)
    catalog = lake.lake.config.path("catalog.db")
    away = catalog.rename(catalog.with_name("away.db"))
    catalog.mkdir()
    lake.settings(quarantine_days=0)
    run = lake.run(ACT)
    assert run.aborted is AbortReason.UNKNOWN and run.why and "catalog" in run.why
    assert lake.lake.reconciler.runs()[0].id == run.id
    assert lake.lake.reconciler.restore(first.id).restored == 1 and Path(orphan).exists()
    with pytest.raises(StorageError, match="catalog"):
        lake.lake.reconciler.purge()
    assert all(there([file.kept_at for file in lake.swept(second.id)]))
    catalog.rmdir()
    away.rename(catalog)
    assert lake.run(REPORT).aborted is None


# ---- batches of entries ----------------------------------------------------------------------------------------------


def test_a_commit_that_landed_is_known_to_have_landed_when_its_snapshot_has_expired(lake: WholeLake) -> None:
    with lake.lake.ledger.write() as connection:
        sink = sinks.add(
            connection, instance="s", name="s", kind="files", dataset=lake.dataset.id, options={}, destination="s",
            start=None,
        )  # fmt: skip
    lake.settings(lease_seconds=1, samples_max=0)
    os.unlink(lake.data_files()[0])
    failpoints.arm("reconcile.after_drop_commit=fail")
    with pytest.raises(failpoints.FailpointError):
        lake.run(Asked(act=True, accept_loss=True))
    assert len(lake.data_files()) == 3 and begun(lake) == 1
    failed = lake.lake.reconciler.runs()[0].id
    lake.append()
    table = lake.table()
    old = [s.snapshot_id for s in table.snapshots() if s.snapshot_id != table.metadata.current_snapshot_id]
    table.maintenance.expire_snapshots().by_ids(old).commit()
    assert lake.run(REPORT).aborted is None
    assert [batch.dropped for batch in batches(lake, failed)] == [1]
    assert lake.lake.reconciler.show(failed)[0].outcome.done.missing == 1
    with lake.lake.ledger.read() as connection:
        assert sum(x.rows or 0 for x in losses.of_sink(connection, sink)) == 3
        assert losses.purged(connection, lake.dataset.id) == [SeqRange(Seq(1), Seq(3))]


def test_a_commit_that_did_not_land_is_not_taken_for_one_that_expired(
    lake: WholeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.unlink(lake.data_files()[0])
    failed = unanswered(lake, monkeypatch)
    assert lake.run(REPORT).aborted is None
    assert begun(lake) == 0 and [batch.dropped for batch in batches(lake, failed)] == [None]
    assert lake.lake.reconciler.show(failed)[0].outcome.done.missing == 0
    with lake.lake.ledger.read() as connection:
        assert losses.purged(connection, lake.dataset.id) == []


def test_two_entries_of_one_file_are_one_missing_file(lake: WholeLake) -> None:
    twice = lake.put("twice.parquet", content=Path(lake.data_files()[0]).read_bytes())
    for _ in range(2):
        lake.table().add_files([f"file://{twice}"], check_duplicate_files=False)
    assert lake.data_files().count(twice) == 2
    os.unlink(twice)
    run = lake.run(ACT)
    assert run.aborted is None and run.outcome.done.missing == 1 and twice not in lake.data_files()
    assert lake.run(ACT).aborted is None and begun(lake) == 0 and lake.count() == 12


@pytest.mark.parametrize(
    "error",
    [
        OperationalError("UPDATE iceberg_tables", {}, Exception("database is locked")),
        ServiceUnavailableError("503"),
        CommitStateUnknownException("502"),
        ConnectionResetError("reset by peer"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_commit_that_the_catalog_does_not_take_ends_the_run_as_that(
    lake: WholeLake, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    orphan = lake.put("stray.parquet")
    os.unlink(lake.data_files()[0])
    with monkeypatch.context() as patch:
        _refuse_commits(lake, patch, error)
        run = lake.run(ACT)
    assert run.aborted is AbortReason.COMMIT_FAILED and "default.events" in (run.why or "")
    assert run.outcome.done.missing == 0 and Path(orphan).exists(), "orphans only if the missing files went through"
    again = lake.run(ACT)
    assert (again.outcome.done.missing, begun(lake), Path(orphan).exists()) == (1, 0, True)


def _refuse_commits(lake: WholeLake, patch: pytest.MonkeyPatch, error: Exception) -> None:
    def refused(*_: Any, **__: Any) -> Callable[..., Any]:
        raise error

    patch.setattr(lake.lake.catalog._catalog, "commit_table", refused, raising=False)


def test_a_commit_that_spark_cannot_make_ends_the_run_as_that(lake: WholeLake, monkeypatch: pytest.MonkeyPatch) -> None:
    os.unlink(lake.data_files()[0])
    unanswered(lake, monkeypatch, FailedError("entries of default.events cannot be dropped: IllegalStateException"))
    assert lake.run(ACT).outcome.done.missing == 1
