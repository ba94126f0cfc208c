"""Fetches the list of bodies in a received batch from the leader: before the batch is applied, or later if the leader
did not know it then.

The follower first writes a receipt to its own warehouse, as a receiver does: if its ledger is restored after it has
taken over, the resync reads that.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from itertools import pairwise

from strandline.core import batch_names, failpoints
from strandline.core.errors import BlockLost, FailedError, as_strandline_error
from strandline.core.forward_protocol import KeyIdentity
from strandline.core.types import BlockHead, Dataset, DatasetId, Reserved
from strandline.ledger.engine import Ledger
from strandline.ledger.receive import announced_bodies
from strandline.ledger.receive.announced_bodies import AnnouncedBatch
from strandline.ledger.receive.receipts import Receipts
from strandline.replicate.source import LeaderSource

log = logging.getLogger(__name__)

BATCHES_AT_ONCE_MAX = 200  # in one pass: rows of new batches come first
FAILED_IN_A_ROW_MAX = 3  # then a pass stops: each failure may have taken the time that a request may take
ASK_AGAIN_SECONDS = 600.0  # for batches whose bodies the leader does not know or cannot send


def check_bodies(announced: AnnouncedBatch, head: BlockHead) -> None:
    """Raises FailedError unless these can be the bodies of the block's batch. Pure."""
    bodies = announced.receipt.bodies
    ends = [body.place + body.note.rows for body in bodies]
    apart = all(end <= after.place for end, (_, after) in zip(ends, pairwise(bodies), strict=False))
    if (announced.receipt.batch_id, announced.numbers) != (head.batch_id, head.rows):
        raise _malformed(head, f"it describes batch {announced.receipt.batch_id} with the numbers {announced.numbers}")
    if bodies and (not apart or bodies[0].place < 0 or ends[-1] > len(head.rows)):
        raise _malformed(head, "their places are not in order, or not inside of the batch")
    for body in bodies:
        if body.note.rows < 1 or (isinstance(body.note.identity, KeyIdentity) and body.note.owner is None):
            raise _malformed(head, "one has no rows, or a key that belongs to no token")


def _malformed(head: BlockHead, what: str) -> FailedError:
    return FailedError(
        f"what the leader says of the bodies in batch {head.batch_id} ({head.rows}) contradicts itself: {what}",
        hint="Nothing was recorded. Check that leader and follower have the same version of Strandline.",
    )


def take_bodies(ledger: Ledger, receipts: Receipts, source: LeaderSource, dataset: Dataset, block: Reserved) -> None:
    """Records the bodies of a received batch before its rows are staged, so that no process can publish rows whose
    bodies are unknown. If the leader does not know them, a promotion of this site puts the receiver on hold. Raises
    BlockLost if another process has taken the block."""
    head = block.head
    if not batch_names.is_received(head.batch_id) or (announced := source.bodies(dataset.uuid, head.batch_id)) is None:
        return
    check_bodies(announced, head)
    receipts.write(dataset.table_uuid, announced.receipt)
    failpoints.hit("announced_bodies.after_receipt")
    if not announced_bodies.record_bodies(ledger, block, announced):
        raise BlockLost(
            f"block {head.rows} of the leader was taken over by another process, or given up",
            hint="The follower settles it with its next pass.",
        )
    failpoints.hit("announced_bodies.after_record")


def _log_failed(dataset: Dataset, head: BlockHead, e: Exception) -> None:
    error = as_strandline_error(e)
    log.warning(
        "%s: the bodies in batch %s could not be recorded: %s", dataset.name, head.batch_id, error.message,
        exc_info=None if error is e else e,
    )  # fmt: skip


class MissingBodies:
    """Fetches the bodies of received batches in this site's tables that the leader did not send when they were applied:
    it had an older version, or did not know them. Does so only now and then."""

    def __init__(self, ledger: Ledger, receipts: Receipts) -> None:
        self._ledger = ledger
        self._receipts = receipts
        self._round_ended_at: float | None = None
        self._done: dict[DatasetId, int] = {}  # up to which number this round has asked

    def is_due(self) -> bool:
        return self._round_ended_at is None or time.monotonic() - self._round_ended_at >= ASK_AGAIN_SECONDS

    def take(self, source: LeaderSource, followed: Iterable[Dataset], term: int) -> int:
        """Fetches the bodies of some batches; `term` is the leader's. Returns how many batches were recorded. A batch
        that fails is fetched again in the next round, and does not delay the others."""
        recorded, left, failed = 0, BATCHES_AT_ONCE_MAX, 0
        for dataset in followed:
            above = self._done.get(dataset.id, 0)
            with self._ledger.read() as connection:
                found = announced_bodies.unknown_batches(connection, dataset.id, above=above, batches_max=left)
            for head in found:
                self._done[dataset.id] = int(head.rows.hi)
                try:
                    recorded += self._take(source, dataset, head, term)
                    failed = 0
                except failpoints.FailpointError:
                    raise
                except Exception as e:
                    _log_failed(dataset, head, e)
                    failed += 1
                    if failed == FAILED_IN_A_ROW_MAX:
                        return recorded  # leader or warehouse may not answer: the next pass continues
            left -= len(found)
            if not left:
                return recorded  # the next pass continues
        self._round_ended_at, self._done = time.monotonic(), {}
        return recorded

    def _take(self, source: LeaderSource, dataset: Dataset, head: BlockHead, term: int) -> bool:
        announced = source.bodies(dataset.uuid, head.batch_id)
        if announced is None:
            log.info("%s: the leader did not send the bodies in batch %s", dataset.name, head.batch_id)
            return False
        check_bodies(announced, head)
        self._receipts.write(dataset.table_uuid, announced.receipt)
        return announced_bodies.record_bodies_later(self._ledger, head, announced, term)
