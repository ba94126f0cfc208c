"""Missing files that are only set aside. The record says where, and what it has forgotten is looked for in quarantine
itself. Of what cannot be told nothing is dropped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from strandline.drift import Swept
from strandline.errors import StorageError
from strandline.ledger import quarantined_files
from strandline.reconcile.aside import kept_without_record
from strandline.reconcile.bench import SweepBench
from strandline.reconcile.model import Finding, Protection, Survey
from strandline.reconcile.paths import key
from strandline.reconcile.settle import Seen, looked

_STORAGE_AWAY = (Protection.NOTHING_LISTED, Protection.PREFIX_FAILED)
"""There may be millions of them, and none of them is known to be gone."""


@dataclass(frozen=True, slots=True)
class KeptFile:
    path: str
    """Where it belongs, as storage spells it."""
    kept_at: str
    swept: Swept | None
    """None where no record tells of it."""


@dataclass(slots=True)
class Kept:
    files: dict[str, KeptFile] = field(default_factory=dict)
    """By the path that a table has."""
    untold: dict[str, str] = field(default_factory=dict)
    """Whether these are set aside could not be seen, and why."""
    planned: int = 0
    """Findings among both that nothing else protects."""

    def __contains__(self, path: str) -> bool:
        return path in self.files or path in self.untold


def find_kept(bench: SweepBench, survey: Survey) -> Kept:
    """Of everything that is missing, whatever protects it; also of the metadata of tables that cannot be read."""
    kept = Kept()
    missing = survey.drift.missing()
    while some := list(islice(missing, bench.settings.batch_size)):
        _seek(bench, kept, some)
    _seek_metadata(bench, kept, survey)
    return kept


def _seek(bench: SweepBench, kept: Kept, some: Sequence[Finding]) -> None:
    _seek_recorded(bench, kept, [f.path for f in some])
    _seek_forgotten(bench, kept, [f.path for f in some if f.path not in kept and f.protected not in _STORAGE_AWAY])
    kept.planned += sum(1 for f in some if f.protected is None and f.path in kept)


def _seek_metadata(bench: SweepBench, kept: Kept, survey: Survey) -> None:
    """A table whose newest metadata is set aside cannot say what it references: so nothing of it is called missing."""
    try:
        named = bench.pointers(survey.references.unread.keys()) if survey.references.unread else []
    except StorageError:
        return  # that the table cannot be read is said anyway
    away = [path for path, stat in zip(named, bench.look_at(named), strict=True) if stat is None]
    _seek_recorded(bench, kept, away)
    _seek_forgotten(bench, kept, [path for path in away if path not in kept])


def _seek_recorded(bench: SweepBench, kept: Kept, paths: Sequence[str]) -> None:
    wanted = {key(path): path for path in paths} | {path: path for path in paths}
    with bench.ledger.read() as connection:
        recorded = quarantined_files.of_paths(connection, wanted)
    for seen in looked(bench, [file for files in recorded.values() for file in files]):
        path, file = wanted[seen.file.path], seen.file
        if not seen.is_told:
            kept.untold[path] = _why(seen)
        elif seen.at_kept is not None and seen.at_path is None:
            kept.files.setdefault(path, KeptFile(file.path, file.kept_at, file))


def _seek_forgotten(bench: SweepBench, kept: Kept, paths: Sequence[str]) -> None:
    if not paths:
        return
    wanted = {key(path): path for path in paths} | {path: path for path in paths}
    try:
        found = kept_without_record(bench.storage, bench.warehouse, list(wanted))
    except StorageError as e:
        kept.untold |= dict.fromkeys(paths, e.message)
        return
    for path, kept_at in found.items():
        kept.files.setdefault(wanted[path], KeptFile(path, kept_at, None))


def _why(seen: Seen) -> str:
    errors = (stat for stat in (seen.at_kept, seen.at_path) if isinstance(stat, StorageError))
    return next(errors).message
