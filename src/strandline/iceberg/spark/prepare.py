"""Prepares an existing table for sequence numbers through Spark: for formats that PyIceberg reads but cannot write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from strandline.core.errors import SchemaError
from strandline.core.types import PARTITION_COLUMN, SEQ_COLUMN
from strandline.iceberg.metadata.table_metadata import NUMBERED_SINCE_PROPERTY, TableView
from strandline.iceberg.pyiceberg.adoption import adopting_properties, check_adoptable
from strandline.iceberg.spark.tables import SparkTables


def add_sequence_column(
    tables: SparkTables,
    name: str,
    *,
    lake_id: str,
    epoch: int,
    deliver_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
) -> TableView:
    """Adds columns and properties in one commit, like `PyIcebergCatalog`; what the table has already stays as it is."""

    def attempt() -> TableView:
        table = tables.load(name)
        view = tables.view(name)
        names = [f["name"] for f in view.schema["fields"]]
        check_adoptable(name, view.properties, names, lake_id, epoch, deliver_by)
        seq, partition = _own(view, SEQ_COLUMN, "long"), _own(view, PARTITION_COLUMN, "string")
        wanted = dict(properties or {}) | adopting_properties(view.properties, lake_id, epoch, deliver_by)
        if not seq:
            wanted[NUMBERED_SINCE_PROPERTY] = str(table.operations().current().lastSequenceNumber())
        stale = {key: value for key, value in wanted.items() if view.properties.get(key) != value}
        add_partition = bool(deliver_by) and not partition
        if seq and not add_partition and not stale:
            return view
        transaction = table.newTransaction()
        _stage_columns(tables, transaction, add_seq=not seq, add_partition=add_partition)
        update = transaction.updateProperties()
        for key, value in stale.items():
            update.set(key, value)
        update.commit()
        transaction.commitTransaction()
        return tables.view(name)

    return tables.repeat(attempt, f"{name} cannot be prepared for sequence numbers")


def _own(view: TableView, name: str, kind: str) -> bool:
    column = view.column(name)
    if column is not None and column["type"] != kind:
        raise SchemaError(f"the table has a column {name} of type {column['type']}; Strandline's is {kind}")
    return column is not None


def _stage_columns(tables: SparkTables, transaction: Any, *, add_seq: bool, add_partition: bool) -> None:
    if not (add_seq or add_partition):
        return
    update = transaction.updateSchema()
    if add_seq:
        update.addColumn(SEQ_COLUMN, tables.java.long_type()).moveFirst(SEQ_COLUMN)
    if add_partition:
        update.addColumn(PARTITION_COLUMN, tables.java.string_type()).moveAfter(PARTITION_COLUMN, SEQ_COLUMN)
    update.commit()
