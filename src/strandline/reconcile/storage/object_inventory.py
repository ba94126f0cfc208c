"""Lists a bucket, several prefixes at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from strandline.reconcile.storage.listing import ListedFolder, Listing, OnFound
from strandline.storage.s3_listing import Allowance, Check, ListedBucket, ListedObject, PagesEnd

PREFIXES_AT_ONCE = 8
SPLIT_LEVELS = 2  # below each root, so that a large table is not one long sequence of requests
SPLIT_PREFIXES_MAX = 256
CHECK_SECONDS = 0.25


@dataclass(slots=True)
class _PrefixPart:
    """What was listed below a prefix, and the prefixes below it that are still to be listed."""

    listing: Listing = field(default_factory=lambda: Listing(()))
    inner: list[str] = field(default_factory=list)


def list_prefixes(
    bucket: ListedBucket,
    prefixes: Sequence[str],
    *,
    timeout_seconds: float,
    check: Check | None = None,
    on_found: OnFound = lambda more: None,
) -> Listing:
    """Takes each prefix exactly as it is spelled: below `a/` are objects such as `a//b`. If a listing fails or takes
    too long, that is a failure of the prefix; what was listed until then is kept, and protected like the rest."""
    listing = Listing(tuple(prefixes))
    keys: list[str] = []
    for root in listing.roots:
        key = bucket.key_of(f"{root}/")
        if key is None:
            listing.fail(root, "it lies in another bucket than the warehouse")
        else:
            keys.append(key)
    with _Listers(bucket, timeout_seconds) as listers:
        for key in keys:
            listers.begin(key)
        while listers.under_way:
            part = listers.next_part()
            if part is not None:
                _merge(listing, part.listing)
                on_found(len(part.listing))
            if check is not None:
                check()
    listing.failures.sort(key=lambda failure: failure.prefix)
    return listing


def list_level(
    bucket: ListedBucket, folder: str, *, timeout_seconds: float, check: Check | None = None
) -> tuple[Listing, list[str]]:
    """The objects of one level, and the names of the folders in it."""
    found = _read(bucket, bucket.key_of(f"{folder}/") or "", Allowance.of(timeout_seconds, check), is_level=True)
    return found.listing, [inner[:-1].rpartition("/")[2] for inner in found.inner]


class _Listers(AbstractContextManager["_Listers"]):
    """Threads that list prefixes, and the prefixes that they find on the way."""

    def __init__(self, bucket: ListedBucket, timeout_seconds: float) -> None:
        self._bucket = bucket
        self._timeout_seconds = timeout_seconds
        self._threads = ThreadPoolExecutor(PREFIXES_AT_ONCE, thread_name_prefix="list")
        self._is_over = threading.Event()
        self._ended: SimpleQueue[tuple[int, Future[_PrefixPart]]] = SimpleQueue()
        self.under_way = 0

    def __exit__(self, *_: object) -> None:
        # Does not wait: a request that hangs ends by itself, and the caller must not be held up.
        self._is_over.set()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def begin(self, prefix: str, depth: int = 0) -> None:
        is_split = depth < SPLIT_LEVELS and self.under_way < SPLIT_PREFIXES_MAX
        self.under_way += 1
        future = self._threads.submit(self._level if is_split else self._whole, prefix)
        future.add_done_callback(lambda ended: self._ended.put((depth, ended)))

    def next_part(self) -> _PrefixPart | None:
        """None if nothing ended for a moment."""
        try:
            depth, ended = self._ended.get(timeout=CHECK_SECONDS)
        except Empty:
            return None
        self.under_way -= 1
        part = ended.result()
        for inner in part.inner:
            self.begin(inner, depth + 1)
        return part

    def _level(self, prefix: str) -> _PrefixPart:
        part = _read(self._bucket, prefix, self._allowed(), is_level=True, folders_max=SPLIT_PREFIXES_MAX)
        return self._whole(prefix) if len(part.inner) > SPLIT_PREFIXES_MAX else part

    def _whole(self, prefix: str) -> _PrefixPart:
        return _read(self._bucket, prefix, self._allowed(), is_level=False)

    def _allowed(self) -> Allowance:
        return Allowance.of(self._timeout_seconds, self._stop)

    def _stop(self) -> None:
        if self._is_over.is_set():
            raise PagesEnd("nobody waits for it any more")


def _read(
    bucket: ListedBucket, prefix: str, allowed: Allowance, *, is_level: bool, folders_max: int | None = None
) -> _PrefixPart:
    """Stops early above `folders_max` folders."""
    part, base = _PrefixPart(), f"s3://{bucket.name}"
    try:
        for page in bucket.pages(prefix, is_level=is_level, allowed=allowed):
            _keep(part.listing.folder, base, page.objects)
            part.inner += page.folders
            if folders_max is not None and len(part.inner) > folders_max:
                break
    except PagesEnd as e:
        part.listing.fail(f"{base}/{prefix}".rstrip("/"), e.why, timed_out=e.timed_out)
    return part


def _keep(folder_of: Callable[[str], ListedFolder], base: str, objects: Iterable[ListedObject]) -> None:
    for key, size, modified_ns in objects:
        folder, slash, name = key.rpartition("/")
        if name:  # otherwise it is a placeholder for a folder, and not a table's file
            folder_of(f"{base}/{folder}" if slash else base).add(name, size, modified_ns)


def _merge(listing: Listing, part: Listing) -> None:
    for path, folder in part.folders.items():
        known = listing.folders.setdefault(path, folder)
        if known is not folder:
            for name, size, modified in zip(folder.names, folder.sizes or (), folder.modified_ns or (), strict=True):
                known.add(name, size, modified)
    listing.failures += part.failures
