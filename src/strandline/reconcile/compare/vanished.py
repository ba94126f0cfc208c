"""Finds the folders of tables that the catalog does not know, by their metadata files.

A table may keep its data apart from its metadata. Only its metadata says where.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from strandline.core.errors import StrandlineError
from strandline.core.text.wording import plural
from strandline.reconcile.model import PrefixFailure
from strandline.reconcile.paths import Room, key

READ_MAX = 10_000  # metadata files; with more, nobody knows where the data of these tables are
_READS_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class VanishedTables:
    folders: Set[str]  # keys
    failures: Sequence[PrefixFailure] = ()  # metadata that could not be read: the data of its table may be anywhere


def folders_named_in(
    metadata: Set[str],
    folders_in: Callable[[str], Sequence[str]],
    check: Callable[[], None],
    *,
    reads_at_once: int,
) -> VanishedTables:
    """Also the folders that the metadata files name (`folders_in`), and their real paths, which a listing has."""
    folders = {table_folder(path) for path in metadata}
    failures: list[PrefixFailure] = []

    def read(path: str) -> Sequence[str] | PrefixFailure:
        try:
            return folders_in(path)
        except StrandlineError as e:
            return PrefixFailure(path, f"the catalog does not know its table, whose data may be anywhere: {e.message}")

    if len(metadata) > READ_MAX:
        why = f"more than {plural(READ_MAX, 'metadata file')} are of tables that the catalog does not know"
        failures.append(PrefixFailure(min(metadata), why))
    else:
        with ThreadPoolExecutor(reads_at_once, thread_name_prefix="vanished") as threads:
            for at in range(0, len(paths := sorted(metadata)), _READS_AT_ONCE):
                check()
                for answer in threads.map(read, paths[at : at + _READS_AT_ONCE]):
                    if isinstance(answer, PrefixFailure):
                        failures.append(answer)
                    else:
                        folders.update(answer)
    real = {key(os.path.realpath(folder)) for folder in folders if folder.startswith("/")}
    return VanishedTables(folders | real, failures)


def table_folder(path: str) -> str:
    """The folder of a table, by the place of its metadata file."""
    folder = key(path.rpartition("/")[0])
    outer, _, name = folder.rpartition("/")
    return outer if name == Room.METADATA else folder
