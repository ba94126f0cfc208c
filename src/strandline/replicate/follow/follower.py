"""The passes of a follower. A pass polls the leader, creates and drops datasets, records the offered items, applies
the open ones, and reports its progress to the leader.

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
from strandline.core.types import SEQ_MAX, BlockId, DatasetId, DatasetUuid, Seq, SeqRange, ShardId, Staged
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
    next_items,
    seal_max,
)
from strandline.replicate.follow.context import FollowContext
from strandline.replicate.follow.fetch_bodies import MissingBodies
from strandline.replicate.follow.leader_sinks import LeaderSinks
from strandline.replicate.follow.note_passes import PassNotes
from strandline.replicate.follow.postponed_datasets import PostponedDatasets
from strandline.replicate.source import LeaderAnswer
from strandline.replicate.state import ReplicationState
from strandline.storage.durable import write_file

log = logging.getLogger(__name__)

ACKNOWLEDGE_SECONDS_MIN = 5.0  # between two acknowledgements during one pass
ACKNOWLEDGE_SECONDS_MAX = 30.0  # between two acknowledgements while nothing changes


@dataclass(slots=True)
class FollowReport:
    """What a pass did."""

    recorded: int = 0  # items
    applied: list[SeqRange] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    failed: list[StrandlineError] = field(default_factory=list)  # of items and datasets; the next pass tries again


class Follower:
    def __init__(self, context: FollowContext, settings: FollowSettings, checkpoint: Path) -> None:
        self.context = context
        self._settings = settings
        self._checkpoint = checkpoint
        self._sinks = LeaderSinks(context.ledger, context.change)
        self._acknowledged: tuple[int, Mapping[DatasetUuid, Seq], Mapping[ShardId, Seq]] | None = None
        self._term = FIRST_TERM  # of the leader, from its last answer
        self._acknowledged_at = float("-inf")  # by the monotonic clock
        self._notes = PassNotes(context.ledger)
        self._postponed = PostponedDatasets(settings.poll_seconds)
        self._missing = MissingBodies(context.ledger, open_receipts(context.config))
        self._stopping = threading.Event()  # set: no further item begins; those under way are applied
        self._no_answer = False  # the leader stopped answering in this pass
        self._stored = b""  # the content of the checkpoint file
        self.state = ReplicationState.new(())
        self._load_state()

    def close(self) -> None:
        self.context.source.close()

    def tick(self, stopping: threading.Event | None = None, notes: PassNotes | None = None) -> FollowReport:
        """Repeats passes until the leader offers nothing more, an item fails, or `stopping` is set. Raises if it cannot
        poll. Failures of one item or dataset are in the report, and do not stop the others."""
        report = FollowReport()
        self._stopping = stopping or threading.Event()
        self._notes = notes or PassNotes(self.context.ledger)
        while not self._stopping.is_set():
            self._notes.begins(FollowStep.ASK)
            self.context.ledger.query(self.context.check_follows)
            self.context.parts.ingestion.catch_up()
            with self.context.ledger.read() as connection:
                followed, epoch = following.list_followed(connection), sequence.read(connection).epoch
                opened = following_report.count_open(connection)
            answer = self._poll(followed, opened, report)
            self._notes.answered()
            self._notes.begins(FollowStep.APPLY)
            self._follow_datasets(answer, followed, report)
            self._check_restored(answer, followed, report)
            offers = self._checked_offers(answer, followed, report)
            done = following.record(self.context.ledger, self.context.witness, offers) if offers else ()
            self._note_seals(answer, [f for f in followed if f.dataset.uuid not in done])
            recorded = sum(len(o.items) for o in offers if o.dataset.id in done)
            report.recorded += recorded
            # An item that fails is not tried again in this pass.
            before = len(report.applied)
            self._apply(report)
            left_out = any(self._is_full(f, opened) for f in followed) and len(report.applied) > before
            self._fetch_missing_bodies(report)
            if report.failed:
                self._notes.failed(first_failure(report.failed))
            self._catch_up(answer, epoch)
            self._acknowledge()
            if not (recorded or left_out) or report.failed:
                break
        return report

    # --- recording offers ---

    def _poll(
        self, followed: Sequence[Followed], opened: Mapping[DatasetId, int], report: FollowReport
    ) -> LeaderAnswer:
        """Asks for nothing of datasets with too many open items (`opened`), so that ledger and passes stay small if all
        of their items fail, nor of those that are postponed."""
        items_max, version = self._settings.offer_items_max, self._sinks.version()
        bounds = {f.dataset.uuid: SEQ_MAX if self._is_full(f, opened) else f.bound for f in followed}
        postponed = self._postponed.list_errors()
        report.failed += postponed.values()
        after = bounds | dict.fromkeys(postponed, SEQ_MAX)
        answer = self.context.source.poll(after, items_max=items_max, sinks_version=version)
        self._postponed.answered(answer, after)
        if answer.lake != self.context.lake:
            raise WrongLake(
                f"the leader has lake {answer.lake}, and this site follows lake {self.context.lake}",
                hint="Check the leader's address: `strandline follow init LEADER`.",
            )
        for known in followed:
            following.check_term(known, answer.term)
        self._term = answer.term
        if not followed and self._term > FIRST_TERM:  # no dataset, so no cut to record
            with self.context.change() as connection:
                sites.raise_term(connection, self._term)
        self._sinks.store(answer.sinks, answer.sinks_version)
        return answer

    def _is_full(self, of: Followed, opened: Mapping[DatasetId, int]) -> bool:
        return opened.get(of.dataset.id, 0) >= self._settings.offer_items_max

    def _note_seals(self, answer: LeaderAnswer, followed: Sequence[Followed]) -> None:
        """Stores the leader's seals of datasets without new items: this site may lack rows that are not offered yet."""
        known_seals = {f.dataset.id: answer.seals[f.dataset.uuid] for f in followed if f.dataset.uuid in answer.seals}
        unknown_seals = {f.dataset.id: None for f in followed if f.dataset.id not in known_seals}
        if any(is_news(f, known_seals.get(f.dataset.id), is_offered=f.dataset.id in known_seals) for f in followed):
            with self.context.change() as connection:
                leader_seals.note(connection, known_seals, unknown_seals)

    def _follow_datasets(self, answer: LeaderAnswer, followed: Sequence[Followed], report: FollowReport) -> None:
        from strandline.replicate.follow.follow_datasets import drop_dataset, make_dataset

        named = {f.dataset.uuid: f.dataset.name for f in followed}
        for one in followed:
            known = one.dataset.uuid in (*answer.datasets, *answer.dropped)
            if not known and one.term < answer.term:
                with self.context.change() as connection:
                    following.leave(connection, one)
        for id in answer.dropped:
            self._postponed.succeeded(id)
            if id in named:
                drop_dataset(self.context, id)
                report.dropped.append(named[id])
        for terms in answer.made:
            started_at = self._postponed.now()
            try:
                make_dataset(self.context, terms, answer.term)
                report.made.append(terms.name)
                self._postponed.succeeded(terms.id)
            except StrandlineError as e:
                report.failed.append(e)
                self._postponed.failed(terms.id, e, started_at)

    def _check_restored(self, answer: LeaderAnswer, followed: Sequence[Followed], report: FollowReport) -> None:
        offered = {o.dataset.id for o in answer.offers}
        for one in followed:
            if one.dataset.uuid not in answer.seals or one.dataset.uuid in offered:
                continue
            try:
                check_restored(one, answer.seals[one.dataset.uuid], answer.term)
            except FailedError as e:
                report.failed.append(e)

    def _checked_offers(
        self, answer: LeaderAnswer, followed: Sequence[Followed], report: FollowReport
    ) -> Sequence[Offer]:
        """Checks the offers, and returns those that this site may record."""
        known, found = {f.dataset.uuid: f for f in followed}, []
        for offer in answer.offers:
            check_offer(offer)
            try:
                if (one := known.get(offer.dataset.id)) is not None:
                    check_leaves_nothing_out(one, offer)
            except FailedError as e:
                report.failed.append(e)
                self._postponed.failed(offer.dataset.id, e, self._postponed.now())
            else:
                found.append(offer)
                self._postponed.succeeded(offer.dataset.id)
        return found

    # --- applying ---

    def _apply(self, report: FollowReport) -> None:
        """Applies open items concurrently, until those left have failed in this pass or belong to another process."""
        items_max = self._settings.items_at_once_max
        given_up: set[BlockId] = set()
        self._no_answer = False
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
                        if not self._is_applied(future, item, report):
                            given_up.add(item.head.id)
                    self._acknowledge_meanwhile()
            finally:
                self._advance()

    def _fetch_missing_bodies(self, report: FollowReport) -> None:
        """For batches that were applied before their bodies were known."""
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
        if self._stopping.is_set() or self._no_answer:
            return []
        with self.context.ledger.read() as connection:
            opened = following.open_items(connection)
            followed = {f.dataset.id: f for f in following.list_followed(connection)} if opened else {}
        busy = {item.head.id for item in running}
        # Before the cut of this leader is recorded, it is unknown which rows of the leader before it are cut out.
        known = [i for i in opened if (of := followed.get(i.head.dataset)) is not None and self._may_apply(i, of)]
        chosen = next_items(known, busy, items_max=items_max, given_up=given_up)
        return [(item, self._runner(item, followed[item.head.dataset])) for item in chosen]

    def _may_apply(self, item: OpenItem, of: Followed) -> bool:
        return isinstance(item.block, Staged) or of.term == self._term

    def _runner(self, item: OpenItem, of: Followed) -> Callable[[], bool]:
        from strandline.replicate.follow.apply_item import apply_item

        return lambda: apply_item(self.context, of, item)

    def _is_applied(self, future: Future[bool], item: OpenItem, report: FollowReport) -> bool:
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
            # If the leader does not answer, each further item would wait for a timeout.
            self._no_answer = self._no_answer or (isinstance(error, StorageError) and not self._leader_answers())
            return False
        report.applied.append(item.head.rows)
        return True

    def _leader_answers(self) -> bool:
        """Sends one poll that gets no offers."""
        after = {f.dataset.uuid: Seq(SEQ_MAX) for f in self.context.ledger.query(following.list_followed)}
        try:
            self.context.source.poll(after, items_max=1, sinks_version=self._sinks.version())
        except StrandlineError:
            return False
        return True

    def _catch_up(self, answer: LeaderAnswer, epoch: int) -> None:
        """Restores the seal of datasets whose ledger was behind and has caught up. `epoch`: the ledger's before the
        poll."""
        for found in self.context.ledger.query(following.list_followed):
            if found.witnessed is None or found.dataset.uuid not in answer.seals:
                continue
            sealed, name = answer.seals[found.dataset.uuid], found.dataset.name
            if found.bound < seal_max(found.witnessed, sealed, 0):
                continue
            held = self.context.work.tables.highest_number(name, found.witnessed)
            upto = seal_max(found.witnessed, sealed, held)
            with self.context.change() as connection:
                if following.catch_up(connection, found.dataset.id, upto, epoch=epoch):
                    audit.record(connection, Event.FOLLOWER_CAUGHT_UP, dataset=name, upto=upto)

    # --- progress ---

    def _watermarks(self) -> dict[ShardId, Seq]:
        with self.context.ledger.read() as connection:
            known = [f.dataset for f in following.list_followed(connection)]
            return following.applied_upto(connection, known)

    def _load_state(self) -> None:
        """Loads the state from the checkpoint, then sets it to what the ledger has."""
        watermarks = self._watermarks()
        try:
            self._stored = self._checkpoint.read_bytes()
        except OSError:
            self._stored = b""
        self.state = ReplicationState.from_checkpoint_bytes(self._stored, watermarks)
        if self._stored and self.state.snapshot() != watermarks:
            log.info("the checkpoint %s does not match this ledger; it is written again", self._checkpoint.name)
        self._follow_ledger(watermarks)

    def _follow_ledger(self, watermarks: Mapping[ShardId, Seq]) -> None:
        before = self.state.snapshot()
        if before.keys() != watermarks.keys() or any(watermarks[s] < before[s] for s in watermarks):
            self.state = ReplicationState.new(watermarks)  # datasets were added or dropped, or the ledger was restored
        for shard, watermark in watermarks.items():
            self.state.advance(shard, watermark)

    def _advance(self) -> None:
        """Sets the state to what the ledger has, and stores a checkpoint if that changed."""
        watermarks = self._watermarks()
        self._follow_ledger(watermarks)
        checkpoint = self.state.to_checkpoint_bytes()
        if checkpoint == self._stored and self._checkpoint.exists():
            return
        failpoints.hit("follow.before_checkpoint")
        write_file(self._checkpoint, checkpoint)
        self._stored = checkpoint
        failpoints.hit("follow.after_checkpoint")

    def _acknowledge_meanwhile(self) -> None:
        """Reports progress during a long pass; the end of the pass reports the final state."""
        if monotonic() - self._acknowledged_at < ACKNOWLEDGE_SECONDS_MIN:
            return
        self._advance()
        try:
            self._acknowledge()
        except StrandlineError as e:
            self._acknowledged_at = monotonic()
            log.info("the leader refused this site's progress; it will be sent again: %s", e.message)
        else:
            self._notes.answered()

    def _acknowledge(self) -> None:
        """Reports progress in datasets that are in the leader's own term: other seals are about another leader's rows.
        Also reports now and then while nothing changes: the leader warns about a silent follower."""
        self._notes.begins(FollowStep.TELL)
        with self.context.ledger.read() as connection:
            known = [f.dataset for f in following.list_followed(connection) if f.term == self._term]
            seals, site = following.seals(connection, known), sites.get(connection)
        shards = [shard for d in known for shard in shard_ids(d.first_shard, d.shards)]
        watermarks = {shard: upto for shard in shards if (upto := self.state.applied_seqno(shard)) is not None}
        progress, age = (self._term, seals, watermarks), monotonic() - self._acknowledged_at
        if self._acknowledged == progress and age < ACKNOWLEDGE_SECONDS_MAX:
            return
        failpoints.hit("follow.before_acknowledge")
        self.context.source.acknowledge(Acknowledgement(*progress, site.own_instance, site.number))
        failpoints.hit("follow.after_acknowledge")
        self._acknowledged, self._acknowledged_at = progress, monotonic()


def first_failure(failed: Sequence[StrandlineError]) -> StrandlineError:
    """One error for all failures of a pass."""
    first = failed[0]
    if len(failed) == 1:
        return first
    more = FailedError(
        f"{len(failed)} items of the leader could not be applied; the first: {first.message}", hint=first.hint
    )
    more.__cause__ = first
    return more
