"""A table's metadata as plain values, and the decisions that rest on it. No Spark, no PyIceberg.

Everything here is a function from one version of the metadata to a value; the runner commits against exactly that
version, so a decision can never be applied to a table that has moved on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from strandline.core.batch_names import can_share_rows
from strandline.core.errors import TableUnfit
from strandline.core.types import (
    BRANCH_PREFIX,
    INTERNAL_COLUMNS,
    SEQ_COLUMN,
    SEQ_MAX,
    Anchor,
    Dataset,
    Seq,
    SeqRange,
    SnapshotId,
    is_reserved,
)
from strandline.core.wording import plural

LAKE_PROPERTY = "strandline.lake"
EPOCH_PROPERTY = "strandline.epoch"
DELIVER_BY_PROPERTY = "strandline.deliver-by"
ADOPTED_PROPERTY = "strandline.adopted"
HISTORY_PROPERTY = "strandline.history"
NUMBERED_SINCE_PROPERTY = "strandline.numbered-since"
"""Iceberg's sequence number of an adopted table when the column was added: files up to it cannot have it."""
VOID_PREFIX = "strandline-void-"
"""Of tags that keep a batch of dropped entries from landing (`drop_entries.py`)."""
SETTLED_TAG = "strandline-settled"
"""Our tag on the newest snapshot of main that is known to hold everything settled (`lineage.py`)."""
FLOOR_PREFIX = "strandline.floor."
"""Followed by the number up to which retention may have deleted rows; set before a row goes. The highest counts."""
PURGED_PREFIX = "strandline.purged."
"""Followed by the first and the last number between which rows may be missing, and the number that the purge took."""
BATCH_SUMMARY = "strandline.reconcile.batch"
DROPPED_SUMMARY = "strandline.reconcile.dropped"
"""In the summary of a snapshot that drops entries: its token, and of how many files."""
BLOCK_SUMMARY = "strandline.block"
"""In the summary of a snapshot that numbers adopted rows in main, without a branch: its block, as a wap id."""
METRICS_PROPERTY = f"write.metadata.metrics.column.{SEQ_COLUMN}"
FORMAT_PROPERTY = "write.format.default"


_PURGE = re.compile(re.escape(PURGED_PREFIX) + r"([1-9]\d{0,18})-([1-9]\d{0,18})(?:\.(\d{1,19}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class ToldPurge:
    """What a table says of one purge, or of neighbours that are told as one."""

    rows: SeqRange
    count: int
    number: int
    """Of the sequence, taken by the newest of them: a ledger that stands below it has not heard of that one. It is in
    the name, so that nobody who was given up for dead puts a lower one in its place. 0: not told."""

    @property
    def name(self) -> str:
        number = f".{self.number}" if self.number else ""
        return f"{PURGED_PREFIX}{self.rows.lo}-{self.rows.hi}{number}"

    @classmethod
    def parse(cls, told: tuple[str, str]) -> ToldPurge | None:
        found, value = _PURGE.fullmatch(told[0]), told[1]
        if found is None or not (value.isascii() and value.isdigit()):
            return None
        lo, hi, number = (int(text or 0) for text in found.groups())
        return cls(SeqRange(Seq(lo), Seq(hi)), int(value), number) if lo <= hi <= SEQ_MAX else None


@dataclass(frozen=True, slots=True)
class WapId:
    """Says in the snapshot itself whose rows it holds, so that a lost ledger can be made again."""

    lake: str
    rows: SeqRange
    digest: str | None
    batch_id: str

    def __str__(self) -> str:
        return f"strandline:1:{self.lake}:{self.rows.lo}-{self.rows.hi}:{self.digest or ''}:{self.batch_id}"

    @staticmethod
    def parse(text: str | None) -> WapId | None:
        """None for every wap id that is not Strandline's."""
        parts = (text or "").split(":", 5)
        if len(parts) != 6 or parts[:2] != ["strandline", "1"]:
            return None
        lo, _, hi = parts[3].partition("-")
        try:
            return WapId(parts[2], SeqRange(Seq(int(lo)), Seq(int(hi))), parts[4] or None, parts[5])
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class SnapshotView:
    id: SnapshotId
    parent: SnapshotId | None
    operation: str
    wap: str | None
    """The wap id it was staged with, or the one that a cherry-pick published."""
    added_records: int
    schema_id: int | None
    summary: Mapping[str, str]
    sequence: int = 0
    """Iceberg's, which a child has higher than its parent; 0 in format 1."""


@dataclass(frozen=True, slots=True)
class TableView:
    uuid: str
    location: str
    format_version: int
    properties: Mapping[str, str]
    refs: Mapping[str, SnapshotId]
    snapshots: Mapping[SnapshotId, SnapshotView]
    schema: Mapping[str, Any]
    schema_id: int
    schemas: int = 1
    """How many the table has had."""
    sequence: int = 0
    """The highest that a snapshot of the table was given."""
    metadata_log: tuple[str, ...] = ()
    """Earlier metadata files, the oldest first."""

    @property
    def main_has_current_schema(self) -> bool:
        main = None if self.main is None else self.snapshots.get(self.main)
        return main is not None and main.schema_id == self.schema_id

    @property
    def main(self) -> SnapshotId | None:
        return self.refs.get("main")

    @property
    def settled(self) -> Anchor | None:
        """What our tag names; None where there is no such tag."""
        tagged = self.snapshots.get(self.refs[SETTLED_TAG]) if SETTLED_TAG in self.refs else None
        return None if tagged is None else Anchor(tagged.id, tagged.sequence)

    @property
    def epoch(self) -> int:
        return int(self.properties.get(EPOCH_PROPERTY, "0"))

    @property
    def floors(self) -> list[Seq]:
        found = (n.removeprefix(FLOOR_PREFIX) for n in self.properties if n.startswith(FLOOR_PREFIX))
        return [Seq(int(text)) for text in found if text.isdigit()]

    @property
    def floor(self) -> int:
        """Rows at or below it may be gone, by retention; 0 where none is."""
        return max(self.floors, default=0)

    @property
    def purged(self) -> tuple[ToldPurge, ...]:
        """Between which numbers rows were deleted on demand."""
        return tuple(p for p in map(ToldPurge.parse, self.properties.items()) if p is not None)

    @property
    def branches(self) -> Mapping[str, SnapshotId]:
        """Only ours."""
        return {n: s for n, s in self.refs.items() if n.startswith(BRANCH_PREFIX) and n[len(BRANCH_PREFIX) :].isdigit()}

    def ancestors(self, of: SnapshotId | None) -> Iterator[SnapshotView]:
        """From the newest back to the first one that is still there."""
        at = of
        while at is not None and (found := self.snapshots.get(at)) is not None:
            yield found
            at = found.parent

    def chain_reaches(self, base: SnapshotId | None) -> bool:
        """Whether main's history is whole back to `base` (or to its very beginning): then whatever came into main
        since is in it, and what is not in it did not come."""
        last: SnapshotView | None = None
        for last in self.ancestors(self.main):
            if last.id == base:
                return True
        return last is None or last.parent is None

    @property
    def deleted_from(self) -> bool:
        """Whether a commit that removed rows is in what is left of main's history."""
        return any(s.operation in ("delete", "overwrite") for s in self.ancestors(self.main))

    def published_as(self, wap: str) -> SnapshotId | None:
        return next((s.id for s in self.ancestors(self.main) if s.wap == wap), None)

    def column(self, name: str) -> Mapping[str, Any] | None:
        fields: list[Mapping[str, Any]] = self.schema["fields"]
        return next((f for f in fields if f["name"] == name), None)


def parse_view(text: str) -> TableView:
    """From the JSON that Iceberg itself writes."""
    data = json.loads(text)
    schema_id = data.get("current-schema-id", 0)
    schemas = data.get("schemas") or [data["schema"]]
    refs = {name: SnapshotId(ref["snapshot-id"]) for name, ref in data.get("refs", {}).items()}
    current = data.get("current-snapshot-id")
    if "main" not in refs and current not in (None, -1):
        refs["main"] = SnapshotId(current)
    return TableView(
        uuid=data["table-uuid"],
        location=data["location"],
        format_version=data["format-version"],
        properties=data.get("properties", {}),
        refs=refs,
        snapshots={s.id: s for s in map(_snapshot, data.get("snapshots", []))},
        schema=next(s for s in schemas if s.get("schema-id", 0) == schema_id),
        schema_id=schema_id,
        schemas=len(schemas),
        sequence=data.get("last-sequence-number", 0),
        metadata_log=tuple(entry["metadata-file"] for entry in data.get("metadata-log", [])),
    )


def _snapshot(data: Mapping[str, Any]) -> SnapshotView:
    summary = dict(data.get("summary", {}))
    parent = data.get("parent-snapshot-id")
    return SnapshotView(
        SnapshotId(data["snapshot-id"]),
        None if parent in (None, -1) else SnapshotId(parent),
        summary.get("operation", "append"),
        # A cherry-pick carries both: its own wap id is what it published.
        summary.get("published-wap-id") or summary.get("wap.id") or summary.get(BLOCK_SUMMARY),
        int(summary.get("added-records", "0")),
        data.get("schema-id"),
        summary,
        data.get("sequence-number", 0),
    )


# What to do with a staged block, decided on the metadata that the commit will replace.


@dataclass(frozen=True, slots=True)
class CherryPick:
    snapshot: SnapshotId


@dataclass(frozen=True, slots=True)
class RemoveBranch:
    """Main has the rows already; only the branch is left over."""

    published: SnapshotId | None


@dataclass(frozen=True, slots=True)
class AlreadyPublished:
    published: SnapshotId | None
    settled: Anchor | None = None
    """What our tag named when this was seen."""


@dataclass(frozen=True, slots=True)
class CountRows:
    """History does not tell whether main has the rows: count them, and decide again."""


@dataclass(frozen=True, slots=True)
class Held:
    why: str


PublishPlan = CherryPick | RemoveBranch | AlreadyPublished | CountRows | Held


def plan_publish(
    view: TableView, branch: str, snapshot: SnapshotId, wap: WapId, *, rows_in_main: int | None
) -> PublishPlan:
    """`rows_in_main` is how many rows of the block's range main has, or None while nobody has counted. Some of them,
    but not all, prove nothing: others can make numbers up, and rows can be deleted."""
    head = view.refs.get(branch)
    published = view.published_as(str(wap))
    if published is None and any(s.id == snapshot for s in view.ancestors(view.main)):
        published = snapshot
    if head is not None and head != snapshot:
        return Held(f"branch {branch} was moved by someone else, from snapshot {snapshot} to {head}")
    if published is not None:
        return AlreadyPublished(published, view.settled) if head is None else RemoveBranch(published)
    staged = view.snapshots.get(snapshot)
    if staged is not None and view.chain_reaches(staged.parent):
        return Held(f"branch {branch} is gone and main never had its rows") if head is None else CherryPick(snapshot)
    if rows_in_main is None:
        return CountRows()
    if 0 < rows_in_main < len(wap.rows):
        return Held(
            f"main has {rows_in_main:,} of its {plural(len(wap.rows), 'number')}, and no history that tells why"
        )
    if rows_in_main > 0:
        return AlreadyPublished(None, view.settled) if head is None else RemoveBranch(None)
    return Held(f"branch {branch} is gone and main has none of its rows") if head is None else CherryPick(snapshot)


# What to do with a reserved block whose writer is gone.


@dataclass(frozen=True, slots=True)
class RollForward:
    snapshot: SnapshotId


@dataclass(frozen=True, slots=True)
class SettlePublished:
    published: SnapshotId | None


@dataclass(frozen=True, slots=True)
class Abandon:
    why: str


RecoveryPlan = RollForward | SettlePublished | Abandon


def plan_recovery(
    view: TableView,
    branch: str,
    wap: WapId,
    *,
    branch_complete: bool,
    rows_in_main: int,
    passed: Seq | None = None,
) -> RecoveryPlan:
    """First the branch, then main; what is in neither was never acknowledged. `passed` is how far any sink has come:
    rows that appeared at or below it would never be delivered there."""
    elsewhere = batch_elsewhere(view, wap)
    head = view.refs.get(branch)
    published = view.published_as(str(wap))
    # Others can make numbers up, so rows tell only where history no longer does.
    landed = rows_in_main > 0 and not view.chain_reaches(None)
    if published is not None or landed:
        return SettlePublished(published)
    if elsewhere is not None:
        return Abandon(f"the batch is in main under {elsewhere}")
    if passed is not None and wap.rows.lo <= passed:
        return Abandon(f"a sink has passed its numbers (it stands at {passed})")
    if head is not None and branch_complete:
        return RollForward(head)
    return Abandon("its writer is gone and staged nothing" if head is None else "its writer left the branch incomplete")


def batch_elsewhere(view: TableView, wap: WapId) -> SeqRange | None:
    """The other numbers under which main already holds the same batch, a part of it, or one that it is a part of, as
    far as history tells."""
    for snapshot in view.ancestors(view.main):
        other = WapId.parse(snapshot.wap)
        if other is None or other.lake != wap.lake or other.rows == wap.rows:
            continue
        if can_share_rows(other.batch_id, wap.batch_id):
            return other.rows
    return None


def check_fit(view: TableView, dataset: Dataset, lake: str) -> None:
    if why := unfit(view, dataset, lake):
        raise TableUnfit(
            f"table {dataset.name} is not fit for Strandline: {why}",
            hint=f"Undo that change, or run `strandline dataset adopt {dataset.name}` to take the table as it is.",
        )


def unfit(view: TableView, dataset: Dataset, lake: str) -> str | None:
    """What the table lost that the protocol needs; None if nothing."""
    if view.uuid != dataset.table_uuid:
        return f"the catalog has another table under this name (uuid {view.uuid}, not {dataset.table_uuid})"
    if view.properties.get(LAKE_PROPERTY) != lake:
        return f"its property {LAKE_PROPERTY} does not name this lake"
    column = view.column(SEQ_COLUMN)
    if column is None or column["type"] != "long":
        return f"it has no column {SEQ_COLUMN} of type long"
    if taken := next((f["name"] for f in view.schema["fields"] if _is_taken(f["name"])), None):
        return f"its column {taken} has a name that is reserved"
    if not dataset.adopted and not column["required"]:
        return f"its column {SEQ_COLUMN} is no longer required"
    if view.properties.get(METRICS_PROPERTY) != "full":
        return f"its property {METRICS_PROPERTY} is no longer `full`"
    if view.properties.get(FORMAT_PROPERTY, "").lower() == "avro":
        return f"its property {FORMAT_PROPERTY} is avro, and Avro files do not say which numbers they hold"
    if "history.expire.max-ref-age-ms" in view.properties:
        return "its property history.expire.max-ref-age-ms would expire staged branches"
    return None


def _is_taken(column: str) -> bool:
    return is_reserved(column) and column not in INTERNAL_COLUMNS
