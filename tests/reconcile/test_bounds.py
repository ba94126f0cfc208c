"""What a run is bounded by: looks side by side, looks at all once the cap is reached, failures that are told."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from strandline.reconcile.model import Phase, Stat
from tests.reconcile.whole_lakes import ACT, REPORT, MakeLake, WholeLake, there


class Looks:
    """Looks at storage, each of which takes a while: which, in which phase, and how many at a time."""

    def __init__(self, lake: WholeLake, monkeypatch: pytest.MonkeyPatch, seconds: float = 0.0) -> None:
        self.phase: Phase | None = None
        self.paths: dict[Phase | None, set[str]] = {}
        self.most = 0
        self._under_way = 0
        self._lock = threading.Lock()
        self._seconds = seconds
        storage = lake.lake.reconciler.storage
        self._look = storage.find_file
        monkeypatch.setattr(storage, "find_file", self.find_file, raising=False)

    def find_file(self, path: str) -> Stat | None:
        with self._lock:
            self._under_way += 1
            self.most = max(self.most, self._under_way)
            self.paths.setdefault(self.phase, set()).add(path)
        time.sleep(self._seconds)
        try:
            return self._look(path)
        finally:
            with self._lock:
                self._under_way -= 1

    def on_progress(self, phase: Phase, count: int, total: int | None) -> None:
        self.phase = phase


@pytest.mark.parametrize("at_once", [1, 3])
def test_candidates_are_looked_at_side_by_side_and_never_more_than_allowed(
    make_lake: MakeLake, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = make_lake(recheck_concurrency=at_once)
    orphans = lake.puts(12)
    looks = Looks(lake, monkeypatch, seconds=0.1)
    assert lake.run(ACT).outcome.done.orphans == 12 and not any(there(orphans))
    assert looks.most == at_once


def test_at_the_cap_no_further_candidate_is_looked_at(make_lake: MakeLake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = make_lake(deletes_max_per_run=5, batch_size=3)
    orphans = lake.puts(20)
    looks = Looks(lake, monkeypatch)
    run = lake.run(ACT, on_progress=looks.on_progress)
    assert run.outcome.cap_hit and run.outcome.done.orphans == 5 and there(orphans) == [False] * 5 + [True] * 15
    assert looks.paths[Phase.ORPHANS] & set(orphans) == set(orphans[:5])


def test_a_candidate_that_is_skipped_leaves_its_place_under_the_cap_to_the_next(
    make_lake: MakeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = make_lake(deletes_max_per_run=5, batch_size=3)
    orphans = lake.puts(20)
    looks = Looks(lake, monkeypatch)

    def replaced(phase: Phase, count: int, total: int | None) -> None:
        if phase is Phase.ORPHANS and looks.phase is not Phase.ORPHANS:
            for path in orphans[:4]:
                Path(path).write_bytes(b"another file")
        looks.on_progress(phase, count, total)

    run = lake.run(ACT, on_progress=replaced)
    assert run.outcome.done.orphans == 5 and run.outcome.done.skipped_recheck == 4
    assert there(orphans) == [True] * 4 + [False] * 5 + [True] * 11
    assert looks.paths[Phase.ORPHANS] & set(orphans) == set(orphans[:9])


def test_no_more_failures_are_recorded_than_errors_max_and_the_rest_is_counted(make_lake: MakeLake) -> None:
    lake = make_lake(errors_max=2)
    for n in range(5):
        (lake.warehouse / "default" / "events" / "data" / f"loop-{n}").symlink_to(f"loop-{n}")
    run = lake.run(REPORT)
    assert run.outcome.partial and len(run.outcome.failures) == 3 and run.outcome.failures[-1] == "and 3 more"
    assert "loop-0" in run.outcome.failures[0] and "loop-1" in run.outcome.failures[1]
