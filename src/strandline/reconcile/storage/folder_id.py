"""The identity of the warehouse's folder. With a remote catalog, a path may mean another folder on each machine; a file
in the folder says which one it is. Machines that share the folder read the same id.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from strandline.core.errors import StorageError
from strandline.reconcile.paths import OWN_FOLDER
from strandline.storage.durable import make_folders, write_file

NAME = "folder-id"


def take_folder_id(warehouse: Path) -> str:
    """Creates an id atomically if there is none: of two processes that do so at once, one wins. Raises StorageError."""
    file = warehouse / OWN_FOLDER / NAME
    try:
        if not file.exists():
            make_folders(file.parent)
            with suppress(FileExistsError):
                write_file(file, uuid4().hex.encode(), replace=False)
        return file.read_text("utf-8").strip()
    except (OSError, ValueError) as e:
        raise StorageError(f"{file} cannot be read or written: {e}") from e
