"""Files that a table needs and that are only set aside: found wherever they are, brought back before anything else, and
never given up as long as somebody cannot see."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from strandline.core.errors import StorageError
from strandline.core.records.reconcile_records import AbortReason, SweptState
from strandline.reconcile import quarantine_lookup as kept_module
from strandline.reconcile.storage.local_store import LocalStore
from tests.reconcile.whole_lakes import ACT, REPORT, MakeLake, WholeLake, there

MORE_THAN_A_FILE = 0.02
"""Of a lake of four data files and their metadata."""


@pytest.fixture
def lake(make_lake: MakeLake) -> WholeLake:
    return make_lake(4, share_floor_files=1, deletes_max_share=MORE_THAN_A_FILE)


def set_aside(lake: WholeLake, *paths: str) -> list[str]:
    """As a run would have done that took these files for orphans: where they are kept."""
    lake.settings(deletes_max_share=1.0)
    lake.puts(len(paths))
    files = lake.swept(lake.run(ACT).id)
    with lake.lake.ledger.write() as connection:
        connection.exec_driver_sql("DROP TRIGGER IF EXISTS a_swept_file_goes_its_way")
        for file, path in zip(files, paths, strict=True):
            connection.exec_driver_sql("UPDATE swept_file SET path = ? WHERE id = ?", (path, file.id))
            os.replace(path, file.kept_at)
    lake.settings(share_floor_files=1, deletes_max_share=MORE_THAN_A_FILE)
    return [file.kept_at for file in files]


def forget(lake: WholeLake) -> None:
    """As a ledger that was put back from an older copy."""
    with lake.lake.ledger.write() as connection:
        connection.exec_driver_sql("DROP TRIGGER a_file_in_quarantine_stays")
        connection.exec_driver_sql("DELETE FROM swept_file")


def unseen(lake: WholeLake, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    storage = lake.lake.reconciler.storage
    look = storage.find_file

    def denied(asked: str) -> Any:
        if asked == path:
            raise StorageError(f"{asked} cannot be looked at: Permission denied")
        return look(asked)

    monkeypatch.setattr(storage, "find_file", denied, raising=False)


def test_nothing_is_dropped_of_which_nobody_can_see_whether_it_is_set_aside(
    lake: WholeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = lake.data_files()[0]
    (kept_at,) = set_aside(lake, live)
    with monkeypatch.context() as patch:
        unseen(lake, patch, kept_at)
        run = lake.run(ACT)
    assert run.aborted is None and run.outcome.done.missing == 0 and len(lake.data_files()) == 4
    assert run.outcome.partial and any("Permission denied" in failure for failure in run.outcome.failures)
    assert lake.run(ACT).outcome.done.restored == 1 and lake.count() == 12


def test_however_much_was_set_aside_wrongly_comes_back(lake: WholeLake) -> None:
    set_aside(lake, *lake.data_files()[:3])
    run = lake.run(ACT)
    assert run.aborted is None and run.outcome.done.restored == 3 and run.outcome.done.missing == 0
    assert lake.count() == 12


def test_what_is_set_aside_comes_back_also_where_too_much_else_is_missing(lake: WholeLake) -> None:
    first, *_, last = lake.data_files()
    set_aside(lake, first)
    os.unlink(last)
    run = lake.run(ACT)
    assert run.aborted is AbortReason.GUARD and run.outcome.done.restored == 1 and Path(first).exists()
    assert run.outcome.done.missing == 0 and len(lake.data_files()) == 4


def test_a_file_in_quarantine_that_the_ledger_has_forgotten_is_found_and_brought_back(lake: WholeLake) -> None:
    live = lake.data_files()[0]
    (kept_at,) = set_aside(lake, live)
    quarantine = Path(kept_at.partition("/default/")[0])
    (quarantine / Path(live).relative_to(lake.warehouse)).parent.mkdir(parents=True, exist_ok=True)
    os.replace(kept_at, quarantine / Path(live).relative_to(lake.warehouse))
    forget(lake)
    report = lake.run(REPORT)
    assert report.outcome.samples[0]["in_quarantine"] is True
    run = lake.run(ACT)
    assert run.outcome.done.restored == 1 and run.outcome.done.missing == 0 and lake.count() == 12
    assert lake.details("reconcile.files_restored")[-1]["samples"] == [live]


def test_nothing_is_dropped_where_the_quarantine_cannot_be_searched(
    lake: WholeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.settings(deletes_max_share=1.0)
    os.unlink(lake.data_files()[0])

    def denied(*_: Any) -> dict[str, str]:
        raise StorageError("the quarantine cannot be listed: no answer")

    with monkeypatch.context() as patch:
        patch.setattr(kept_module, "find_unrecorded", denied)
        run = lake.run(ACT)
    assert run.outcome.done.missing == 0 and run.outcome.partial and len(lake.data_files()) == 4
    assert lake.run(ACT).outcome.done.missing == 1


def test_the_metadata_that_the_catalog_names_is_brought_back_and_the_table_can_be_read_again(lake: WholeLake) -> None:
    set_aside(lake, lake.table().metadata_location.removeprefix("file://"))
    run = lake.run(ACT)
    assert run.outcome.partial and run.outcome.done.restored == 1
    again = lake.run(ACT)
    assert not again.outcome.partial and again.outcome.found.missing == 0 and lake.count() == 12


def test_what_is_brought_back_is_on_record_though_the_run_ends_in_the_midst_of_it(
    lake: WholeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = lake.data_files()[:2]
    set_aside(lake, *needed)
    bring_back, called_off = LocalStore.bring_back, threading.Event()

    def and_then_off(store: LocalStore, kept_at: str, path: str) -> bool:
        called_off.set()
        return bring_back(store, kept_at, path)

    monkeypatch.setattr(LocalStore, "bring_back", and_then_off)
    run = lake.run(ACT, cancelled=called_off)
    assert run.aborted is AbortReason.CANCELLED and run.outcome.done.restored == 1
    assert sorted(there(needed)) == [False, True]
    held = [state for run in lake.lake.reconciler.runs(9) for state in lake.states(run.id).values()]
    assert sorted(held) == sorted([SweptState.HELD, SweptState.RESTORED])
    assert lake.details("reconcile.files_restored")[-1]["files"] == 1
