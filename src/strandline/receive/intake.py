"""Ingests bodies from the spool: stores which bodies form a batch, then appends the batch to the table.

Any process can repeat every step. A batch keeps its id and its bodies, `append` recognizes the id, and a file is
removed only when the ledger says that its rows are published. A batch that cannot be ingested is divided until the body
that causes it is alone, and that body is set aside. An idle intake costs one query to the ledger per poll.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from strandline.core import failpoints
from strandline.core.actor import bind_context
from strandline.core.calling_off import called_off_by, check_not_called_off
from strandline.core.errors import (
    BlockLost,
    CalledOff,
    FailedError,
    ReceiverHolds,
    RefusedError,
    StrandlineError,
    as_strandline_error,
)
from strandline.core.retry import backoff_seconds
from strandline.core.settings.lake_config import LakeConfig
from strandline.core.settings.receive import ReceiveSettings
from strandline.core.text.wording import plural
from strandline.core.types import INTERNAL_COLUMNS, Dataset, DatasetId, Published, SeqRange
from strandline.iceberg.lake_tables import LakeTables
from strandline.jobs.heartbeat import beating
from strandline.jobs.loop import LoopControl
from strandline.ledger.engine import Ledger, utc_now
from strandline.ledger.ingest import blocks, datasets
from strandline.ledger.receive import batch_receipts, batches, ended_batches, receive_holds, received
from strandline.ledger.receive.batches import Batch
from strandline.ledger.receive.receipts import Receipts
from strandline.ledger.receive.received import ReceivedId
from strandline.ledger.replicate import sites
from strandline.ledger.witness import Witness
from strandline.receive.failed_batches import TRIES_WITHOUT_PROOF, BatchFailure, explained, next_step
from strandline.receive.record_found import FoundBodies

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from strandline.receive.spool import Spool

log = logging.getLogger(__name__)

POLL_SECONDS = 0.25
_DATASETS_AT_ONCE_MAX = 4
_RETRY_SECONDS_MAX = 60.0
_RESYNC_AGAIN_SECONDS = 60.0  # between attempts at datasets whose resync was postponed
_TIDY_SECONDS = 600.0  # between removals of expired keys, old receipts and leftover files
_ASIDE_HINT = (
    "It was acknowledged, and nothing is lost: it is in the spool. `strandline spool list` shows it, `strandline spool "
    "replay` tries it again, `strandline spool discard` gives it up."
)


class Ingested(Protocol):
    @property
    def rows(self) -> SeqRange | None: ...


class BatchIngestion(Protocol):
    """Appends a batch to its table. `ingest/facade.Ingestion` implements it."""

    def catch_up(self) -> None:
        """Resyncs a restored ledger, before it is read."""

    def append_received(self, dataset: str, df: DataFrame, batch_id: str, last_check: Callable[[], None]) -> Ingested:
        """Only the batch id decides what is a repeat. If `last_check` raises before the commit, the batch is
        abandoned."""


@dataclass(frozen=True, slots=True)
class IntakeContext:
    config: LakeConfig
    ledger: Ledger
    spool: Spool
    tables: LakeTables
    ingestion: BatchIngestion
    receipts: Receipts
    witness: Witness

    @property
    def settings(self) -> ReceiveSettings:
        return self.config.settings.receive

    @property
    def found_bodies(self) -> FoundBodies:
        return FoundBodies(self.ledger, self.spool, self.receipts)

    @property
    def lease_seconds(self) -> int:
        return self.config.settings.ingest.lease_seconds


@dataclass(frozen=True, slots=True)
class BatchReport:
    dataset: str
    batch_id: str
    did: str  # `ingested`; `waiting` (for a retry); `divided`; or `set_aside` (its one body waits for a person)
    bodies: int
    rows: int
    numbers: SeqRange | None = None
    reason: str | None = None
    hint: str | None = None


class Intake:
    """Ingests received batches. Many may run at once, in many processes: each batch has a lease."""

    def __init__(
        self, context: IntakeContext, *, on_report: Callable[[BatchReport], None] = lambda report: None
    ) -> None:
        self.context = context
        self._on_report = on_report
        self._pool: ThreadPoolExecutor | None = None
        self._running: dict[DatasetId, Future[list[BatchReport]]] = {}
        self._tidied_at: float | None = None
        self._resync_due = threading.Event()
        self._resync_due.set()  # the first step checks whether the ledger was restored
        self._resync_checked_at = monotonic()
        self._stopping = threading.Event()

    def resync_soon(self) -> None:
        """Makes the next step check whether the ledger must be resynced."""
        self._resync_due.set()

    def run(self, control: LoopControl) -> None:
        """Runs until `control.stopping` is set. That also calls off batches that are not committed yet, and cancels
        their Spark jobs: the next process ingests them."""
        self._stopping = control.stopping

        def step() -> None:
            self._collect()
            self._resync_if_due()
            self._begin()
            self._tidy_now_and_then()

        control.repeat(step, name="the intake", poll_seconds=POLL_SECONDS)
        try:
            self.close()
        except Exception as e:
            report = control.on_trouble or (lambda error: log.warning("the intake failed: %s", error.message))
            report(_as_known(e))

    def close(self) -> None:
        """Waits for batches in progress; begins no other."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)
        self._collect()

    def step(self) -> list[BatchReport]:
        """Does everything that is due, in this thread."""
        self._resync_if_due()
        self.tidy()
        return [report for id in self._due() for report in self._work(id)]

    def _collect(self) -> None:
        for id in [id for id, running in self._running.items() if running.done()]:
            self._running.pop(id).result()

    def _begin(self) -> None:
        for id in self._due():
            if id not in self._running:
                self._pool = self._pool or ThreadPoolExecutor(_DATASETS_AT_ONCE_MAX, "strandline-intake")
                self._running[id] = self._pool.submit(bind_context(self._work), id)

    def _resync_if_due(self) -> None:
        if not self._resync_due.is_set() and monotonic() - self._resync_checked_at <= _RESYNC_AGAIN_SECONDS:
            return
        if not self.context.ledger.query(sites.get).leads:
            return  # it records no bodies; the check runs as soon as it leads
        self._resync_checked_at = monotonic()
        self.context.ingestion.catch_up()
        if self._resync_due.is_set():
            # Bodies in the spool may have been acknowledged, and their senders may never send them again.
            self.context.found_bodies.run()
            self._resync_due.clear()

    def _due(self) -> list[DatasetId]:
        """The only query of an idle receiver."""
        rows_max = self.context.settings.batch_rows_max
        with self.context.ledger.read() as connection:
            due = batches.due(connection, rows_max=rows_max, older_than=self._older_than())
            held = receive_holds.list_holds(connection) if due else {}
            if due and not sites.get(connection).leads:
                return []  # bodies from when this site led: `rejoin` copied them, and a promotion sets them aside
        return [id for id in due if id not in held]

    def _work(self, id: DatasetId) -> list[BatchReport]:
        """Ingests batches of one dataset, one after the other, until none is due; other datasets run in parallel.
        Bodies that arrive meanwhile make the next batch larger."""
        reports: list[BatchReport] = []
        with suppress(CalledOff), self._until_stopped():
            while not self._stopping.is_set():
                done = self.next_batch(id)
                if done is None:
                    break
                reports += done
        return reports

    def next_batch(self, id: DatasetId) -> list[BatchReport] | None:
        """Ingests one batch of the dataset, which it forms if needed; None if there is none to take."""
        ledger, settings = self.context.ledger, self.context.settings
        # Before bodies are put into a batch: if the ledger was restored, they may be in the table already.
        self.context.ingestion.catch_up()
        ledger.query(receive_holds.check, id)
        if batches.form(ledger, id, rows_max=settings.batch_rows_max, older_than=self._older_than()) is not None:
            failpoints.hit("receive.after_batch")
        taken = batches.take(ledger, self.context.lease_seconds, dataset=id, batches_max=1)
        if not taken:
            return None
        reports = list(filter(None, map(self._ingest, taken)))
        for report in reports:
            self._on_report(report)
        return reports

    def _older_than(self) -> datetime:
        return utc_now() - timedelta(seconds=self.context.settings.batch_wait_seconds_max)

    def _ingest(self, batch: Batch) -> BatchReport | None:
        """Ingests the batch. None if another receiver has taken it over, which reports it, or if this process stops."""
        ledger, seconds = self.context.ledger, self.context.lease_seconds
        dataset, while_appending = None, False
        try:
            with beating(lambda: batches.renew(ledger, batch, seconds), lease_seconds=seconds), self._until_stopped():
                dataset = self._dataset(batch)
                self.context.ingestion.catch_up()
                self._write_receipt(dataset, batch)
                ledger.query(receive_holds.check, dataset.id)
                while_appending = True
                numbers = self._append_once(dataset, batch)
        except failpoints.FailpointError:
            raise
        except ReceiverHolds:  # not because of these bodies, so it is no failure of the batch
            batches.release(ledger, batch)
            raise
        except CalledOff:  # no failure of the batch either
            batches.release(ledger, batch)
            return None
        except Exception as e:
            return self._failed(batch, dataset, _as_known(e), while_appending=while_appending)
        self._remove_now([(b.id, b.spool) for b in batch.bodies])
        return BatchReport(dataset.name, batch.batch_id, "ingested", len(batch.bodies), batch.rows, numbers)

    def _append_once(self, dataset: Dataset, batch: Batch) -> SeqRange:
        """Appends the batch unless it is published already: then its files may be gone, and are not needed."""
        block = self.context.ledger.query(blocks.of_batch, dataset.id, batch.batch_id)
        numbers = block.head.rows if isinstance(block, Published) else None
        if numbers is None:
            numbers = self._append(dataset, batch)
        failpoints.hit("receive.after_append")
        if numbers is None or len(numbers) != batch.rows:
            raise FailedError(
                f"batch {batch.batch_id} has {plural(batch.rows, 'row')}, and the sequence numbers {numbers}"
            )
        batches.settle(self.context.ledger, batch, numbers)
        failpoints.hit("receive.after_settle")
        return numbers

    def _append(self, dataset: Dataset, batch: Batch) -> SeqRange | None:
        """Raises CalledOff if this process stops before the commit."""

        def last_check() -> None:
            self.context.ledger.query(receive_holds.check, dataset.id)
            check_not_called_off()

        frame = self._frame(dataset, batch)
        return self.context.ingestion.append_received(dataset.name, frame, batch.batch_id, last_check).rows

    def _until_stopped(self) -> AbstractContextManager[None]:
        """Inside, this thread's work is called off when this process stops: its Spark jobs are cancelled."""
        return called_off_by(self._stopping)

    def _write_receipt(self, dataset: Dataset, batch: Batch) -> None:
        """Writes the receipt before the table can have the batch: a restored ledger that does not know the batch reads
        it."""
        receipt = self.context.ledger.query(batch_receipts.read_receipt, batch.id, batch.batch_id)
        taken = [(body.spool, body.rows, body.place) for body in batch.bodies]
        if [(body.spool, body.note.rows, body.place) for body in receipt.bodies] != taken:
            raise BlockLost(
                f"the ledger does not know batch {batch.batch_id} as it was taken",
                hint="It was restored from a copy: try again.",
            )
        failpoints.hit("receive.before_receipt")
        self.context.receipts.write(dataset.table_uuid, receipt)
        failpoints.hit("receive.after_receipt")

    def _frame(self, dataset: Dataset, batch: Batch) -> DataFrame:
        from pyspark.sql import types as T

        from strandline.iceberg.metadata.identifier import in_spark
        from strandline.receive.batch_frame import frame_of

        spark = self.context.tables.settled.spark
        table = spark.table(in_spark(dataset.name)).schema
        fields = T.StructType([f for f in table.fields if f.name not in INTERNAL_COLUMNS])
        return frame_of(spark, fields, batch.bodies, self.context.spool)

    def _dataset(self, batch: Batch) -> Dataset:
        known = self.context.ledger.query(datasets.list_datasets)
        found = next((d for d in known if d.id == batch.dataset), None)
        if found is None:
            raise RefusedError(
                f"{plural(batch.rows, 'row', 'waits')} for a dataset that was dropped or whose table was created again",
                hint=f"They stay in the spool: {', '.join(b.spool for b in batch.bodies[:3])} …",
            )
        return found

    def _failed(
        self, batch: Batch, dataset: Dataset | None, error: StrandlineError, *, while_appending: bool
    ) -> BatchReport | None:
        """Takes the step that `failed_batches.next_step` decides. None if another receiver has taken the batch over."""
        reported = explained(error)
        facts = self.context.ledger.query(ended_batches.failed_batch_facts, batch, tries=TRIES_WITHOUT_PROOF)
        failure = BatchFailure(len(batch.bodies), batch.failures + 1, while_appending, unfit=reported is not error)
        step = next_step(failure, facts)
        did, hint = "waiting", reported.hint
        if step == "divide" and ended_batches.divide(self.context.ledger, self.context.witness, batch):
            did = "divided"
        elif step == "set_aside" and ended_batches.set_body_aside(
            self.context.ledger, self.context.witness, batch, reported.message
        ):
            did, hint = "set_aside", _ASIDE_HINT
        else:  # also if a block of the batch is open, which must be settled first
            seconds = backoff_seconds(batch.failures, random.random(), longest=_RETRY_SECONDS_MAX)
            retry_at = utc_now() + timedelta(seconds=seconds)
            if not batches.failed(self.context.ledger, batch, reported.message, retry_at):
                return None
        name = f"dataset {batch.dataset}" if dataset is None else dataset.name
        return BatchReport(name, batch.batch_id, did, len(batch.bodies), batch.rows, reason=reported.message, hint=hint)

    def _remove_now(self, files: Sequence[tuple[ReceivedId, str]]) -> None:
        """Removes the files of published rows. A failure is only logged: the batch has not failed."""
        try:
            self._remove(files)
        except StrandlineError as e:
            log.warning("spool files are left for later: %s", e.message)

    def _remove(self, files: Sequence[tuple[ReceivedId, str]]) -> None:
        self.context.spool.remove([name for _, name in files])
        failpoints.hit("receive.after_removal")
        batches.record_removed(self.context.ledger, [id for id, _ in files])

    def tidy(self) -> None:
        """Removes files that are no longer needed, expired keys and old receipts."""
        self.remove_files()
        received.forget_keys(self.context.ledger, utc_now() - timedelta(days=self.context.settings.keys_kept_days))
        self._remove_old_receipts()

    def remove_files(self) -> None:
        """Removes the files whose rows are published or given up."""
        while left := self.context.ledger.query(batches.to_remove):
            self._remove(left)

    def _remove_old_receipts(self) -> None:
        """Removes old receipts. If the ledger is restored from a copy that is older than the remaining ones, the
        dataset is put on hold. The newest receipt stays: it shows that the dataset has received rows."""
        before = utc_now() - timedelta(days=self.context.settings.receipts_kept_days)
        tables = self.context.receipts.tables()
        for dataset in self.context.ledger.query(datasets.list_datasets):
            if dataset.table_uuid in tables:
                listed = sorted(self.context.receipts.list_batches(dataset.table_uuid), key=lambda found: found[1])
                self._remove_settled(dataset, [batch_id for batch_id, at in listed[:-1] if at < before])
        # No resync needs the receipts of dropped datasets.
        for dataset in self.context.ledger.query(datasets.list_dropped):
            if dataset.table_uuid in tables:
                listed = self.context.receipts.list_batches(dataset.table_uuid)
                self._remove_settled(dataset, [batch_id for batch_id, _ in listed])

    def _remove_settled(self, dataset: Dataset, batch_ids: Sequence[str]) -> None:
        """Removes the receipts of settled batches."""
        settled = self.context.ledger.query(batch_receipts.settled_batches, dataset.id, batch_ids)
        self.context.receipts.remove(dataset.table_uuid, settled)

    def _tidy_now_and_then(self) -> None:
        if self._tidied_at is None or monotonic() - self._tidied_at > _TIDY_SECONDS:
            self._tidied_at = monotonic()
            self.tidy()


def _as_known(error: Exception) -> StrandlineError:
    if isinstance(error, StrandlineError):
        return error
    log.error("the intake failed with an unexpected error", exc_info=error)
    return as_strandline_error(error)
