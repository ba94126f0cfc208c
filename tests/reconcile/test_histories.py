"""Random histories with faults: whatever others do meanwhile and wherever a run dies, no live file is touched for good,
and every orphan that is old enough is found."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strandline.core.errors import StorageError
from strandline.core.records.reconcile_records import Asked, SweptState
from strandline.core.settings.lake_config import LakeConfig, Settings
from strandline.core.settings.reconcile import ReconcileSettings
from strandline.ledger.engine import Ledger
from strandline.ledger.reconcile import quarantined_files, reconcile_runs, suspect_files
from strandline.reconcile import quarantine
from strandline.reconcile.context import SweepContext
from strandline.reconcile.model import Finding
from strandline.reconcile.sweep import sweep
from tests.campaign import scaled
from tests.reconcile.live_files import Ended, assert_no_live_file_is_touched
from tests.reconcile.run_reports import RunReports
from tests.reconcile.world import HOUR_NS, Killed, World
from tests.reconcile.world_ports import ModelCatalog, ModelStorage, ModelSurveyor

pytestmark = pytest.mark.timeout(900)

HISTORIES = scaled(60, 5_000)
SHARDS = 2
SETTINGS = ReconcileSettings(
    batch_size=2, recheck_concurrency=1, lease_seconds=600, deletes_max_share=1.0, history_runs=5, quarantine_days=0
)


class Ledgers:
    """A new ledger for each history, by putting back what it was when it was made: that is quicker than making
    one."""

    def __init__(self, home: Path) -> None:
        self._ledger = Ledger(LakeConfig(Settings(), home))
        self._ledger.create("lake-of-histories")
        assert self._ledger.path is not None
        self._path = self._ledger.path
        self._ledger.close()
        self._empty = self._path.read_bytes()

    def new(self) -> Ledger:
        self._ledger.close()
        for left in self._path.parent.glob(f"{self._path.name}-*"):
            left.unlink()
        self._path.write_bytes(self._empty)
        return self._ledger


@pytest.fixture(scope="module")
def ledgers() -> Iterator[Ledgers]:
    with tempfile.TemporaryDirectory() as home:
        yield Ledgers(Path(home))


class ModelLoader:
    """A ledger that is the newest, and has no spool."""

    def __init__(self, world: World) -> None:
        self.ledger_context = world.context

    def gate(self, tables: object, unread: object) -> None:
        return None

    def spooled(self, paths: object) -> set[str]:
        return set()

    def pointers(self, tables: object) -> tuple[str, ...]:
        return ()


class NothingToPrepare:
    def for_run(self, asked: Asked) -> None:
        pass


def context_of(ledger: Ledger, world: World) -> SweepContext:
    storage, catalog = ModelStorage(world), ModelCatalog(world)
    return SweepContext(
        ledger,
        SETTINGS,
        storage,
        catalog,
        ModelSurveyor(world, storage, catalog),
        ModelLoader(world),
        NothingToPrepare(),
        world.root,
    )


def work(context: SweepContext, world: World, monkeypatch: pytest.MonkeyPatch) -> Ended:
    """One run, restore or purge, in a process that may be killed. From then on it writes nothing, not even on its way
    out."""
    write, dice, unanswered = Ledger.write, world.random, world.unanswered

    def refuse(self: Ledger) -> Any:
        if world.kill_after is not None and world.steps >= world.kill_after:
            raise Killed
        return write(self)

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "write", refuse)
        try:
            match dice.choice(("act", "act", "act", "delete", "report", "restore", "purge")):
                case "restore" if runs := reconcile_runs_of(context.ledger, 3):
                    quarantine.restore(context, dice.choice(runs))
                case "purge":
                    quarantine.purge(context)
                case what:
                    run = sweep(context, Asked(act=what != "report", delete=what == "delete"))
                    if run.asked.act and run.aborted is None and world.unanswered == unanswered:
                        return Ended.WHOLE
        except StorageError:
            pass
        except Killed:
            return Ended.KILLED
        finally:
            world.kill_after = world.kill_after_moves = None
    return Ended.SOMEHOW


def live_through(ledgers: Ledgers, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world, ledger = World(seed), ledgers.new()
    dice = world.random
    context = context_of(ledger, world)
    for _ in range(dice.randrange(3, 10)):
        world.event()
    owed: set[str] = set()
    for _ in range(dice.randrange(1, 5)):
        world.now_ns += dice.choice((1, 5, 20, 30)) * HOUR_NS
        match dice.randrange(4):
            case 0:
                world.kill_after = world.steps + dice.randrange(1, 60)
            case 1:
                world.kill_after_moves = dice.randrange(1, 4)
        owed = assert_no_live_file_is_touched(world, owed, work(context, world, monkeypatch))
        with ledger.write() as connection:  # the lease of a process that was killed runs out
            connection.exec_driver_sql("UPDATE sweep_lease SET token = NULL, until = NULL")
        for _ in range(dice.randrange(0, 5)):
            world.event()
    settle_down(context, world)


def reconcile_runs_of(ledger: Ledger, count: int) -> list[int]:
    with ledger.read() as connection:
        return [run.id for run in reconcile_runs.latest(connection, runs_max=count)]


def suspected(context: SweepContext) -> list[str]:
    with context.ledger.read() as connection:
        return [suspect.path for suspect in suspect_files.list_suspects(connection) if not suspect.released]


def give_up(context: SweepContext, world: World) -> None:
    """What is missing, by a person who says which files are orphans. Until then no orphan beside it goes."""
    sweep(context, Asked(act=True))
    found = suspected(context)
    with context.ledger.write() as connection:
        for path in found:
            suspect_files.release(connection, path)
    sweep(context, Asked(act=True))
    for table in world.tables.values():
        world.forget_history(table)
    world.now_ns += 30 * HOUR_NS


def settle_down(context: SweepContext, world: World) -> None:
    """No more faults, and nobody else: everything that is old is found, and what is needed is where it belongs."""
    world.busy = False
    while world.in_flight:
        world.finish()
    world.now_ns += 30 * HOUR_NS
    if world.out_of_place():
        sweep(
            context, Asked(act=True)
        )  # what a killed run left in quarantine comes back; orphans wait for the next run
    if world.lost or suspected(context):
        give_up(context, world)
    old, told = world.aged_orphans(), list[Finding]()
    first = sweep(context, Asked(act=True), listener=RunReports(on_finding=told.append))
    assert first.aborted is None and not first.outcome.partial, first
    assert old <= {finding.path for finding in told if finding.protected is None}, "an old orphan was not found"
    assert not world.out_of_place()
    assert not old & world.files.keys(), "an orphan that is old enough was left"
    world.now_ns += 30 * HOUR_NS
    sweep(context, Asked(act=True))
    again = sweep(context, Asked())
    assert again.outcome.found.orphans == 0 and again.outcome.planned.missing == 0
    assert not world.out_of_place()
    with context.ledger.read() as connection:
        for run in reconcile_runs_of(context.ledger, 5):
            for file in quarantined_files.of_run(connection, run):  # type: ignore[arg-type]
                if file.path.startswith(f"{world.root}/") and file.state is SweptState.HELD:
                    assert file.kept_at in world.files and file.path not in world.referenced() - world.lost


@pytest.mark.parametrize("shard", range(SHARDS))
def test_no_live_file_is_touched_and_every_aged_orphan_is_found(
    ledgers: Ledgers, shard: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(shard, HISTORIES, SHARDS):
        try:
            live_through(ledgers, seed, monkeypatch)
        except AssertionError as e:
            raise AssertionError(f"history {seed}: {e}") from e


@pytest.mark.parametrize("first_look", [True, False])
def test_the_histories_would_notice_a_sweep_that_does_not_look_again(
    ledgers: Ledgers, first_look: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same histories, without the look at references after a move, and without the one before it, too."""
    from strandline.reconcile.act import DriftRemover
    from strandline.reconcile.sweep import _Sweep

    def blind(self: Any, some: Any, stats: Any, *rest: Any) -> Any:
        return [(f, s) for f, s in zip(some, stats, strict=True) if s is not None and s == f.listed]

    if not first_look:
        monkeypatch.setattr(_Sweep, "_still_orphans", blind)
    monkeypatch.setattr(DriftRemover, "_referenced_by_now", lambda self, *rest: [])
    for seed in range(300):
        try:
            live_through(ledgers, seed, monkeypatch)
        except AssertionError as e:
            assert "live files" in str(e)
            return
    pytest.fail("no history registers a file between listing and acting")
