"""From what differs to findings: where each lies, and which guard protects it. Pure, given what was looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from strandline.reconcile import guard
from strandline.reconcile.diff import Unreferenced
from strandline.reconcile.entries import Entry
from strandline.reconcile.findings import Judged
from strandline.reconcile.model import Content, Context, Finding, FindingKind, Protection, Stat
from strandline.reconcile.paths import (
    SPOOL_FOLDER,
    Room,
    Roots,
    below,
    has_plain_segments,
    is_own,
    key,
    room_of,
    unknown_root_of,
)

_SPOOL_SUFFIXES = (".arrow", ".tmp")
_CONTENTS = {Room.DATA: Content.DATA, Room.METADATA: Content.METADATA}


@dataclass(frozen=True, slots=True)
class Ground:
    """What there is to know about the places of one run."""

    warehouse: str
    """Canonical."""
    locations: Mapping[str, str]
    """By table: the key of its location."""
    stopped: Mapping[str, Protection]
    """Tables of which nothing is touched."""
    failed: Roots
    """Keys of prefixes whose listing is not whole."""
    any_unread: bool


@dataclass(frozen=True, slots=True)
class _Place:
    table: str | None
    content: Content | None
    """None outside every layout."""
    is_known: bool


def judged(file: Unreferenced, stat: Stat | None, ground: Ground, context: Context) -> Judged | None:
    """None for what is not to be spoken of: the lake's own files."""
    place = _place(file, ground, context)
    if place is None:
        return None
    modified_ns = None if stat is None else stat.modified_ns
    protected = guard.of_orphan(
        context,
        stopped=None if place.table is None else ground.stopped.get(place.table),
        in_layout=place.content is not None,
        known_root=place.is_known,
        failed_prefix=ground.failed.of(key(file.path)) is not None,
        any_unread=ground.any_unread,
        modified_ns=modified_ns,
    )
    kind = FindingKind.FOREIGN if place.content is None else FindingKind.ORPHAN
    size = None if stat is None else stat.size
    return kind, file.path, place.table, size, modified_ns, protected, place.content or Content.UNKNOWN


def _place(file: Unreferenced, ground: Ground, context: Context) -> _Place | None:
    if is_own(file.path, ground.warehouse):
        return _spooled(file, ground, context)
    if file.table is not None:
        room = _room(file.path, ground.locations[file.table])
        return _Place(file.table, None if room is None else _CONTENTS[room], True)
    relative = below(file.path, ground.warehouse)
    root = None if relative is None else unknown_root_of(relative)
    room = None if root is None else _room(file.path, f"{ground.warehouse}/{root}")
    return _Place(None, None if room is None else _CONTENTS[room], False)


def _room(path: str, root: str) -> Room | None:
    relative = below(path, root)
    if relative is None:
        # The table's location is spelled in another way than storage is.
        relative = below(key(path), root)
    return None if relative is None or not has_plain_segments(path) else room_of(relative)


def _spooled(file: Unreferenced, ground: Ground, context: Context) -> _Place | None:
    """A spool file that the ledger has no record of is nobody's; everything else there is the lake's."""
    relative = below(file.path, f"{ground.warehouse}/{SPOOL_FOLDER}")
    if relative is None or file.path in context.spooled:
        return None
    fits = relative.count("/") == 1 and relative.endswith(_SPOOL_SUFFIXES) and has_plain_segments(relative)
    return _Place(None, Content.SPOOL if fits else None, True)


def missing_finding(
    table: str, entry: Entry, ground: Ground, context: Context, *, shared: bool, stopped: Protection | None
) -> Finding:
    seal = context.seals.get(table)
    holding, lacking = ((), ()) if seal is None else guard.delivered(entry.rows, seal)
    protected = guard.of_missing(
        context,
        table=table,
        stopped=guard.first((stopped, ground.stopped.get(table))),
        content=entry.content,
        rows=entry.rows,
        added_ns=entry.added_ns,
        in_main=entry.in_main,
        shared=shared,
    )
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
    """Those that another table reaches, too."""
    return {
        its_key
        for name, keys in of.items()
        for its_key in keys
        if any(other != name and its_key in reached[other] for other in reached)
    }
