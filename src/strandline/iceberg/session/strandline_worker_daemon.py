"""The program that a cluster's Python workers are forked from (`spark.python.daemon.module`).

Spark copies it into the folder of each executor, beside the archive of the package. So it is all that Python has to
find there, and it imports nothing of ours before it has unpacked that archive. If our daemon does not start, Spark's
own does: tasks then only begin later, because each new worker imports everything.
"""

from __future__ import annotations

import sys
import tempfile
import zipfile
from pathlib import Path


def unpack_package(folder: Path) -> str | None:
    """The folder to import from. Unpacked, because Python keeps no bytecode of what it imports from an archive. None if
    there is no archive: then an installed package has to do."""
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
        print(f"Strandline's daemon cannot start, Spark's own does: {e!r}", file=sys.stderr)
    from pyspark.daemon import manager

    manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
