"""Fetches the bodies of received batches from the leader: before a batch is applied, and once for those that were
applied before a leader told them.

The follower writes a receipt of its own to its warehouse first, as a receiver does: if its ledger is restored after it
has taken over, the resync goes by that.
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
ASK_AGAIN_SECONDS = 600.0  # for batches whose bodies the leader does not know, or does not tell


def check_bodies(told: AnnouncedBatch, head: BlockHead) -> None:
    """Raises FailedError unless these can be the bodies of the block's batch. What came over a network is checked
    before it is recorded. Pure."""
    bodies = told.receipt.bodies
    ends = [body.place + body.note.rows for body in bodies]
    apart = all(end <= after.place for end, (_, after) in zip(ends, pairwise(bodies), strict=False))
    if (told.receipt.batch_id, told.numbers) != (head.batch_id, head.rows):
        raise _malformed(head, f"it describes batch {told.receipt.batch_id} with the numbers {told.numbers}")
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


def take_bodies(ledger: Ledger, receipts: Receipts, source: LeaderSource, dataset: Dataset, held: Reserved) -> None:
    """Records the bodies of a received batch before its rows are staged, so that nobody can publish rows whose bodies
    are unknown. If the leader does not know them, a promotion of this site makes the receiver hold. Raises BlockLost if
    the block is no longer ours."""
    head = held.head
    if not batch_names.is_received(head.batch_id) or (told := source.bodies(dataset.uuid, head.batch_id)) is None:
        return
    check_bodies(told, head)
    receipts.write(dataset.table_uuid, told.receipt)
    failpoints.hit("announced_bodies.after_receipt")
    if not announced_bodies.record_bodies(ledger, held, told):
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
    """Received batches in this site's tables whose bodies the leader has not told: it was of an older version, or did
    not know them. An idle follower does not look for them again and again."""

    def __init__(self, ledger: Ledger, receipts: Receipts) -> None:
        self._ledger = ledger
        self._receipts = receipts
        self._looked_at: float | None = None
        self._done: dict[DatasetId, int] = {}  # up to which number they were asked for since

    def is_due(self) -> bool:
        return self._looked_at is None or time.monotonic() - self._looked_at >= ASK_AGAIN_SECONDS

    def take(self, source: LeaderSource, followed: Iterable[Dataset], term: int) -> int:
        """Asks for the bodies of some batches; `term` is the leader's. Returns how many batches were recorded. A batch
        that fails is asked for again with the others that are unknown, and does not keep the next ones waiting."""
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
                        return recorded  # the leader, or the warehouse, may be away: the next pass goes on
            left -= len(found)
            if not left:
                return recorded  # the next pass goes on
        self._looked_at, self._done = time.monotonic(), {}
        return recorded

    def _take(self, source: LeaderSource, dataset: Dataset, head: BlockHead, term: int) -> bool:
        told = source.bodies(dataset.uuid, head.batch_id)
        if told is None:
            log.info("%s: the leader does not say which bodies are in batch %s", dataset.name, head.batch_id)
            return False
        check_bodies(told, head)
        self._receipts.write(dataset.table_uuid, told.receipt)
        return announced_bodies.record_bodies_later(self._ledger, head, told, term)
