"""A promotion, as the ledger sees it: the state of the follower before it, and the transaction that makes the follower
the leader. The rules are those of docs/adr/0071.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import sqlalchemy as sa

from strandline.core import failpoints
from strandline.core.errors import RefusedError, WatermarkMoved
from strandline.core.purged_ranges import span_of
from strandline.core.records.audit_events import Event
from strandline.core.sites.replication import SiteRole, TakeoverCut
from strandline.core.sites.takeover_cuts import NumberedCut
from strandline.core.sites.terms import numbers_of
from strandline.core.types import (
    Block,
    BlockHead,
    BlockId,
    Dataset,
    DatasetId,
    ItemKind,
    Reserved,
    Seq,
    SeqRange,
    Staged,
    merge_ranges,
)
from strandline.ledger import audit
from strandline.ledger.deliver import losses
from strandline.ledger.engine import Ledger, utc_now
from strandline.ledger.ingest import blocks, datasets, purge_items, sequence
from strandline.ledger.receive import announced_bodies, ended_batches, receive_holds
from strandline.ledger.replicate import (
    cuts,
    following,
    item_ranges,
    leader_contact,
    leader_sinks,
    promotion_claims,
    seen_terms,
    sites,
)
from strandline.ledger.replicate.cuts import OpenCut, PreparedCut
from strandline.ledger.replicate.following import Followed
from strandline.ledger.replicate.sink_definitions import SinksTakenOver, take_over_sinks
from strandline.ledger.replicate.sites import Site
from strandline.ledger.schema.core import block
from strandline.ledger.schema.replicate import followed_dataset, site
from strandline.ledger.witness import Witness, WitnessRecord, resync_needed

SET_ASIDE_REASON = (
    "another site has led since it came; `strandline rejoin` copied it to files: discard it if they were ingested"
)
_NAMED_MAX = 200  # blocks that the audit names; it counts them all


@dataclass(frozen=True, slots=True)
class GivenUp:
    """An item that the leader offered and whose content never arrived: only the old leader may have its rows."""

    dataset: str
    numbers: SeqRange
    kind: ItemKind
    batch_id: str
    rows: int | None  # as the leader counted them


@dataclass(frozen=True, slots=True)
class Lack:
    """What others may have of a dataset and this site lacks, according to the last reports of the leader."""

    dataset: str
    sealed: Seq | None
    leader_sealed: Seq | None  # as the leader last reported it; None: it has not
    sinks: tuple[tuple[str, Seq], ...]  # the old leader's sinks that have rows above `sealed`, and up to where


@dataclass(frozen=True, slots=True)
class PromotionState:
    """The state of a follower on which its promotion depends."""

    site: Site
    terms: dict[str, int]  # by dataset: that of the last leader whose cut it has recorded
    behind: tuple[str, ...]  # datasets whose ledger is behind: they have no seal
    seals: dict[str, Seq | None]
    staged: tuple[tuple[Dataset, Staged], ...]  # of all datasets, without what a recorded cut cuts out
    cuts: tuple[tuple[Dataset, OpenCut], ...]
    given_up: tuple[GivenUp, ...]  # what a promotion would give up now
    purged: tuple[Dataset, ...]  # datasets with purges that a promotion would give up now
    claim: str | None = None  # by which the record names this promotion and no other; None: none has begun
    by_force: bool = False  # the promotion that has begun is by force
    with_arbiter: bool = False  # it asked an arbiter
    lacks: tuple[Lack, ...] = ()  # by dataset
    answered_at: datetime | None = None  # when the leader last answered; None: never
    highest_known_term: int = 0  # the highest term that this site knows of


def read(connection: sa.Connection) -> PromotionState:
    """The state of this follower. `connection` must be one of `read_consistent`."""
    followed = following.list_followed(connection)
    named = {f.dataset.id: f.dataset for f in followed}
    all_open = blocks.open_blocks(connection)
    opened = [b for b in all_open if b.head.dataset in named]
    # A dataset that the leader does not have is not followed, but the promotion includes it.
    live = {d.id: d for d in datasets.list_datasets(connection)}
    staged = [b for b in all_open if isinstance(b, Staged) and b.head.dataset in live]
    recorded = [(d, c) for d in named.values() for c in cuts.open_cuts(connection, d.id)]
    settled = {c.block.head.id for _, c in recorded}
    out = {h.id for d, c in recorded for h in cuts.blocks_out(connection, d.id, c.at)}
    here = sites.get(connection)
    begun = {} if here.promoting_term is None else promotion_claims.begun(connection)
    return PromotionState(
        site=here,
        terms={f.dataset.name: f.term for f in followed},
        behind=tuple(f.dataset.name for f in followed if f.witnessed is not None),
        seals={d.name: blocks.sealed(connection, d.id) for d in named.values()},
        staged=tuple((live[b.head.dataset], b) for b in staged if b.head.id not in out),
        cuts=tuple(recorded),
        given_up=tuple(
            _given_up(connection, named[b.head.dataset], b.head)
            for b in opened
            if isinstance(b, Reserved) and b.head.id not in settled | out
        ),
        purged=tuple(named[id] for id in sorted(_purges_open(opened, out))),
        claim=begun.get("claim"),
        by_force=bool(begun.get("by_force")),
        with_arbiter=here.promoting_term is not None and bool(begun.get("arbiter", True)),
        lacks=tuple(_lack(connection, f) for f in followed),
        answered_at=leader_contact.get(connection).answered_at,
        highest_known_term=seen_terms.get(connection),
    )


def _purges_open(opened: Iterable[Block], out: Collection[BlockId]) -> set[DatasetId]:
    return {b.head.dataset for b in opened if b.head.item is ItemKind.PURGE and b.head.id not in out}


def _lack(connection: sa.Connection, of: Followed) -> Lack:
    sealed, sinks = blocks.sealed(connection, of.dataset.id), leader_sinks.list_all(connection)
    ahead = [(s.name, s.number) for s in sinks if s.dataset == of.dataset.uuid and s.number is not None]
    above = tuple((n, upto) for n, upto in ahead if upto > (sealed or 0))
    return Lack(of.dataset.name, sealed, of.leader_seal, above)


def _given_up(connection: sa.Connection, of: Dataset, head: BlockHead) -> GivenUp:
    rows = connection.execute(sa.select(block.c.offered_rows).where(block.c.id == head.id)).scalar()
    return GivenUp(of.name, head.rows, head.item, head.batch_id, rows)


def led_in(connection: sa.Connection, id: DatasetId, term: int) -> bool:
    """Whether this site has assigned sequence numbers of the term to batches of the dataset."""
    rows = numbers_of(term)
    own = (block.c.dataset_id == id, ~block.c.offered, block.c.lo.between(rows.lo, rows.hi))
    return connection.execute(sa.select(block.c.id).where(*own).limit(1)).first() is not None


# --- before it leads -------------------------------------------------------------------------------------------------


def resume(ledger: Ledger, witness: Witness) -> None:
    """Moves the counter to the witness if a promotion raised the witness and died before its commit, so that the ledger
    does not count as restored."""
    with ledger.write() as connection:
        counter, here, record = sequence.lock(connection), sites.get(connection), witness.read()
        if here.follows and here.claimed_term == record.term and record.highest > counter.last:
            sequence.move(connection, last=record.highest, epoch=counter.epoch)


def check_none_under_way(connection: sa.Connection, record: WitnessRecord) -> None:
    """Raises RefusedError if the witness is ahead because a promotion died before its commit: then the ledger is not
    behind, and only the promotion may continue."""
    here = sites.get(connection)
    if here.follows and here.claimed_term is not None and record.term == here.claimed_term:
        raise RefusedError(
            f"this site is about to lead in term {here.claimed_term}, and its promotion was interrupted",
            hint="Run `strandline promote` to finish it.",
        )


# --- the transaction -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Led:
    """What the transaction did."""

    term: int
    cuts: tuple[tuple[str, NumberedCut], ...]  # by dataset
    given_up: tuple[GivenUp, ...]
    sinks: SinksTakenOver = field(default_factory=SinksTakenOver)
    bodies_aside: tuple[tuple[str, int], ...] = ()  # by dataset: bodies from when this site led before
    receivers_on_hold: Mapping[str, str] = field(default_factory=dict)  # by dataset, with the reason
    lacks: tuple[Lack, ...] | None = None  # of a promotion by force; None: it was not by force


def lead(
    ledger: Ledger,
    witness: Witness,
    term: int,
    *,
    prepared: Sequence[PreparedCut],
    lost: Collection[BlockId],
    fenced: Mapping[DatasetId, int],
) -> Led:
    """Makes this site the leader, in one transaction: sets role and term, settles the recorded cuts, gives up all other
    open blocks, moves counter and witness to the term's first numbers, stores a cut for each dataset and an item for
    each purge that this site had begun, and takes over the old leader's sinks.

    `prepared` are the recorded cuts whose rows are set aside and removed; `lost` are staged blocks that nobody can
    publish; `fenced` are the epochs of tables with purges that are given up, raised before. Raises
    `WatermarkMoved` if something was staged or recorded meanwhile, and `ResyncNeeded`."""
    with ledger.write() as connection:
        counter = sequence.lock(connection)
        here = sites.get(connection)
        if here.claimed_term != term:
            raise WatermarkMoved(
                f"this site has abandoned the promotion to term {term}", hint="See `strandline replication status`."
            )
        taken = _check_witness(witness.read(), counter, term)
        live = sorted(datasets.list_datasets(connection), key=lambda d: d.id)
        # The last leader's term whose cut is recorded. A dataset that is not followed was created here, in an older
        # one.
        replaces = {d.id: here.term for d in live} | {f.dataset.id: f.term for f in following.list_followed(connection)}
        lacks = tuple(_lack(connection, f) for f in following.list_followed(connection))
        _check_ready(connection, live, prepared, lost)
        _check_fenced(connection, counter.epoch, prepared, fenced)
        # Read before recorded cuts are settled: above this seal, other sites may have other rows.
        above = {d.id: blocks.sealed(connection, d.id) or Seq(0) for d in live}
        # Above the ledger's in any case: a suspended process may raise a table to that epoch (docs/adr/0089).
        epoch = max(cuts.settle_prepared(connection, prepared), *fenced.values(), counter.epoch + 1)
        first = int(numbers_of(term).lo)
        own_cuts, given_up, aside, begun = [], [], [], []
        for n, d in enumerate(live):
            number = Seq(first + n)
            if deleted_in := _purges_begun(connection, d):
                begun.append((d, deleted_in))
            given_up += _give_up(connection, d, number)
            cut = TakeoverCut(term, above[d.id], _keeps(connection, d, above[d.id]), replaces[d.id])
            cuts.insert(connection, d.id, number, cut)
            own_cuts.append((d.name, NumberedCut(number, cut)))
            # A site that follows receives nothing: these are bodies that it had when it led before, and that `rejoin`
            # copied to files. If somebody has ingested the files, the rows would be in the table twice.
            if bodies := ended_batches.set_all_aside(connection, d.id, SET_ASIDE_REASON):
                aside.append((d.name, bodies))
            announced_bodies.hold_unknown(connection, d.id)
        for n, (d, ranges) in enumerate(begun):
            purge_items.insert_begun(connection, d.id, Seq(first + len(live) + n), ranges)
        # An attempt that died may have taken more, for a dataset that was dropped since.
        last = max(first + max(0, len(live) - 1) + len(begun), taken)
        failpoints.hit("promote.before_witness")
        # No other process writes the witness now: every writer holds the counter's lock.
        by_force = bool(promotion_claims.begun(connection).get("by_force"))
        witness.replace(WitnessRecord(counter.lake, last, SiteRole.LEADER, term))
        failpoints.hit("promote.after_witness")
        sequence.move(connection, last=last, epoch=epoch)
        _become_leader(connection, here, term)
        sinks = take_over_sinks(connection)
        holds = receive_holds.list_holds(connection)
        on_hold = {d.name: holds[d.id] for d in live if d.id in holds}
        led = Led(term, tuple(own_cuts), tuple(given_up), sinks, tuple(aside), on_hold, lacks if by_force else None)
        _audit(connection, here, led)
    failpoints.hit("promote.after_commit")
    return led


def _check_witness(record: WitnessRecord, counter: sequence.Counter, term: int) -> int:
    """Up to where an attempt that died before its commit has taken sequence numbers of the term; 0: none has."""
    record.check_lake(counter.lake)
    died_here = record.role is SiteRole.LEADER and record.term == term
    if record.highest != counter.last and not died_here:
        raise resync_needed(record.highest, counter.last)
    return record.highest if died_here else 0


def _check_ready(
    connection: sa.Connection, live: Sequence[Dataset], prepared: Sequence[PreparedCut], lost: Collection[BlockId]
) -> None:
    done = {p.block.head.id for p in prepared}
    out = {head.id for p in prepared for head in cuts.blocks_out(connection, p.dataset.id, p.at)}
    for d in live:
        for b in blocks.open_blocks(connection, d.id):
            is_cut = b.head.item is ItemKind.CUT
            is_staged = isinstance(b, Staged) and b.head.id not in (*lost, *out)
            if (is_cut and b.head.id not in done) or is_staged:
                what = "a cut was recorded" if is_cut else f"block {b.head.rows} was staged"
                raise WatermarkMoved(f"{d.name}: {what} meanwhile", hint="Try again.")
    if any(f.witnessed is not None for f in following.list_followed(connection)):
        raise WatermarkMoved("the ledger was found to be behind meanwhile", hint="Try again.")


def _check_fenced(
    connection: sa.Connection, ledger_epoch: int, prepared: Sequence[PreparedCut], fenced: Mapping[DatasetId, int]
) -> None:
    """Raises WatermarkMoved unless the tables with purges that are given up have an epoch above the ledger's: a process
    that still carries such a purge out has at most the epoch `known`."""
    out = {head.id for p in prepared for head in cuts.blocks_out(connection, p.dataset.id, p.at)}
    if any(fenced.get(id, 0) <= ledger_epoch for id in _purges_open(blocks.open_blocks(connection), out)):
        raise WatermarkMoved("the epoch was raised, or a purge was recorded, meanwhile", hint="Try again.")


def _purges_begun(connection: sa.Connection, of: Dataset) -> list[SeqRange]:
    """The ranges of open purges that have deleted rows or are about to: they are recorded as purged before that."""
    query = sa.select(block.c.ranges).where(
        block.c.dataset_id == of.id, block.c.state == "reserved", block.c.item == ItemKind.PURGE.value
    )
    opened = [item_ranges.read(row.ranges)[0] for row in connection.execute(query)]
    deleted = losses.purged(connection, of.id)
    begun = [ranges for ranges in opened if ranges and any(span_of(ranges).overlaps(p) for p in deleted)]
    return [r for ranges in begun for r in ranges]


def _give_up(connection: sa.Connection, of: Dataset, number: Seq) -> list[GivenUp]:
    """Abandons all open blocks. Recorded cuts, and the blocks that they cut out, are settled by now."""
    opened = blocks.open_blocks(connection, of.id)
    given_up = [_given_up(connection, of, b.head) for b in opened]
    reason = NumberedCut(number, TakeoverCut(1, Seq(0), ())).reason
    for b in opened:
        state = "reserved" if isinstance(b, Reserved) else "staged"
        values = {"state": "abandoned", "reason": reason, "lease_until": None, "snapshot_id": None}
        if not blocks.change_block(connection, b.head, state, None, **values):
            raise WatermarkMoved(f"{of.name}: block {b.head.rows} was changed meanwhile", hint="Try again.")
    announced_bodies.withdraw(connection, of.id, [b.head.batch_id for b in opened])
    return given_up


def _keeps(connection: sa.Connection, of: Dataset, above: Seq) -> tuple[SeqRange, ...]:
    """The settled ranges above the seal, from shards that are ahead of the others."""
    query = sa.select(block.c.lo, block.c.hi).where(
        block.c.dataset_id == of.id,
        block.c.state == "published",
        block.c.item == ItemKind.SEGMENT.value,
        block.c.hi > above,
    )
    ranges = [SeqRange(Seq(max(r.lo, above + 1)), Seq(r.hi)) for r in connection.execute(query)]
    return tuple(merge_ranges(ranges))


def _become_leader(connection: sa.Connection, here: Site, term: int) -> None:
    connection.execute(followed_dataset.delete())
    connection.execute(
        site.update().values(
            role=SiteRole.LEADER.value, term=term, leader=None, leader_token=None, promoting_term=None,
            claimed_term=None, changed_at=utc_now(),
        )
    )  # fmt: skip


def _audit(connection: sa.Connection, here: Site, led: Led) -> None:
    audit.record(
        connection, Event.SITE_PROMOTED, term=led.term, led_before=here.leader, replaces=here.promoting_term,
        cuts={name: int(cut.number) for name, cut in led.cuts}, given_up=len(led.given_up),
        batches=[f"{g.dataset} {g.numbers} {g.batch_id}" for g in led.given_up[:_NAMED_MAX]],
        sinks_left=list(led.sinks.left), bodies_aside=dict(led.bodies_aside),
        receivers_on_hold=dict(led.receivers_on_hold), by_force=led.lacks is not None,
        lacks=None if led.lacks is None else [
            {"dataset": x.dataset, "sealed": x.sealed, "leader_sealed": x.leader_sealed, "sinks": dict(x.sinks)}
            for x in led.lacks
        ],
    )  # fmt: skip
