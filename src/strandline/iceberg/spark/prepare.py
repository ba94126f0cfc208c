"""Prepares an existing table for sequence numbers: adds our columns and properties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from strandline.core.errors import SchemaError
from strandline.core.types import PARTITION_COLUMN, SEQ_COLUMN
from strandline.iceberg.metadata.adoption import adopting_properties, check_adoptable
from strandline.iceberg.metadata.table_metadata import NUMBERED_SINCE_PROPERTY, TableView
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
    """Adds the missing columns and properties in one commit. The columns are optional, because existing rows have no
    sequence numbers yet. Raises the errors of `check_adoptable`."""

    def attempt() -> TableView:
        change = tables.change(name)
        view = tables.view_of(change.table)
        names = [f["name"] for f in view.schema["fields"]]
        check_adoptable(name, view.properties, names, lake_id, epoch, deliver_by)
        has_seq, has_partition = _has_own(view, SEQ_COLUMN, "long"), _has_own(view, PARTITION_COLUMN, "string")
        wanted = dict(properties or {}) | adopting_properties(view.properties, lake_id, epoch, deliver_by)
        if not has_seq and view.format_version > 1:
            # Files that exist now lack the column, so their rows can be counted without opening the files.
            wanted[NUMBERED_SINCE_PROPERTY] = str(view.sequence)
        stale = {key: value for key, value in wanted.items() if view.properties.get(key) != value}
        add_partition = bool(deliver_by) and not has_partition
        if has_seq and not add_partition and not stale:
            return view
        _stage_columns(tables, change.transaction, add_seq=not has_seq, add_partition=add_partition)
        update = change.transaction.updateProperties()
        for key, value in stale.items():
            update.set(key, value)
        update.commit()
        change.send()
        return tables.view(name)

    return tables.repeat(attempt, f"{name} cannot be prepared for sequence numbers")


def _has_own(view: TableView, name: str, kind: str) -> bool:
    """Whether the table has this column of ours. Raises SchemaError if it has one of another type."""
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
