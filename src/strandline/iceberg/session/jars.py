"""The Iceberg jars: fetched once, checked against pinned checksums, stored in the cache.

Spark's own resolver fetches them, because it knows the default repository, and the proxies and mirrors that a site has
configured for Spark. A jar is used only if its SHA-256 is the pinned one.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from strandline.core.errors import RuntimeMissing
from strandline.iceberg.session.java import JavaFound
from strandline.storage.durable import finish_file, write_file

_FETCH_TIMEOUT_SECONDS = 900
_VERIFIED = "verified.json"


@dataclass(frozen=True, slots=True)
class Jar:
    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def coordinates(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"

    @property
    def file_name(self) -> str:
        """As Spark's resolver names it."""
        return f"{self.group}_{self.artifact}-{self.version}.jar"


ICEBERG = Jar(
    "org.apache.iceberg",
    "iceberg-spark-runtime-4.1_2.13",
    "1.12.0",
    "3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82",
)
SQLITE = Jar(
    "org.xerial", "sqlite-jdbc", "3.53.4.0", "bcb1f51e36f940867e83342f9efbf5968ac44a6bef4d397bb4af7b17b45cd2fb"
)
AWS = Jar(
    "org.apache.iceberg",
    "iceberg-aws-bundle",
    "1.12.0",
    "dd7e49ffa4ac9b215bed846581991259e3aec9bb2fa08d6cec029c46cd66d957",
)


def needed_jars(*, s3: bool) -> tuple[Jar, ...]:
    """The jars of a lake. Only lakes with a bucket need the AWS bundle, which is larger than the other jars
    together."""
    return (ICEBERG, SQLITE, AWS) if s3 else (ICEBERG, SQLITE)


def spark_home() -> Path:
    """pyspark's folder, without importing pyspark."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise RuntimeMissing("the Python package pyspark is not installed", hint="Install strandline again.")
    return Path(spec.origin).parent


def ensure_jars(
    folder: Path, jars: tuple[Jar, ...], java: JavaFound, progress: Callable[[str], None] | None
) -> tuple[Path, ...]:
    """The paths of the jars in the cache, with the right checksums. Fetches missing jars. Of jars that were verified
    before, checks only sizes and times. Raises RuntimeMissing."""
    paths = tuple(folder / jar.file_name for jar in jars)
    if not unverified_jars(folder, jars):
        return paths
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive(folder / "lock"):
        if missing := [jar for jar in jars if not _verify(folder, jar)]:
            if progress:
                progress("Fetching the Iceberg runtime, once: " + ", ".join(jar.artifact for jar in missing))
            _fetch(folder, missing, java)
    return paths


def unverified_jars(folder: Path, jars: tuple[Jar, ...]) -> list[Jar]:
    """The jars that the next start would have to fetch or verify. Changes nothing."""
    return [jar for jar in jars if not _is_verified(folder, jar)]


@contextmanager
def exclusive(lock: Path) -> Iterator[None]:
    """Lets in one process at a time. The system releases the lock if its holder dies."""
    import fcntl  # does not exist on Windows, where this module is imported, but this function is never called

    with lock.open("ab") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _read_verified(folder: Path) -> Mapping[str, object]:
    try:
        stamps = json.loads((folder / _VERIFIED).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return stamps if isinstance(stamps, dict) else {}


def _is_verified(folder: Path, jar: Jar) -> bool:
    try:
        return _read_verified(folder).get(jar.file_name) == _stamp(folder, jar)
    except OSError:
        return False


def _stamp(folder: Path, jar: Jar) -> list[object]:
    stat = (folder / jar.file_name).stat()
    return [jar.sha256, stat.st_size, stat.st_mtime_ns]


def _record_verified(folder: Path, jar: Jar) -> None:
    stamps = {**_read_verified(folder), jar.file_name: _stamp(folder, jar)}
    write_file(folder / _VERIFIED, json.dumps(stamps, indent=1).encode())


def _verify(folder: Path, jar: Jar) -> bool:
    if _is_verified(folder, jar):
        return True
    path = folder / jar.file_name
    if not path.is_file() or sha256_of(path) != jar.sha256:
        return False
    _record_verified(folder, jar)
    return True


def sha256_of(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _fetch(folder: Path, jars: list[Jar], java: JavaFound) -> None:
    for left_behind in folder.glob("fetch-*"):  # of a killed process; we hold the lock
        shutil.rmtree(left_behind, ignore_errors=True)
    # Inside the cache, so that the move is a rename within one file system.
    with tempfile.TemporaryDirectory(dir=folder, prefix="fetch-") as scratch:
        output = _run_resolver(Path(scratch), jars, java)
        for jar in jars:
            fetched = Path(scratch) / "jars" / jar.file_name
            if not fetched.is_file():
                raise RuntimeMissing(
                    f"{jar.coordinates} could not be fetched{_reason(output)}", hint=_offline_hint(folder, jar)
                )
            checksum = sha256_of(fetched)
            if checksum != jar.sha256:
                raise RuntimeMissing(
                    f"{jar.coordinates} was fetched, but its checksum is wrong (SHA-256 {checksum})",
                    hint="A mirror, a proxy or a local Maven folder serves a changed or damaged file. Expected: "
                    f"{jar.sha256}.",
                )
            finish_file(fetched, folder / jar.file_name)
            _record_verified(folder, jar)


def _run_resolver(scratch: Path, jars: list[Jar], java: JavaFound) -> str:
    script = scratch / "nothing.py"
    script.write_text("", "utf-8")
    home = spark_home()
    command = [
        str(home / "bin" / "spark-submit"),
        "--master",
        "local[1]",
        "--packages",
        ",".join(jar.coordinates for jar in jars),
        "--conf",
        f"spark.jars.ivy={scratch}",
        str(script),
    ]
    misleading = ("PYSPARK_SUBMIT_ARGS", "SPARK_REMOTE", "PYSPARK_GATEWAY_PORT")
    inherited = {name: value for name, value in os.environ.items() if name not in misleading}
    environ = inherited | {
        "JAVA_HOME": str(java.home),
        "SPARK_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    try:
        run = subprocess.run(
            command,
            env=environ,
            cwd=scratch,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_FETCH_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "timed out"
    except OSError as e:
        return str(e)
    return run.stdout


def _reason(output: str) -> str:
    """The cause in the resolver's report, in a few words."""
    lowered = output.lower()
    return next((f": {reason}" for signs, reason in _REASONS if any(sign in lowered for sign in signs)), "")


_REASONS = (
    (
        ("unknownhostexception", "unreachable", "no route to host"),
        "there is no network, or no way to the package repository",
    ),
    (("timed out",), "the package repository did not answer in time"),
    (("connection refused",), "the connection to the package repository was refused"),
    (("no space left",), "the disk is full"),
    (("pkix", "sslhandshake"), "Java does not trust the certificate of the package repository"),
    # The resolver reports only this if it cannot even resolve the repository's name.
    (
        ("unresolved dependency", "not found"),
        "there is no network, or the package repository cannot be reached from here",
    ),
)


def _offline_hint(folder: Path, jar: Jar) -> str:
    return (
        "The first start needs a network once; later ones do not. Behind a mirror, set DEFAULT_ARTIFACT_REPOSITORY to "
        f"its address. Without any network, put the file {jar.file_name} into {folder}; its checksum is verified."
    )
