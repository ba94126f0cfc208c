"""`sink recover`: read from the sink itself how far it is, and continue from there as a person decides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace

from strandline.core import failpoints
from strandline.core.calling_off import check_not_called_off
from strandline.core.delivery_types import ChunkState, Intent, Lane, LaneId
from strandline.core.errors import RefusedError, UsageError
from strandline.core.records.audit_events import Event
from strandline.core.text.wording import agreeing, part, plural
from strandline.core.types import Dataset, Seq, SeqRange, merge_ranges
from strandline.deliver.context import DeliverContext
from strandline.deliver.generation_start import lane_began, watermark_of_token
from strandline.deliver.manage_sinks import alone, still_alone
from strandline.deliver.plan.chunking import lacking, not_held
from strandline.deliver.plan.older_generations import ask_foundations, missing_below
from strandline.deliver.sink import Held, Loss, NoticesLoss
from strandline.deliver.sink_session import SinkRun
from strandline.ledger import audit
from strandline.ledger.deliver import intents, lanes, losses, older_generations, sinks
from strandline.ledger.deliver.losses import NewLoss, Reason
from strandline.ledger.deliver.older_generations import Foundation
from strandline.ledger.engine import Connection
from strandline.ledger.maintain import floors

_BOTH_WAYS = "--resend sends what it lacks again, in a new generation; --accept-loss continues without it."


@dataclass(frozen=True, slots=True)
class SinkRecovered:
    name: str
    generation: int
    repaired: tuple[str, ...]  # partitions whose watermark was read from the sink's own record
    # partitions, each with the last range that the sink acknowledged and no longer has
    lost: tuple[tuple[str, str], ...]
    lost_rows: int  # in all ranges that the sink acknowledged and no longer has: sent again, or given up
    intents_dropped: int
    # Open intents that stay because parts of them may have been sent and the destination cannot be asked.
    intents_kept: int = 0


def recover_sink(
    context: DeliverContext,
    dataset: Dataset,
    name: str,
    *,
    resend: bool,
    accept_loss: bool,
    dry_run: bool = False,
) -> SinkRecovered:
    """Read from the sink itself how far it is, and continue from there. Lost rows are sent again in a new generation
    (`resend`) or given up (`accept_loss`). With neither, a loss raises RefusedError and nothing changes. A dry run
    changes nothing, and is refused for the same reasons."""
    if resend and accept_loss:
        raise UsageError("either --resend or --accept-loss")
    record = context.ledger.query(sinks.get, name)
    with alone(context, record) as lease, closing(SinkRun(context, record, dataset, lease)) as run:
        return _recover(run, resend=resend, accept_loss=accept_loss, dry_run=dry_run)


class _Rehearsed(Exception):
    """Rolls back what a dry run wrote."""


@contextmanager
def _writing(run: SinkRun, *, dry_run: bool) -> Iterator[Connection]:
    """A transaction in which nobody else delivers. That of a dry run is rolled back."""
    with suppress(_Rehearsed), run.context.ledger.write() as connection:
        yield connection
        if dry_run:
            raise _Rehearsed


@dataclass(frozen=True, slots=True)
class _Lanes:
    """The lanes that the ledger knows, each with what the destination holds of it."""

    run: SinkRun
    held: Sequence[tuple[Lane, Held]]
    lost: Sequence[tuple[Lane, Held]]  # those that lack rows that the destination acknowledged
    lost_rows: int
    began: Mapping[LaneId, int]
    dry_run: bool

    def delivered(self, lane: Lane, held: Held) -> Seq | None:
        """How far the sink's own record covers a lane without a gap, from where the lane began."""
        at = max(self.began[lane.id], int(held.mark or 0))
        for r in merge_ranges(h.rows for h in held.ranges):
            if r.lo <= at + 1 <= r.hi + 1:
                at = max(at, int(r.hi))
        return Seq(at) if at else None

    @property
    def last_lost(self) -> tuple[tuple[str, str], ...]:
        return tuple((lane.partition, str(lane.last)) for lane, _ in self.lost)


def _recover(run: SinkRun, *, resend: bool, accept_loss: bool, dry_run: bool) -> SinkRecovered:
    context, sink = run.context, run.sink()
    if not dry_run:
        run.fence()
    found = sink.claimed()
    if found is not None and found.claim.instance != run.record.instance:
        raise RefusedError(f"{run.record.destination} belongs to another sink ({found.claim.instance})")
    if found is not None:
        run.check_term(found)
    if found is not None and found.generation > run.record.generation:
        raise RefusedError(
            f"{run.record.destination} is in generation {found.generation}, the ledger knows {run.record.generation}; "
            "where the newer one began is not known here",
            hint=f"`strandline sink reset {run.record.name} --to TOKEN` starts another one after a row that you name.",
        )
    with context.ledger.read() as connection:
        known = lanes.unchecked(connection, run.record)
        landed = intents.last_landed(connection, run.record)
        begun = {i.lane: i for i in intents.open_of(connection, run.record)}
        first = intents.first_starts(connection, run.record)
    began = {lane.id: lane_began(lane, run.record.start, first) for lane in known}
    answers = sink.held([(run.address(lane.partition), None) for lane in known])
    held = list(zip(known, answers, strict=True))
    if isinstance(sink, NoticesLoss) and (loss := sink.find_loss()) is not None:
        how = {"resend": resend, "accept_loss": accept_loss, "dry_run": dry_run}
        return _recover_rows(run, sink, held, loss, began, **how)
    below = _lost_below(run, known)
    began |= {lane.id: below[lane.partition][0].began for lane in known if lane.partition in below}
    held = [(lane, below[lane.partition][1] if lane.partition in below else h) for lane, h in held]
    lost = [
        (lane, h)
        for lane, h in held
        if lane.partition in below
        or lacking(landed.get(lane.id, ()), h, stores_watermarks=sink.stores_watermarks)
        or _missing_ranges(begun.get(lane.id), h)
    ]
    under_way = [
        str(r) for lane, h in lost if lane.partition not in below for r in _missing_ranges(begun.get(lane.id), h)
    ]
    lost_rows = _lost_rows(run, lost)
    if under_way and accept_loss:
        raise RefusedError(
            f"{run.record.name}: {', '.join(under_way[:5])} belongs to an intent that is under way, and would be sent "
            "again",
            hint="--resend sends what the destination lacks again, in a new generation.",
        )
    if lost and not (resend or accept_loss):
        lasts = [str(below[x.partition][0].ranges[-1] if x.partition in below else x.last) for x, _ in lost[:5]]
        ranges = ", ".join(under_way[:5] or lasts)
        raise RefusedError(
            f"{run.record.name}: the destination no longer has {ranges}, which it acknowledged "
            f"({plural(lost_rows, 'row')})",
            hint=_BOTH_WAYS,
        )
    check_not_called_off()
    recovered = _Lanes(run, held, lost, lost_rows, began, dry_run)
    return _resend(recovered) if lost and resend else _repair(recovered)


def _recover_rows(
    run: SinkRun,
    sink: NoticesLoss,
    held: Sequence[tuple[Lane, Held]],
    loss: Loss,
    began: Mapping[LaneId, int],
    *,
    resend: bool,
    accept_loss: bool,
    dry_run: bool,
) -> SinkRecovered:
    """The destination's record is complete, and rows are missing. With `resend`, the ranges whose rows are missing are
    sent again. With `accept_loss`, a range stays in the record and counts as delivered, even one of an open intent."""
    known = [lane for lane, _ in held]
    remaining = sink.remaining([run.address(lane.partition) for lane in known])
    check_not_called_off()
    whole = [(lane, r.held) for lane, r in zip(known, remaining, strict=True)]
    lost = [one for one, r in zip(whole, remaining, strict=True) if r.missing]
    lost_rows = sum(r.missing for r in remaining) or loss.given - loss.there
    if not (resend or accept_loss):
        raise RefusedError(
            f"{run.record.name}: {loss.what}; {part(lost_rows, loss.given, 'row')} that it acknowledged "
            f"{agreeing(lost_rows, 'is')} missing",
            hint=_BOTH_WAYS,
        )
    if resend:
        if in_part := [str(rows) for r in remaining for rows in r.in_part]:
            raise RefusedError(
                f"{run.record.name}: some rows of {', '.join(in_part[:5])} are still there, and would be sent again, "
                "too",
                hint="Remove those at the destination first; or continue without what is lost: --accept-loss.",
            )
        return _resend(_Lanes(run, whole, lost, lost_rows, _began_below(run, known, began), dry_run))
    done = _repair(_Lanes(run, held, lost, lost_rows, began, dry_run))
    if dry_run:
        return done
    # The ledger first: otherwise the number of lost rows would never be reported.
    failpoints.hit("recover.before_accept_loss")
    sink.accept_loss()
    return done


def _began_below(run: SinkRun, known: Sequence[Lane], began: Mapping[LaneId, int]) -> dict[LaneId, int]:
    """Where each lane began. A lane that builds on older generations began where the oldest of them did."""
    lowest: dict[str, int] = {}
    for layer in run.context.ledger.query(older_generations.layers, run.record):
        lowest[layer.partition] = min(layer.above, lowest.get(layer.partition, layer.above))
    return {lane.id: lowest.get(lane.partition, began[lane.id]) for lane in known}


def _lost_below(run: SinkRun, known: Sequence[Lane]) -> dict[str, tuple[Foundation, Held]]:
    """Partitions that build on missing rows of an older generation, with what the sink has of the older lane."""
    found = ask_foundations(run, [lane.partition for lane in known])
    lost = [foundation for foundation, held in found if missing_below(foundation, held)]
    asked = [(replace(run.address(f.partition), generation=f.generation), None) for f in lost]
    answers = run.sink().held(asked) if asked else []
    return {f.partition: (f, h) for f, h in zip(lost, answers, strict=True)}


def _missing_ranges(begun: Intent | None, held: Held) -> list[SeqRange]:
    """Ranges that the sink acknowledged of an open intent and no longer has."""
    chunks = () if begun is None else begun.chunks
    landed = [c.rows for c in chunks if c.state is ChunkState.LANDED and (c.count is None or c.count > 0)]
    return not_held(landed, held)


def _repair(found: _Lanes) -> SinkRecovered:
    run, record, gone = found.run, found.run.record, {lane.id for lane, _ in found.lost}
    repaired = []
    with _writing(run, dry_run=found.dry_run) as connection:
        still_alone(connection, record, run.lease)
        unanswered = {lane.id for lane, h in found.held if not h.known}
        dropped, kept = intents.drop_open(connection, record, keep=unanswered)
        for lane, h in found.held:
            reached = found.delivered(lane, h)
            _check_believable(run, lane, reached)
            mark = lane.mark if reached is None or (lane.mark is not None and lane.mark > reached) else reached
            if lane.id in gone:
                lanes.forget_last(connection, lane)
            lanes.rebuild(connection, record, lane.partition, mark=mark, token=run.token, last=None)
            if h.known:
                repaired.append(lane.partition)
        sinks.resume(connection, record.id)
        audit.record(
            connection, Event.SINK_RECOVERED, sink=record.name, partitions=len(repaired), intents_dropped=dropped,
            intents_kept=kept, lost=found.last_lost, lost_rows=found.lost_rows,
        )  # fmt: skip
    # The sink's own record must agree again: what is given up counts as delivered from now on.
    if not found.dry_run:
        run.sink().set_watermarks(
            [(run.address(lane.partition), lane.mark) for lane, _ in found.lost if lane.mark is not None]
        )
    return SinkRecovered(
        record.name, record.generation, tuple(repaired), found.last_lost, found.lost_rows, dropped, kept
    )


def _check_believable(run: SinkRun, lane: Lane, reached: Seq | None) -> None:
    """Raises RefusedError for a watermark that its own continuation token contradicts, or that is above everything
    planned. It proves nothing: unless the sink itself has come as far, rows below it may never have been sent."""
    said, readable = watermark_of_token(lane)
    agrees = readable and said == lane.mark
    fine = agrees or (said is None and (lane.last is None or (reached or 0) >= lane.last.hi))
    if lane.mark is not None and lane.mark > (reached or 0) and (not fine or lane.mark > (run.record.planned or 0)):
        raise RefusedError(
            f"{run.record.name}: the ledger's watermark {lane.mark} is not plausible: the destination has "
            f"rows up to {reached or 'nothing'} only, and watermarks never move back",
            hint=f"`strandline sink reset {run.record.name} --to TOKEN` starts another one after a row that you name.",
        )


def _lost_rows(run: SinkRun, lost: Sequence[tuple[Lane, Held]]) -> int:
    rows = 0
    with run.context.ledger.read() as connection:
        for lane, held in lost:
            # Rows that an older generation delivered are counted in its lane.
            older = older_generations.foundations(connection, run.record, [lane.partition])
            for intent in intents.history(connection, older[0].lane if older else lane.id):
                landed = {c.rows: c.count or 0 for c in intent.chunks if c.state is ChunkState.LANDED}
                below = [r for r in landed if not older or r.hi <= (lane.mark or 0)]
                rows += sum(landed[r] for r in not_held(below, held))
    return rows


def _resend(found: _Lanes) -> SinkRecovered:
    """Begin a new generation, because watermarks never move back. Each lane starts where the sink says that it
    is; a partition that the sink does not know starts at what is planned."""
    run, record, gone = found.run, found.run.record, {lane.id for lane, _ in found.lost}
    beyond = [str(r.rows) for lane, h in found.lost for r in h.ranges if r.rows.lo > (found.delivered(lane, h) or 0)]
    if beyond:
        raise RefusedError(
            f"{record.name}: above the rows that it lost, the destination still has {', '.join(beyond[:5])}, which "
            "would be sent again, too",
            hint="Remove those at the destination first; or continue without what is lost: --accept-loss.",
        )
    with _writing(run, dry_run=found.dry_run) as connection:
        floors.lock(connection, record.dataset)
        still_alone(connection, record, run.lease)
        floor = floors.get(connection, record.dataset)
        fresh = sinks.new_generation(connection, record.id, record.generation + 1, record.planned)
        dropped = intents.abandon_open(connection, fresh)
        for lane, h in found.held:
            mark = found.delivered(lane, h) if lane.id in gone else lane.mark
            if floor is not None and (mark or 0) < floor:
                # Rows below the floor that retention deleted cannot be sent again; how many, nobody knows.
                losses.add(connection, fresh, Reason.FORGOTTEN, [NewLoss(lane.partition, mark, floor, None)])
            lanes.rebuild(connection, fresh, lane.partition, mark=mark, token=run.token, last=None, builds_on=mark)
        audit.record(
            connection, Event.SINK_RECOVERED, sink=record.name, generation=fresh.generation, resend=True, floor=floor,
            lost=found.last_lost, lost_rows=found.lost_rows,
        )  # fmt: skip
    return SinkRecovered(record.name, fresh.generation, (), found.last_lost, found.lost_rows, dropped)
