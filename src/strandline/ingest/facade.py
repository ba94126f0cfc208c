"""`lake.ingestion`: append, ingest, adoption and recovery. All other stages rely on recovery."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from strandline.core.calling_off import called_off_by, check_not_called_off, holding
from strandline.core.errors import RefusedError, WitnessUnreadable
from strandline.core.types import Dataset, NumberedRows, Staged
from strandline.iceberg.metadata.identifier import full_name
from strandline.ledger.ingest import blocks, datasets, restored_blocks, sequence
from strandline.ledger.replicate import sites
from strandline.read.seal import SealWatches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from strandline.ingest.append import Appended, AppendProgress
    from strandline.ingest.context import IngestContext
    from strandline.ingest.ingest_files import FileOutcome, IngestOptions
    from strandline.ingest.recover import Recovered
    from strandline.ingest.resync.run import Resynced
    from strandline.ledger.engine import Ledger
    from strandline.ledger.witness import Witness

SETTLE_AGAIN_SECONDS = 60  # before the next recovery, if the last one could not settle a dataset


class Ingestion:
    """Starts Spark when it is needed. Before any other use of Spark, resyncs the ledger if it is behind its witness,
    and settles the blocks of dead writers."""

    def __init__(
        self, ledger: Ledger, witness: Witness, watches: SealWatches, start: Callable[[], IngestContext]
    ) -> None:
        self._ledger = ledger
        self._witness = witness
        self._watches = watches
        self._start = start
        self._starting = threading.Lock()
        self._started: IngestContext | None = None
        self._settling = threading.RLock()
        self._settled = False
        self._settle_again_at: float | None = None  # if the last recovery left a dataset
        self._again = threading.Lock()  # held by the thread that recovers again; no other thread waits for it
        self._recovering: set[int] = set()  # threads inside recovery: they get tables that are not settled yet

    @property
    def unsettled_context(self) -> IngestContext:
        """Starts Spark without settling anything first."""
        with holding(self._starting):
            if self._started is None:
                check_not_called_off()
                self._started = self._start()
            return self._started

    @property
    def context(self) -> IngestContext:
        """Settles the blocks of dead writers before the first use. Raises CalledOff, also while it waits for another
        thread that settles them."""
        context = self.unsettled_context
        if threading.get_ident() in self._recovering:
            return context
        with holding(self._settling):
            if not self._settled:
                with suppress(WitnessUnreadable):  # reading works without the witness; reserving a block raises it
                    self.recover()
        if self._is_due_again():
            with suppress(WitnessUnreadable):
                self._recover_again()
        return context

    def _is_due_again(self) -> bool:
        return self._settle_again_at is not None and time.monotonic() >= self._settle_again_at

    def _recover_again(self) -> None:
        """Tries again the datasets that could not be settled. One thread does it. The others continue, and get an error
        if they use such a dataset."""
        if self._again.acquire(blocking=False):
            try:
                self.recover()
            finally:
                self._again.release()

    def recover(self, *, now: bool = False) -> Recovered:
        """Settles the blocks of dead writers. First resyncs the ledger if it is behind its witness. A dataset that
        failed a short while ago is tried again only if `now` is set. Raises CalledOff."""
        from strandline.ingest.recover import recover
        from strandline.ingest.resync.postponed import resync_postponed
        from strandline.ingest.resync.run import resync_ledger, with_resync

        context = self.unsettled_context
        if now:
            context.backoff.forget()
        with self._recovers(), called_off_by():
            resync_ledger(context)
            not_resynced = with_resync(context, lambda: resync_postponed(context))
            report = with_resync(context, lambda: recover(context))
            report.held += not_resynced
        self._settled = True
        self._settle_again_at = time.monotonic() + SETTLE_AGAIN_SECONDS if report.troubled else None
        return report

    def catch_up(self) -> None:
        """Resyncs a ledger that was restored, perhaps while this process ran, before the caller reads it."""
        try:
            highest = self._witness.read().highest
        except WitnessUnreadable:
            self._ledger.query(sequence.read)  # raises LedgerMoved for a lake that has moved
            return  # reading works without the witness; reserving a block raises it
        with self._ledger.read() as connection:
            behind = sequence.read(connection).last != highest
            postponed = bool(restored_blocks.postponed(connection))
        if behind:
            self.recover()
        elif postponed and (self._settle_again_at is None or self._is_due_again()):
            self._recover_again()

    def resync_ledger(self, *, rebuild: bool) -> Resynced | None:
        """Resyncs the ledger. None if witness and counter agree, as they nearly always do."""
        from strandline.ingest.resync.run import resync_ledger

        with self._recovers(), called_off_by():
            return resync_ledger(self.unsettled_context, rebuild=rebuild)

    @contextmanager
    def _recovers(self) -> Iterator[None]:
        this = threading.get_ident()
        if this in self._recovering:
            yield
            return
        self._recovering.add(this)
        try:
            yield
        finally:
            self._recovering.discard(this)

    def void_block(self, lo: int, reason: str) -> None:
        """Voids a staged block that cannot be published, because a person decided so. If it can be published, publishes
        it and raises RefusedError."""
        from strandline.ingest.resync.run import with_resync
        from strandline.ingest.settle import void_staged

        with self._ledger.read() as connection:
            if any(b.head.rows.lo == lo and b.head.offered for b in blocks.open_blocks(connection)):
                raise RefusedError(
                    f"the block that begins at {lo} comes from the leader, and a follower's blocks cannot be voided",
                    hint="If such a block cannot be published, `strandline follow` applies it again.",
                )
            own = (b for b in blocks.open_blocks(connection) if b.head.rows.lo == lo and not b.head.offered)
            block = next(own, None)
            by_id = {d.id: d for d in datasets.list_datasets(connection)}
        if not isinstance(block, Staged) or block.head.dataset not in by_id:
            raise RefusedError(f"no staged block begins at {lo}", hint="`strandline status` shows the open blocks.")
        context, target = self.unsettled_context, by_id[block.head.dataset]
        with_resync(context, lambda: void_staged(context, target, block, reason))

    def append(
        self,
        dataset: str,
        df: DataFrame,
        batch_id: str | None,
        *,
        same_content: bool = True,
        received: bool = False,
        shard: int | None = None,
        last_check: Callable[[], None] = lambda: None,
        progress: AppendProgress = lambda step, rows: None,
    ) -> Appended:
        from strandline.ingest.append import commit, prepare

        target = self._ready(dataset)
        context = self.context
        progress("counting", None)
        batch = prepare(context, target, df, batch_id=batch_id, same_content=same_content, shard=shard)
        done = commit(context, batch, received=received, last_check=last_check, progress=progress)
        self._watches.refresh(target)
        return done

    def append_received(self, dataset: str, df: DataFrame, batch_id: str, last_check: Callable[[], None]) -> Appended:
        """Appends a batch of received bodies. Its id alone decides whether it is a repeat."""
        return self.append(dataset, df, batch_id, same_content=False, received=True, last_check=last_check)

    def ingest(self, dataset: str, paths: Sequence[Path], options: IngestOptions) -> list[FileOutcome]:
        """Ingests the files. If Spark is needed, first settles the blocks of dead writers."""
        from strandline.ingest.ingest_files import ingest_files

        def ready() -> IngestContext:
            self.recover()
            return self.context

        target = self._ready(dataset)
        outcomes = ingest_files(ready, self._ledger, target, paths, options)
        self._watches.refresh(target)
        return outcomes

    def number(self, dataset: Dataset, on_step: Callable[[int, int], None] | None = None) -> NumberedRows:
        """Gives sequence numbers to all unnumbered rows of an adopted table."""
        from strandline.ingest.adopt import number_rows

        done = number_rows(self.context, dataset, on_step=on_step)
        self._watches.refresh(dataset)
        return done

    def _ready(self, dataset: str) -> Dataset:
        self._ledger.query(sites.check_leads)
        self.catch_up()
        return self._ledger.query(datasets.get, full_name(dataset))
