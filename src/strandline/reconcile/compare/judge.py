"""Turns differences into findings: where each file is, and which guard protects it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from strandline.reconcile.compare import guard
from strandline.reconcile.compare.diff import Unreferenced
from strandline.reconcile.compare.findings import Judged
from strandline.reconcile.compare.guard import by_place, by_spool, by_time, first
from strandline.reconcile.model import FileContent, Finding, FindingKind, LedgerContext, Protection, Stat
from strandline.reconcile.paths import (
    SPOOL_FOLDER,
    SUFFIXES,
    Room,
    Roots,
    below,
    checksum_of,
    fits_room,
    has_plain_segments,
    is_metadata_file,
    is_own,
    key,
    metadata_version,
    room_of_folder,
    unknown_root_of,
)
from strandline.reconcile.references.missing_entries import Entry

_SPOOL_SUFFIXES = (".arrow", ".tmp")
# what the files of a folder are, and how their names end
_LAYOUT: Mapping[Room | None, tuple[FileContent | None, tuple[str, ...]]] = {
    Room.DATA: (FileContent.DATA, SUFFIXES[Room.DATA]),
    Room.METADATA: (FileContent.METADATA, SUFFIXES[Room.METADATA]),
    None: (None, ()),
}


@dataclass(frozen=True, slots=True)
class RunPlaces:
    """The places of one run, as far as they are known."""

    warehouse: str  # canonical
    locations: Mapping[str, str]  # by table: the key of its location
    stopped: Mapping[str, Protection]  # tables of which nothing is touched
    failed: Roots  # keys of prefixes whose listing is incomplete
    any_unread: bool
    vanished: Roots  # keys of the folders of tables that the catalog does not know
    current: Mapping[str, str] = field(default_factory=dict)  # by dataset: the key of its newest metadata file
    # given the key of a folder that no table owns: whether it is not reported
    is_not_reported: Callable[[str], bool] = lambda folder: False


@dataclass(frozen=True, slots=True)
class _FolderFacts:
    """What holds for every file of one folder."""

    table: str | None
    content: FileContent | None  # None outside every layout
    suffixes: tuple[str, ...]
    protected: Protection | None  # the guard that protects the file, whatever its age


class Judge:
    """Judges unreferenced files. It judges a folder once, because a folder may have a million of them."""

    def __init__(self, run_places: RunPlaces, ledger_context: LedgerContext) -> None:
        self._run_places = run_places
        self._context = ledger_context
        self._folders: dict[tuple[str, str | None], _FolderFacts | None] = {}

    def is_own(self, file: Unreferenced) -> bool:
        """Whether the file is not reported: it is the lake's own, or somebody else's."""
        return self._facts(file) is None or file.path in self._context.spooled

    def judged(self, file: Unreferenced, stat: Stat | None) -> Judged:
        facts = self._facts(file)
        if facts is None:
            raise ValueError(f"{file.path} is not reported")
        name = file.path.rpartition("/")[2]
        fits = facts.content is not None and fits_room(name, facts.suffixes)
        modified_ns = None if stat is None else stat.modified_ns
        protected = by_time(modified_ns, self._context)
        if facts.content is FileContent.SPOOL:
            table_uuid = file.path.rpartition("/")[0].rpartition("/")[2]
            protected = first((protected, by_spool(modified_ns, table_uuid, name, self._context)))
        if facts.protected is not None or not fits:
            protected = first((facts.protected, None if fits else Protection.LAYOUT, protected))
        if not self._context.own_origin and is_metadata_file(name):
            # The catalog's client writes these, on whatever machine it runs; this disk may have a copy.
            protected = first((protected, Protection.ORIGIN))
        if file.path in self._context.suspected:
            protected = Protection.DAMAGED
        kind = FindingKind.ORPHAN if fits else FindingKind.FOREIGN
        if fits and facts.content is FileContent.METADATA and is_metadata_file(checksum_of(name) or name):
            current = self._run_places.current.get(facts.table or "")
            if current is not None and is_superseded(file.path, current):
                kind = FindingKind.SUPERSEDED
        content = facts.content if fits and facts.content is not None else FileContent.UNKNOWN
        return kind, file.path, facts.table, None if stat is None else stat.size, modified_ns, protected, content

    def _facts(self, file: Unreferenced) -> _FolderFacts | None:
        folder = file.path.rpartition("/")[0]
        known = (folder, file.table)
        if known not in self._folders:
            self._folders[known] = self._facts_of(folder, file.table)
        return self._folders[known]

    def _facts_of(self, folder: str, table: str | None) -> _FolderFacts | None:
        run_places = self._run_places
        if is_own(folder, run_places.warehouse):
            return self._spool(folder)
        if table is not None:
            room = room_of_folder(folder, run_places.locations[table])
            return self._facts_at(table, folder, *_LAYOUT[room], is_known=True)
        if run_places.is_not_reported(key(folder)):
            return None
        relative = below(f"{folder}/", run_places.warehouse)
        root = None if relative is None else unknown_root_of(relative)
        room = None if root is None else room_of_folder(folder, f"{run_places.warehouse}/{root}")
        return self._facts_at(None, folder, *_LAYOUT[room], is_known=False)

    def _facts_at(
        self, table: str | None, folder: str, content: FileContent | None, suffixes: tuple[str, ...], *, is_known: bool
    ) -> _FolderFacts:
        protected = by_place(
            self._context,
            stopped=None if table is None else self._run_places.stopped.get(table),
            in_layout=content is not None,
            known_root=is_known,
            failed_prefix=self._run_places.failed.of(key(folder)) is not None,
            vanished=not is_known and self._run_places.vanished.of(key(folder)) is not None,
            any_unread=self._run_places.any_unread,
        )
        return _FolderFacts(table, content, suffixes, protected)

    def _spool(self, folder: str) -> _FolderFacts | None:
        """A spool file without a record may be an orphan; everything else in the lake's own folder is the lake's."""
        relative = below(folder, f"{self._run_places.warehouse}/{SPOOL_FOLDER}")
        if relative is None:
            return None
        if "/" in relative or not has_plain_segments(relative):
            return self._facts_at(None, folder, *_LAYOUT[None], is_known=True)
        # The spool has a layout of its own.
        return self._facts_at(None, folder, FileContent.SPOOL, _SPOOL_SUFFIXES, is_known=True)


def is_superseded(path: str, current: str) -> bool:
    """Whether the table has gone past the commit of this metadata file: the newest metadata file is in the same folder
    and of the same commit or a later one. The writer of such a file finds its commit refused, and retries."""
    folder, _, name = key(path).rpartition("/")
    newest_folder, _, newest = current.rpartition("/")
    version, newest_version = metadata_version(checksum_of(name) or name), metadata_version(newest)
    return folder == newest_folder and version is not None and newest_version is not None and version <= newest_version


def missing_finding(
    table: str,
    entry: Entry,
    run_places: RunPlaces,
    ledger_context: LedgerContext,
    *,
    shared: bool,
    stopped: Protection | None,
) -> Finding:
    seal = ledger_context.seals.get(table)
    holding, lacking = ((), ()) if seal is None else guard.delivered(entry.rows, seal)
    stopped = guard.first((stopped, run_places.stopped.get(table)))
    protected = guard.of_missing(ledger_context, table, entry, stopped=stopped, shared=shared)
    return Finding(
        FindingKind.MISSING,
        entry.path,
        table,
        entry.size,
        entry.added_ns,
        protected,
        entry.content,
        entry.partition,
        entry.rows,
        entry.row_count,
        holding,
        lacking,
    )


def shared_keys(reached: Mapping[str, Set[str]], of: Mapping[str, Sequence[str]]) -> set[str]:
    """Keys that another table references, too."""
    return {
        its_key
        for name, keys in of.items()
        for its_key in keys
        if any(other != name and its_key in reached[other] for other in reached)
    }
