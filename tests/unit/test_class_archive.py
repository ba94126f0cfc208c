from __future__ import annotations

import os
import time
from pathlib import Path

from strandline.iceberg.session import class_archive


def _archive(folder: Path, name: str, *, days: float) -> Path:
    path = folder / name
    path.write_bytes(b"")
    at = time.time() - days * 24 * 3600
    os.utime(path, (at, at))
    return path


def test_environments_that_are_used_side_by_side_do_not_delete_each_others_archives(tmp_path: Path) -> None:
    used = [_archive(tmp_path, f"classes-{n}.jsa", days=n / 100) for n in range(12)]

    class_archive._prune(tmp_path, keep=used[0])

    assert all(path.exists() for path in used)


def test_archives_that_nobody_has_used_for_long_and_remains_of_a_training_that_died_go(tmp_path: Path) -> None:
    new = _archive(tmp_path, "classes-new.jsa", days=0)
    old = [_archive(tmp_path, f"classes-{n}.jsa", days=2 + n) for n in range(5)]
    trains = _archive(tmp_path, "classes-a.17.tmp", days=0)
    died = _archive(tmp_path, "classes-b.17.tmp", days=3)

    class_archive._prune(tmp_path, keep=new)

    assert [path.exists() for path in (new, *old)] == [True, True, True, True, False, False]
    assert trains.exists()
    assert not died.exists()
