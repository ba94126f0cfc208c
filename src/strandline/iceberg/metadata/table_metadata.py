"""A table's metadata as plain values, and decisions based on it. No Spark, no PyIceberg.

Every function maps one version of the metadata to a value. The caller commits against exactly that version, so a
decision can never be applied to a table that has changed since.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from strandline.core.block_branches import BlockBranch, parse_branch
from strandline.core.errors import TableUnfit
from strandline.core.purged_ranges import parse_text, span_of, to_text
from strandline.core.text.whole_number import whole_number
from strandline.core.types import (
    INTERNAL_COLUMNS,
    SEQ_COLUMN,
    SEQ_MAX,
    Anchor,
    Dataset,
    Seq,
    SeqRange,
    ShardId,
    SnapshotId,
    is_reserved,
)

LOCATION_PROPERTIES = (  # Iceberg's own: where a table writes its files
    "write.data.path",
    "write.metadata.path",
    "write.object-storage.path",
    "write.folder-storage.path",
)
LAKE_PROPERTY = "strandline.lake"
EPOCH_PROPERTY = "strandline.epoch"
DELIVER_BY_PROPERTY = "strandline.deliver-by"
ADOPTED_PROPERTY = "strandline.adopted"
HISTORY_PROPERTY = "strandline.history"
DATASET_ID_PROPERTY = "strandline.dataset-id"  # the same at every site of the lake; without it, the table's own uuid
FIRST_SHARD_PROPERTY = "strandline.first-shard"
SHARDS_PROPERTY = "strandline.shards"
# `true` from before the dataset is first offered to a follower
FOLLOWED_PROPERTY = "strandline.followed"
# followed by the name of a follower: `added` before it is registered, `removed` after it was removed
FOLLOWER_PREFIX = "strandline.follower."
# the Iceberg sequence number of an adopted table when the column was added: files up to it cannot have the column
NUMBERED_SINCE_PROPERTY = "strandline.numbered-since"
VOID_PREFIX = "strandline-void-"  # of tags: each keeps a commit that drops entries from landing (`drop_entries.py`)
# our tag on the newest snapshot of main that is known to have everything settled (`lineage.py`)
SETTLED_TAG = "strandline-settled"
# followed by the sequence number up to which retention may delete rows; set before it does; the highest counts
FLOOR_PREFIX = "strandline.floor."
# followed by the first and last sequence number of a purged range, and the sequence number that the purge took; the
# value is the number of rows, and the ranges in which they were
PURGED_PREFIX = "strandline.purged."
# followed by the number of a cut; set before the new leader offers anything of the table
CUT_PREFIX = "strandline.cut."
BATCH_SUMMARY = "strandline.reconcile.batch"
# in the summary of a snapshot that drops entries: its token, and the number of files
DROPPED_SUMMARY = "strandline.reconcile.dropped"
# in the summary of a snapshot that numbers adopted rows in main, without a branch: its block, as a wap id
BLOCK_SUMMARY = "strandline.block"
# in place of a parent that PyIceberg expired: it removes the parent's id, so that history seems to begin with the child
EXPIRED_PARENT = SnapshotId(-2)
MAX_REF_AGE_PROPERTY = "history.expire.max-ref-age-ms"
METRICS_PROPERTY = f"write.metadata.metrics.column.{SEQ_COLUMN}"
FORMAT_PROPERTY = "write.format.default"


_PURGE = re.compile(re.escape(PURGED_PREFIX) + r"([1-9]\d{0,18})-([1-9]\d{0,18})(?:\.(\d{1,19}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class RecordedPurge:
    """What a table records about one purge, or about neighbouring purges combined."""

    rows: SeqRange
    count: int
    # The sequence number that the newest of these purges took. A ledger whose counter is below it does not know that
    # purge. It is part of the name, so that a process that has lost its lease cannot replace it by a lower one. 0: not
    # recorded.
    number: int
    ranges: tuple[SeqRange, ...] = ()  # in which rows were deleted; empty: anywhere in `rows`

    @classmethod
    def of(cls, ranges: tuple[SeqRange, ...], count: int, number: int) -> RecordedPurge:
        return cls(span_of(ranges), count, number, ranges if len(ranges) > 1 else ())

    @property
    def name(self) -> str:
        number = f".{self.number}" if self.number else ""
        return f"{PURGED_PREFIX}{self.rows.lo}-{self.rows.hi}{number}"

    @classmethod
    def parse(cls, recorded: tuple[str, str]) -> RecordedPurge | None:
        count, _, named = recorded[1].partition(" ")
        match, value = _PURGE.fullmatch(recorded[0]), whole_number(count)
        if match is None or value is None:
            return None
        lo, hi, number = (int(text or 0) for text in match.groups())
        if not lo <= hi <= SEQ_MAX:
            return None
        rows, ranges = SeqRange(Seq(lo), Seq(hi)), parse_text(named) or ()
        return cls.of(ranges if ranges and span_of(ranges) == rows else (rows,), value, number)

    @property
    def value(self) -> str:
        return f"{self.count} {to_text(self.ranges)}" if self.ranges else str(self.count)

    @property
    def deleted_in(self) -> tuple[SeqRange, ...]:
        return self.ranges or (self.rows,)


@dataclass(frozen=True, slots=True)
class WapId:
    """Names, in a snapshot's summary, the block of the snapshot's rows, so that a lost ledger can be rebuilt."""

    lake: str
    rows: SeqRange
    digest: str | None
    batch_id: str
    shard: ShardId | None = None  # that the writer chose; None: the batch id decides

    def __str__(self) -> str:
        named = "" if self.shard is None else f"@{self.shard}"
        return f"strandline:1:{self.lake}:{self.rows.lo}-{self.rows.hi}{named}:{self.digest or ''}:{self.batch_id}"

    @property
    def undigested(self) -> WapId:
        return replace(self, digest=None)

    @staticmethod
    def parse(text: str | None) -> WapId | None:
        """None for a wap id that is not Strandline's."""
        parts = (text or "").split(":", 5)
        if len(parts) != 6 or parts[:2] != ["strandline", "1"]:
            return None
        numbers, _, shard = parts[3].partition("@")
        lo, _, hi = numbers.partition("-")
        number = whole_number(shard)
        named = None if number is None else ShardId(number)
        try:
            return WapId(parts[2], SeqRange(Seq(int(lo)), Seq(int(hi))), parts[4] or None, parts[5], named)
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class SnapshotView:
    id: SnapshotId
    parent: SnapshotId | None
    operation: str
    wap: str | None  # the wap id that it was staged with, or that a cherry-pick published
    schema_id: int | None
    summary: Mapping[str, str]
    sequence: int = 0  # Iceberg's sequence number, which is higher in a child than in its parent; 0 in format 1
    at_ms: int = 0

    @property
    def at(self) -> datetime:
        return datetime.fromtimestamp(self.at_ms / 1000, UTC)

    def block_of(self, lake: str) -> WapId | None:
        """The block of this lake whose rows the snapshot added; None if there is none."""
        wap = WapId.parse(self.wap)
        return wap if wap is not None and wap.lake == lake else None

    def added_block(self, wap: WapId) -> bool:
        """Whether the snapshot added the rows of this block. The digest of a batch is known only once it is staged, so
        either side may lack it."""
        own = self.block_of(wap.lake)
        if own is None or None not in (own.digest, wap.digest):
            return own == wap
        return own.undigested == wap.undigested


@dataclass(frozen=True, slots=True)
class Ref:
    """A branch or a tag, and its own rules of expiry."""

    name: str
    snapshot: SnapshotId
    is_branch: bool
    min_snapshots: int | None = None
    max_snapshot_age_ms: int | None = None
    max_ref_age_ms: int | None = None


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
    schemas: int = 1  # how many schemas the table has had
    former_schemas: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)  # all schemas, including this one
    sequence: int = 0  # the highest sequence number that Iceberg gave to a snapshot of the table
    metadata_log: tuple[str, ...] = ()  # earlier metadata files, oldest first
    ref_rules: tuple[Ref, ...] = ()  # `refs`, with their rules

    @property
    def main_has_current_schema(self) -> bool:
        main = None if self.main is None else self.snapshots.get(self.main)
        return main is not None and main.schema_id == self.schema_id

    @property
    def main(self) -> SnapshotId | None:
        return self.refs.get("main")

    @property
    def settled(self) -> Anchor | None:
        """The position of our tag; None if there is no tag."""
        tagged = self.snapshots.get(self.refs[SETTLED_TAG]) if SETTLED_TAG in self.refs else None
        return None if tagged is None else Anchor(tagged.id, tagged.sequence)

    @property
    def epoch(self) -> int:
        return int(self.properties.get(EPOCH_PROPERTY, "0"))

    @property
    def floors(self) -> list[Seq]:
        texts = (n.removeprefix(FLOOR_PREFIX) for n in self.properties if n.startswith(FLOOR_PREFIX))
        return [Seq(number) for text in texts if (number := whole_number(text)) is not None]

    @property
    def floor(self) -> int:
        """Rows at or below it may be gone, because of retention. 0 if there is none."""
        return max(self.floors, default=0)

    @property
    def is_followed(self) -> bool:
        """Whether a follower may ever have got rows of the table."""
        return self.properties.get(FOLLOWED_PROPERTY) == "true"

    @property
    def followers(self) -> set[str]:
        """The names of followers that were added and not removed."""
        named = {n: v for n, v in self.properties.items() if n.startswith(FOLLOWER_PREFIX)}
        return {n.removeprefix(FOLLOWER_PREFIX) for n, v in named.items() if v == "added"}

    @property
    def purged(self) -> tuple[RecordedPurge, ...]:
        """Ranges in which rows were deleted on demand."""
        return tuple(p for p in map(RecordedPurge.parse, self.properties.items()) if p is not None)

    @property
    def cuts(self) -> dict[Seq, str]:
        """The cuts of take-overs, by their numbers."""
        named = {n.removeprefix(CUT_PREFIX): v for n, v in self.properties.items() if n.startswith(CUT_PREFIX)}
        return {Seq(number): v for text, v in named.items() if (number := whole_number(text)) is not None}

    @property
    def branches(self) -> Mapping[str, SnapshotId]:
        """Only branches of blocks."""
        return {n: s for n, s in self.refs.items() if parse_branch(n) is not None}

    def branches_of(self, lo: int) -> dict[str, BlockBranch]:
        """The branches of the block that begins at this sequence number."""
        parsed = {name: parse_branch(name) for name in self.refs}
        return {name: branch for name, branch in parsed.items() if branch is not None and branch.lo == lo}

    def ancestors(self, of: SnapshotId | None) -> Iterator[SnapshotView]:
        """The snapshot `of` and its ancestors, from the newest to the oldest that is not expired."""
        at = of
        while at is not None and (snapshot := self.snapshots.get(at)) is not None:
            yield snapshot
            at = snapshot.parent

    def chain_reaches(self, base: SnapshotId | None) -> bool:
        """Whether main's history is complete back to `base`, or to its beginning. Then it shows all commits to main
        since `base`."""
        last: SnapshotView | None = None
        for last in self.ancestors(self.main):
            if last.id == base:
                return True
        return last is None or last.parent is None

    @property
    def deleted_from(self) -> bool:
        """Whether the remaining history of main has a commit that removed rows."""
        return any(s.operation in ("delete", "overwrite") for s in self.ancestors(self.main))

    def published_as(self, wap: WapId) -> SnapshotId | None:
        """The snapshot in main's history that added this block."""
        return next((s.id for s in self.ancestors(self.main) if s.added_block(wap)), None)

    def column(self, name: str) -> Mapping[str, Any] | None:
        fields: list[Mapping[str, Any]] = self.schema["fields"]
        return next((f for f in fields if f["name"] == name), None)


def parse_view(text: str) -> TableView:
    """Parses the JSON that Iceberg writes."""
    data = json.loads(text)
    schema_id = data.get("current-schema-id", 0)
    schemas = data.get("schemas") or [data["schema"]]
    refs = [_ref(name, ref) for name, ref in data.get("refs", {}).items()]
    current = data.get("current-snapshot-id")
    if current not in (None, -1) and not any(ref.name == "main" for ref in refs):
        refs.append(Ref("main", SnapshotId(current), is_branch=True))
    return TableView(
        uuid=data["table-uuid"],
        location=data["location"],
        format_version=data["format-version"],
        properties=data.get("properties", {}),
        refs={ref.name: ref.snapshot for ref in refs},
        snapshots={s.id: s for s in map(_snapshot, data.get("snapshots", []))},
        schema=next(s for s in schemas if s.get("schema-id", 0) == schema_id),
        schema_id=schema_id,
        schemas=len(schemas),
        former_schemas=tuple(schemas),
        sequence=data.get("last-sequence-number", 0),
        metadata_log=tuple(entry["metadata-file"] for entry in data.get("metadata-log", [])),
        ref_rules=tuple(refs),
    )


def _ref(name: str, data: Mapping[str, Any]) -> Ref:
    rules = (data.get(key) for key in ("min-snapshots-to-keep", "max-snapshot-age-ms", "max-ref-age-ms"))
    return Ref(name, SnapshotId(data["snapshot-id"]), data["type"].lower() == "branch", *rules)


def _snapshot(data: Mapping[str, Any]) -> SnapshotView:
    summary = dict(data.get("summary", {}))
    parent = data.get("parent-snapshot-id")
    if parent in (None, -1):
        parent = None if _can_be_first(summary) else EXPIRED_PARENT
    return SnapshotView(
        SnapshotId(data["snapshot-id"]),
        None if parent is None else SnapshotId(parent),
        summary.get("operation", "append"),
        # A cherry-pick has both: `published-wap-id` is what it published.
        summary.get("published-wap-id") or summary.get("wap.id") or summary.get(BLOCK_SUMMARY),
        data.get("schema-id"),
        summary,
        data.get("sequence-number", 0),
        data.get("timestamp-ms", 0),
    )


def _can_be_first(summary: Mapping[str, str]) -> bool:
    """Whether a snapshot can be the first of its table, because it added all rows that the table had then."""
    if summary.get("operation", "append") != "append":
        return False
    totals = ((summary.get(f"added-{of}", "0"), summary.get(f"total-{of}")) for of in ("data-files", "records"))
    return all(total is None or total == added for added, total in totals)


def followed_properties(followers: Iterable[str]) -> dict[str, str]:
    """The properties that a table must have before one of these followers gets rows of it."""
    return {FOLLOWED_PROPERTY: "true", **{f"{FOLLOWER_PREFIX}{name}": "added" for name in followers}}


def check_fit(view: TableView, dataset: Dataset, lake: str) -> None:
    """Raises TableUnfit if the table lacks something that Strandline needs."""
    if why := unfit(view, dataset, lake):
        raise TableUnfit(
            f"table {dataset.name} is not fit for Strandline: {why}",
            hint=f"Undo that change, or run `strandline dataset adopt {dataset.name}` to take the table as it is.",
        )


def unfit(view: TableView, dataset: Dataset, lake: str) -> str | None:
    """Why Strandline cannot use the table. None if it can."""
    if view.uuid != dataset.table_uuid:
        return f"the catalog has another table under this name (uuid {view.uuid}, not {dataset.table_uuid})"
    if view.properties.get(LAKE_PROPERTY) != lake:
        return f"its property {LAKE_PROPERTY} does not name this lake"
    column = view.column(SEQ_COLUMN)
    if column is None or column["type"] != "long":
        return f"it has no column {SEQ_COLUMN} of type long"
    names = (field["name"] for field in view.schema["fields"])
    if taken := next((n for n in names if is_reserved(n) and n not in INTERNAL_COLUMNS), None):
        return f"its column {taken} has a name that is reserved"
    if not dataset.adopted and not column["required"]:
        return f"its column {SEQ_COLUMN} is no longer required"
    if view.properties.get(METRICS_PROPERTY) != "full":
        return f"its property {METRICS_PROPERTY} is no longer `full`"
    if view.properties.get(FORMAT_PROPERTY, "").lower() == "avro":
        return f"its property {FORMAT_PROPERTY} is avro, and Avro files have no bounds of sequence numbers"
    if MAX_REF_AGE_PROPERTY in view.properties:
        return f"its property {MAX_REF_AGE_PROPERTY} would expire staged branches"
    return None
