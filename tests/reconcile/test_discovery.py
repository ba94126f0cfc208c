"""Folders that nobody owns: how many are looked into, and which."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from strandline.reconcile.storage.discovery import SCANNED_PER_ROOT, discover
from strandline.reconcile.storage.inventory import holding
from strandline.reconcile.storage.pool import Pool
from tests.reconcile.conftest import SomeLake, Watching, by_path

KNOWN = ["/wh/ns/t"]
FOLDERS = [f"x{n:03}" for n in range(40)]


def children(folder: str) -> list[str]:
    return {"/wh": ["ns", "_strandline"], "/wh/ns": ["t", *FOLDERS]}.get(folder, [])


def at(numbers: Sequence[int]) -> list[str]:
    return [f"/wh/ns/x{n:03}" for n in numbers]


def test_empty_folders_do_not_use_up_the_cap_and_no_more_are_looked_into_than_needed() -> None:
    looked: list[str] = []

    def held(folders: Sequence[str]) -> list[str]:
        looked.extend(folders)
        return [folder for folder in folders if int(folder[-3:]) >= 7]

    found = discover("/wh", KNOWN, children, roots_max=5, holding=held)
    assert found.unknown == at(range(7, 12)) and found.is_cut and looked == at(range(13))


def test_looking_stops_at_four_times_the_cap() -> None:
    looked: list[str] = []

    def none(folders: Sequence[str]) -> list[str]:
        looked.extend(folders)
        return []

    found = discover("/wh", KNOWN, children, roots_max=5, holding=none)
    assert len(looked) == SCANNED_PER_ROOT * 5 and found.is_cut and not found.unknown
    looked.clear()
    assert not discover("/wh", KNOWN, children, roots_max=10, holding=none).is_cut and len(looked) == 40


def test_each_folder_has_its_turn_however_many_there_are() -> None:
    seen: set[str] = set()
    for turn in range(20_000, 20_009):
        found = discover("/wh", KNOWN, children, roots_max=5, turn=turn)
        assert len(found.unknown) == 5 and found.is_cut
        seen.update(found.unknown)
    assert seen == set(at(range(40)))
    assert discover("/wh", KNOWN, children, roots_max=40, turn=3).unknown == at(range(40))


def test_a_folder_holds_something_if_it_has_more_than_folders_or_cannot_be_read(tmp_path: Path) -> None:
    for name in ("empty", "deep/er/still", "linked/a", "filed/a/b"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "linked/a/link").symlink_to(tmp_path)
    (tmp_path / "filed/a/b/f").write_bytes(b"x")
    unreadable = tmp_path / ("d" * 300)
    asked = [*map(str, sorted(tmp_path.iterdir())), str(unreadable), str(tmp_path / "gone")]
    with Pool() as pool:
        found = holding(asked, pool, timeout_seconds=30)
    assert found == [str(tmp_path / "filed"), str(tmp_path / "linked"), str(unreadable)]


def test_what_runs_have_emptied_does_not_hide_what_is_left(tmp_path: Path) -> None:
    lake = SomeLake(tmp_path, unknown_roots_max=2)
    lake.create()
    lake.append()
    for n in range(5):
        lake.path(f"ns/a{n}/data").mkdir(parents=True)
    left = [lake.put(f"ns/z{n}/data/f.parquet") for n in range(2)]
    survey = lake.survey()
    assert sorted(by_path(survey.drift.orphans())) == left and not survey.failures
    lake.catalog.close()


def test_a_run_that_is_called_off_does_not_go_on_looking_for_folders(some_lake: SomeLake) -> None:
    class CalledOff(Watching):
        def check(self) -> None:
            raise KeyboardInterrupt

    some_lake.create()
    surveyor = some_lake.surveyor()
    with Pool() as pool, pytest.raises(KeyboardInterrupt):
        surveyor.plan_listing(surveyor.known(), pool, CalledOff())
