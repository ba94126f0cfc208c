"""What manifests named when they were read before, so that a report need not take them apart again.

Found by the content of a manifest, never by its name or its time: it is read and hashed whole, and a manifest that was
changed, damaged or cut is another one. What is remembered is as good as reading it again only if reading is the same:
who reads is part of the hash. A memory that does not fit its own hash, or is not what it should be, is none; and none
lasts for ever.

Workers use it (`worker.py`). Runs that act do without: what they go by, they have read.
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
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

from isal import isal_zlib

from strandline.reconcile import paths
from strandline.reconcile.references import avro_reader, manifests
from strandline.reconcile.references.manifests import LivePart

WORTH_BYTES = 16 << 10
"""Taking a smaller manifest apart costs as little as remembering it."""
KEPT_SECONDS = 14 * 86_400
"""Since it was read. Then it is read again: whatever was wrong with it is not wrong for ever."""
_NAME = re.compile(r"[0-9a-f]{64}(\.[0-9]+)?")
_DIGEST_BYTES = 32
_MARSHAL_VERSION = 2
_READERS = ("pyiceberg", "isal", "zstandard")

Reading = Callable[[bytes], Iterator[LivePart]]


def read(content: bytes, folder: str, reading: Reading = manifests.live_files) -> Iterator[LivePart]:
    """As `reading` gives it, from `folder` where it is remembered there."""
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
    # Only what was read to its end is kept: whoever stops asking, or is told that it is damaged, does not come here.
    _keep(place, found)


def forget_old(folder: str) -> None:
    """Files of ours alone: the folder may be somebody's."""
    limit = time.time() - KEPT_SECONDS
    try:
        with os.scandir(folder) as entries:
            ours = [entry for entry in entries if _NAME.fullmatch(entry.name)]
    except OSError:
        return
    for entry in ours:
        try:
            if entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_mtime < limit:
                os.unlink(entry.path)
        except OSError:
            pass  # It is a cache: another run tidies it, or nobody.


def way_of_reading(modules: tuple[ModuleType, ...] = (avro_reader, manifests, paths)) -> bytes | None:
    """By the text of the modules that read, and the versions of what they use. None where those are not at hand; then
    nothing is remembered."""
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
        return None  # Whatever somebody else's bytes make of it; it is read again, and replaced.
    return found if isinstance(found, list) and all(map(_is_part, found)) else None


def _is_part(value: object) -> bool:
    match value:
        case (int(count), list(data), list(others)):
            return count == len(data) + len(others)
    return False


def _keep(place: str, found: list[LivePart]) -> None:
    being_made = f"{place}.{os.getpid()}"
    try:
        os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
        # Names of files may tell what only the store's readers are to know.
        file = os.open(being_made, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    except OSError:
        return  # A folder that is not to be written to: it is read again the next time.
    try:
        body = zlib.compress(marshal.dumps(found, _MARSHAL_VERSION), 1)
        with open(file, "wb") as out:
            out.write(hashlib.sha256(body).digest() + body)
        os.replace(being_made, place)
    except OSError:
        # A full disk, for example: then nothing is to be left on it.
        try:
            os.unlink(being_made)
        except OSError:
            pass
