"""Lists local storage: names only, in two worker processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from strandline.reconcile.storage.listing import Listing, OnFound, outermost
from strandline.reconcile.storage.pool import Pool
from strandline.reconcile.storage.walk import Part

NOT_FOLLOWED = "it is a link or a device, which is not followed"

Check = Callable[[], None]


def list_local(
    roots: Iterable[str],
    *,
    timeout_seconds: float,
    pool: Pool | None = None,
    check: Check | None = None,
    on_found: OnFound = lambda more: None,
) -> Listing:
    """All files below these folders. A folder that cannot be read, or does not answer in time, is a failure of that
    folder only. A folder that does not exist is empty."""
    listing = Listing(outermost(roots))
    starts: list[str] = []
    for root in listing.roots:
        if os.path.realpath(root) == root:
            starts.append(root)
        else:
            # The same files have another path, too: a file that is unreferenced under one may be live under the other.
            listing.fail(root, "it lies behind a symbolic link")

    def on_part(folder: str, part: Part) -> None:
        files, _, others = part
        if files:
            listing.folder(folder).names.extend(files)
            on_found(len(files))
        for name in others:
            listing.links.append(f"{folder}/{name}")
        inner.setdefault(folder, []).extend(part[1])

    def on_end(folder: str, how: str, why: str | None) -> list[str]:
        found = inner.pop(folder, [])
        if how != "end":
            listing.fail(folder, why or how, timed_out=how == "timeout")
        return [f"{folder}/{name}" for name in found]

    inner: dict[str, list[str]] = {}
    if pool is None:
        with Pool() as own:
            own.run("scan", starts, on_part, on_end, timeout_seconds=timeout_seconds, check=check)
    else:
        pool.run("scan", starts, on_part, on_end, timeout_seconds=timeout_seconds, check=check)
    for link in sorted(listing.links):
        listing.fail(link, NOT_FOLLOWED)
    listing.failures.sort(key=lambda failure: failure.prefix)
    return listing


def list_local_level(
    folder: str, pool: Pool, *, timeout_seconds: float, check: Check | None = None
) -> tuple[Listing, list[str]]:
    """One folder without its subfolders, and the names of those."""
    level = Listing(())
    folders: list[str] = []

    def on_part(at: str, part: Part) -> None:
        files, inner, others = part
        folders.extend(inner)
        if files:
            level.folder(at).names.extend(files)
        for name in others:
            level.links.append(f"{at}/{name}")
            level.fail(f"{at}/{name}", NOT_FOLLOWED)

    def on_end(at: str, how: str, why: str | None) -> list[str]:
        if how != "end":
            level.fail(at, why or how, timed_out=how == "timeout")
        return []

    pool.run("scan", [folder], on_part, on_end, timeout_seconds=timeout_seconds, check=check)
    return level, folders


def holding(folders: Sequence[str], pool: Pool, *, timeout_seconds: float, check: Check | None = None) -> list[str]:
    """Folders with anything but folders in them; also those that could not be checked."""
    empty: set[str] = set()

    def on_end(folder: str, how: str, is_held: bool | None) -> tuple[()]:
        if how == "end" and not is_held:
            empty.add(folder)
        return ()

    pool.run("look_into", folders, lambda folder, part: None, on_end, timeout_seconds=timeout_seconds, check=check)
    return [folder for folder in folders if folder not in empty]


def same_folders(unknown: Iterable[str], known: Iterable[str]) -> dict[str, str]:
    """Unknown folders that are the same as a known one, or as a folder above it, under another name: a mount can give a
    folder two names, and no link shows it. By the unknown name."""
    names: dict[tuple[int, int], str] = {}
    for folder in known:
        at = folder
        while at.startswith("/") and at != "/" and (identity := _identity(at)) not in names:
            if identity is not None:
                names[identity] = at
            at = os.path.dirname(at)
    found = {folder: names.get(identity) for folder in unknown if (identity := _identity(folder)) is not None}
    return {folder: other for folder, other in found.items() if other is not None and other != folder}


def _identity(folder: str) -> tuple[int, int] | None:
    try:
        found = Path(folder).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
