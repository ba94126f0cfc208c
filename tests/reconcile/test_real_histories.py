"""Random histories on real Iceberg tables, through PyIceberg and on a real disk: whatever others do meanwhile, whatever
does not answer and wherever a run dies, no live file is touched, and every orphan that is old enough is found."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from strandline.core import failpoints
from strandline.core.errors import RefusedError, StorageError
from strandline.core.records.reconcile_records import Asked
from strandline.iceberg.pyiceberg.catalog import PyIcebergCatalog
from strandline.ledger.engine import Ledger
from strandline.ledger.ingest import datasets
from strandline.reconcile.ledger_context import LedgerContextLoader
from strandline.reconcile.model import Finding
from strandline.reconcile.references.lake_catalog import LakeCatalog
from strandline.reconcile.storage.local_store import LocalStore
from strandline.reconcile.storage.pool import Pool
from tests.campaign import scaled
from tests.reconcile.live_files import Ended, assert_no_live_file_is_touched
from tests.reconcile.real_history import HOUR, History, Killed
from tests.reconcile.whole_lakes import ACT, REPORT, WholeLake

pytestmark = pytest.mark.timeout(900)

HISTORIES = scaled(16, 300)
HISTORIES_MAX = HISTORIES + 250
"""Names of files are not the same in every run, so neither is what happens: if something did not, there are more."""
SHARDS = 2
OTHERS = {"append", "stray", "register", "delete", "expire", "branch", "lose", "rewrite", "compact"}
EVENTS = OTHERS | {"register_this"}
LATER = 150


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeLake]:
    made = WholeLake(
        tmp_path_factory.mktemp("real") / "lake",
        grace_hours=24, batch_size=2, recheck_concurrency=1, lease_seconds=60, deletes_max_share=1.0, quarantine_days=0,
        references_shrink_max=0.99,
    )  # fmt: skip
    yield made
    made.lake.close()


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> list[History]:
    """The history that runs are part of. Before whatever a run does, others have their turn, and faults theirs."""
    current: list[History] = []

    def wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
        real = getattr(owner, name)

        def wrapped(*arguments: Any, **options: Any) -> Any:
            if not current or current[0].within:
                return real(*arguments, **options)
            return around(current[0], real, *arguments, **options)

        monkeypatch.setattr(owner, name, wrapped)

    def answers(chance: float) -> Callable[..., Any]:
        def around(history: History, real: Any, *arguments: Any, **options: Any) -> Any:
            history.tick()
            history.answer(real.__name__, chance)
            return real(*arguments, **options)

        return around

    def set_aside(history: History, real: Any, store: LocalStore, files: Any) -> Any:
        history.tick()
        for file in files:
            history.register_this(file.path)
        return real(store, files)

    def drop_entries(history: History, real: Any, catalog: LakeCatalog, table: str, paths: Any, **options: Any) -> int:
        history.check_drop(paths)
        return int(real(catalog, table, paths, **options))

    def run(history: History, real: Any, pool: Pool, *given: Any, **options: Any) -> None:
        *before, on_end = given

        def ended(task: Any, how: str, what: Any) -> Any:
            if history.fails(0.02):
                return on_end(task, history.random.choice(("failed", "timeout")), "no answer")
            return on_end(task, how, what)

        history.tick()
        real(pool, *before, ended, **options)

    def hit(history: History, real: Any, name: str) -> None:
        history.pass_point(name)

    def context(history: History, real: Any, ground: LedgerContextLoader, asked: Asked) -> Any:
        found = real(ground, asked)
        return replace(found, now_ns=found.now_ns + history.hours_later * HOUR * 1_000_000_000)

    def write(history: History, real: Any, ledger: Ledger) -> Any:
        if history.dead:
            raise Killed
        return real(ledger)

    wrap(LocalStore, "find_file", answers(0.005))
    wrap(LocalStore, "bring_back", answers(0.0))
    wrap(LocalStore, "delete", answers(0.0))
    wrap(LocalStore, "set_aside", set_aside)
    wrap(PyIcebergCatalog, "table_names", answers(0.01))
    wrap(PyIcebergCatalog, "load", answers(0.01))
    wrap(LakeCatalog, "drop_entries", drop_entries)
    wrap(Pool, "run", run)
    wrap(LedgerContextLoader, "ledger_context", context)
    wrap(Ledger, "write", write)
    wrap(failpoints, "hit", hit)
    return current


def work(history: History) -> Ended:
    """One run, restore or purge, in a process that may be killed."""
    lake, dice, unanswered = history.lake, history.random, history.unanswered
    history.may_be_killed()
    try:
        match dice.choice(("act", "act", "act", "delete", "restore", "purge")):
            case "restore" if runs := lake.lake.reconciler.runs(3):
                lake.lake.reconciler.restore(dice.choice(runs).id)
            case "purge":
                lake.lake.reconciler.purge()
            case what:
                run = lake.run(Asked(act=True, delete=what == "delete"))
                if run.aborted is None and history.unanswered == unanswered:
                    return Ended.WHOLE
    except (StorageError, RefusedError):
        pass  # Not told, or not gated: nothing was deleted for good.
    except Killed:
        return Ended.KILLED
    finally:
        history.outlive()
    return Ended.SOMEHOW


def live_through(history: History) -> Counter[str]:
    ended: Counter[str] = Counter()
    for _ in range(history.random.randrange(4, 8)):
        history.event()
    history.busy = True
    owed: set[str] = set()
    for _ in range(2):
        if history.rewriting is None and history.random.random() < 0.5:
            history.hours_later = LATER
        how = work(history)
        owed = assert_no_live_file_is_touched(history, owed, how)
        ended[how.name] += 1
        ended["owed"] += bool(owed)
        history.hours_later = 0
    history.busy = False
    settle_down(history)
    return ended


def settle_down(history: History) -> None:
    """No more faults, and nobody else, days later: everything that is old is found, and what is needed is where it
    belongs."""
    history.commit_compaction()
    history.find_lost()
    history.hours_later = LATER
    if history.out_of_place():
        history.lake.run(ACT)  # what a run that was killed has set aside comes back; until then no orphan goes
    old, told = history.aged_orphans(), list[Finding]()
    run = history.lake.run(ACT, on_finding=told.append)
    assert run.aborted is None and not run.outcome.partial, run
    assert old <= {f.path for f in told if f.protected is None}, "an old orphan was not found"
    assert not history.out_of_place()
    assert not old & history.aged_orphans(), "an orphan that is old enough was left"
    again = history.lake.run(REPORT)
    assert again.outcome.planned.missing == 0 and again.outcome.planned.orphans == 0, again.outcome


@pytest.mark.parametrize("shard", range(SHARDS))
def test_no_live_file_of_a_real_table_is_touched_and_every_aged_orphan_is_found(
    lake: WholeLake, beside: list[History], shard: int
) -> None:
    ended: Counter[str] = Counter()
    happened: set[str] = set()

    def has_everything_happened() -> bool:
        return happened >= EVENTS and ended["WHOLE"] > 0 and ended["SOMEHOW"] > 0 and ended["KILLED"] > 0

    for seed in range(shard, HISTORIES_MAX, SHARDS):
        if seed >= HISTORIES and has_everything_happened():
            break
        history = History(lake, seed)
        beside.append(history)
        try:
            ended += live_through(history)
        except AssertionError as e:
            raise AssertionError(f"history {seed}: {e}") from e
        finally:
            beside.clear()
            forget(history)
        happened |= set(history.happened)
    assert has_everything_happened(), (ended, happened)


def forget(history: History) -> None:
    lake = history.lake
    lake.lake.catalog.drop(lake.dataset.name)
    with lake.lake.ledger.write() as connection:
        datasets.mark_dropped(connection, lake.dataset.id)
    shutil.rmtree(history.folder)
