"""Lists local storage: names only, in two worker processes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import nullcontext

from strandline.reconcile.storage.listing import Listing, OnFound, outermost
from strandline.reconcile.storage.pool import Pool
from strandline.reconcile.storage.worker import Part
from strandline.storage.s3_listing import Check

NOT_FOLLOWED = "it is a link or a device, which is not followed"


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
    with Pool() if pool is None else nullcontext(pool) as workers:
        scan = _Scan(listing, on_found, is_deep=True)
        workers.run("scan", starts, scan.on_part, scan.on_end, timeout_seconds=timeout_seconds, check=check)
    listing.failures.sort(key=lambda failure: failure.prefix)
    return listing


def list_local_level(
    folder: str, pool: Pool, *, timeout_seconds: float, check: Check | None = None
) -> tuple[Listing, list[str]]:
    """One folder without its subfolders, and the names of those."""
    scan = _Scan(Listing(()), lambda more: None, is_deep=False)
    pool.run("scan", [folder], scan.on_part, scan.on_end, timeout_seconds=timeout_seconds, check=check)
    return scan.listing, scan.inner.get(folder, [])


class _Scan:
    """Adds what workers find in folders to a listing; if it is deep, they continue with the folders in them."""

    def __init__(self, listing: Listing, on_found: OnFound, *, is_deep: bool) -> None:
        self.listing = listing
        self.inner: dict[str, list[str]] = {}  # by folder: names of folders in it
        self._on_found = on_found
        self._is_deep = is_deep

    def on_part(self, folder: str, part: Part) -> None:
        files, folders, others = part
        if files:
            self.listing.folder(folder).names.extend(files)
            self._on_found(len(files))
        for name in others:
            self.listing.links.append(f"{folder}/{name}")
            self.listing.fail(f"{folder}/{name}", NOT_FOLLOWED)
        self.inner.setdefault(folder, []).extend(folders)

    def on_end(self, folder: str, how: str, why: str | None) -> list[str]:
        if how != "end":
            self.listing.fail(folder, why or how, timed_out=how == "timeout")
        return [f"{folder}/{name}" for name in self.inner.pop(folder, [])] if self._is_deep else []


def holding(folders: Sequence[str], pool: Pool, *, timeout_seconds: float, check: Check | None = None) -> list[str]:
    """Folders with anything but folders in them; also those that could not be checked."""
    empty: set[str] = set()

    def on_end(folder: str, how: str, is_held: bool | None) -> tuple[()]:
        if how == "end" and not is_held:
            empty.add(folder)
        return ()

    pool.run("contains_files", folders, lambda folder, part: None, on_end, timeout_seconds=timeout_seconds, check=check)
    return [folder for folder in folders if folder not in empty]
