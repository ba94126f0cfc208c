"""Finds missing files that are only in quarantine. The ledger says where, and is faster to ask. But a ledger that was
restored from an older copy, or created anew, does not know the files that were quarantined since: those are searched
for in the quarantine itself. If that fails, nothing is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from strandline.core.errors import StorageError
from strandline.core.records.reconcile_records import Swept
from strandline.ledger.reconcile import quarantined_files
from strandline.reconcile.act import OUTSIDE_FOLDER
from strandline.reconcile.compare.compared import Survey
from strandline.reconcile.context import QUARANTINE_FOLDER, SweepContext
from strandline.reconcile.model import Protection, Storage
from strandline.reconcile.paths import below, first_that_is_no_text, key
from strandline.reconcile.settle import check_both_places

CHECKED_EVERY = 1_000
SOUGHT_AT_ONCE = 100_000  # the whole quarantine is searched each time
# there may be millions of them, and none is known to be missing
STORAGE_AWAY = (Protection.NOTHING_LISTED, Protection.PREFIX_FAILED)


@dataclass(frozen=True, slots=True)
class QuarantinedAt:
    path: str  # its original place, as storage spells it
    kept_at: str
    swept: Swept | None  # None if the ledger has no record of it


@dataclass(slots=True)
class QuarantineLookup:
    files: dict[str, QuarantinedAt] = field(default_factory=dict)  # by the path in the table
    # files that may be in quarantine, and why that could not be checked
    unchecked: dict[str, str] = field(default_factory=dict)
    planned: int = 0  # how many of both nothing else protects

    def __contains__(self, path: str) -> bool:
        return path in self.files or path in self.unchecked


def find_quarantined(context: SweepContext, survey: Survey, check: Callable[[], None]) -> QuarantineLookup:
    """For all missing files, protected or not, and for the metadata of tables that cannot be read."""
    lookup = QuarantineLookup()
    missing = survey.drift.missing()
    not_recorded: dict[str, bool] = {}  # the value: whether nothing protects them
    while some := list(islice(missing, context.settings.batch_size)):
        _seek_recorded(context, lookup, [f.path for f in some])
        lookup.planned += sum(1 for f in some if f.protected is None and f.path in lookup)
        not_recorded |= {
            f.path: f.protected is None for f in some if f.path not in lookup and f.protected not in STORAGE_AWAY
        }
        if len(not_recorded) >= SOUGHT_AT_ONCE:
            _seek_forgotten(context, lookup, not_recorded, check)
            not_recorded = {}
    metadata = _metadata_away(context, survey)
    _seek_recorded(context, lookup, metadata)
    _seek_forgotten(context, lookup, not_recorded | {path: False for path in metadata if path not in lookup}, check)
    return lookup


def _metadata_away(context: SweepContext, survey: Survey) -> list[str]:
    """A table whose newest metadata is in quarantine cannot say what it references: none of its files is reported."""
    try:
        named = context.loader.pointers(survey.references.unread.keys()) if survey.references.unread else ()
    except StorageError:
        return []  # the run reports anyway that the table cannot be read
    return [path for path, stat in zip(named, context.find_files(named), strict=True) if stat is None]


def _seek_recorded(context: SweepContext, lookup: QuarantineLookup, paths: Sequence[str]) -> None:
    wanted = {key(path): path for path in paths} | {path: path for path in paths}
    # A path that is not valid text cannot be on record, nor be a parameter of a query.
    wanted = {spelled: path for spelled, path in wanted.items() if first_that_is_no_text((spelled,)) is None}
    with context.ledger.read() as connection:
        recorded = quarantined_files.of_paths(connection, wanted)
        here = context.here(connection, [file for files in recorded.values() for file in files])
    for seen in check_both_places(context, here):
        path, file = wanted[seen.file.path], seen.file
        if seen.error is not None:
            lookup.unchecked[path] = seen.error.message
        elif seen.at_quarantine is not None and seen.at_path is None:
            lookup.files.setdefault(path, QuarantinedAt(file.path, file.kept_at, file))


def _seek_forgotten(
    context: SweepContext, lookup: QuarantineLookup, paths: Mapping[str, bool], check: Callable[[], None]
) -> None:
    if not paths:
        return
    try:
        found = find_unrecorded(context.storage, context.warehouse, list(paths), check)
    except StorageError as e:
        lookup.unchecked |= dict.fromkeys(paths, e.message)
    else:
        for path, kept_at in found.items():
            # The table may spell it differently from storage.
            came_from = original(kept_at, f"{context.warehouse}/{QUARANTINE_FOLDER}", context.warehouse)
            lookup.files[path] = QuarantinedAt(came_from or path, kept_at, None)
    lookup.planned += sum(1 for path, is_planned in paths.items() if is_planned and path in lookup)


def find_unrecorded(
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
