"""Our code on the executors of a cluster: Spark takes it there, so nobody has to install Strandline everywhere.

Spark copies two files into the folder of each executor before its first task: the package as an archive, and the
program that its Python workers are forked from. The executors then run the code of the driver, also while a cluster has
an older version installed. What the code needs (pyarrow, numpy, …) has to be there: installed, or in an archive of
Spark's (`spark.archives`).
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
_TIME = (2020, 1, 1, 0, 0, 0)  # of all files: the same code is the same archive


def package_archive(folder: Path) -> Path:
    """The archive of this package; writes it if the folder has none of the same code. Raises RuntimeMissing."""
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
    """Has Spark take our code to all executors of a cluster, those that start later, too. Does nothing the second time,
    and where the executors are this process."""
    if context.master is None or is_local(context.master):
        return
    archive = package_archive(cache_folder() / "executors")
    if any(archive.name in added for added in context.listFiles):
        return
    path = list(sys.path)
    for file in (archive, Path(strandline_worker_daemon.__file__)):
        context.addPyFile(str(file))
    sys.path[:] = path  # this process has the code already, with all that is not Python
