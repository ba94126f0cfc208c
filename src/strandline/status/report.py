"""The read model behind `status`: CLI, JSON and API show these values and no others.

It reads the ledger and the newest metadata of each table, and starts no JVM. What is unknown is None, never 0.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from datetime import datetime

from strandline.core.errors import StrandlineError, WitnessUnreadable
from strandline.core.settings import LakeConfig
from strandline.core.types import Dataset, Reserved
from strandline.iceberg.metadata.metadata_peek import TableGlance, is_glanceable, read_pointer
from strandline.ledger.engine import Ledger
from strandline.ledger.ingest import blocks, datasets, sequence, table_states
from strandline.ledger.receive import receive_holds
from strandline.ledger.witness import Witness
from strandline.read import foreign_rows, rollback
from strandline.status.maintenance import MaintenanceStatus, load_maintenance
from strandline.status.receive import ReceiveStatus, load_receive
from strandline.status.reconcile import NOT_YET, ReconcileStatus, load_reconcile
from strandline.status.sinks import SinkStatus, load_sinks


@dataclass(frozen=True, slots=True)
class OpenBlockStatus:
    range: str
    kind: str
    batch_id: str
    state: str
    since: datetime
    lease_until: datetime | None


@dataclass(frozen=True, slots=True)
class DatasetStatus:
    name: str
    allocated: int | None  # the highest sequence number of its blocks
    sealed: int | None
    rows: int | None
    open_blocks: int
    unnumbered: int | None
    foreign: int | None  # rows with a sequence number that no block owns, or that another row has, too
    adopted: bool
    blocks: tuple[OpenBlockStatus, ...]
    problem: str | None
    number_twice: int | None = None  # our lowest sequence number on two rows: reads and sinks that reach it are refused


@dataclass(frozen=True, slots=True)
class LakeStatus:
    lake: str
    sequence: int
    witness: int | None
    epoch: int
    problem: str | None
    datasets: tuple[DatasetStatus, ...]
    sinks: tuple[SinkStatus, ...] = ()
    receive: tuple[ReceiveStatus, ...] | None = None  # None if nothing was ever received
    maintenance: MaintenanceStatus | None = None
    reconcile: ReconcileStatus = NOT_YET


def load_status(config: LakeConfig, ledger: Ledger, witness: Witness) -> LakeStatus:
    with ledger.read() as connection:
        counter = sequence.read(connection)
        known = datasets.list_datasets(connection)
    highest, problem = _witness(witness, counter.last)
    return LakeStatus(
        counter.lake,
        counter.last,
        highest,
        counter.epoch,
        problem,
        tuple(_dataset(config, ledger, d, counter.lake, complete=highest == counter.last) for d in known),
        load_sinks(ledger, counter.lake),
        load_receive(ledger),
        load_maintenance(config, ledger),
        load_reconcile(config, ledger),
    )


def _witness(witness: Witness, counter: int) -> tuple[int | None, str | None]:
    try:
        highest = witness.read().highest
    except WitnessUnreadable as e:
        return None, e.message
    if highest == counter:
        return highest, None
    # A reservation under way looks the same for a moment. The next command that starts Spark resyncs the ledger.
    return highest, f"the witness is at {highest}, the ledger at {counter}: the next ingest resyncs the ledger first"


def _dataset(config: LakeConfig, ledger: Ledger, dataset: Dataset, lake: str, *, complete: bool) -> DatasetStatus:
    """A ledger that is not `complete` does not know every reserved sequence number, so not which rows are foreign."""
    with ledger.read() as connection:
        allocated = blocks.highest(connection, dataset.id)
        sealed = blocks.sealed(connection, dataset.id)
        found = blocks.open_blocks(connection, dataset.id)
        memory = rollback.recall(connection, dataset)
        known = table_states.get(connection, dataset.id)
        hold = receive_holds.list_holds(connection).get(dataset.id)
    rows = counts = problem = None
    try:
        glance = read_pointer(config, dataset.name) if is_glanceable(config) else _remote_glance(config, dataset.name)
        if glance is not None:
            rows = glance.row_count
            problem = rollback.problem(dataset, glance.view, memory)
            counts = foreign_rows.count(config, ledger, dataset, glance.view, lake)
    except StrandlineError as e:
        problem = e.message
    problem = problem or known.trouble or known.doubt or (None if hold is None else f"the receiver holds: {hold}")
    open_blocks = tuple(
        OpenBlockStatus(
            f"{b.head.rows.lo}-{b.head.rows.hi}",
            b.head.kind.value,
            b.head.batch_id,
            "reserved" if isinstance(b, Reserved) else "staged",
            b.head.reserved_at,
            b.lease_until if isinstance(b, Reserved) else None,
        )
        for b in found
    )
    return DatasetStatus(
        dataset.name,
        allocated,
        sealed,
        rows,
        len(open_blocks),
        None if counts is None else counts.unnumbered,
        counts.foreign if counts is not None and counts.twice is not None and complete else None,
        dataset.adopted,
        open_blocks,
        problem,
        None if counts is None else counts.twice_first,
    )


def _remote_glance(config: LakeConfig, name: str) -> TableGlance | None:
    """Slower: the catalog or the metadata is remote, so PyIceberg must be loaded."""
    from strandline.iceberg.pyiceberg.catalog import open_catalog

    with closing(open_catalog(config)) as catalog:
        return catalog.glance(name)
