"""The class archive: the classes of Spark and Iceberg that the JVM loaded in one start, stored for all later starts.

Loading and verifying some 20,000 classes takes most of the time of a start. The JVM can write them to a file when it
ends (AppCDS), and map that file the next time. An archive fits one Java, one Spark and one set of jars. The JVM ignores
an archive that does not fit, so a failure here is never fatal.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from strandline.iceberg.session.jars import exclusive, spark_home
from strandline.iceberg.session.java import JavaFound
from strandline.storage.durable import finish_file

_TRAINING_TIMEOUT_SECONDS = 300
_DAY_SECONDS = 24 * 3600
_ARCHIVES_MAX = 4


def archive_path(folder: Path, java: JavaFound, jars: tuple[Path, ...]) -> Path:
    """The path of the archive. Its name has a hash of everything that the JVM compares before it uses an archive."""
    parts = [java.version, str(java.home), version("pyspark")]
    for jar in (*jars, *sorted((spark_home() / "jars").iterdir())):
        stat = jar.stat()
        parts.append(f"{jar} {stat.st_size} {stat.st_mtime_ns}")
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return folder / f"classes-{key}.jsa"


def use_flags(archive: Path | None) -> tuple[str, ...]:
    return () if archive is None else (f"-XX:SharedArchiveFile={archive}",)


def training_flags(archive: Path) -> tuple[str, ...]:
    return (f"-XX:ArchiveClassesAtExit={archive}",)


def ensure_archive(
    folder: Path, java: JavaFound, jars: tuple[Path, ...], progress: Callable[[str], None] | None
) -> Path | None:
    """The path of the archive. Creates the archive if there is none. None if that fails."""
    try:
        path = archive_path(folder, java, jars)
        if _touch(path):
            return path
        if _failed_recently(path):
            return None
        folder.mkdir(parents=True, exist_ok=True)
        with exclusive(folder / "lock"):
            if _touch(path):
                return path
            if progress:
                progress("Preparing Spark for quick starts, once (about half a minute)")
            is_written = _train(path, java, jars)
            _prune(folder, keep=path)
        return path if is_written else None
    except OSError:
        return None


def _touch(path: Path) -> bool:
    """Marks the archive as used now. False if there is none."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    except OSError:
        return path.is_file()  # another user's cache, which is read-only for us
    return True


def _failure_note(path: Path) -> Path:
    return path.with_suffix(".failed")


def _failed_recently(path: Path) -> bool:
    try:
        return time.time() - _failure_note(path).stat().st_mtime < _DAY_SECONDS
    except OSError:
        return False


def _train(path: Path, java: JavaFound, jars: tuple[Path, ...]) -> bool:
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        with tempfile.TemporaryDirectory(prefix="strandline-") as scratch:
            training = [sys.executable, "-m", "strandline.iceberg.session.class_archive_training"]
            run = subprocess.run(
                [*training, java.home, java.version, temporary, scratch, *jars],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=_TRAINING_TIMEOUT_SECONDS,
                check=False,
            )
        if run.returncode == 0 and temporary.is_file():
            finish_file(temporary, path)  # synced: a JVM may crash on an archive that a power failure cut short
            _failure_note(path).unlink(missing_ok=True)
            return True
        _failure_note(path).write_bytes(run.stdout[-20_000:])
    except subprocess.TimeoutExpired:
        _failure_note(path).write_text("the JVM did not end in time", "utf-8")
    finally:
        temporary.unlink(missing_ok=True)
    return False


def _prune(folder: Path, keep: Path) -> None:
    """Removes old archives: each has some 200 MB, and each change of Java or Spark leaves one. Archives that were used
    within a day stay: several environments of one user would otherwise delete each other's archives at every start."""
    day_ago = time.time() - _DAY_SECONDS
    archives = sorted(((p.stat().st_mtime, p) for p in folder.glob("classes-*.jsa") if p != keep), reverse=True)
    unfinished = [(p.stat().st_mtime, p) for p in folder.glob("classes-*.tmp")]
    for used_at, path in (*archives[_ARCHIVES_MAX - 1 :], *unfinished):
        if used_at < day_ago:
            path.unlink(missing_ok=True)
