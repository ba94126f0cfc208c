"""A table's snapshots and refs with their ages, as plain values, for expiry."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from strandline.core.types import SnapshotId

MAX_REF_AGE_PROPERTY = "history.expire.max-ref-age-ms"


@dataclass(frozen=True, slots=True)
class PastSnapshot:
    id: SnapshotId
    parent: SnapshotId | None
    at_ms: int
    operation: str

    @property
    def at(self) -> datetime:
        return datetime.fromtimestamp(self.at_ms / 1000, UTC)


@dataclass(frozen=True, slots=True)
class Ref:
    name: str
    snapshot: SnapshotId
    is_branch: bool
    min_snapshots: int | None
    max_snapshot_age_ms: int | None
    max_ref_age_ms: int | None


@dataclass(frozen=True, slots=True)
class TableHistory:
    properties: Mapping[str, str]
    refs: tuple[Ref, ...]
    snapshots: Mapping[SnapshotId, PastSnapshot]


def parse_history(text: str) -> TableHistory:
    """From the JSON that Iceberg writes."""
    data = json.loads(text)
    refs = [_ref(name, ref) for name, ref in data.get("refs", {}).items()]
    current = data.get("current-snapshot-id")
    if current not in (None, -1) and not any(ref.name == "main" for ref in refs):
        refs.append(Ref("main", SnapshotId(current), True, None, None, None))
    snapshots = [_snapshot(s) for s in data.get("snapshots", [])]
    return TableHistory(data.get("properties", {}), tuple(refs), {s.id: s for s in snapshots})


def _ref(name: str, data: Mapping[str, Any]) -> Ref:
    return Ref(
        name,
        SnapshotId(data["snapshot-id"]),
        data["type"].lower() == "branch",
        data.get("min-snapshots-to-keep"),
        data.get("max-snapshot-age-ms"),
        data.get("max-ref-age-ms"),
    )


def _snapshot(data: Mapping[str, Any]) -> PastSnapshot:
    parent = data.get("parent-snapshot-id")
    return PastSnapshot(
        SnapshotId(data["snapshot-id"]),
        None if parent in (None, -1) else SnapshotId(parent),
        data["timestamp-ms"],
        data.get("summary", {}).get("operation", "append"),
    )
