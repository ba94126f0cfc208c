"""One pass of a follower: asks the leader once, makes and drops datasets, records what is offered, applies what is
open, and says how far it is.

If there is nothing new and nothing open, a pass is one request and two reads of its own ledger: no Spark, no table.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from strandline.core import failpoints
from strandline.core.errors import FailedError, StorageError, StrandlineError, WrongLake, as_strandline_error
from strandline.core.records.audit_events import Event
from strandline.core.settings.follow import FollowSettings
from strandline.core.sites.replication import FIRST_TERM, Offer, shard_ids
from strandline.core.types import SEQ_MAX, BlockId, Dataset, DatasetUuid, Seq, SeqRange, ShardId, Staged
from strandline.ledger import audit
from strandline.ledger.ingest import sequence
from strandline.ledger.receive.receipts import open_receipts
from strandline.ledger.replicate import following, following_report, leader_seals, sites
from strandline.ledger.replicate.followers import Acknowledgement
from strandline.ledger.replicate.following import Followed, OpenItem
from strandline.ledger.replicate.leader_contact import FollowStep
from strandline.ledger.replicate.leader_seals import is_news
from strandline.replicate.follow.apply_plan import (
    check_leaves_nothing_out,
    check_offer,
    check_restored,
    had_at_most,
    next_items,
)
from strandline.replicate.follow.context import FollowContext
from strandline.replicate.follow.fetch_bodies import MissingBodies
from strandline.replicate.follow.leader_sinks import LeaderSinks
from strandline.replicate.follow.note_passes import PassNotes
from strandline.replicate.source import Polled
from strandline.replicate.state import ReplicationState
from strandline.storage.durable import write_file

log = logging.getLogger(__name__)

TELL_SECONDS_MIN = 5.0  # between two words to the leader during one pass
TELL_SECONDS_MAX = 30.0  # between two words to the leader while nothing moves


@dataclass(slots=True)
class FollowReport:
    """What one pass did."""

    recorded: int = 0  # items
    applied: list[SeqRange] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    failed: list[StrandlineError] = field(default_factory=list)  # items and datasets that are tried again


class Follower:
    def __init__(self, context: FollowContext, settings: FollowSettings, checkpoint: Path) -> None:
        self.context = context
        self._settings = settings
        self._checkpoint = checkpoint
        self._sinks = LeaderSinks(context.ledger)
        self._told: tuple[int, Mapping[DatasetUuid, Seq], Mapping[ShardId, Seq]] | None = None
        self._term = FIRST_TERM  # of the leader, as it said last
        self._told_at = float("-inf")  # by the monotonic clock
        self._notes = PassNotes(context.ledger)
        self._missing = MissingBodies(context.ledger, open_receipts(context.config))
        self._stopping = threading.Event()  # begins no further item; those under way are applied
        self._is_away = False  # the leader stopped answering in this pass
        self._stored = b""  # what the checkpoint's file has
        self.state = ReplicationState.new(())
        self._load_state()

    def close(self) -> None:
        self.context.source.close()

    def tick(self, stopping: threading.Event | None = None, notes: PassNotes | None = None) -> FollowReport:
        """Goes on until the leader offers nothing more, or `stopping` is set. Raises what keeps it from asking; what
        fails for one item or one dataset is in the report, and the others go on."""
        report = FollowReport()
        self._stopping = stopping or threading.Event()
        self._notes = notes or PassNotes(self.context.ledger)
        while not self._stopping.is_set():
            self._notes.begins(FollowStep.ASK)
            self.context.ledger.query(sites.check_follows)
            self.context.parts.ingestion.catch_up()
            with self.context.ledger.read() as connection:
                followed, epoch = following.list_followed(connection), sequence.read(connection).epoch
            polled = self._poll(followed)
            self._notes.answered()
            self._notes.begins(FollowStep.APPLY)
            self._follow_datasets(polled, followed, report)
            self._check_restored(polled, followed, report)
            offers = self._without_left_out(polled, followed, report)
            done = self._record(offers)
            self._note_seals(polled, [f for f in followed if f.dataset.uuid not in done])
            recorded = sum(len(o.items) for o in offers if o.dataset.id in done)
            report.recorded += recorded
            # What has failed in this pass is not tried again in it.
            self._apply(report)
            self._fetch_missing_bodies(report)
            if report.failed:
                self._notes.failed(first_failure(report.failed))
            self._catch_up(polled, epoch)
            self._acknowledge()
            if not recorded or report.failed:
                break
        return report

    # --- what the leader offers ---

    def _poll(self, followed: Sequence[Followed]) -> Polled:
        after = {f.dataset.uuid: f.bound for f in followed}
        items_max, version = self._settings.offer_items_max, self._sinks.version()
        polled = self.context.source.poll(after, items_max=items_max, sinks_version=version)
        if polled.site.lake != self.context.lake:
            raise WrongLake(
                f"the leader has lake {polled.site.lake}, and this site follows lake {self.context.lake}",
                hint="Check the leader's address: `strandline follow init LEADER`.",
            )
        for known in followed:
            following.check_term(known, polled.site.term)
        self._term = polled.site.term
        if not followed and self._term > FIRST_TERM:  # there is nothing that a cut could cut out
            self.context.ledger.change(sites.raise_term, self._term)
        self._sinks.keep(polled.sinks, polled.sinks_version)
        return polled

    def _note_seals(self, polled: Polled, followed: Sequence[Followed]) -> None:
        """Of datasets of which nothing was recorded: a follower to which nothing is offered may lack something."""
        told = {f.dataset.id: polled.seals[f.dataset.uuid] for f in followed if f.dataset.uuid in polled.seals}
        not_offered = {f.dataset.id: None for f in followed if f.dataset.id not in told}
        if any(is_news(f, told.get(f.dataset.id), is_offered=f.dataset.id in told) for f in followed):
            self.context.ledger.change(leader_seals.note, told, not_offered)

    def _follow_datasets(self, polled: Polled, followed: Sequence[Followed], report: FollowReport) -> None:
        from strandline.replicate.follow.follow_datasets import drop_dataset, make_dataset

        named = {f.dataset.uuid: f.dataset.name for f in followed}
        for one in followed:
            known = one.dataset.uuid in (*polled.datasets, *polled.dropped)
            if not known and one.term < polled.site.term:
                self.context.ledger.change(following.leave, one)
        for id in polled.dropped:
            drop_dataset(self.context, id)
            report.dropped.append(named.get(id, id))
        for terms in polled.made:
            try:
                make_dataset(self.context, terms, polled.site.term)
                report.made.append(terms.name)
            except StrandlineError as e:
                report.failed.append(e)

    def _check_restored(self, polled: Polled, followed: Sequence[Followed], report: FollowReport) -> None:
        offered = {o.dataset.id for o in polled.offers}
        for one in followed:
            if one.dataset.uuid not in polled.seals or one.dataset.uuid in offered:
                continue
            try:
                check_restored(one, polled.seals[one.dataset.uuid], polled.site.term)
            except FailedError as e:
                report.failed.append(e)

    def _without_left_out(self, polled: Polled, followed: Sequence[Followed], report: FollowReport) -> Sequence[Offer]:
        """The offers that this site may record."""
        known, found = {f.dataset.uuid: f for f in followed}, []
        for offer in polled.offers:
            check_offer(offer)
            try:
                if (one := known.get(offer.dataset.id)) is not None:
                    check_leaves_nothing_out(one, offer)
            except FailedError as e:
                report.failed.append(e)
            else:
                found.append(offer)
        return found

    def _record(self, offers: Sequence[Offer]) -> Collection[DatasetUuid]:
        """Of which datasets offers were recorded. Not of one with too many open items: whatever fails there, the ledger
        and a pass stay small."""
        if not offers:
            return ()
        with self.context.ledger.read() as connection:
            opened = following_report.count_open(connection)
            ids = {f.dataset.uuid: f.dataset.id for f in following.list_followed(connection)}
        items_max = self._settings.offer_items_max
        full = {uuid for uuid, id in ids.items() if opened.get(id, 0) >= items_max}
        offers = [o for o in offers if o.dataset.id not in full]
        return following.record(self.context.ledger, self.context.witness, offers)

    # --- applying ---

    def _apply(self, report: FollowReport) -> None:
        """Side by side, bounded, until nothing is open that has not failed or is not somebody else's."""
        items_max = self._settings.items_at_once_max
        given_up: set[BlockId] = set()
        self._is_away = False
        running: dict[Future[bool], OpenItem] = {}
        with ThreadPoolExecutor(items_max, "strandline-follow") as pool:
            try:
                while True:
                    for item, run in self._next(running.values(), given_up, items_max):
                        running[pool.submit(run)] = item
                    if not running:
                        return
                    done, _ = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        item = running.pop(future)
                        if not self._settled(future, item, report):
                            given_up.add(item.head.id)
                    self._acknowledge_meanwhile()
            finally:
                self._advance()

    def _fetch_missing_bodies(self, report: FollowReport) -> None:
        """Of batches that were applied when nobody told their bodies."""
        if self._stopping.is_set() or not self._missing.is_due():
            return
        try:
            with self.context.ledger.read() as connection:
                known = [f.dataset for f in following.list_followed(connection) if f.term == self._term]
            self._missing.take(self.context.source, known, self._term)
        except StrandlineError as e:
            report.failed.append(e)

    def _next(
        self, running: Collection[OpenItem], given_up: set[BlockId], items_max: int
    ) -> list[tuple[OpenItem, Callable[[], bool]]]:
        if self._stopping.is_set() or self._is_away:
            return []
        with self.context.ledger.read() as connection:
            opened = following.open_items(connection)
            followed = {f.dataset.id: f for f in following.list_followed(connection)} if opened else {}
        busy = {item.head.id for item in running}
        # Before the cut of this leader is recorded, nobody can tell which rows of the leader before it are missing
        # because they are cut out.
        known = [i for i in opened if (of := followed.get(i.head.dataset)) is not None and self._may_apply(i, of)]
        chosen = next_items(known, busy, items_max=items_max, given_up=given_up)
        return [(item, self._runner(item, followed[item.head.dataset])) for item in chosen]

    def _may_apply(self, item: OpenItem, of: Followed) -> bool:
        return isinstance(item.block, Staged) or of.term == self._term

    def _runner(self, item: OpenItem, of: Followed) -> Callable[[], bool]:
        from strandline.replicate.follow.apply_item import apply_item

        return lambda: apply_item(self.context, of, item)

    def _settled(self, future: Future[bool], item: OpenItem, report: FollowReport) -> bool:
        try:
            if not future.result():
                return False
        except failpoints.FailpointError:
            raise
        except Exception as e:
            error = as_strandline_error(e)
            if error is not e:
                log.error("an item of the leader failed with an unexpected error", exc_info=e)
            report.failed.append(error)
            # Each item of a leader that is away would wait for it, and nobody would ask it meanwhile.
            self._is_away = self._is_away or (isinstance(error, StorageError) and not self._leader_answers())
            return False
        report.applied.append(item.head.rows)
        return True

    def _leader_answers(self) -> bool:
        """One request, to which there is nothing to offer."""
        after = {f.dataset.uuid: Seq(SEQ_MAX) for f in self.context.ledger.query(following.list_followed)}
        try:
            self.context.source.poll(after, items_max=1, sinks_version=self._sinks.version())
        except StrandlineError:
            return False
        return True

    def _catch_up(self, polled: Polled, epoch: int) -> None:
        """Gives datasets their seal back whose ledger was behind. `epoch`: of the ledger when the leader was asked."""
        for found in self.context.ledger.query(following.list_followed):
            if found.witnessed is None or found.dataset.uuid not in polled.seals:
                continue
            sealed, name = polled.seals[found.dataset.uuid], found.dataset.name
            if found.bound < had_at_most(found.witnessed, sealed, 0):
                continue
            held = self.context.work.tables.highest_number(name, found.witnessed)
            upto = had_at_most(found.witnessed, sealed, held)
            with self.context.ledger.write() as connection:
                if following.catch_up(connection, found.dataset.id, upto, epoch=epoch):
                    audit.record(connection, Event.FOLLOWER_CAUGHT_UP, dataset=name, upto=upto)

    # --- how far it is ---

    def _marks(self) -> tuple[list[Dataset], dict[ShardId, Seq]]:
        with self.context.ledger.read() as connection:
            known = [f.dataset for f in following.list_followed(connection)]
            return known, following.applied_upto(connection, known)

    def _load_state(self) -> None:
        """The state begins with the checkpoint, and is brought to where the ledger is, in whichever direction."""
        _, marks = self._marks()
        try:
            self._stored = self._checkpoint.read_bytes()
        except OSError:
            self._stored = b""
        self.state = ReplicationState.from_checkpoint_bytes(self._stored, marks)
        if self._stored and self.state.snapshot() != marks:
            log.info("the checkpoint %s was not of this ledger; it is written anew", self._checkpoint.name)
        self._follow_ledger(marks)

    def _follow_ledger(self, marks: Mapping[ShardId, Seq]) -> None:
        before = self.state.snapshot()
        if before.keys() != marks.keys() or any(marks[s] < before[s] for s in marks):
            self.state = ReplicationState.new(marks)  # datasets came or went, or the ledger is from before
        for shard, mark in marks.items():
            self.state.advance(shard, mark)

    def _advance(self) -> None:
        """Moves the state to where the ledger is, and stores a checkpoint if there is another one, or none."""
        _, marks = self._marks()
        self._follow_ledger(marks)
        checkpoint = self.state.to_checkpoint_bytes()
        if checkpoint == self._stored and self._checkpoint.exists():
            return
        failpoints.hit("follow.before_checkpoint")
        write_file(self._checkpoint, checkpoint)
        self._stored = checkpoint
        failpoints.hit("follow.after_checkpoint")

    def _acknowledge_meanwhile(self) -> None:
        """Reports progress during a long pass; the end of the pass reports the final state."""
        if monotonic() - self._told_at < TELL_SECONDS_MIN:
            return
        self._advance()
        try:
            self._acknowledge()
        except StrandlineError as e:
            self._told_at = monotonic()
            log.info("the leader refused this site's progress; it will be sent again: %s", e.message)
        else:
            self._notes.answered()

    def _acknowledge(self) -> None:
        """Only of datasets that are in the leader's own term: another seal says nothing about this leader's rows. Also
        if nothing has moved, now and then: the leader warns of a follower of which it hears nothing."""
        self._notes.begins(FollowStep.TELL)
        with self.context.ledger.read() as connection:
            known = [f.dataset for f in following.list_followed(connection) if f.term == self._term]
            seals, site = following.seals(connection, known), sites.get(connection)
        shards = [shard for d in known for shard in shard_ids(d.first_shard, d.shards)]
        marks = {shard: mark for shard in shards if (mark := self.state.applied_seqno(shard)) is not None}
        if self._told == (self._term, seals, marks) and monotonic() - self._told_at < TELL_SECONDS_MAX:
            return
        failpoints.hit("follow.before_acknowledge")
        self.context.source.acknowledge(Acknowledgement(self._term, seals, marks, site.own_instance, site.number))
        failpoints.hit("follow.after_acknowledge")
        self._told, self._told_at = (self._term, seals, marks), monotonic()


def first_failure(failed: Sequence[StrandlineError]) -> StrandlineError:
    """What is said of all of them."""
    first = failed[0]
    if len(failed) == 1:
        return first
    more = FailedError(
        f"{len(failed)} items of the leader could not be applied; the first: {first.message}", hint=first.hint
    )
    more.__cause__ = first
    return more


def raise_failures(report: FollowReport) -> None:
    """For a loop, which waits longer after a pass that failed."""
    if report.failed:
        raise first_failure(report.failed)
