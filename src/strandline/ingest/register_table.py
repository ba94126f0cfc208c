"""Makes a dataset of an existing table: adds our columns and properties to it, and its name to the ledger.

The table is changed first: a table that names its lake can be found again after a crash, a ledger row cannot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from strandline.core.errors import RefusedError, UsageError
from strandline.core.records.audit_events import Event
from strandline.core.text.wording import agreeing, plural
from strandline.core.types import SEQ_COLUMN, Dataset, History
from strandline.iceberg.lake_tables import LakeTables
from strandline.iceberg.metadata.adoption import check_adoptable
from strandline.iceberg.metadata.dataset_identity import DatasetIdentity
from strandline.iceberg.metadata.identifier import in_spark
from strandline.iceberg.metadata.table_metadata import ADOPTED_PROPERTY, HISTORY_PROPERTY
from strandline.ingest.datasets import unused_identity
from strandline.ledger import audit
from strandline.ledger.engine import Connection, Ledger
from strandline.ledger.ingest import blocks, datasets, sequence

if TYPE_CHECKING:
    from strandline.iceberg.pyiceberg.catalog import PyIcebergCatalog


@dataclass(frozen=True, slots=True)
class AdoptTerms:
    """What the caller requests. None: as the ledger records it."""

    history: History | None
    deliver_by: Sequence[str] | None
    leave_foreign: bool = False  # rows that already have a sequence number stay foreign


def register(ledger: Ledger, tables: LakeTables, lake: str, name: str, terms: AdoptTerms) -> Dataset:
    """Makes a dataset of the table, or returns the dataset that it is. Restores columns and properties that were
    removed from the table."""
    catalog = tables.catalog
    with ledger.read() as connection:
        recorded = datasets.find(connection, name)
        epoch = sequence.read(connection).epoch
    # The catalog may have another table under this name now, which is another dataset.
    is_same_table = recorded is not None and str(catalog.load(name).metadata.table_uuid) == recorded.table_uuid
    known = recorded if is_same_table else None
    by, history = as_recorded(known, terms)
    if known is None and not terms.leave_foreign:
        _check_no_numbers(catalog, name)
    identity = _identity(ledger, catalog, name, known)
    properties = {ADOPTED_PROPERTY: "true", HISTORY_PROPERTY: history.value, **identity.to_properties()}
    table = _prepare(tables, lake, name, epoch, by, properties)
    if known is not None and known.adopted:
        return known
    with ledger.write() as connection:
        if known is not None:
            known = datasets.mark_adopted(connection, known, history)
        else:
            own = unused_identity(connection, identity)  # called first, because it locks the counter
            if recorded is not None:
                _mark_replaced(connection, recorded, by=table)
            known = datasets.add(
                connection, name=name, table_uuid=table, deliver_by=by, adopted=True, history=history,
                uuid=own.uuid, first_shard=own.first_shard, shards=own.shards,
            )  # fmt: skip
        audit.record(connection, Event.DATASET_ADOPTED, dataset=name, history=history.value)
    if DatasetIdentity.of(known) != identity:  # another dataset took the same shards meanwhile
        _prepare(tables, lake, name, epoch, by, DatasetIdentity.of(known).to_properties())
    return known


def _identity(ledger: Ledger, catalog: PyIcebergCatalog, name: str, known: Dataset | None) -> DatasetIdentity:
    """The id and shards for the table."""
    if known is not None:
        return DatasetIdentity.of(known)
    table = catalog.load(name)
    with ledger.write() as connection:
        return unused_identity(connection, DatasetIdentity.parse(table.properties, str(table.metadata.table_uuid)))


def _check_no_numbers(catalog: PyIcebergCatalog, name: str) -> None:
    """Raises RefusedError if the table has sequence numbers, which this ledger did not assign. Called before any
    change."""
    from strandline.iceberg.pyiceberg.foreign_rows import count_foreign_rows

    counted = count_foreign_rows(catalog.load(name), (), lambda snapshot, highest: True, last=0)
    if counted is not None and not counted.foreign:
        return
    rows = "Rows" if counted is None else plural(counted.foreign, "row")
    may = "may have" if counted is None else agreeing(counted.foreign, "has")
    raise RefusedError(
        f"{rows} of {name} {may} a value in {SEQ_COLUMN} that this lake did not assign. They would stay foreign: no "
        "reader and no sink would get them",
        hint=f"To have them numbered and delivered like all other rows, empty the column: UPDATE {in_spark(name)} "
        f"SET {SEQ_COLUMN} = NULL. To leave them out: `strandline dataset adopt {name} --leave-foreign`.",
    )


def as_recorded(known: Dataset | None, terms: AdoptTerms) -> tuple[tuple[str, ...], History]:
    """The terms of the adoption: the columns to deliver by, and the history. Recorded terms cannot change, because
    numbered rows were delivered by them. Raises UsageError."""
    by = None if terms.deliver_by is None else tuple(terms.deliver_by)
    history = terms.history
    if known is None:
        return by or (), history or History.DELIVER
    if by is not None and by != known.deliver_by:
        recorded = ", ".join(known.deliver_by) or "no column"
        raise UsageError(
            f"{known.name} is delivered by {recorded}, not by {', '.join(by) or 'no column'}",
            hint="The columns cannot change once a dataset exists. Leave --deliver-by out.",
        )
    if not known.adopted:
        return known.deliver_by, history or History.DELIVER
    if history is not None and history is not known.history:
        raise UsageError(
            f"{known.name} was adopted with history: {known.history.value}, not {history.value}",
            hint="The history cannot change once a table is adopted. Leave --history out.",
        )
    return known.deliver_by, known.history


def _mark_replaced(connection: Connection, old: Dataset, *, by: str) -> None:
    """Drops the old dataset. Its open blocks can never be published. The audit log names them."""
    open_blocks = [str(b.head.rows) for b in blocks.open_blocks(connection, old.id)]
    datasets.mark_dropped(connection, old.id)
    audit.record(
        connection, Event.DATASET_REPLACED, dataset=old.name, table=old.table_uuid, by=by, open_blocks=open_blocks
    )


def _prepare(
    tables: LakeTables,
    lake: str,
    name: str,
    epoch: int,
    deliver_by: Sequence[str],
    properties: Mapping[str, str],
) -> str:
    """Adds our columns and properties to the table. Returns its uuid."""
    from strandline.iceberg.spark.prepare import add_sequence_column

    table = tables.catalog.load(name)
    # Checked before Spark starts, and again by the commit.
    check_adoptable(name, table.properties, [f.name for f in table.schema().fields], lake, epoch, deliver_by)
    wanted: dict[str, Any] = {"lake_id": lake, "epoch": epoch, "deliver_by": deliver_by, "properties": properties}
    return add_sequence_column(tables.unsettled, name, **wanted).uuid
