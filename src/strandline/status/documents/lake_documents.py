"""One JSON document for each thing that is shown: commands print it, and an API can send it.

Values in, documents out. A document holds values that `core/documents.py` turns into text. Renaming a field of a value
that is shown whole renames it for everyone who parses it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from strandline.core.documents import Document, error_document, fields_of
from strandline.core.text.masking import masked, masked_within
from strandline.core.types import Abandoned, Published, Reserved, Staged
from strandline.status.attention import attention

if TYPE_CHECKING:
    from pathlib import Path

    from strandline.apply.steps import Plan
    from strandline.core.actor import Actor
    from strandline.core.delivery_types import Intent, SinkRecord
    from strandline.core.types import Block, Dataset, NumberedRows, SeqRange
    from strandline.deliver.plan.preview import LanePreview, SinkPreview
    from strandline.deliver.quarantine.replay import ReplayReport
    from strandline.deliver.quarantine.rows import QuarantinedRow
    from strandline.deliver.recover_sink import SinkRecovered
    from strandline.deliver.sink import Option
    from strandline.deliver.tick import TickReport
    from strandline.deliver.verify.ranges import VerifyFinding
    from strandline.deliver.verify.verdict import SinkVerdict, VerifyReport
    from strandline.iceberg.pyiceberg.schema import TableDescription
    from strandline.iceberg.schema.infer import Inferred
    from strandline.ingest.ingest_files import FileOutcome
    from strandline.ingest.recover import Recovered
    from strandline.ingest.resync.run import Resynced
    from strandline.ledger.audit import AuditEvent
    from strandline.ledger.deliver.quarantine import Quarantined
    from strandline.ledger.engine import Migrated
    from strandline.ledger.maintain.runs import MaintenanceRun
    from strandline.ledger.receive.ended_batches import SetAsideBody
    from strandline.ledger.receive.senders import ClaimOf
    from strandline.ledger.receive.spool_files import LeftFiles
    from strandline.ledger.receive.tokens import Token
    from strandline.ledger.tasks import Task
    from strandline.status.maintenance import DatasetMaintenance
    from strandline.status.report import LakeStatus
    from strandline.status.sinks import SinkStatus

_VALUE_CHARS_MAX = 10_000
"""The limit for one value: a single row may be large, a list of rows may not."""


def _from_to(rows: SeqRange | None) -> Document:
    return {"from": None if rows is None else rows.lo, "to": None if rows is None else rows.hi}


# The lake.


def lake_status(found: LakeStatus) -> Document:
    document = fields_of(found) | {"problems": problems(found), "sinks": list(map(sink_status, found.sinks))}
    if (care := found.maintenance) is not None:
        document["maintenance"] = fields_of(care) | {"datasets": list(map(dataset_maintenance, care.datasets))}
    return document


def problems(found: LakeStatus) -> list[Document]:
    from strandline.status.problems.lake_problems import (  # only `status` pays for its imports
        find_problems,
        worst_first,
    )

    return [fields_of(p) for p in worst_first(find_problems(found))]


def dataset_maintenance(d: DatasetMaintenance) -> Document:
    return fields_of(d) | {
        "held_by": [{"sink": h.name, "rows": h.rows, "since": h.since} for h in d.held_by],
        "last": [
            {"run": r.id} | fields_of(r, "id", "dataset", "node", "dry_run", "heartbeat_at", "result") for r in d.last
        ],
    }


def migrated(found: Migrated | None, version: str) -> Document:
    if found is None:
        return {"migrated": False, "from": version, "to": version, "copy": None}
    return {"migrated": True, "from": found.before, "to": found.after, "copy": found.copy}


def resynced(found: Resynced) -> Document:
    gap = None if found.gap is None else str(found.gap)
    return fields_of(found) | {"gap": gap, "rolled_forward": list(map(str, found.rolled_forward))}


def recovered(found: Recovered) -> Document:
    ranges = {"published": found.published, "abandoned": found.abandoned, "waiting": found.waiting}
    return fields_of(found, "troubled") | {name: list(map(str, given)) for name, given in ranges.items()}


def apply_plan(plan: Plan, *, done: int | None) -> Document:
    """`done`: how many of the changes were made, in their order; None if it was only asked what would change."""
    return {
        "changes": [masked_within(fields_of(step, "operation")) for step in plan.steps],
        "done": done,
        "refused": [masked_within(fields_of(refusal)) for refusal in plan.refused],
        "unchanged": plan.unchanged,
        "not_declared": list(plan.not_declared),
    }


# Datasets and what goes into them.


def dataset(d: Dataset) -> Document:
    return fields_of(d, "id")


def adopted_dataset(name: str, numbered: NumberedRows) -> Document:
    return {"name": name, "numbered": numbered.rows, "steps": numbered.steps}


def described_dataset(d: Dataset, table: TableDescription) -> Document:
    from strandline.iceberg.schema.columns import to_json

    problem = replaced_table(d, table)
    return dataset(d) | fields_of(table, "table_uuid") | {"columns": to_json(table.columns), "problem": problem}


def replaced_table(d: Dataset, table: TableDescription) -> str | None:
    if table.table_uuid == d.table_uuid:
        return None
    return (
        f"the catalog has another table under this name by now ({table.table_uuid}); "
        f"`strandline dataset adopt {d.name}` makes a dataset of it"
    )


def block(b: Block) -> Document:
    head = b.head
    more: Document
    match b:
        case Reserved():
            more = {"state": "reserved", "rows": None, "changed_at": None, "reason": None}
        case Staged():
            more = {"state": "staged", "rows": None, "changed_at": b.staged_at, "reason": None}
        case Published():
            more = {"state": "published", "rows": b.row_count, "changed_at": b.published_at, "reason": None}
        case Abandoned():
            more = {"state": "abandoned", "rows": None, "changed_at": b.abandoned_at, "reason": b.reason}
    return {
        "lo": head.rows.lo,
        "hi": head.rows.hi,
        "item": head.item,
        "kind": head.kind,
        "shard": head.shard,
        "batch_id": head.batch_id,
        "reserved_at": head.reserved_at,
    } | more


def created_dataset(made: Dataset, found: Inferred, inferred_from: Path | None) -> Document:
    from strandline.iceberg.schema.columns import to_json

    guesses = [
        fields_of(g) | {"examples": [{"line": line, "text": text} for line, text in g.examples]} for g in found.guesses
    ]
    return dataset(made) | {
        "columns": to_json(found.columns),
        "inferred_from": inferred_from,
        "guesses": guesses,
        "columns_without_values": found.empty,
        "columns_of_empty_objects": found.empty_objects,
        "sampled_rows": found.sampled_rows,
    }


def ingest(dataset: str, found: Sequence[FileOutcome], seconds: float) -> Document:
    return {
        "dataset": dataset,
        "rows": new_rows(found),
        "rejected": sum(o.rejected or 0 for o in found),
        "failed": sum(o.error is not None for o in found),
        "seconds": round(seconds, 3),
        "files": list(map(_ingested_file, found)),
    }


def new_rows(found: Sequence[FileOutcome]) -> int:
    return sum(o.rows for o in found if not o.duplicate and o.error is None)


def _ingested_file(o: FileOutcome) -> Document:
    return fields_of(o, "paths", "range", "absent") | {
        "path": o.path if len(o.paths) == 1 else o.paths,
        "lo": None if o.range is None else o.range.lo,
        "hi": None if o.range is None else o.range.hi,
        "absent_columns": o.absent,
        "seconds": round(o.seconds, 3),
        "error": None if o.error is None else error_document(o.error),
    }


# Sinks and what they get.


def sink(record: SinkRecord, dataset: str) -> Document:
    # Our own kinds of sinks refuse a password in an option; kinds that packages bring may not.
    shown = {"options": masked_within(record.options), "destination": masked(record.destination)}
    return fields_of(record, "id", "failures", "retry_at", "peer", "failing_since") | shown | {"dataset": dataset}


def sink_status(s: SinkStatus) -> Document:
    """One logical partition of a sink."""
    opened, last = s.open_intent, s.last_batch
    return fields_of(s) | {
        "open_intent": opened and _from_to(opened.rows) | {"chunks": opened.chunks, "landed": opened.settled},
        "last_batch": last and _from_to(last.rows) | {"rows": last.count, "at": last.at},
    }


def sink_in_full(record: SinkRecord, lanes: Sequence[SinkStatus], open_intents: Sequence[Intent]) -> Document:
    one = lanes[0]
    shared = ("state", "reason", "retries", "retry_at", "failing_since", "unplanned_rows", "trend")
    return (
        sink(record, one.dataset)
        | {name: getattr(one, name) for name in shared}
        | {
            "lag_rows": one.sink_lag_rows,
            "lag_seconds": one.sink_lag_seconds,
            "lanes": list(map(sink_status, lanes)),
            "open_intents": list(map(intent, open_intents)),
        }
    )


def intent(i: Intent) -> Document:
    return {
        "partition": i.partition or None,
        "from": (i.after or 0) + 1,
        "to": i.until,
        "opened_at": i.opened_at,
        "options": masked_within(i.options),
        "chunks": [
            _from_to(c.rows) | {"rows": c.count} | fields_of(c, "id", "rows", "count", "offered") for c in i.chunks
        ],
    }


def recovered_sink(found: SinkRecovered) -> Document:
    return fields_of(found, "lost_rows") | {
        "repaired": [p or None for p in found.repaired],
        "lost": [{"partition": p or None, "range": rows} for p, rows in found.lost],
    }


def sink_kinds(kinds: Mapping[str, Sequence[Option] | str], common: Sequence[Option]) -> Document:
    def options(found: Sequence[Option] | str) -> list[Document]:
        return [] if isinstance(found, str) else [fields_of(o, "check", "pinned") for o in found]

    described = [
        {"name": name, "options": options(found), "problem": found if isinstance(found, str) else None}
        for name, found in kinds.items()
    ]
    return {"kinds": described, "common": options(common)}


def tick(report: TickReport, seconds: float) -> Document:
    return {"rows": sum(s.rows for s in report.sinks), "seconds": round(seconds, 3), "sinks": report.sinks}


def tick_preview(found: Sequence[SinkPreview]) -> Document:
    sinks = [
        fields_of(s)
        | {
            "rows": s.rows,
            "lanes": list(map(_lane_preview, s.lanes)),
            "error": None if s.error is None else error_document(s.error),
        }
        for s in found
    ]
    return {"dry_run": True, "rows": sum(s.rows for s in found), "sinks": sinks}


def _lane_preview(lane: LanePreview) -> Document:
    chunks = [_from_to(c.rows) | {"rows": c.expected} for c in lane.chunks]
    return fields_of(lane, "sink") | {"partition": lane.partition or None, "rows": lane.rows, "chunks": chunks}


def verify(report: VerifyReport) -> Document:
    return {"ok": report.ok, "sinks": list(map(_verdict, report.sinks))}


def _verdict(s: SinkVerdict) -> Document:
    named = {"name": s.name, "kind": s.kind, "lanes": s.lanes}
    return named | fields_of(s, "start") | {"ok": s.ok, "findings": list(map(_verify_finding, s.findings))}


def _verify_finding(f: VerifyFinding) -> Document:
    return {"kind": f.kind, "partition": f.partition or None, **_from_to(f.range), "what": f.what, "detail": f.detail}


def quarantined_row(q: QuarantinedRow) -> Document:
    shown = fields_of(q.row, "id", "sink", "lane", "seq", "object", "options", "form", "replay_number")
    return shown | {
        "sink": q.sink,
        "number": q.row.seq,
        "partition": q.row.partition or None,
        "object": q.place,
        "row": bounded(q.content),
        "problem": q.problem,
    }


def bounded(value: Any) -> Any:
    """The value with its long texts cut."""
    match value:
        case dict():
            return {k: bounded(v) for k, v in value.items()}
        case list():
            return [bounded(v) for v in value]
        case str() if len(value) > _VALUE_CHARS_MAX:
            return f"{value[:_VALUE_CHARS_MAX]}…"
    return value


def replayed_rows(report: ReplayReport) -> Document:
    return {"sink": report.sink, "replayed": report.landed, "rows": report.rows}


def discarded_rows(sink: str, gone: Sequence[Quarantined]) -> Document:
    return {"sink": sink, "discarded": len(gone), "numbers": [q.seq for q in gone]}


# Receiving.


def token(t: Token) -> Document:
    return fields_of(t, "id", "owner")


def claim(c: ClaimOf) -> Document:
    record = c.record
    return {
        "dataset": c.dataset,
        "lake": record.lake,
        "source": record.dataset,
        "sink": record.instance,
        "generation": record.generation,
        "token": c.token,
    }


def released_claim(dataset: str, lake: str, source: str, *, forgotten: bool) -> Document:
    return {"dataset": dataset, "lake": lake, "source": source, "forgotten": forgotten}


def spool_body(b: SetAsideBody) -> Document:
    renamed = {"body": b.id, "dropped": b.is_dropped, "file": b.spool}
    return fields_of(b, "id", "is_dropped", "spool") | renamed


def unrecorded(left: LeftFiles, dataset: str | None) -> Document:
    """Files in the spool whose bodies could not be recorded, of one dataset or of all."""
    files = sum(n for name, n in left.by_dataset.items() if dataset in (None, name))
    return {"files": files, "first": [f for f in left.first if dataset in (None, f.dataset)]}


# Who did it.


def who(actor: Actor | None) -> Document:
    """Null for what a version recorded that did not store who did it."""
    return {"actor": None, "trigger": None} if actor is None else {"actor": actor.name, "trigger": actor.trigger}


def audit_event(event: AuditEvent) -> Document:
    return fields_of(event, "actor", "detail") | who(event.actor) | {"detail": event.detail}


def task(t: Task) -> Document:
    return {"task": t.id} | fields_of(t, "id", "actor", "lease_until") | who(t.actor) | {"attention": attention(t)}


# Maintenance.


def maintenance_run(run: MaintenanceRun) -> Document:
    return {"run": run.id} | fields_of(run, "id", "heartbeat_at", "actor") | who(run.actor) | {"seconds": run.seconds}
