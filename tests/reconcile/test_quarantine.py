"""What was set aside: nothing of it is deleted for good while anything is not certain, and a copy is taken for one only
if its bytes are the same."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Table

import strandline
from strandline.core.errors import LeaseLost, RefusedError, StorageError
from strandline.core.records.reconcile_records import FindingKind, ReconcileRunId, Swept, SweptId, SweptState
from strandline.ledger.engine import utc_now
from strandline.ledger.reconcile import reconcile_runs
from strandline.reconcile.ledger_context import LedgerContextLoader
from strandline.reconcile.model import Stat
from strandline.reconcile.quarantine import Fate, fate
from strandline.reconcile.references.collect import LakeReferences
from strandline.reconcile.settle import SweptFile
from strandline.reconcile.storage.local_store import LocalStore
from tests.reconcile.buckets import put_object
from tests.reconcile.whole_lakes import ACT, REPORT, MakeLake, WholeLake, there
from tests.servers import S3


@pytest.fixture
def lake(make_lake: MakeLake) -> WholeLake:
    return make_lake(2, quarantine_days=0)


def kept(lake: WholeLake, run: int) -> list[str]:
    return [file.kept_at for file in lake.swept(run)]


def another_table(lake: WholeLake) -> Table:
    """One that is nobody's dataset."""
    made = lake.lake.catalog._catalog.create_table(("default", "other"), lake.table().schema())
    made.append(lake.table().scan().to_arrow())
    return made


def damaged(table: Table) -> tuple[Path, bytes]:
    at = Path(table.metadata_location.removeprefix("file://"))
    whole = at.read_bytes()
    at.write_bytes(whole[:100])
    return at, whole


# ---- the catalog -----------------------------------------------------------------------------------------------------


def test_nothing_is_purged_by_a_catalog_that_was_lost_and_made_anew(lake: WholeLake) -> None:
    lake.puts(3)
    run = lake.run(ACT).id
    assert all(there(kept(lake, run)))
    catalog = lake.lake.config.path("catalog.db")
    lake.lake.close()
    catalog.unlink()
    lake.lake = strandline.open(lake.home)
    with pytest.raises(RefusedError, match="not the catalog of record"):
        lake.lake.reconciler.purge()
    assert all(there(kept(lake, run)))
    assert set(lake.states(run).values()) == {SweptState.HELD}


def test_how_far_files_are_brought_back_or_deleted_is_told_batch_by_batch(lake: WholeLake) -> None:
    lake.settings(quarantine_days=0, batch_size=2)
    lake.puts(5)
    told: list[tuple[int, int]] = []
    lake.lake.reconciler.restore(lake.run(ACT).id, on_progress=lambda *how_far: told.append(how_far))
    assert told == [(0, 5), (2, 5), (4, 5), (5, 5)]
    told.clear()
    lake.run(ACT)
    assert lake.lake.reconciler.purge(on_progress=lambda *how_far: told.append(how_far)).purged == 5
    assert told[-1] == (told[-1][1],) * 2 and told[-1][1] >= 5 and told == sorted(set(told))


def test_the_catalog_is_asked_before_every_batch(lake: WholeLake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.settings(quarantine_days=0, batch_size=1)
    lake.puts(3)
    run = lake.run(ACT).id
    delete = LocalStore.delete

    def then_drop(self: LocalStore, paths: Sequence[str]) -> Any:
        lake.lake.catalog.drop("default.events")
        return delete(self, paths)

    monkeypatch.setattr(LocalStore, "delete", then_drop)
    with pytest.raises(RefusedError):
        lake.lake.reconciler.purge()
    assert sum(there(kept(lake, run))) == 2


def test_purge_waits_for_a_table_that_the_last_run_knew_and_that_is_not_in_the_catalog(lake: WholeLake) -> None:
    another_table(lake)
    lake.puts(2)
    run = lake.run(ACT).id
    lake.lake.catalog.drop("default.other")
    with pytest.raises(RefusedError, match="knew a table"):
        lake.lake.reconciler.purge()
    assert all(there(kept(lake, run)))
    assert lake.run(REPORT).aborted is None, "it takes note that the table was dropped"
    assert lake.lake.reconciler.purge().purged == 2


def test_an_empty_catalog_is_not_believed_even_if_a_run_has_seen_it(
    lake: WholeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LedgerContextLoader, "gate", lambda self, tables, unread: None)
    lake.puts(2)
    run = lake.run(ACT).id
    lake.lake.catalog.drop("default.events")
    assert lake.run(REPORT).aborted is None
    with pytest.raises(RefusedError, match="has no tables"):
        lake.lake.reconciler.purge()
    assert all(there(kept(lake, run)))


def test_while_any_table_cannot_be_read_everything_waits_and_it_is_said(lake: WholeLake) -> None:
    """Whichever table the file was found in: it may be shared, or the table may have got another name."""
    other = another_table(lake)
    lake.puts(2)
    run = lake.run(ACT).id
    at, whole = damaged(other)
    purged = lake.lake.reconciler.purge()
    assert (purged.purged, purged.waiting) == (0, 2) and all(there(kept(lake, run)))
    assert len(purged.failed) == 1 and "default.other" in purged.failed[0]
    at.write_bytes(whole)
    assert lake.lake.reconciler.purge().purged == 2


def test_whoever_loses_the_lease_while_purging_deletes_nothing_more(
    lake: WholeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.puts(2)
    run = lake.run(ACT).id
    monkeypatch.setattr(reconcile_runs.leases, "holds", lambda connection, lease: False)
    with pytest.raises(LeaseLost):
        lake.lake.reconciler.purge()
    assert all(there(kept(lake, run)))


# ---- what is in the place --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("same", [True, False])
def test_what_a_table_references_keeps_its_copy_unless_the_same_is_in_its_place(lake: WholeLake, same: bool) -> None:
    first, second = (Path(path).read_bytes() for path in lake.data_files())
    path = lake.put("shared.parquet", content=first)
    run = lake.run(ACT).id
    lake.put("shared.parquet", content=first if same else second)
    lake.table().add_files([f"file://{path}"])
    purged = lake.lake.reconciler.purge()
    assert purged.purged == 0 and bool(purged.failed) is not same and purged.waiting == (0 if same else 1)
    assert there(kept(lake, run)) == [not same]
    assert lake.states(run) == {path: SweptState.RESTORED if same else SweptState.HELD}
    assert Path(path).read_bytes() == (first if same else second)


def test_what_a_table_references_by_now_and_lacks_goes_back_and_one_failure_stops_no_other(
    lake: WholeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = Path(lake.data_files()[0]).read_bytes()
    paths = [lake.put(f"{name}.parquet", content=content) for name in ("broken", "needed")]
    lake.put("zzz.parquet")
    run = lake.run(ACT).id
    for path in paths:
        Path(path).write_bytes(content)
        lake.table().add_files([f"file://{path}"])
        os.unlink(path)
    back = LocalStore.bring_back

    def broken(self: LocalStore, kept_at: str, to: str) -> bool:
        if "broken" in to:
            raise StorageError("the disk is read-only")
        return back(self, kept_at, to)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "bring_back", broken)
        purged = lake.lake.reconciler.purge()
    assert (purged.purged, purged.brought_back, purged.waiting) == (1, 1, 1)
    assert len(purged.failed) == 1 and "read-only" in purged.failed[0]
    assert there(paths) == [False, True] and lake.states(run)[paths[0]] is SweptState.HELD
    assert lake.lake.reconciler.purge().brought_back == 1 and all(there(paths)) and lake.count() == 12


@pytest.mark.parametrize("same", [True, False])
def test_a_restore_takes_an_object_for_the_same_by_its_content_and_not_by_its_size(
    tmp_path: Path, s3: S3, same: bool
) -> None:
    bucket = s3.make_bucket()
    keys = {"endpoint": s3.endpoint, "access_key": s3.access_key, "secret_key": s3.secret_key}
    settings = {"deletes_max_share": 1.0}
    lake = WholeLake(tmp_path / "lake", {"warehouse": {"url": f"s3://{bucket}/lake"} | keys}, **settings)
    lake.append()
    name = "lake/default/events/data/x.parquet"
    path = put_object(s3, bucket, name, b"first")
    os.utime(s3.server.folder / "data" / path.removeprefix("s3://"), (1_700_000_000, 1_700_000_000))
    run = lake.run(ACT)
    (file,) = [file for file in lake.swept(run.id) if file.path == path]
    put_object(s3, bucket, name, b"first" if same else b"other")
    restored = lake.lake.reconciler.restore(run.id)
    look = lake.lake.reconciler.storage.find_file
    assert (path in restored.taken) is not same and look(path) is not None
    assert (look(file.kept_at) is None) is same
    lake.lake.close()


# ---- every case ------------------------------------------------------------------------------------------------------

NOW = utc_now()
HERE, NOWHERE, UNTOLD = Stat(1, 1), None, StorageError("no answer")
S = SweptState


def swept(state: SweptState) -> Swept:
    long_ago = NOW - timedelta(days=9)
    return Swept(
        SweptId(1), ReconcileRunId(1), FindingKind.ORPHAN, "t", "/p", "/k", 1, 1, state, long_ago, long_ago, None
    )


@pytest.mark.parametrize("state", [S.HELD, S.LEFT, S.PURGING])
@pytest.mark.parametrize("is_live", [True, False])
def test_only_what_is_certain_goes(state: SweptState, is_live: bool) -> None:
    def of(at_path: Stat | StorageError | None, at_quarantine: Stat | StorageError | None) -> Fate:
        return fate(SweptFile(swept(state), at_path, at_quarantine), is_live=is_live)

    assert of(UNTOLD, HERE) is of(HERE, UNTOLD) is of(NOWHERE, UNTOLD) is of(UNTOLD, NOWHERE) is Fate.WAITS
    assert of(NOWHERE, HERE) is (Fate.NEEDED if is_live else Fate.GOES)
    assert of(HERE, NOWHERE) is Fate.IN_PLACE
    assert of(HERE, HERE) is (Fate.IN_PLACE if is_live or state is S.LEFT else Fate.GOES)
    assert of(NOWHERE, NOWHERE) is {S.HELD: Fate.LOST, S.LEFT: Fate.IN_PLACE, S.PURGING: Fate.GOES}[state]


def test_a_file_that_stayed_is_done_with_once_it_would_have_been_purged(
    lake: WholeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then its run is remembered: whoever was thought dead may have moved it after all."""
    stuck = lake.put("stuck.parquet")

    def denied(self: Path, target: Any) -> Path:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", denied)
        run = lake.run(ACT).id
    assert lake.states(run) == {stuck: SweptState.LEFT}
    with lake.lake.ledger.write() as connection:
        assert reconcile_runs.forget_old(connection, runs_max=0) == 0
    moved = lake.run(ACT).id
    assert lake.states(moved) == {stuck: SweptState.HELD}
    restored = lake.lake.reconciler.restore(run)
    assert not restored.lost and not Path(stuck).exists(), "it went its own way since"
    purged = lake.lake.reconciler.purge()
    assert purged.purged == 1 and lake.states(run) == {stuck: SweptState.RESTORED}
    with lake.lake.ledger.write() as connection:
        assert reconcile_runs.forget_old(connection, runs_max=0) == 2


# ---- files that disappear from quarantine meanwhile ------------------------------------------------------------------


def vanish_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody deletes each file from quarantine just before it is brought back."""
    bring_back = LocalStore.bring_back

    def gone(self: LocalStore, kept_at: str, to: str) -> bool:
        os.unlink(kept_at)
        return bring_back(self, kept_at, to)

    monkeypatch.setattr(LocalStore, "bring_back", gone)


def test_a_file_that_disappears_from_quarantine_while_it_is_restored_is_lost_and_not_replaced(
    lake: WholeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    (orphan,) = lake.puts(1)
    run = lake.run(ACT).id
    vanish_first(monkeypatch)
    restored = lake.lake.reconciler.restore(run)
    assert (restored.lost, restored.taken) == ([orphan], [])
    assert lake.states(run) == {orphan: SweptState.LOST}


def test_purge_does_not_say_of_a_needed_file_that_disappears_that_another_one_is_in_its_place(
    lake: WholeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    (orphan,) = lake.puts(1)
    run = lake.run(ACT).id
    monkeypatch.setattr(LakeReferences, "referenced", lambda self, paths: set(paths))
    vanish_first(monkeypatch)
    purged = lake.lake.reconciler.purge()
    assert purged.waiting == 1 and purged.failed == [f"{orphan}: it is no longer in quarantine"]
    assert lake.states(run) == {orphan: SweptState.HELD}
