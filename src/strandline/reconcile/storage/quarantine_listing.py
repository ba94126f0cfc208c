"""Finds quarantined files by listing the quarantine. The ledger's record is faster, but can be forgotten: a ledger that
was restored from an older copy, or created anew, does not know the files that were quarantined since.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from strandline.reconcile.act import OUTSIDE_FOLDER
from strandline.reconcile.context import QUARANTINE_FOLDER
from strandline.reconcile.model import Storage
from strandline.reconcile.paths import below, key

CHECKED_EVERY = 1_000


def kept_without_record(
    storage: Storage, warehouse: str, paths: Sequence[str], check: Callable[[], None] = lambda: None
) -> dict[str, str]:
    """Where files of these paths are kept, one place for each; paths without one are left out. Lists the whole
    quarantine once, however many paths. Raises `StorageError` if it cannot: then no file is known to be gone."""
    wanted = {key(path): path for path in paths}
    if not wanted:
        return {}
    folder = f"{warehouse}/{QUARANTINE_FOLDER}"
    found: dict[str, str] = {}
    for n, kept_at in enumerate(storage.files_under(folder)):
        if n % CHECKED_EVERY == 0:
            check()
        came_from = original(kept_at, folder, warehouse)
        path = None if came_from is None else wanted.get(key(came_from))
        if path is not None:
            found[path] = max(kept_at, found.get(path, ""))
    return found


def original(kept_at: str, folder: str, warehouse: str) -> str | None:
    """Where a quarantined file came from, by its place: `FOLDER/RUN/…`. None if no run put it there."""
    _, slash, inside = (below(kept_at, folder) or "").partition("/")
    if not slash or not inside:
        return None
    outside = below(inside, OUTSIDE_FOLDER)
    if outside is None:
        return f"{warehouse}/{inside}"
    return f"s3://{outside}" if warehouse.startswith("s3://") else f"/{outside}"
