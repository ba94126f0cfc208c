"""The JSON documents of what a person removed, dropped, altered or revoked: commands print them, the API answers them.

Each takes the values as they were before the change. With `dry_run`, nothing was changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from strandline.core.documents import Document
from strandline.status.documents import lake_documents

if TYPE_CHECKING:
    from strandline.core.delivery_types import Intent, SinkRecord
    from strandline.core.types import Dataset, Seq
    from strandline.iceberg.pyiceberg.schema import TableDescription
    from strandline.iceberg.schema.alteration import Alteration
    from strandline.status.consumers import ConsumerStatus
    from strandline.status.followers import FollowerStatus
    from strandline.status.sinks import SinkStatus


def altered_dataset(
    d: Dataset, table: TableDescription, alterations: Sequence[Alteration], *, dry_run: bool
) -> Document:
    """`table` as it is after the alterations, or would be."""
    from strandline.iceberg.schema.alteration import alteration_text

    changes = list(map(alteration_text, alterations))
    return lake_documents.described_dataset(d, table) | {"changes": changes, "dry_run": dry_run}


def dropped_dataset(d: Dataset, allocated: Seq | None, *, dry_run: bool) -> Document:
    """`allocated`: its highest sequence number, which is never used again."""
    return {"dropped": d.name, "dry_run": dry_run, "allocated": allocated}


def removed_sink(
    record: SinkRecord, lanes: Sequence[SinkStatus], open_intents: Sequence[Intent], *, dry_run: bool
) -> Document:
    """With what it does not get any more."""
    shown = lake_documents.sink_in_full(record, lanes, open_intents)
    return {
        "removed": record.name,
        "dry_run": dry_run,
        "destination": shown["destination"],
        "lag_rows": shown["lag_rows"],
        "open_intents": len(open_intents),
        "quarantined_rows": sum(lane.quarantined for lane in lanes),
    }


def removed_consumer(found: ConsumerStatus, *, dry_run: bool) -> Document:
    return {"removed": found.name, "dataset": found.dataset, "dry_run": dry_run, "lag_rows": found.lag_rows}


def removed_follower(name: str, shards: Sequence[FollowerStatus], *, dry_run: bool) -> Document:
    """With the rows that it lacks (null if one shard's are unknown), and the datasets whose rows were kept for it."""
    lags = [s.lag_rows for s in shards]
    return {
        "removed": name,
        "dry_run": dry_run,
        "lag_rows": None if None in lags else sum(lag or 0 for lag in lags),
        "holds_retention_of": sorted({s.dataset for s in shards if s.held_since is not None}),
    }


def revoked_token(name: str) -> Document:
    return {"name": name, "revoked": True}
