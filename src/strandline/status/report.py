"""The read model behind `status`: CLI, JSON and API show these values and no others.

It reads the ledger and the newest metadata of each table, and starts no JVM. What is unknown is None, never 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from strandline.core.errors import StrandlineError, WitnessUnreadable
from strandline.core.settings.lake_config import LakeConfig
from strandline.core.types import Reserved, TableCounts
from strandline.iceberg.metadata.lineage import Memory
from strandline.iceberg.metadata.metadata_peek import TableGlance
from strandline.ledger.engine import Ledger
from strandline.ledger.ingest import datasets as dataset_records
from strandline.ledger.ingest import sequence
from strandline.ledger.ingest.dataset_report import DatasetFacts, read_datasets
from strandline.ledger.receive import receive_holds
from strandline.ledger.replicate import sites
from strandline.ledger.witness import Witness
from strandline.read import foreign_rows
from strandline.status.consumers import ConsumerStatus, read_consumers
from strandline.status.followers import FollowerStatus, read_followers
from strandline.status.maintenance import MaintenanceStatus, read_maintenance
from strandline.status.problems.status_problem import TABLE_GONE
from strandline.status.receive import ReceiveStatus, read_receive
from strandline.status.reconcile import NOT_YET, ReconcileStatus, read_reconcile
from strandline.status.replication import LEADS, SiteStatus, read_site
from strandline.status.sinks import SinkStatus, read_sinks
from strandline.status.table_glances import NoGlance, TableGlances


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
    followers: tuple[FollowerStatus, ...] = ()
    site: SiteStatus = LEADS
    consumers: tuple[ConsumerStatus, ...] = ()  # readers with a name
    replaced: str | None = None  # at a leader that another site has replaced: who leads now


def load_status(
    config: LakeConfig, ledger: Ledger, witness: Witness, glances: TableGlances | None = None
) -> LakeStatus:
    """A fixed number of queries, and the metadata files that `glances` does not know yet."""
    with ledger.read_consistent() as connection:
        counter = sequence.read(connection)
        known = read_datasets(connection)
        holds = receive_holds.list_holds(connection)
        datasets = [facts.dataset for facts in known]
        sinks = read_sinks(connection, counter.lake, given=datasets)
        receive = read_receive(connection)
        maintenance = read_maintenance(config, connection, datasets)
        reconcile = read_reconcile(connection, config)
        followers, site = read_followers(connection), read_site(config, connection)
        consumers = read_consumers(connection)
        replaced = sites.describe_successor(sites.get(connection))
    highest, problem = _witness(witness, counter.last, follows=site.leader is not None)
    tables = _Tables(config, ledger, counter.lake, known, glances or TableGlances(config))
    complete = highest == counter.last
    return LakeStatus(
        counter.lake,
        counter.last,
        highest,
        counter.epoch,
        problem,
        tuple(_dataset(facts, tables, holds.get(facts.dataset.id), complete=complete) for facts in known),
        sinks,
        receive,
        maintenance,
        reconcile,
        followers,
        site,
        consumers,
        replaced,
    )


def _witness(witness: Witness, counter: int, *, follows: bool) -> tuple[int | None, str | None]:
    try:
        highest = witness.read().highest
    except WitnessUnreadable as e:
        return None, e.message
    if highest == counter:
        return highest, None
    # A reservation under way looks the same for a moment. The next command that starts Spark resyncs the ledger.
    then = (
        "`strandline follow` asks the leader for what is missing"
        if follows
        else "the next ingest resyncs the ledger first"
    )
    return highest, f"the witness is at {highest}, the ledger at {counter}: {then}"


class _Tables:
    """What the newest metadata of the tables shows, read after the ledger."""

    def __init__(
        self, config: LakeConfig, ledger: Ledger, lake: str, known: Sequence[DatasetFacts], glances: TableGlances
    ) -> None:
        self._config, self._ledger, self._lake, self._glances = config, ledger, lake, glances
        self._found = glances.read([facts.dataset.name for facts in known])
        changed = [
            (facts.dataset, found.view)
            for facts in known
            if isinstance(found := self._found[facts.dataset.name], TableGlance)
            and (facts.counts is None or facts.counts.snapshot != found.view.main)
        ]
        self._counted = foreign_rows.counts_from_history(ledger, lake, changed)
        # A dataset that was dropped since the ledger was read has no table either.
        is_any_gone = NoGlance.GONE in self._found.values()
        self._still_known = {d.id for d in ledger.query(dataset_records.list_datasets)} if is_any_gone else set()

    def describe(self, facts: DatasetFacts) -> tuple[int | None, TableCounts | None, str | None]:
        """The number of rows, the counts of foreign rows, and the problem. Raises StrandlineError."""
        dataset, found = facts.dataset, self._found[facts.dataset.name]
        if isinstance(found, StrandlineError):
            raise found
        if isinstance(found, NoGlance):
            is_lost = found is NoGlance.GONE and dataset.id in self._still_known
            return None, None, TABLE_GONE if is_lost else None
        # What was purged says only whether rows may be missing, and rows are not read here.
        memory = Memory(facts.state.settled, facts.published)
        problem = self._glances.rollback_problem(dataset, found, memory)
        counts = facts.counts
        if counts is None or counts.snapshot != found.view.main:
            counts = self._counted.get(dataset.id)
        try:
            if counts is None:
                counts = foreign_rows.count(self._config, self._ledger, dataset, found.view, self._lake)
        except StrandlineError as e:
            problem = e.message
        return found.row_count, counts, problem


def _dataset(facts: DatasetFacts, tables: _Tables, hold: str | None, *, complete: bool) -> DatasetStatus:
    """A ledger that is not `complete` does not know every reserved sequence number, so not which rows are foreign."""
    dataset, state = facts.dataset, facts.state
    rows = counts = problem = None
    try:
        rows, counts, problem = tables.describe(facts)
    except StrandlineError as e:
        problem = e.message
    problem = problem or state.trouble or state.doubt or (None if hold is None else f"the receiver is on hold: {hold}")
    open_blocks = tuple(
        OpenBlockStatus(
            f"{b.head.rows.lo}-{b.head.rows.hi}",
            b.head.kind.value,
            b.head.batch_id,
            "reserved" if isinstance(b, Reserved) else "staged",
            b.head.reserved_at,
            b.lease_until if isinstance(b, Reserved) else None,
        )
        for b in facts.open_blocks
    )
    return DatasetStatus(
        dataset.name,
        facts.allocated,
        facts.sealed,
        rows,
        len(open_blocks),
        None if counts is None else counts.unnumbered,
        counts.foreign if counts is not None and counts.twice is not None and complete else None,
        dataset.adopted,
        open_blocks,
        problem,
        None if counts is None else counts.twice_first,
    )
