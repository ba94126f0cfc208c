"""What executors of a cluster get of our code, and what their workers do with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from strandline.iceberg.session import executor_code, launch, strandline_worker_daemon

STUBS = ("numpy", "pyarrow", "pyarrow.compute", "pyarrow.parquet", "pyspark", "pyspark.sql", "pyspark.sql.types")
MANAGER = "import sys\ndef manager():\n    print(getattr(sys.modules.get('strandline'), '__file__', None))\n"


def test_the_same_code_is_the_same_archive_and_other_code_another(tmp_path: Path) -> None:
    first = executor_code.package_archive(tmp_path / "one")
    second = executor_code.package_archive(tmp_path / "two")
    assert first.name == second.name and first.read_bytes() == second.read_bytes()
    written = first.stat().st_mtime_ns
    assert executor_code.package_archive(tmp_path / "one").stat().st_mtime_ns == written, "it was there"
    with zipfile.ZipFile(first) as archive:
        names = archive.namelist()
    assert "strandline/iceberg/session/worker_daemon.py" in names
    assert [name for name in names if not name.endswith(".py")] == []


def test_a_cluster_gets_the_daemon_that_needs_nothing_installed_and_a_user_may_name_another(tmp_path: Path) -> None:
    def daemon(master: str, **options: str) -> str:
        made = launch.context_options(
            master=master, driver_memory="1g", jars=(), archive_flags=(), scratch=tmp_path, options=options
        )
        return made["spark.python.daemon.module"]

    assert daemon("local[2]") == "strandline.iceberg.session.worker_daemon"
    assert daemon("spark://there:7077") == "strandline_worker_daemon"
    assert daemon("spark://there:7077", **{"spark.python.daemon.module": "pyspark.daemon"}) == "pyspark.daemon"


@pytest.fixture
def executor(tmp_path: Path) -> Path:
    """The folder of an executor, with the packages that are installed there: empty ones, and Spark's own daemon."""
    for name in STUBS:
        package = tmp_path / "installed" / name.replace(".", "/")
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
    (tmp_path / "installed/pyspark/daemon.py").write_text(MANAGER, "utf-8")
    (tmp_path / "work").mkdir()
    shutil.copy(strandline_worker_daemon.__file__, tmp_path / "work")
    return tmp_path / "work"


def start_daemon(executor: Path) -> tuple[str, str]:
    """Where it has our package from, and what it says. Without the packages of this Python (`-S`)."""
    done = subprocess.run(
        [sys.executable, "-S", "-m", launch.DAEMON_ON_EXECUTORS, "pyspark.worker"],
        cwd=executor, env=os.environ | {"PYTHONPATH": str(executor.parent / "installed")},
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    return done.stdout.strip(), done.stderr


def test_workers_are_forked_from_our_daemon_where_the_package_is_not_installed(executor: Path) -> None:
    executor_code.package_archive(executor)
    found, said = start_daemon(executor)
    assert Path(found).is_relative_to(executor) and Path(found).is_file() and said == ""


def test_where_our_daemon_cannot_be_loaded_sparks_own_starts(executor: Path) -> None:
    found, said = start_daemon(executor)
    assert found == "None" and "so Spark's own is used: ModuleNotFoundError" in said
    executor_code.package_archive(executor)
    shutil.rmtree(executor.parent / "installed" / "pyarrow")
    _, said = start_daemon(executor)
    assert "No module named 'pyarrow'" in said
