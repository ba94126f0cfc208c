"""What Spark needs outside of Python: Java, the Iceberg jars, and a class archive. Does not import pyspark.

`ensure_runtime` fetches or creates what is missing. `runtime_report` only checks, for `strandline doctor`.
"""

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from strandline.core.errors import RuntimeMissing, StrandlineError
from strandline.core.text.wording import size
from strandline.iceberg.session.class_archive import archive_path, ensure_archive
from strandline.iceberg.session.jars import ensure_jars, needed_jars, unverified_jars
from strandline.iceberg.session.java import JavaFound, find_java, refuse_windows

PYTHON_MIN = (3, 11)
SQLITE_WAL_SAFE = (3, 51, 3)
DISK_FREE_MIN_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Runtime:
    java: JavaFound
    jars: tuple[Path, ...]
    archive: Path | None


@dataclass(frozen=True, slots=True)
class RuntimeCheck:
    """One line of `strandline doctor`."""

    name: str
    ok: bool
    detail: str
    hint: str | None = None


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """The folder for files that are fetched or created once. It can be deleted at any time."""
    env = os.environ if environ is None else environ
    if named := env.get("STRANDLINE_CACHE"):
        return Path(named).expanduser().absolute()
    if base := env.get("XDG_CACHE_HOME"):
        return Path(base).absolute() / "strandline"
    home = Path(env.get("HOME") or Path.home())
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "strandline"
    return home / ".cache" / "strandline"


def ensure_runtime(*, s3: bool, progress: Callable[[str], None] | None = None) -> Runtime:
    """Everything that Spark needs. Fetches or creates what is missing. Raises RuntimeMissing."""
    refuse_windows()
    java = find_java()
    cache = cache_folder()
    try:
        jars = ensure_jars(cache / "jars", needed_jars(s3=s3), java, progress)
    except OSError as e:
        raise RuntimeMissing(
            f"the cache folder {cache} cannot be used: {e.strerror or e}",
            hint="Set STRANDLINE_CACHE to a folder that can be written.",
        ) from e
    return Runtime(java, jars, ensure_archive(cache / "archives", java, jars, progress))


def runtime_report(*, s3: bool = False) -> list[RuntimeCheck]:
    """What is present and what is missing. Fetches, creates and starts nothing."""
    return [_platform(), _python(), _sqlite(), *_java_and_jars(s3=s3), _disk()]


def _platform() -> RuntimeCheck:
    name = f"{platform.system()} {platform.release()} on {platform.machine()}"
    try:
        refuse_windows()
    except RuntimeMissing as e:
        return RuntimeCheck("platform", False, e.message, e.hint)
    return RuntimeCheck("platform", True, name)


def _python() -> RuntimeCheck:
    ok = sys.version_info[:2] >= PYTHON_MIN
    wanted = ".".join(map(str, PYTHON_MIN))
    return RuntimeCheck(
        "python", ok, platform.python_version(), None if ok else f"Strandline needs Python {wanted} or newer."
    )


def _sqlite() -> RuntimeCheck:
    if sqlite3.sqlite_version_info >= SQLITE_WAL_SAFE:
        return RuntimeCheck("sqlite", True, sqlite3.sqlite_version)
    newer = ".".join(map(str, SQLITE_WAL_SAFE))
    reason = f"older than {newer}, so the ledger uses a rollback journal instead of WAL; that is fine"
    return RuntimeCheck("sqlite", True, f"{sqlite3.sqlite_version}: {reason}")


def _java_and_jars(*, s3: bool) -> list[RuntimeCheck]:
    cache = cache_folder()
    jars = needed_jars(s3=s3)
    if missing := unverified_jars(cache / "jars", jars):
        names = ", ".join(jar.artifact for jar in missing)
        hint = "They are fetched at the first start, which needs a network once."
        jar_check = RuntimeCheck("iceberg", False, f"not in {cache / 'jars'}: {names}", hint)
    else:
        jar_check = RuntimeCheck("iceberg", True, ", ".join(f"{jar.artifact} {jar.version}" for jar in jars))
    try:
        java = find_java()
    except RuntimeMissing as e:
        return [RuntimeCheck("java", False, e.message, e.hint), jar_check]
    java_check = RuntimeCheck("java", True, f"{java.version} in {java.home}")
    if missing:
        return [java_check, jar_check]
    archive = archive_path(cache / "archives", java, tuple(cache / "jars" / jar.file_name for jar in jars))
    if archive.is_file():
        return [java_check, jar_check, RuntimeCheck("class archive", True, str(archive))]
    note = archive.with_suffix(".failed")
    detail = f"could not be created, see {note}; Spark starts slower" if note.is_file() else "created at the next start"
    return [java_check, jar_check, RuntimeCheck("class archive", True, detail)]


def _disk() -> RuntimeCheck:
    folder = cache_folder()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    ok = free >= DISK_FREE_MIN_BYTES
    hint = None if ok else f"Less than {DISK_FREE_MIN_BYTES >> 30} GiB is free; the runtime needs about half."
    return RuntimeCheck("disk", ok, f"{size(free)} free at {folder}", hint)


def main(arguments: list[str]) -> int:
    """For `make install`. `--java` only finds Java; `--s3` adds the jars for S3."""
    try:
        if "--java" in arguments:
            print(find_java().home)
        else:
            ensure_runtime(s3="--s3" in arguments, progress=print)
    except StrandlineError as e:
        print(e.message, file=sys.stderr)
        print(e.hint or "", file=sys.stderr)
        return e.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
