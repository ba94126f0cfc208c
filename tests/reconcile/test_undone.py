"""Whatever ends a batch of moves, no file stays aside that was not looked at again; and nothing is deleted for good
while a table cannot be read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from strandline.core.errors import LedgerBusy, NoSuchDataset, ReferencesTooMany, StorageError
from strandline.core.records.reconcile_records import AbortReason, Asked, SweptState
from strandline.core.retry import RetryPolicy
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.ledger.engine import Ledger
from strandline.reconcile.fallback import FallbackSurveyor
from strandline.reconcile.storage.local_store import LocalStore
from tests.reconcile.whole_lakes import ACT, COLUMNS, REPORT, WholeLake, there

DELETE = Asked(act=True, delete=True)


def after_moving(monkeypatch: pytest.MonkeyPatch, then: Callable[[], object]) -> None:
    """Something happens between the move and the look at the references."""
    move, read, moved = LocalStore.set_aside, FallbackSurveyor.references, list[bool]()

    def set_aside(self: LocalStore, files: Any) -> Any:
        moved.append(True)
        return move(self, files)

    def references(self: FallbackSurveyor, known: Any, watch: Any) -> Any:
        if moved:
            then()
        return read(self, known, watch)

    monkeypatch.setattr(LocalStore, "set_aside", set_aside)
    monkeypatch.setattr(FallbackSurveyor, "references", references)


def raising(error: BaseException) -> Callable[[], object]:
    def raise_it() -> None:
        raise error

    return raise_it


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (KeyboardInterrupt(), AbortReason.CANCELLED),
        (EOFError(), AbortReason.UNKNOWN),
        (ReferencesTooMany("too many"), AbortReason.REFERENCES_TOO_MANY),
        (NoSuchDataset("dropped just now"), AbortReason.UNKNOWN),
    ],
    ids=lambda value: type(value).__name__,
)
def test_whatever_keeps_the_second_look_away_the_files_go_back(
    lake: WholeLake, monkeypatch: pytest.MonkeyPatch, error: BaseException, reason: AbortReason
) -> None:
    orphans = lake.puts(3)
    after_moving(monkeypatch, raising(error))
    try:
        lake.run(ACT)
    except (KeyboardInterrupt, EOFError):
        pass
    (run,) = lake.lake.reconciler.runs()
    assert run.aborted is reason and run.outcome.done.orphans == 0 and all(there(orphans))
    assert set(lake.states(run.id).values()) == {SweptState.RESTORED}


def test_a_run_that_is_interrupted_while_it_moves_files_puts_them_back(
    lake: WholeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    orphans = lake.puts(4)
    move = LocalStore._set_aside

    def interrupted(self: LocalStore, file: Any) -> Any:
        if file.path == orphans[2]:
            raise KeyboardInterrupt
        return move(self, file)

    monkeypatch.setattr(LocalStore, "_set_aside", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lake.run(ACT)
    (run,) = lake.lake.reconciler.runs()
    assert run.aborted is AbortReason.CANCELLED and all(there(orphans))
    states = lake.states(run.id)
    assert [states[path] for path in orphans] == [SweptState.RESTORED] * 2 + [SweptState.LEFT] * 2


def test_the_files_go_back_also_where_it_is_the_ledger_that_does_not_answer(
    lake: WholeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    orphans = lake.puts(3)

    def busy(self: Ledger) -> Any:
        raise LedgerBusy("another process holds the ledger")

    def nothing_answers() -> None:
        for name in ("read", "write"):
            patch.setattr(Ledger, name, busy)
        raise StorageError("the catalog cannot be reached")

    with monkeypatch.context() as patch:
        after_moving(patch, nothing_answers)
        patch.setattr("strandline.ledger.reconcile.reconcile_runs.leases.release", lambda ledger, lease: True)
        patch.setattr("strandline.jobs.store_end._LEDGER_AWAY", RetryPolicy(0.0, attempts_max=1))
        with pytest.raises(LedgerBusy):
            lake.run(ACT)
    assert all(there(orphans))
    with lake.lake.ledger.write() as connection:  # its lease runs out
        connection.exec_driver_sql("UPDATE sweep_lease SET token = NULL, until = NULL")
    lake.run(REPORT)
    assert set(lake.states(1).values()) == {SweptState.LEFT}


def test_a_file_whose_move_was_not_answered_is_looked_at_like_the_others(
    lake: WholeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = lake.put("registered.parquet", content=Path(lake.data_files()[0]).read_bytes())
    orphan = lake.put("stray.parquet")
    move = LocalStore.set_aside

    def unanswered(self: LocalStore, files: Any) -> Any:
        lake.table().add_files([f"file://{needed}"])
        return dict.fromkeys(move(self, files), "no answer")

    monkeypatch.setattr(LocalStore, "set_aside", unanswered)
    run = lake.run(ACT)
    assert there([needed, orphan]) == [True, False] and lake.count() == 9
    assert lake.states(run.id) == {needed: SweptState.RESTORED, orphan: SweptState.HELD}
    assert run.outcome.done.orphans == 1 and run.outcome.done.failed == 0


def damage(lake: WholeLake, name: str) -> None:
    Path(lake.lake.catalog.load(name).metadata_location.removeprefix("file://")).write_bytes(b"{ no JSON")


def test_nothing_is_deleted_at_once_while_any_table_cannot_be_read(lake: WholeLake) -> None:
    lake.lake.create_dataset("other", parse_columns(COLUMNS))
    orphan = lake.put("stray.parquet")
    damage(lake, "default.other")
    run = lake.run(DELETE)
    assert run.outcome.partial and run.outcome.done.orphans == 0 and Path(orphan).exists()
    assert any("deleted without quarantine" in failure for failure in run.outcome.failures)
    run = lake.run(ACT)  # which can be undone
    assert run.outcome.done.orphans == 1 and lake.states(run.id) == {orphan: SweptState.HELD}


def test_what_was_to_be_deleted_goes_back_if_a_table_can_no_longer_be_read(
    lake: WholeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.lake.create_dataset("other", parse_columns(COLUMNS))
    orphan = lake.put("stray.parquet")
    metadata = lake.lake.catalog.load("default.other").metadata_location.removeprefix("file://")
    after_moving(monkeypatch, lambda: Path(metadata).write_bytes(b"{ no JSON"))
    run = lake.run(DELETE)
    assert run.outcome.done.orphans == 0 and lake.states(run.id) == {orphan: SweptState.RESTORED}
    assert Path(orphan).exists()
