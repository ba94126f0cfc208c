"""Caches the files that manifests name, so that a report need not parse them again.

The key is the hash of a manifest's whole content, never its name or time: a manifest that was changed, damaged or
truncated has another key. The hash also includes the parser, because a cached result is valid only for the same parser.
An entry that does not fit its own hash, or has the wrong form, is ignored. Entries expire.

Workers use the cache (`worker.py`). Runs that act do without it: they rely only on what they have read.
"""

from __future__ import annotations

import hashlib
import marshal
import os
import re
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType

from isal import isal_zlib

from strandline.reconcile import paths
from strandline.reconcile.references import avro_reader, manifests
from strandline.reconcile.references.manifests import LivePart
from strandline.storage.durable import cache_file

WORTH_BYTES = 16 << 10  # to parse a smaller manifest costs as little as to cache it
KEPT_SECONDS = 14 * 86_400  # since it was read; then it is read again, so that no mistake lasts forever
_NAME = re.compile(r"[0-9a-f]{64}(\.[0-9a-f]{32}\.tmp)?")  # an entry, or what a killed process left of one
_DIGEST_BYTES = 32
_MARSHAL_VERSION = 2
_READERS = ("pyiceberg", "isal", "zstandard")

Reading = Callable[[bytes], Iterator[LivePart]]


def read(content: bytes, folder: str, reading: Reading = manifests.live_files) -> Iterator[LivePart]:
    """What `reading` yields, from the cache in `folder` if it has it."""
    if len(content) < WORTH_BYTES or WAY_OF_READING is None:
        yield from reading(content)
        return
    digest = hashlib.sha256(WAY_OF_READING)
    digest.update(content)
    place = os.path.join(folder, digest.hexdigest())
    known = _recall(place)
    if known is not None:
        yield from known
        return
    found: list[LivePart] = []
    for part in reading(content):
        found.append(part)
        yield part
    # Reached only after a complete read, not if the caller stops early or the manifest is damaged.
    _keep(place, found)


def forget_old(folder: str) -> None:
    """Removes only our own files: the folder may be somebody else's."""
    limit = time.time() - KEPT_SECONDS
    try:
        with os.scandir(folder) as entries:
            ours = [entry for entry in entries if _NAME.fullmatch(entry.name)]
    except OSError:
        return
    for entry in ours:
        with suppress(OSError):  # it is a cache: another run tidies it, or nobody
            if entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_mtime < limit:
                os.unlink(entry.path)


def way_of_reading(modules: tuple[ModuleType, ...] = (avro_reader, manifests, paths)) -> bytes | None:
    """A hash of the parsing code and its libraries' versions. None if unavailable: then nothing is cached."""
    digest = hashlib.sha256(sys.version.encode())
    try:
        for module in modules:
            with open(module.__file__ or "", "rb") as file:
                digest.update(file.read())
        for package in _READERS:
            digest.update(f"{package} {version(package)}\n".encode())
    except (OSError, PackageNotFoundError):
        return None
    return digest.digest()


WAY_OF_READING = way_of_reading()


def _recall(place: str) -> list[LivePart] | None:
    try:
        with open(place, "rb") as file:
            if time.time() - os.fstat(file.fileno()).st_mtime > KEPT_SECONDS:
                return None
            digest, body = file.read(_DIGEST_BYTES), file.read()
        if hashlib.sha256(body).digest() != digest:
            return None
        found = marshal.loads(isal_zlib.decompress(body))
    except Exception:
        return None  # the bytes may be anything; the manifest is read again, and the entry replaced
    return found if isinstance(found, list) and all(map(_is_part, found)) else None


def _is_part(value: object) -> bool:
    match value:
        case (int(count), list(data), list(others)):
            return count == len(data) + len(others)
    return False


def _keep(place: str, found: list[LivePart]) -> None:
    # The folder may not be writable, or the disk full: the manifest is read again next time.
    with suppress(OSError):
        os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
        body = zlib.compress(marshal.dumps(found, _MARSHAL_VERSION), 1)
        with cache_file(Path(place), mode=0o600) as file:  # file names may be confidential to readers of the store
            file.write(hashlib.sha256(body).digest() + body)
