"""Decides which snapshots expire. Pure: it predicts what Iceberg decides by the same rules.

Every branch keeps its newest snapshots and those that are young; a tag keeps its one snapshot. A snapshot that belongs
to no branch and no tag expires when it is old.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from strandline.core.types import SnapshotId
from strandline.iceberg.metadata.table_metadata import (
    MAX_REF_AGE_PROPERTY,
    SETTLED_TAG,
    VOID_PREFIX,
    Ref,
    SnapshotView,
    TableView,
)


@dataclass(frozen=True, slots=True)
class ExpireOptions:
    older_than: timedelta = timedelta(days=5)
    keep_min: int = 10  # the newest snapshots of each branch that stay, however old they are


@dataclass(frozen=True, slots=True)
class ExpirePlan:
    cutoff: datetime
    expired: tuple[SnapshotView, ...]  # oldest first


def refusal(table: TableView) -> str | None:
    """Why expiry would remove more than snapshots; None if it would not. A branch that has a maximal age and expires
    takes staged rows with it."""
    if MAX_REF_AGE_PROPERTY in table.properties:
        return f"its property {MAX_REF_AGE_PROPERTY} would expire branches, and with them rows that are staged there"
    aging = next(
        (r for r in table.ref_rules if r.max_ref_age_ms is not None and r.name != "main" and not _is_void_tag(r)), None
    )
    if aging is not None:
        what = "branch" if aging.is_branch else "tag"
        return f"its {what} {aging.name} has a maximal age, and expiry would remove it"
    if table.properties.get("gc.enabled", "true").lower() == "false":
        return "its property gc.enabled is false: its files may belong to other tables too"
    return None


def _is_void_tag(ref: Ref) -> bool:
    """A tag of ours that expiry should remove when it is old (`drop_entries.py`)."""
    return not ref.is_branch and ref.name.startswith(VOID_PREFIX)


def _is_of_age(table: TableView, ref: Ref, now_ms: int) -> bool:
    snapshot = table.snapshots.get(ref.snapshot)
    return snapshot is not None and ref.max_ref_age_ms is not None and now_ms - snapshot.at_ms > ref.max_ref_age_ms


def plan(table: TableView, options: ExpireOptions, now: datetime) -> ExpirePlan:
    cutoff = min(_millis(now - options.older_than), _settled_ms(table, now))
    kept: set[SnapshotId] = set()
    referenced: set[SnapshotId] = set()
    for ref in table.ref_rules:
        if ref.name == SETTLED_TAG:
            continue  # expiry moves it to main first
        if _is_void_tag(ref) and _is_of_age(table, ref, _millis(now)):
            continue
        kept.add(ref.snapshot)
        referenced.add(ref.snapshot)
        if ref.is_branch:
            referenced.update(s.id for s in table.ancestors(ref.snapshot))
            kept.update(_of_branch(table, ref, options, _millis(now), cutoff))
    kept.update(s.id for s in table.snapshots.values() if s.id not in referenced and s.at_ms >= cutoff)
    expired = [s for s in table.snapshots.values() if s.id not in kept]
    oldest_first = tuple(sorted(expired, key=lambda s: (s.at_ms, s.id)))
    return ExpirePlan(datetime.fromtimestamp(cutoff / 1000, UTC), oldest_first)


def _settled_ms(table: TableView, now: datetime) -> int:
    """The time of main's newest snapshot, which our tag names when expiry begins. Younger snapshots stay, so that main
    still visibly descends from the tag."""
    main = next(table.ancestors(table.main), None)
    return _millis(now) if main is None else main.at_ms


def _of_branch(table: TableView, ref: Ref, options: ExpireOptions, now_ms: int, cutoff: int) -> Sequence[SnapshotId]:
    """The snapshots that the branch keeps. Its own rules take precedence over the options."""
    oldest = cutoff if ref.max_snapshot_age_ms is None else now_ms - ref.max_snapshot_age_ms
    at_least = options.keep_min if ref.min_snapshots is None else ref.min_snapshots
    kept: list[SnapshotId] = []
    for snapshot in table.ancestors(ref.snapshot):
        if len(kept) >= at_least and snapshot.at_ms < oldest:
            break
        kept.append(snapshot.id)
    return kept


def _millis(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
