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


def read_folder_id(warehouse: Path) -> str | None:
    """None if the folder has none. Raises StorageError."""
    try:
        return (warehouse / OWN_FOLDER / NAME).read_text("utf-8").strip() or None
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as e:
        raise StorageError(f"{warehouse / OWN_FOLDER / NAME} cannot be read: {e}") from e


def take_folder_id(warehouse: Path) -> str:
    """Creates an id atomically if there is none: of two processes that do so at once, one wins. Raises StorageError."""
    found = read_folder_id(warehouse)
    if found is not None:
        return found
    folder = warehouse / OWN_FOLDER
    try:
        make_folders(folder)
        with suppress(FileExistsError):
            write_file(folder / NAME, uuid4().hex.encode(), replace=False)
    except OSError as e:
        raise StorageError(f"{folder / NAME} cannot be written: {e.strerror or e}") from e
    return read_folder_id(warehouse) or ""
