"""The program from which a cluster's Python workers are forked (`spark.python.daemon.module`).

Spark copies this file into the folder of each executor, beside the archive of the package. It imports no other module
of ours before it has unpacked that archive. If our daemon cannot start, Spark's own daemon is started instead: tasks
then only begin later, because each new worker imports everything.
"""

from __future__ import annotations

import sys
import tempfile
import zipfile
from pathlib import Path


def unpack_package(folder: Path) -> str | None:
    """Unpacks the archive, and returns the folder to import from. (Python caches no bytecode of modules that it imports
    from an archive.) None if there is no archive: then an installed package must do."""
    archives = sorted(folder.glob("strandline-*.zip"), key=lambda path: path.stat().st_mtime)
    if not archives:
        return None
    # A folder for each daemon: an executor may have several, which start at the same time.
    unpacked = tempfile.mkdtemp(prefix="strandline-", dir=folder)
    with zipfile.ZipFile(archives[-1]) as archive:
        archive.extractall(unpacked)
    return unpacked


def main() -> None:
    try:
        if (unpacked := unpack_package(Path.cwd())) is not None:
            sys.path.insert(1, unpacked)
        from strandline.iceberg.session.worker_daemon import prepare_workers

        prepare_workers()
    except Exception as e:
        print(f"Strandline's daemon cannot start, so Spark's own is used: {e!r}", file=sys.stderr)
    from pyspark.daemon import manager

    manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
