"""Decides whether main still has everything that was settled. Pure: a decision on one version of the metadata.

After snapshots are expired, row counts cannot tell a rollback from a deletion. So the table has a tag,
`strandline-settled`, on a snapshot of main that has everything settled. The commit that publishes a block moves the
tag, and so does our maintenance; the ledger remembers its last position. Every expiry keeps tagged snapshots. Main has
everything settled if it descends from that snapshot, even if its owner deleted rows since (docs/adr/0027)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from strandline.core.types import Anchor, Published, SeqRange, SnapshotId
from strandline.iceberg.metadata.table_metadata import EXPIRED_PARENT, TableView

Links = Mapping[SnapshotId, tuple[SnapshotId | None, int]]  # by snapshot: its parent and its Iceberg sequence number


@dataclass(frozen=True, slots=True)
class Memory:
    """What the ledger knows of a table. Read before the table, so that the table is not the older of the two."""

    anchor: Anchor | None = None  # the tag's last position that the ledger knows
    published: Sequence[Published] = ()  # the last published blocks with a known snapshot, newest first
    purged: Sequence[SeqRange] = ()  # in these ranges, rows may be missing because of a purge


@dataclass(frozen=True, slots=True)
class Holds:
    """Main descends from everything settled."""


@dataclass(frozen=True, slots=True)
class RolledBack:
    """Main does not descend from this snapshot any more."""

    snapshot: SnapshotId
    is_kept: bool  # whether the table still has the snapshot, so that main can be set to it


@dataclass(frozen=True, slots=True)
class NotKnown:
    """The snapshots between this one and main were expired, and nothing else shows whether main descends from it."""

    snapshot: SnapshotId


LineageVerdict = Holds | RolledBack | NotKnown


def links_of(view: TableView) -> dict[SnapshotId, tuple[SnapshotId | None, int]]:
    return {s.id: (s.parent, s.sequence) for s in view.snapshots.values()}


def judge(
    view: TableView,
    memory: Memory,
    earlier: Callable[[], Iterable[Links]] = lambda: (),
    all_have_rows: Callable[[Sequence[SeqRange]], bool] = lambda blocks: False,
) -> LineageVerdict:
    """`earlier` returns the links of earlier versions of the metadata, newest version first. It is called only if
    snapshots of main were expired. `all_have_rows` returns whether main has a row of each of these ranges. It is called
    only if the links do not decide."""
    anchors = _anchors(view, memory)
    links = links_of(view)
    verdicts = {a: descends(links, view.main, a) for a in anchors}
    is_untagged = view.settled is None and memory.anchor is None  # a version of Strandline without tags published last
    if None in verdicts.values() and not (is_untagged and True in verdicts.values()):
        verdicts = {a: descends(links, view.main, a, earlier) if v is None else v for a, v in verdicts.items()}
    if (lost := next((a for a in anchors if verdicts[a] is False), None)) is not None:
        return RolledBack(lost.snapshot, lost.snapshot in view.snapshots)
    if None not in verdicts.values() or (is_untagged and True in verdicts.values()):
        return Holds()
    doubtful = next(a for a in anchors if verdicts[a] is None)
    blocks = _ranges_to_check(view, memory, doubtful)
    return Holds() if blocks and all_have_rows(blocks) else NotKnown(doubtful.snapshot)


def _anchors(view: TableView, memory: Memory) -> list[Anchor]:
    """The snapshots from which main must descend: the tagged one and the one that the ledger remembers. The tag is
    behind if the catalog is an old copy. The ledger is behind if it is an old copy, or if somebody else moved the tag.
    For a table without either, the last published blocks are used: one of them is enough, because older ones may have
    expired."""
    if anchors := {a.snapshot: a for a in (memory.anchor, view.settled) if a is not None}:
        return list(anchors.values())
    published = [b.snapshot for b in memory.published if b.snapshot is not None]
    return [Anchor(s, view.snapshots[s].sequence if s in view.snapshots else 0) for s in published]


def descends(
    links: Links, main: SnapshotId | None, anchor: Anchor, earlier: Callable[[], Iterable[Links]] = lambda: ()
) -> bool | None:
    """Whether main descends from the anchor. None if a snapshot between the two is gone, and no earlier version of the
    metadata has it either."""
    versions = None
    seen: set[SnapshotId] = set()
    at = last = main
    while at is not None:
        if at == anchor.snapshot:
            return True
        if (link := links.get(at)) is None:
            versions = iter(earlier()) if versions is None else versions
            if (older := next(versions, None)) is None:
                return None if _ancestors(links, anchor.snapshot).isdisjoint(seen) else False
            newer = {id: known for id, known in links.items() if id not in older or known[0] != EXPIRED_PARENT}
            links = {**older, **newer}
            if at == EXPIRED_PARENT and last is not None:
                at = links[last][0]
            continue
        seen.add(at)
        last = at
        at, sequence = link
        if 0 < sequence <= anchor.sequence:
            return False  # a descendant has a higher sequence number
    return False


def _ancestors(links: Links, of: SnapshotId) -> set[SnapshotId]:
    """The snapshot `of` and its ancestors. If main's history has one of these and not `of`, main branched off there."""
    ancestors: set[SnapshotId] = set()
    at: SnapshotId | None = of
    while at is not None and at in links and at not in ancestors:
        ancestors.add(at)
        at = links[at][0]
    return ancestors


def _ranges_to_check(view: TableView, memory: Memory, anchor: Anchor) -> list[SeqRange]:
    """The ranges of the last blocks up to the anchor. If main was rolled back to before the anchor, it lacks one of
    them completely. Without blocks whose rows retention or a purge may have deleted."""
    ranges = []
    for block in memory.published:
        rows = block.head.rows
        snapshot = None if block.snapshot is None else view.snapshots.get(block.snapshot)
        is_later = snapshot is not None and snapshot.sequence > anchor.sequence > 0
        if not is_later and rows.hi > view.floor and not any(rows.overlaps(p) for p in memory.purged):
            ranges.append(rows)
    return ranges
