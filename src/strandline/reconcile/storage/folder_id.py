"""The identity of the warehouse's folder, from a file in it. With a remote catalog, a path may mean another folder on
each machine; machines that share the folder read the same id."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from strandline.core.errors import StorageError
from strandline.reconcile.paths import OWN_FOLDER
from strandline.storage.durable import make_folders, write_file

_NAME = "folder-id"


def take_folder_id(warehouse: Path) -> str:
    """Creates an id atomically if there is none: of two processes that do so at once, one wins. Raises StorageError."""
    file = warehouse / OWN_FOLDER / _NAME
    try:
        if not file.exists():
            make_folders(file.parent)
            with suppress(FileExistsError):
                write_file(file, uuid4().hex.encode(), replace=False)
        return file.read_text("utf-8").strip()
    except (OSError, ValueError) as e:
        raise StorageError(f"{file} cannot be read or written: {e}") from e


def find_folder_id(warehouse: Path) -> str | None:
    """None if there is none yet, or if it cannot be read."""
    try:
        return (warehouse / OWN_FOLDER / _NAME).read_text("utf-8").strip()
    except (OSError, ValueError):
        return None
