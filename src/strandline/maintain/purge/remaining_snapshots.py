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

_LOOKED_AT_MAX = 200  # snapshots, each of which is read


@dataclass(frozen=True, slots=True)
class Shown:
    refs: int  # branches and tags besides main
    said: tuple[str, ...]


def still_shown(search: RowSearch, progress: MaintainProgress) -> Shown:
    table = search.context.tables.settled.view(search.dataset.name)
    keepers = snapshots_kept_by(table)
    asked = sorted({s for kept in keepers.values() for s in kept}, key=lambda s: -table.snapshots[s].at_ms)
    showing = set(asked[_LOOKED_AT_MAX:])  # not checked: report too many rather than too few
    for n, snapshot in enumerate(asked[:_LOOKED_AT_MAX]):
        progress("checking older snapshots", n, len(asked))
        if _shows(search, snapshot):
            showing.add(snapshot)
    return describe_remaining(keepers, showing)


def _shows(search: RowSearch, snapshot: SnapshotId) -> bool:
    """True also if nobody can tell: the condition may not fit the columns of that time."""
    try:
        df = search.context.tables.settled.read(search.dataset.name, snapshot)
        return not df.where(F.expr(search.where)).isEmpty()
    except Exception:  # of Spark, Java or storage: in any case, the snapshot was not seen to be free of such rows
        check_not_called_off()
        return True


def snapshots_kept_by(table: TableView) -> dict[tuple[str, str], list[SnapshotId]]:
    """All snapshots but main's newest, by what keeps them; several refs may keep the same snapshot."""
    lineage = {s.id for s in table.ancestors(table.main)}
    found: dict[tuple[str, str], list[SnapshotId]] = {}
    reached: set[SnapshotId] = set()
    for ref in sorted(table.ref_rules, key=lambda r: r.name):
        past = [s.id for s in table.ancestors(ref.snapshot)] if ref.is_branch else [ref.snapshot]
        reached.update(past)
        if ref.name != "main":  # snapshots that main has, too, are listed for main, except a ref's own
            past = [s for s in past if s == ref.snapshot or s not in lineage]
        if kept := [s for s in past if s != table.main and s in table.snapshots]:
            found["branch" if ref.is_branch else "tag", ref.name] = kept
    if lost := [s for s in table.snapshots if s not in reached]:
        found["", ""] = lost
    return found


def describe_remaining(keepers: Mapping[tuple[str, str], Sequence[SnapshotId]], showing: set[SnapshotId]) -> Shown:
    said, refs = [], 0
    for (what, name), kept in keepers.items():
        if not (count := sum(s in showing for s in kept)):
            continue
        if name == "main":
            said.append(f"main still shows such rows, or may, in its past ({count:,}): unset the rules that keep it")
        elif name.startswith(BRANCH_PREFIX):
            refs += 1
            said.append(f"branch {name} still shows such rows, or may: it goes when its block is settled")
        elif name:
            refs += 1
            said.append(f"{what} {name} still shows such rows, or may: drop it")
        else:
            said.append(
                f"snapshots that no branch has ({count:,}) could not be expired, and still show such rows, or may"
            )
    return Shown(refs, tuple(said))
