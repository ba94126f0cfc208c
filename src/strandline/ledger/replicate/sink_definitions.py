"""What a leader's followers know of its sinks, so that the follower that takes over can continue them.

The new leader asks each sink for its progress before it sends anything. The definition only says where the sink began,
and up to where it was when the old leader last reported it, which is never further than the sink itself. Secrets are
not in it. The options say where they are found, and they must be found there at the new leader's site, too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from strandline.core.delivery_types import Lane, PeerKind, SinkRecord, SinkState
from strandline.core.read_token import Continuation
from strandline.core.records.audit_events import Event
from strandline.core.sites.replication import LaneDefinition, SinkDefinition
from strandline.core.sites.sink_document import sink_definition
from strandline.core.types import Dataset, DatasetUuid, Seq, seq_or_none
from strandline.ledger import audit
from strandline.ledger.deliver import lanes, losses, quarantine, sinks
from strandline.ledger.deliver.losses import NewLoss, Reason
from strandline.ledger.deliver.quarantine import NOT_DELIVERED, Quarantined, StoredRefusedRow
from strandline.ledger.engine import Connection
from strandline.ledger.ingest import datasets, sequence
from strandline.ledger.maintain import floors
from strandline.ledger.replicate import leader_sinks

# Of one sink. A sink with more lanes is defined without lanes: the new leader asks about each from the sink's start.
LANES_MAX = 2000


def read_definitions(connection: Connection, *, only: Collection[str] | None = None) -> tuple[SinkDefinition, ...]:
    """The definitions of all sinks, or of those of some datasets, by name."""
    known = {d.id: d for d in datasets.list_datasets(connection) if only is None or d.name in only}
    of_sinks, refused = lanes.unchecked_of_all(connection), quarantine.count_waiting(connection)
    return tuple(
        _definition(known[s.dataset].uuid, s, of_sinks.get(s.id, []), refused.get(s.id, 0))
        for s in sinks.list_sinks(connection)
        if s.dataset in known
    )


def definitions_version(connection: Connection, *, only: Collection[str] | None = None) -> str:
    """A hash that changes when a sink is added, changed, reset, paused or removed. Not when a sink gets rows: a
    follower with an older watermark only keeps more."""
    ids = None if only is None else {d.id for d in datasets.list_datasets(connection) if d.name in only}
    described = [
        (s.id, s.generation, s.state is SinkState.PAUSED, sorted(s.options.items()), s.destination, s.start)
        for s in sinks.list_sinks(connection)
        if ids is None or s.dataset in ids
    ]
    return hashlib.blake2b(json.dumps(sorted(described)).encode(), digest_size=8).hexdigest()


def _definition(dataset: DatasetUuid, sink: SinkRecord, of_sink: Sequence[Lane], quarantined: int) -> SinkDefinition:
    whole = SinkDefinition(
        dataset,
        sink.name,
        sink.kind,
        sink.instance,
        sink.generation,
        tuple(sorted(sink.options.items())),
        sink.destination,
        sink.start,
        sink.planned,
        None if sink.peer is None else sink.peer.value,
        sink.from_now,
        sink.state is SinkState.PAUSED,
        tuple(LaneDefinition(lane.partition, lane.mark, lane.builds_on) for lane in of_sink[: LANES_MAX + 1]),
        _lowest(sink.planned, [lane.mark for lane in of_sink]),
        quarantined,
    )
    return whole if len(whole.lanes) <= LANES_MAX else replace(whole, planned=sink.start, lanes=())


def _lowest(planned: Seq | None, marks: Sequence[Seq | None]) -> Seq | None:
    """As in `lanes.lowest_watermarks`: rows of a partition without a lane are in no plan yet."""
    return seq_or_none(min([int(planned or 0), *(int(mark or 0) for mark in marks)]) or None)


@dataclass(frozen=True, slots=True)
class SinksTakenOver:
    names: tuple[str, ...] = ()
    left: tuple[str, ...] = ()  # sinks of datasets that this site does not have: nobody continues them
    quarantined: tuple[tuple[str, int], ...] = ()  # by sink: refused rows that wait at the old leader
    removed: tuple[str, ...] = ()  # sinks from when this site led before, which the old leader had no longer


def take_over(connection: Connection, lake: str, definitions: Sequence[SinkDefinition]) -> SinksTakenOver:
    """Makes the old leader's sinks the sinks of this site, in the transaction that makes it the leader. Sinks that this
    site has from when it led before are removed: the leaders since then have continued them. Rows that they refused
    wait in the quarantine of the same sink again."""
    here = {d.uuid: d for d in datasets.list_datasets(connection)}
    own = sinks.list_sinks(connection)
    refused = {(s.instance, s.generation): quarantine.list_quarantined(connection, s, NOT_DELIVERED) for s in own}
    for old in own:
        sinks.remove(connection, old.id)
        audit.record(connection, Event.SINK_REMOVED, sink=old.name, destination=old.destination)
    taken = [d for d in definitions if d.dataset in here]
    for definition in taken:
        refused_then = refused.get((definition.instance, definition.generation), ())
        _add(connection, lake, here[definition.dataset], definition, refused_then)
    left = tuple(d.name for d in definitions if d.dataset not in here)
    quarantined = tuple((d.name, d.quarantined) for d in definitions if d.quarantined)
    names = tuple(d.name for d in taken)
    return SinksTakenOver(names, left, quarantined, tuple(s.name for s in own if s.name not in names))


def take_over_sinks(connection: Connection) -> SinksTakenOver:
    """Takes over the sinks that the leader sent. A site that led before, and got no sinks of the leader since, keeps
    its own. Each sink is asked for its progress before anything is sent."""
    document, lake = leader_sinks.read(connection), sequence.read(connection).lake
    if document is None:
        return replace(take_over(connection, lake, read_definitions(connection)), quarantined=())
    return take_over(connection, lake, [sink_definition(one) for one in json.loads(document)])


def _add(
    connection: Connection, lake: str, dataset: Dataset, given: SinkDefinition, refused: Sequence[Quarantined]
) -> None:
    added = sinks.add(
        connection,
        instance=given.instance,
        name=given.name,
        kind=given.kind,
        dataset=dataset.id,
        options=dict(given.options),
        destination=given.destination,
        start=given.start,
        planned=given.planned,
        generation=given.generation,
        peer=None if given.peer is None else PeerKind(given.peer),
        from_now=given.from_now,
    )

    def token(mark: Seq | None) -> str:
        return Continuation(lake, dataset.uuid, mark).encode()

    for lane in given.lanes:
        lanes.rebuild(
            connection, added, lane.partition, mark=lane.mark, token=token, last=None, builds_on=lane.builds_on
        )
    for row in refused:
        if row.generation == given.generation:
            _wait_again(connection, added, row, token)
    if given.paused:
        sinks.pause(connection, added.id)
    floor = floors.get(connection, dataset.id)
    if floor is not None and (given.lowest or 0) < floor:
        losses.add(connection, added, Reason.FORGOTTEN, [NewLoss("", given.lowest, floor, None)])
    audit.record(
        connection, Event.SINK_ADDED, sink=given.name, kind=given.kind, dataset=dataset.name,
        destination=given.destination, start=given.start, generation=given.generation, floor=floor, peer=given.peer,
        skipped=None, quarantined_before=given.quarantined,
    )  # fmt: skip


def _wait_again(connection: Connection, sink: SinkRecord, row: Quarantined, token: Callable[[Seq | None], str]) -> None:
    """Moves the row to the quarantine of the new sink record. A replay asks the sink first: a leader since then may
    have sent the row after all."""
    stored = next((lane for lane in lanes.unchecked(connection, sink) if lane.partition == row.partition), None)
    lane = stored or lanes.rebuild(connection, sink, row.partition, mark=sink.start, token=token, last=None)
    quarantine.add(
        connection, StoredRefusedRow(lane.id, row.seq, row.reason, row.object, row.size, row.options, row.form)
    )
    quarantine.discard_in(connection, row.id)
