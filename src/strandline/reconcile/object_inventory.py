"""A bucket, listed through obstore, prefix by prefix and several at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from strandline.config import LakeConfig, resolve_secret
from strandline.reconcile.listing import NANOSECONDS, Folder, Listing, outermost

if TYPE_CHECKING:
    from obstore.store import S3Store

PREFIXES_AT_ONCE = 8
SPLIT_PREFIXES_MAX = 256
REQUEST_SECONDS_MAX = 30
PAGE_KEYS = 1_000
CAME_MEANWHILE_SECONDS = 3_600
"""What is younger and was not listed may have come while it was listed."""
CUT_SHORT = "the store ended the listing before its end"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Bucket:
    """Can be sent to another process: it keeps no connection."""

    name: str
    region: str
    endpoint: str | None
    access_key: str | None = field(repr=False, default=None)
    secret_key: str | None = field(repr=False, default=None)

    @classmethod
    def of(cls, config: LakeConfig) -> Bucket:
        w = config.settings.warehouse
        name = w.url.removeprefix("s3://").partition("/")[0]
        return cls(name, w.region, w.endpoint, resolve_secret(w.access_key), resolve_secret(w.secret_key))

    def connect(self) -> S3Store:
        from obstore.store import S3Store

        options = {
            "region": self.region,
            "endpoint": self.endpoint,
            "access_key_id": self.access_key,
            "secret_access_key": self.secret_key,
        }
        return S3Store(
            self.name,
            client_options={"allow_http": True, "timeout": f"{REQUEST_SECONDS_MAX}s"},
            retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=REQUEST_SECONDS_MAX)},
            virtual_hosted_style_request=False,
            **{k: v for k, v in options.items() if v is not None},  # type: ignore[arg-type]
        )

    def key_of(self, path: str) -> str | None:
        """None if it lies elsewhere."""
        start = f"s3://{self.name}/"
        return path[len(start) :] if path.startswith(start) else None


def list_bucket(
    bucket: Bucket, roots: Iterable[str], *, timeout_seconds: float, check: Callable[[], None] | None = None
) -> Listing:
    """Every object below these prefixes (`s3://…`). One whose listing fails or takes too long is a failure of that
    prefix; what was listed of it until then is kept, and protected like the rest of it."""
    listing = Listing(outermost(roots))
    store = bucket.connect()
    with ThreadPoolExecutor(PREFIXES_AT_ONCE, thread_name_prefix="list") as threads:
        prefixes = _split(store, bucket, listing, timeout_seconds)
        work = {
            threads.submit(_list_prefix, store, f"s3://{bucket.name}", prefix, timeout_seconds): prefix
            for prefix in prefixes
        }
        try:
            for done in as_completed(work):
                _merge(listing, done.result())
                if check is not None:
                    check()
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise
    listing.failures.sort(key=lambda failure: failure.prefix)
    return listing


def list_level(bucket: Bucket, folder: str) -> tuple[Listing, list[str]]:
    """The objects of one level, and the names of the folders in it."""
    import obstore

    level = Listing(())
    prefix = (bucket.key_of(f"{folder}/") or "").rstrip("/")
    store = bucket.connect()
    try:
        found = obstore.list_with_delimiter(store, prefix or None)
        cut_short = _goes_on(store, prefix, _last_of(found))
    except Exception as e:
        level.fail(folder, _told(e))
        return level, []
    if cut_short:
        level.fail(folder, CUT_SHORT)
    _keep(level.folder, f"s3://{bucket.name}", found["objects"])
    return level, [inner.rstrip("/").rpartition("/")[2] for inner in found["common_prefixes"]]


def _split(store: S3Store, bucket: Bucket, listing: Listing, timeout_seconds: float) -> list[str]:
    """Prefixes to list side by side: two levels below each root, so that one large table is not one long row of
    requests. Objects seen on the way are kept."""
    import obstore

    level = []
    for root in listing.roots:
        key = bucket.key_of(root + "/")
        if key is None:
            listing.fail(root, "it lies in another bucket than the warehouse")
        else:
            level.append(key.rstrip("/"))
    for _ in range(2):
        following: list[str] = []
        for n, prefix in enumerate(level):
            if len(following) + len(level) - n > SPLIT_PREFIXES_MAX:
                following += level[n:]
                break
            began = time.monotonic()
            try:
                found = obstore.list_with_delimiter(store, prefix or None)
                cut_short = _goes_on(store, prefix, _last_of(found))
            except Exception as e:
                listing.fail(f"s3://{bucket.name}/{prefix}".rstrip("/"), _told(e))
                continue
            if cut_short:
                listing.fail(f"s3://{bucket.name}/{prefix}".rstrip("/"), CUT_SHORT)
            if time.monotonic() - began > timeout_seconds:
                listing.fail(f"s3://{bucket.name}/{prefix}".rstrip("/"), "it took too long", timed_out=True)
            _keep(listing.folder, f"s3://{bucket.name}", found["objects"])
            following += found["common_prefixes"]
        level = following
    return sorted(set(level))


def _list_prefix(store: S3Store, base: str, prefix: str, timeout_seconds: float) -> Listing:
    import obstore

    part = Listing((f"{base}/{prefix}",))
    until = time.monotonic() + timeout_seconds
    last = ""
    try:
        for page in obstore.list(store, prefix=prefix, chunk_size=PAGE_KEYS):
            _keep(part.folder, base, page)
            last = max([last, *(found["path"] for found in page)])
            if time.monotonic() > until:
                part.fail(f"{base}/{prefix}", f"not listed in {timeout_seconds:g} s", timed_out=True)
                return part
        if _goes_on(store, prefix, last):
            part.fail(f"{base}/{prefix}", CUT_SHORT)
    except Exception as e:
        part.fail(f"{base}/{prefix}", _told(e))
    return part


def _goes_on(store: S3Store, prefix: str, last: str) -> bool:
    """Whether something comes after what was listed last. obstore takes a page for the last one that says that there is
    more, and not where it goes on; so the store is asked in another way."""
    import obstore

    if not last:
        return False
    old = datetime.now(UTC) - timedelta(seconds=CAME_MEANWHILE_SECONDS)
    return any(
        found["path"] > last and found["last_modified"] < old
        for page in obstore.list(store, prefix=prefix or None, offset=last, chunk_size=PAGE_KEYS)
        for found in page
    )


def _last_of(level: Any) -> str:
    """Of a folder everything is behind it that begins with its name and a slash, for which a zero is the next."""
    folders = (inner.rstrip("/") + "0" for inner in level["common_prefixes"])
    return max([*folders, *(found["path"] for found in level["objects"])], default="")


def _keep(folder_of: Callable[[str], Folder], base: str, objects: Iterable[Any]) -> None:
    for found in objects:
        folder, slash, name = found["path"].rpartition("/")
        folder_of(f"{base}/{folder}" if slash else base).add(name, found["size"], nanoseconds(found["last_modified"]))


def _merge(listing: Listing, part: Listing) -> None:
    for path, folder in part.folders.items():
        if path not in listing.folders:
            listing.folders[path] = folder
        else:
            known = listing.folders[path]
            for name, size, modified in zip(folder.names, folder.sizes or (), folder.modified_ns or (), strict=True):
                known.add(name, size, modified)
    listing.failures += part.failures


def nanoseconds(when: datetime | None) -> int:
    """0 where it is not known. Without floats: a limit is exact to the second."""
    if when is None:
        return 0
    since = (when if when.tzinfo else when.replace(tzinfo=UTC)) - _EPOCH
    return (since.days * 86_400 + since.seconds) * NANOSECONDS + since.microseconds * 1_000


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0][:200]}" if str(error) else type(error).__name__
