"""The loop of a worker process: tasks come in on standard input, results go out on standard output. A worker starts in
a few milliseconds, because it imports nothing but the standard library before a task needs it.

Workers are processes and not threads for two reasons: two of them run in parallel, and one that hangs in a system call
(on a dead network mount) can be killed. `pool.py` is the other end.
"""

from __future__ import annotations

import errno
import gc
import marshal
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from strandline.core.text.wording import plural

FRAME_BYTES = 8
MARSHAL_VERSION = 2  # later versions look for repeated objects, which costs more than it saves

NAMES_AT_ONCE = 50_000

Part = tuple[list[str], list[str], list[str]]  # files, folders, and others: links, sockets, devices

WorkerResult = tuple[str, Any]
# name; content, if it was fetched; minimum size in bytes, if known; folder of the manifest cache, if used
ReadTask = tuple[str, bytes | None, int | None, str | None]


def write_frame(out: BinaryIO, value: Any) -> None:
    body = marshal.dumps(value, MARSHAL_VERSION)
    out.write(len(body).to_bytes(FRAME_BYTES, "big"))
    out.write(body)


def read_frame(source: BinaryIO) -> Any | None:
    head = source.read(FRAME_BYTES)
    if len(head) < FRAME_BYTES:
        return None
    body = source.read(int.from_bytes(head, "big"))
    return marshal.loads(body)


def scan(folder: str) -> Iterator[Part]:
    """In parts, so that a folder of a million files does not become one message. Follows no link, and asks the file
    system only for names and types: a `stat` per file would cost more than all the rest."""
    files: list[str] = []
    folders: list[str] = []
    others: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                others.append(entry.name)
            elif entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
            elif entry.is_file(follow_symlinks=False):
                files.append(entry.name)
                if len(files) == NAMES_AT_ONCE:
                    yield files, [], []
                    files = []
            else:
                others.append(entry.name)
    yield files, folders, others


def is_gone(error: OSError) -> bool:
    """The folder vanished after it was listed, or became something else."""
    return error.errno in (errno.ENOENT, errno.ENOTDIR)


def scan_folder(folder: str) -> Iterator[WorkerResult]:
    try:
        for part in scan(folder):
            yield "part", part
    except OSError as e:
        # A folder that is gone is empty: no failure.
        yield ("end", None) if is_gone(e) else ("failed", f"{type(e).__name__}: {e.strerror or e}")
        return
    yield "end", None


def contains_files(folder: str) -> Iterator[WorkerResult]:
    """Whether it contains anything but folders; True also if that cannot be checked."""
    waiting = [folder]
    while waiting:
        at = waiting.pop()
        try:
            for files, folders, others in scan(at):
                if files or others:
                    yield "end", True
                    return
                waiting += [f"{at}/{name}" for name in folders]
        except OSError as e:
            if not is_gone(e):
                yield "end", True
                return
    yield "end", False


def read_list(task: ReadTask) -> Iterator[WorkerResult]:
    from strandline.reconcile.references.manifests import listed_manifests

    return _read(task, listed_manifests)


def read_manifest(task: ReadTask) -> Iterator[WorkerResult]:
    from strandline.reconcile.references.manifests import live_files

    memory = task[3]
    if memory is None:
        return _read(task, live_files)
    from strandline.reconcile.references import manifest_cache

    return _read(task, lambda content: manifest_cache.read(content, memory))


def _read(task: ReadTask, reading: Callable[[bytes], Iterator[Any]]) -> Iterator[WorkerResult]:
    from strandline.reconcile.references import checksums
    from strandline.reconcile.references.avro_reader import AvroUnreadable

    path, content, bytes_min, _ = task
    try:
        if content is None:
            with open(path, "rb") as file:
                content = file.read()
            damaged = checksums.damage(path, content)
            if damaged is not None:
                raise AvroUnreadable(damaged)
        if bytes_min is not None and len(content) < bytes_min:
            # Cut off at the end of a block, it would still be readable.
            raise AvroUnreadable(f"it has {len(content):,} of {plural(bytes_min, 'byte')}")
        for part in reading(content):
            yield "part", part
    except FileNotFoundError:
        yield "missing", None
    except OSError as e:
        yield "failed", f"{type(e).__name__}: {e.strerror or e}"
    except AvroUnreadable as e:
        yield "failed", f"damaged, or not what it should be: {e}"
    except Exception as e:
        # A damaged file may raise anything: it affects this file only.
        yield "failed", f"damaged, or not what it should be: {type(e).__name__}: {str(e)[:200]}"
    else:
        yield "end", None


DOINGS: dict[str, Callable[[Any], Iterator[WorkerResult]]] = {
    "scan": scan_folder,
    "contains_files": contains_files,
    "manifest_list": read_list,
    "manifest": read_manifest,
}


def main() -> None:
    gc.disable()  # results are freed when their task is done, and contain no cycles
    source, out = sys.stdin.buffer, sys.stdout.buffer
    while (message := read_frame(source)) is not None:
        doing, tasks = message
        for task in tasks:
            for result in DOINGS[doing](task):
                write_frame(out, result)
            # Flush per task, so that the other end sees which task is the slow one.
            out.flush()
