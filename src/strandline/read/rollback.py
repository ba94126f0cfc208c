"""Checks whether a table was rolled back to before what is settled. `settled_view` does this for all stages; so does
status.

All stages refuse a table that was rolled back, until it is repaired or a person accepts it. A deletion is no rollback,
whoever made it. If snapshots were expired and it is unknown, the stages continue, and the doubt is recorded and shown
(docs/adr/0027).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING

from strandline.core.errors import TableRolledBack
from strandline.core.records.audit_events import Event
from strandline.core.types import Dataset
from strandline.iceberg.metadata.lineage import LineageVerdict, Memory, NotKnown, RolledBack, judge
from strandline.iceberg.metadata.metadata_peek import earlier_links
from strandline.iceberg.metadata.table_metadata import TableView
from strandline.ledger import audit
from strandline.ledger.deliver import losses
from strandline.ledger.engine import Connection, Ledger
from strandline.ledger.ingest import published_blocks, table_states

if TYPE_CHECKING:
    from strandline.iceberg.spark.tables import SparkTables


def recall(connection: Connection, dataset: Dataset) -> Memory:
    """What the ledger knows of the table. Call this before reading the table."""
    return Memory(
        table_states.get(connection, dataset.id).settled,
        published_blocks.last_settled(connection, dataset.id),
        losses.purged(connection, dataset.id),
    )


def may_move_tag(
    ledger: Ledger | Connection, tables: SparkTables, dataset: Dataset, memory: Memory
) -> Callable[[TableView], bool]:
    """Returns a function for the commit that publishes a block: it gets the metadata that the commit replaces. On a
    table that was rolled back, the block is published and the tag stays, so that the rollback is still noticed. A
    caller with the ledger's lock passes its connection: the doubt is recorded when that transaction commits."""
    from strandline.iceberg.spark.settled_tag import judge_table

    def may(view: TableView) -> bool:
        verdict = judge_table(tables, dataset.name, view, memory)
        record_doubt(ledger, dataset, verdict)
        return not isinstance(verdict, RolledBack)

    return may


def check_verdict(ledger: Ledger, dataset: Dataset, verdict: LineageVerdict) -> None:
    if isinstance(verdict, RolledBack):
        raise refusal(dataset, verdict)
    record_doubt(ledger, dataset, verdict)


def record_doubt(ledger: Ledger | Connection, dataset: Dataset, verdict: LineageVerdict) -> None:
    """Must be called before the next block is published: after that, the doubt cannot be seen any more."""
    if not isinstance(verdict, NotKnown):
        return
    with ledger.write() if isinstance(ledger, Ledger) else nullcontext(ledger) as connection:
        if table_states.record_doubt(connection, dataset.id, doubt_text(dataset, verdict)):
            audit.record(connection, Event.ROLLBACK_NOT_KNOWN, dataset=dataset.name, snapshot=verdict.snapshot)


def refusal(dataset: Dataset, verdict: RolledBack) -> TableRolledBack:
    name, snapshot = dataset.name, verdict.snapshot
    back = (
        f"Set it back to that snapshot (CALL lake.system.set_current_snapshot('{name}', {snapshot}))"
        if verdict.is_kept
        else "Restore the newest copy of the catalog"
    )
    return TableRolledBack(
        f"{name} was rolled back: main does not descend from snapshot {snapshot}, which had everything that was "
        "settled",
        hint=f"{back}; or, if this is intended, accept the table as it is: "
        f"`strandline dataset accept {name} --reason TEXT`.",
    )


def doubt_text(dataset: Dataset, verdict: NotKnown) -> str:
    return (
        f"the snapshots between {verdict.snapshot}, which had everything settled, and the newest one were expired, "
        "and the last published rows are gone: it is unknown whether they were deleted or rolled back. If this is "
        f"intended: `strandline dataset accept {dataset.name} --reason TEXT`"
    )


def problem(dataset: Dataset, view: TableView, memory: Memory) -> str | None:
    """For `status`, without a JVM: a rollback that metadata files on this machine show, without reading rows."""
    verdict = judge(view, memory, lambda: earlier_links(view))
    return refusal(dataset, verdict).message if isinstance(verdict, RolledBack) else None


def move_tag(ledger: Ledger, tables: SparkTables, dataset: Dataset) -> None:
    """Moves the tag to main, after maintenance has changed main or before it expires snapshots. Raises
    TableRolledBack."""
    from strandline.iceberg.spark.settled_tag import move

    memory = ledger.query(recall, dataset)
    at = move(tables, dataset.name, memory, lambda verdict: check_verdict(ledger, dataset, verdict))
    if at is not None and at != memory.anchor:
        ledger.change(table_states.raise_settled, dataset.id, at)
