"""Reads the ledger before a run lists storage: seals, watermarks, open work, and whether the catalog is the right
one."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta

from strandline.core.errors import ResyncNeeded, WitnessUnreadable
from strandline.core.records.reconcile_records import Asked
from strandline.core.settings.lake_config import LakeConfig
from strandline.core.types import Dataset, Published
from strandline.ledger.deliver import lanes
from strandline.ledger.engine import Connection, Ledger, utc_now
from strandline.ledger.ingest import blocks, datasets, published_blocks, sequence
from strandline.ledger.maintain import runs
from strandline.ledger.read import consumers
from strandline.ledger.receive import spool_files
from strandline.ledger.reconcile import reconcile_runs, suspect_files
from strandline.ledger.replicate import followers
from strandline.ledger.witness import Witness
from strandline.reconcile import run_clock
from strandline.reconcile.compare.guard import is_one_bit_off
from strandline.reconcile.model import LastPublished, LedgerContext, TableSeal
from strandline.reconcile.paths import SPOOL_FOLDER, below, canonical
from strandline.reconcile.run_clock import RunClock


class LedgerContextLoader:
    def __init__(self, config: LakeConfig, ledger: Ledger, witness: Witness) -> None:
        self._config = config
        self._ledger = ledger
        self._witness = witness
        self._spool = f"{canonical(config.warehouse_url)}/{SPOOL_FOLDER}"

    def ledger_context(self, asked: Asked) -> LedgerContext:
        settings = self._config.settings.reconcile
        # The clock first: whatever opens after this is younger than the files that the run sees.
        now_ns = time.time_ns()
        clock = self._ledger.query(self._clock, now_ns)
        if asked.act and clock.doubt is None:
            # Otherwise files of a dead job would be protected forever if nobody ever runs maintenance again.
            self._ledger.change(runs.close_dead, utc_now(), lease_seconds=self._config.settings.ingest.lease_seconds)
        with self._ledger.read() as connection:
            known = datasets.list_datasets(connection)
            seals = {d.name: _seal(connection, d) for d in known}
            opened = [block.head.reserved_at for block in blocks.open_blocks(connection)]
            oldest_job = runs.oldest_running_since(connection, died_since=utc_now() - runs.DIED_SPARED)
            before = reconcile_runs.contents_before(connection)
            sequences_before = reconcile_runs.sequences_before(connection)
            spooled = spool_files.list_spool_files(connection)
            suspected = frozenset(s.path for s in suspect_files.list_suspects(connection) if not s.released)
        return LedgerContext(
            now_ns,
            settings.grace_seconds,
            settings.clock_skew_seconds,
            _ns(min(opened, default=None)),
            _ns(oldest_job),
            seals,
            before,
            sequences_before,
            clock.remembered(act=asked.act),
            frozenset(f"{self._spool}/{name}" for name in spooled),
            frozenset(d.table_uuid for d in known),
            asked.accept_loss,
            settings.delete_foreign,
            suspected,
            self.own_origin,
        )

    def _clock(self, connection: Connection, now_ns: int) -> RunClock:
        settings = self._config.settings
        return run_clock.read_clock(
            connection,
            now_ns,
            jump=timedelta(seconds=settings.maintain.clock_jump_seconds),
            skew=timedelta(seconds=settings.reconcile.clock_skew_seconds),
        )

    @property
    def own_origin(self) -> bool:
        """Whether a path means the same on every machine, as in a bucket. A remote catalog may name a folder that is a
        different one on another machine: then only files of tables that are whole here are this machine's."""
        settings = self._config.settings
        return settings.warehouse.is_s3 or settings.catalog.kind == "sqlite"

    def gate(self, tables: Mapping[str, str], unread: Collection[str]) -> str | None:
        """Why a run may touch nothing; None if it may. A catalog that does not know the ledger's datasets is not the
        catalog of record, whatever it references. A ledger that is not the newest knows neither what is open nor what
        is delivered. With a clock that is ahead, everything looks old. `tables`: uuids by name."""
        if (behind := self.behind()) is not None:
            return behind
        with self._ledger.read() as connection:
            known = datasets.list_datasets(connection)
            clock = self._clock(connection, time.time_ns())
        if clock.doubt is not None:
            return f"{clock.doubt}. {'Set it right' if clock.is_settled else 'If the time is right, run it again'}"
        if not tables and not unread:
            return "the catalog has no table at all: it is not the catalog of record"
        for dataset in known:
            if dataset.name in tables:
                uuid = tables[dataset.name]
                # Damage affects only that table (`guard.by_identity`); another table in its place stops the run.
                if uuid != dataset.table_uuid and not is_one_bit_off(uuid, dataset.table_uuid):
                    return f"the catalog's table {dataset.name} is not the dataset that the ledger knows"
            elif dataset.name not in unread:
                return f"the catalog does not know the dataset {dataset.name}: it is not the catalog of record"
        return None

    def behind(self) -> str | None:
        """Why the ledger cannot be trusted: it was restored from an older copy, or that is unknown. None if it can."""
        try:
            # in a write transaction, so that nobody reserves sequence numbers between the two reads
            self._ledger.change(sequence.check, self._witness)
        except (ResyncNeeded, WitnessUnreadable) as e:
            return e.message
        return None

    def spooled(self, paths: Sequence[str]) -> set[str]:
        """Those of these spool files that the ledger has a record of by now."""
        names = {name: path for path in paths if (name := below(path, self._spool)) is not None}
        if not names:
            return set()
        return {names[name] for name in self._ledger.query(spool_files.spooled, names)}

    def pointers(self, tables: Collection[str]) -> list[str]:
        """Canonical paths of these tables' metadata files, if the catalog names them without opening them."""
        from strandline.iceberg.metadata.metadata_peek import read_rows

        rows = read_rows(self._config) or ()
        return [canonical(at) for row in rows if row.name in tables for at in row.metadata]


def _seal(connection: Connection, dataset: Dataset) -> TableSeal:
    last = [
        LastPublished(block.snapshot, _reserved_ns(block))
        for block in published_blocks.last_settled(connection, dataset.id)
        if block.snapshot is not None
    ]
    holds = (
        lanes.watermarks_by_title(connection, dataset.id)
        | followers.watermarks_by_title(connection, dataset)
        | consumers.watermarks_by_title(connection, dataset.id)
    )
    sealed = blocks.sealed(connection, dataset.id)
    return TableSeal(dataset.name, sealed, holds, last, dataset.table_uuid)


def _reserved_ns(block: Published) -> int | None:
    """None for a block from the table's history, which was recorded as reserved long after its commit."""
    return _ns(block.head.reserved_at if block.head.reserved_at < block.published_at else None)


def _ns(moment: datetime | None) -> int | None:
    if moment is None:
        return None
    return int(moment.replace(microsecond=0).timestamp()) * 1_000_000_000 + moment.microsecond * 1_000
