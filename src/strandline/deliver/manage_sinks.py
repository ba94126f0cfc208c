"""What people do with sinks: add, change, reset and remove them. Every decision is audited."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from uuid import uuid4

from strandline.core.calling_off import check_not_called_off
from strandline.core.delivery_types import PeerKind, SinkId, SinkRecord, SinkState
from strandline.core.errors import (
    DestinationTaken,
    LeaseLost,
    RefusedError,
    SchemaError,
    StorageError,
    TermPassed,
    UsageError,
)
from strandline.core.read_token import check, decode
from strandline.core.records.audit_events import Event
from strandline.core.text.bounded_text import check_text
from strandline.core.types import PARTITION_COLUMN, SEQ_COLUMN, BlockKind, Dataset, History, Lease, Seq
from strandline.deliver.context import DeliverContext
from strandline.deliver.generation_start import Beginning, find_beginning
from strandline.deliver.sink import Claim, Claimed, HasPeer, term_passed
from strandline.deliver.sink_kinds import check_options, find_kind
from strandline.deliver.sink_options import COMMON, check_common, own_options, parse_common
from strandline.deliver.sink_session import open_sink
from strandline.deliver.sinks.blobs.names import overlaps, place_of
from strandline.iceberg.schema.columns import Column
from strandline.jobs.heartbeat import holding_lease
from strandline.ledger import audit
from strandline.ledger.deliver import intents, lanes, losses, sinks
from strandline.ledger.deliver.losses import NewLoss, Reason
from strandline.ledger.engine import Connection, utc_now
from strandline.ledger.ingest import blocks, published_blocks
from strandline.ledger.maintain import floors, retention_holds

_DESTINATION_BYTES_MAX = 2048
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


def add_sink(
    context: DeliverContext,
    dataset: Dataset,
    columns: Sequence[Column],
    *,
    name: str,
    kind: str,
    options: Mapping[str, str],
    from_now: bool,
    may_skip: bool = True,
) -> SinkRecord:
    """Check the sink against its destination, then record it. The destination is claimed before the ledger records the
    sink, so that a ledger that is lost right after finds its sink again.

    `from_now` is for a place that is new: one that was ours before continues from where it was. Only if nobody knows
    where that is, and with `may_skip`, `from_now` leaves rows out there, which are recorded as a loss."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be the name of a sink",
            hint="Letters, digits, `_`, `.` and `-`, beginning with one of the first two.",
        )
    if context.ledger.query(sinks.find, name) is not None:
        raise RefusedError(f"a sink named {name} exists already", hint="`strandline sink update` changes one.")
    options = dict(find_kind(kind).defaults) | dict(options)
    check_all_options(kind, options)
    wanted = delivered_columns(columns, options)
    draft = SinkRecord(
        SinkId(0), uuid4().hex, name, kind, dataset.id, 1, options, "", None, None, SinkState.ACTIVE, None, 0, None,
        utc_now(),
    )  # fmt: skip
    draft, was_ours, peer = _claim_place(context, dataset, draft, wanted, from_now=from_now, may_skip=may_skip)
    check_not_called_off()
    with context.ledger.write() as connection:
        floors.lock(connection, dataset.id)
        floor = floors.get(connection, dataset.id)
        if was_ours:  # it continues by its own record
            begins = _beginning(connection, dataset, draft, from_now=from_now, may_skip=may_skip)
        else:
            begins = Beginning(_above(floor, _start(connection, dataset, from_now=from_now)), {})
        added = sinks.add(
            connection,
            instance=draft.instance,
            name=name,
            kind=kind,
            dataset=dataset.id,
            options=options,
            destination=draft.destination,
            start=begins.start,
            generation=draft.generation,
            peer=peer,
            from_now=from_now,
        )
        for partition, (mark, builds_on) in begins.lanes.items():
            token = context.token(dataset)
            lanes.rebuild(connection, added, partition, mark=mark, token=token, last=None, builds_on=builds_on)
        losses.add(connection, added, Reason.FORGOTTEN, _forgotten(begins, floor))
        audit.record(
            connection, Event.SINK_ADDED, sink=name, kind=kind, dataset=dataset.name, destination=draft.destination,
            start=added.start, generation=added.generation, floor=floor, peer=peer, skipped=begins.skipped,
        )  # fmt: skip
    return added


def _claim_place(
    context: DeliverContext,
    dataset: Dataset,
    draft: SinkRecord,
    wanted: Sequence[Column],
    *,
    from_now: bool,
    may_skip: bool,
) -> tuple[SinkRecord, bool, PeerKind | None]:
    """Prepares the destination and claims it. Returns the draft with what the destination says of it, whether it was
    ours before, and the kind of its peer."""
    sink = open_sink(context, draft, dataset, draft.options)
    try:
        draft = replace(draft, destination=check_text("the destination", sink.destination, _DESTINATION_BYTES_MAX))
        _check_place(context, draft)
        found = sink.claimed()
        if found is not None:
            draft = _continue(context, draft, dataset, found)
            # raises before the destination is changed
            context.ledger.query(_beginning, dataset, draft, from_now=from_now, may_skip=may_skip)
        check_not_called_off()
        sink.prepare(wanted)
        check_not_called_off()
        claim = Claim(context.lake, draft.instance, dataset.name, dataset.uuid, context.term())
        claimed = sink.claim(claim, draft.generation)
        if claimed.claim.instance != draft.instance:
            raise RefusedError(
                f"another sink claimed {draft.destination} at the same time",
                hint="Run the command again: it then says who delivers there.",
            )
        if claimed.claim.term > claim.term:
            raise TermPassed(
                term_passed(draft.destination, claimed.claim.term), hint="Add the sink at the site that leads now."
            )
        return draft, found is not None, sink.peer_kind() if isinstance(sink, HasPeer) else None
    except StorageError as e:
        e.hint = e.hint or "No sink was added. Fix that, and run the command again."
        raise
    finally:
        sink.close()


def check_all_options(kind: str, options: Mapping[str, str]) -> None:
    known = find_kind(kind)
    unknown = set(options) - {o.name for o in (*COMMON, *known.options)}
    if unknown:
        names = ", ".join(o.name for o in (*known.options, *COMMON))
        raise UsageError(f"a sink of kind {kind} has no option {min(unknown)!r}", hint=f"Options: {names}.")
    check_options(known, own_options(options))
    check_common(options)


def delivered_columns(columns: Sequence[Column], options: Mapping[str, str]) -> list[Column]:
    """The columns that the sink gets; the sequence number is always among them."""
    by_name = {c.name: c for c in columns}
    chosen = parse_common(options).columns
    if chosen is None:
        return [by_name[SEQ_COLUMN], *(c for c in columns if c.name not in (SEQ_COLUMN, PARTITION_COLUMN))]
    if unknown := [c for c in chosen if c not in by_name]:
        raise SchemaError(f"there is no column {unknown[0]!r}", hint=f"Columns: {', '.join(by_name)}.")
    picked = [by_name[c] for c in chosen]
    return picked if SEQ_COLUMN in chosen else [by_name[SEQ_COLUMN], *picked]


def _check_place(context: DeliverContext, draft: SinkRecord) -> None:
    place = draft.destination
    if overlaps(place, place_of(context.config.warehouse_url, context.config.settings.warehouse.endpoint)):
        raise RefusedError(
            f"{place} is inside the warehouse, or contains it", hint="A sink's destination must be a place of its own."
        )
    for other in context.ledger.query(sinks.list_sinks):
        if overlaps(other.destination, place):
            raise sinks.destination_taken(other.name, other.destination)


def _continue(context: DeliverContext, draft: SinkRecord, dataset: Dataset, found: Claimed) -> SinkRecord:
    """The draft with the instance and generation of a destination that was ours before, under a lost ledger or in a
    removed sink: what it holds is never sent again. Raises RefusedError if it belongs to others."""
    claim = found.claim
    if claim.lake != context.lake or claim.dataset != dataset.name or claim.table_uuid != dataset.uuid:
        same_name = claim.lake == context.lake and claim.dataset == dataset.name
        raise DestinationTaken(
            f"{draft.destination} belongs to dataset {claim.dataset} of lake {claim.lake}"
            + (", another table of the same name" if same_name else ""),
            hint="Choose another place, or empty this one if nobody needs it.",
            dataset=claim.dataset if claim.lake == context.lake else None,
        )
    for other in context.ledger.query(sinks.list_sinks):
        if other.instance == claim.instance:  # under another spelling of the same place
            raise sinks.destination_taken(other.name, draft.destination)
    return replace(draft, instance=claim.instance, generation=found.generation)


def _beginning(
    connection: Connection, dataset: Dataset, draft: SinkRecord, *, from_now: bool, may_skip: bool
) -> Beginning:
    """Where a destination that continues began. The first generation began at the dataset's beginning, unless it was
    for new rows; of that, and of a later one, only the ledger knows. Raises RefusedError if this ledger does not know a
    later one, unless rows may be left out."""
    found = find_beginning(connection, dataset.id, draft.instance, draft.generation)
    if draft.generation == 1 and (found is None or not from_now):
        return Beginning(_start(connection, dataset, from_now=False), {})
    if found is not None:
        return found
    sealed = blocks.sealed(connection, dataset.id)
    if from_now and may_skip:
        return Beginning(sealed, {}, skipped=sealed)
    raise RefusedError(
        f"{draft.destination} is in generation {draft.generation}, and this ledger does not know where that began",
        hint="Give the sink another place, where it starts from the beginning. Or `strandline sink add --from now`, "
        f"for new rows only: rows up to {sealed} that the place does not have yet are never sent to it: a loss.",
    )


def _forgotten(begins: Beginning, floor: Seq | None) -> list[NewLoss]:
    """Ranges with rows that the sink may lack, and never gets."""
    if begins.skipped is not None:
        return [NewLoss("", None, begins.skipped, None)]
    if floor is not None and (begins.start or 0) < floor:
        return [NewLoss("", begins.start, floor, None)]
    return []


def _start(connection: Connection, dataset: Dataset, *, from_now: bool) -> Seq | None:
    if from_now:
        return blocks.sealed(connection, dataset.id)
    if dataset.history is History.SKIP:
        if any(b.head.kind is BlockKind.ADOPTED for b in blocks.open_blocks(connection, dataset.id)):
            raise RefusedError(
                f"the rows that {dataset.name} held before are still being numbered",
                hint=f"Finish it with `strandline dataset adopt {dataset.name}`, then add the sink.",
            )
        return published_blocks.end_of_history(connection, dataset.id)
    return None


def _above(floor: Seq | None, start: Seq | None) -> Seq | None:
    """Nothing starts below the floor: rows at or below it may be gone."""
    return start if floor is None or (start is not None and start >= floor) else floor


def update_sink(
    context: DeliverContext,
    dataset: Dataset,
    columns: Sequence[Column],
    name: str,
    options: Mapping[str, str],
    unset: Sequence[str] = (),
) -> SinkRecord:
    """Change the options for the next intent; an open intent keeps the options that it was stored with."""
    record = context.ledger.query(sinks.get, name)
    if missing := [o for o in unset if o not in record.options]:
        raise UsageError(f"sink {name} has no option {missing[0]!r} set")
    merged = {k: v for k, v in (dict(record.options) | dict(options)).items() if k not in unset}
    check_all_options(record.kind, merged)
    wanted = delivered_columns(columns, merged)
    with closing(open_sink(context, record, dataset, merged)) as sink:
        if sink.destination != record.destination:
            raise RefusedError(
                f"sink {name} delivers to {record.destination}; that cannot be changed",
                hint="Add another sink for the other place, and remove this one.",
            )
        check_not_called_off()
        sink.prepare(wanted)
    check_not_called_off()
    with context.ledger.write() as connection:
        changed = sinks.set_options(connection, record.id, merged, record.destination, expected=record.options)
        now = sinks.get(connection, name)
        if not changed:
            raise RefusedError(
                f"another process has changed sink {name} meanwhile; nothing was done",
                hint=f"`strandline sink show {name}` shows what it has now. Then run the command again.",
            )
        audit.record(connection, Event.SINK_UPDATED, sink=name, options=merged)
        return now


@contextmanager
def alone(context: DeliverContext, record: SinkRecord) -> Iterator[Lease]:
    """Holds the sink's lease, so that nobody else delivers meanwhile."""
    seconds = context.settings.lease_seconds
    lease = sinks.leases.take(context.ledger, record.id, seconds=seconds)
    if lease is None:
        raise RefusedError(
            f"another process delivers to {record.name} right now",
            hint=f"Try again in a moment, or `strandline sink pause {record.name}` first.",
        )
    with holding_lease(context.ledger, sinks.leases, lease, seconds=seconds):
        yield lease


def still_alone(connection: Connection, record: SinkRecord, lease: Lease) -> None:
    if not sinks.leases.holds(connection, lease):
        raise LeaseLost(f"{record.name}: a deliverer has taken over meanwhile", hint="Try again.")


@dataclass(frozen=True, slots=True)
class SinkReset:
    """What a reset does to a sink."""

    sink: str
    generation: int  # that it begins
    asked: Seq | None  # after which row; None: the dataset's beginning
    start: Seq | None  # the same, but not below the floor
    floor: Seq | None
    sealed: Seq | None  # up to here rows are delivered again
    open_intents: int  # that are dropped


def plan_reset(context: DeliverContext, dataset: Dataset, record: SinkRecord, to: str | None) -> SinkReset:
    """Reads the ledger and the destination's record; changes nothing. Raises TokenError."""
    with context.ledger.read() as connection:
        sealed = blocks.sealed(connection, dataset.id)
        floor = floors.get(connection, dataset.id)
        opened = len(intents.open_of(connection, record))
    asked = None
    if to is not None:
        asked = check(decode(to), lake=context.lake, dataset=dataset.uuid, name=dataset.name, sealed=sealed)
    with closing(open_sink(context, record, dataset, record.options)) as sink:
        found = sink.claimed()
    generation = max(record.generation, found.generation if found else 0) + 1
    return SinkReset(record.name, generation, asked, _above(floor, asked), floor, sealed, opened)


def reset_sink(context: DeliverContext, dataset: Dataset, name: str, to: str | None) -> SinkRecord:
    """Begin a new generation, at the dataset's beginning or after a token's row, but never below the floor."""
    record = context.ledger.query(sinks.get, name)
    with alone(context, record) as lease:
        plan = plan_reset(context, dataset, record, to)
        check_not_called_off()
        with context.ledger.write() as connection:
            floors.lock(connection, dataset.id)
            still_alone(connection, record, lease)
            floor = floors.get(connection, dataset.id)
            fresh = sinks.new_generation(connection, record.id, plan.generation, _above(floor, plan.asked))
            dropped = intents.abandon_open(connection, fresh)
            retention_holds.forget(connection, record.id)
            audit.record(
                connection, Event.SINK_RESET, sink=name, generation=fresh.generation, start=fresh.start,
                asked=plan.asked, floor=floor, intents_dropped=dropped,
            )  # fmt: skip
    return fresh


def remove_sink(context: DeliverContext, name: str) -> SinkRecord:
    """Delivered rows stay where they are; the sink no longer holds back retention."""
    record = context.ledger.query(sinks.get, name)
    with alone(context, record), context.ledger.write() as connection:
        sinks.remove(connection, record.id)
        audit.record(connection, Event.SINK_REMOVED, sink=name, destination=record.destination)
    return record
