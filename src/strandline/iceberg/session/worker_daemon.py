"""The process from which Spark's Python workers are forked (`spark.python.daemon.module`).

Spark puts its core jar and a zipped pyspark on the workers' path. Before each task, Python would read the directories
of these archives again, once for each package in them: a fifth of a second. After each task it would collect garbage
among the objects of all modules: a twentieth. This daemon drops the archives from the path, imports what all our tasks
need once, before the first fork, and excludes the imported objects from garbage collection. A task then starts in
milliseconds.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path


def without_archives(path: list[str]) -> list[str]:
    """The path without jars, and without the zipped pyspark if it is a copy of the package that is installed here."""
    jarless = [p for p in path if not p.endswith(".jar")]
    spark = PathFinder.find_spec("pyspark", [p for p in jarless if not p.endswith(".zip")])
    if spark is None or spark.origin is None:
        return jarless
    installed = Path(spark.origin).parent
    return [p for p in jarless if not Path(p).is_relative_to(installed)]


def prepare_workers(*more: str) -> None:
    """Imports the modules that all tasks need, and `more`."""
    sys.path[:] = without_archives(sys.path)
    sys.path_importer_cache.clear()

    for needed in ("numpy", "pyarrow.compute", "pyarrow.parquet", "pyspark.daemon", "pyspark.sql.types", *more):
        import_module(needed)
    gc.freeze()


def fork_workers(*more: str) -> None:
    """Forks workers until Spark ends. `more` are further modules to import first."""
    prepare_workers(*more)
    from pyspark.daemon import manager

    manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    fork_workers()
