"""Finds snapshots that still show deleted rows: branches, tags or table properties keep them from expiring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import functions as F

from strandline.core.calling_off import check_not_called_off
from strandline.core.types import BRANCH_PREFIX, SnapshotId
from strandline.iceberg.metadata.table_metadata import TableView
from strandline.maintain.context import MaintainProgress
from strandline.maintain.purge.table_rows import RowSearch

_SNAPSHOTS_READ_MAX = 200


@dataclass(frozen=True, slots=True)
class RemainingSnapshots:
    """What keeps snapshots that still show, or may show, deleted rows."""

    refs: int  # branches and tags besides main
    messages: tuple[str, ...]


def find_remaining(search: RowSearch, progress: MaintainProgress) -> RemainingSnapshots:
    table = search.context.tables.settled.view(search.dataset.name)
    keepers = snapshots_kept_by(table)
    newest_first = sorted({s for kept in keepers.values() for s in kept}, key=lambda s: -table.snapshots[s].at_ms)
    showing = set(newest_first[_SNAPSHOTS_READ_MAX:])  # not checked: report too many rather than too few
    for n, snapshot in enumerate(newest_first[:_SNAPSHOTS_READ_MAX]):
        progress("checking older snapshots", n, len(newest_first))
        if _shows(search, snapshot):
            showing.add(snapshot)
    return describe_remaining(keepers, showing)


def _shows(search: RowSearch, snapshot: SnapshotId) -> bool:
    """Whether the snapshot shows matching rows. True also if that is unknown: the condition may not fit its columns."""
    try:
        df = search.context.tables.settled.read(search.dataset.name, snapshot)
        return not df.where(F.expr(search.where)).isEmpty()
    except Exception:  # of Spark, Java or storage: the snapshot was not seen to be free of such rows
        check_not_called_off()
        return True


def snapshots_kept_by(table: TableView) -> dict[tuple[str, str], list[SnapshotId]]:
    """All snapshots but main's newest, by the kind and name of what keeps them. Several refs may keep the same
    snapshot. Snapshots that no ref keeps are under an empty kind and name."""
    lineage = {s.id for s in table.ancestors(table.main)}
    by_keeper: dict[tuple[str, str], list[SnapshotId]] = {}
    referenced: set[SnapshotId] = set()
    for ref in sorted(table.ref_rules, key=lambda r: r.name):
        past = [s.id for s in table.ancestors(ref.snapshot)] if ref.is_branch else [ref.snapshot]
        referenced.update(past)
        if ref.name != "main":  # snapshots that main has, too, are listed for main, except a ref's own
            past = [s for s in past if s == ref.snapshot or s not in lineage]
        if kept := [s for s in past if s != table.main and s in table.snapshots]:
            by_keeper["branch" if ref.is_branch else "tag", ref.name] = kept
    if unreferenced := [s for s in table.snapshots if s not in referenced]:
        by_keeper["", ""] = unreferenced
    return by_keeper


def describe_remaining(
    keepers: Mapping[tuple[str, str], Sequence[SnapshotId]], showing: set[SnapshotId]
) -> RemainingSnapshots:
    messages, refs = [], 0
    for (what, name), kept in keepers.items():
        if not (count := sum(s in showing for s in kept)):
            continue
        if name == "main":
            messages.append(
                f"main still shows such rows, or may, in its past ({count:,}): unset the rules that keep it"
            )
        elif name.startswith(BRANCH_PREFIX):
            refs += 1
            messages.append(f"branch {name} still shows such rows, or may: it goes when its block is settled")
        elif name:
            refs += 1
            messages.append(f"{what} {name} still shows such rows, or may: drop it")
        else:
            messages.append(
                f"snapshots that no branch has ({count:,}) could not be expired, and still show such rows, or may"
            )
    return RemainingSnapshots(refs, tuple(messages))
