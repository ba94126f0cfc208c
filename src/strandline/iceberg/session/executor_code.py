"""Sends our code to the executors of a cluster, so that nobody has to install Strandline there.

Spark copies two files into the folder of each executor before its first task: the package as an archive, and the
program from which the executor's Python workers are forked. The executors then run the code of the driver, even if the
cluster has another version installed. The libraries that the code needs (pyarrow, numpy, …) must be installed on the
cluster, or come in an archive of Spark's (`spark.archives`).
"""

from __future__ import annotations

import hashlib
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from strandline.core.errors import RuntimeMissing
from strandline.iceberg.session import strandline_worker_daemon
from strandline.iceberg.session.launch import is_local
from strandline.iceberg.session.runtime import cache_folder
from strandline.storage.durable import cache_file

if TYPE_CHECKING:
    from pyspark import SparkContext

_PACKAGE = __name__.partition(".")[0]
_ROOT = Path(__file__).resolve().parents[2]
_TIME = (2020, 1, 1, 0, 0, 0)  # the modification time of all files, so that the same code gives the same archive


def package_archive(folder: Path) -> Path:
    """The archive of this package. Writes it if the folder does not have one of the same code. Raises
    RuntimeMissing."""
    sources = {str(p.relative_to(_ROOT.parent)): p.read_bytes() for p in sorted(_ROOT.rglob("*.py"))}
    digest = hashlib.sha256()
    for name, content in sources.items():
        digest.update(f"{name} {len(content)}\n".encode() + content)
    path = folder / f"{_PACKAGE}-{digest.hexdigest()[:16]}.zip"
    if path.is_file():
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with cache_file(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in sources.items():
                archive.writestr(zipfile.ZipInfo(name, _TIME), content, zipfile.ZIP_DEFLATED)
    except OSError as e:
        raise RuntimeMissing(
            f"the cache folder {folder} cannot be used: {e.strerror or e}",
            hint="Set STRANDLINE_CACHE to a folder that can be written.",
        ) from e
    return path


def send_code(context: SparkContext) -> None:
    """Has Spark copy our code to all executors of a cluster, also to those that start later. Does nothing if it was
    called before, or if the executors run in this process."""
    if context.master is None or is_local(context.master):
        return
    archive = package_archive(cache_folder() / "executors")
    if any(archive.name in added for added in context.listFiles):
        return
    path = list(sys.path)
    for file in (archive, Path(strandline_worker_daemon.__file__)):
        context.addPyFile(str(file))
    sys.path[:] = path  # this process imports the installed package, which also has files that are not Python
