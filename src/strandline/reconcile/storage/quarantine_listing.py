"""What lies in quarantine, by looking there. The ledger's record is the quick way to know, and it can be forgotten: a
ledger that was restored from an older copy, or made anew, knows nothing of files that were set aside since."""

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
    """Where files of these paths are kept, of those that are; one place of each. Lists the quarantine once, whole,
    however many are asked for. `StorageError` where it cannot be: then nobody can say of any file that it is gone."""
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
    """Where a file of the quarantine came from, by where it is kept: `FOLDER/RUN/…`. None of one that no run put
    there."""
    _, slash, inside = (below(kept_at, folder) or "").partition("/")
    if not slash or not inside:
        return None
    outside = below(inside, OUTSIDE_FOLDER)
    if outside is None:
        return f"{warehouse}/{inside}"
    return f"s3://{outside}" if warehouse.startswith("s3://") else f"/{outside}"
