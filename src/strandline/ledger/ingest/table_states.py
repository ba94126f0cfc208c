"""What the ledger remembers of a dataset's table: the last known snapshot of our tag, doubts about the table's history,
and why recovery could not settle the dataset."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from strandline.core.types import Anchor, DatasetId
from strandline.ledger.engine import from_row, insert_into, upsert, utc_now
from strandline.ledger.row_memo import RowMemo
from strandline.ledger.schema.core import table_state


@dataclass(frozen=True, slots=True)
class TableState:
    settled: Anchor | None = None
    doubt: str | None = None
    trouble: str | None = None
    trouble_since: datetime | None = None


def get(connection: sa.Connection, id: DatasetId) -> TableState:
    row = connection.execute(sa.select(table_state).where(table_state.c.dataset_id == id)).one_or_none()
    return TableState() if row is None else _state(row)


def by_dataset(connection: sa.Connection) -> dict[DatasetId, TableState]:
    """The states of all datasets that have one."""
    return dict(_STATES.read(connection.execute(sa.select(table_state)).all()))


def _state(row: Any) -> TableState:
    settled = None if row.settled_snapshot is None else Anchor(row.settled_snapshot, row.settled_sequence)
    return from_row(TableState, row, settled=settled)


_STATES = RowMemo(lambda row: (DatasetId(row.dataset_id), _state(row)))


def raise_settled(connection: sa.Connection, id: DatasetId, anchor: Anchor) -> None:
    """Stores the anchor unless the ledger has a newer one, which a slow process must not overwrite."""
    values = {"settled_snapshot": anchor.snapshot, "settled_sequence": anchor.sequence}
    stored = table_state.c.settled_sequence
    connection.execute(
        insert_into(connection, table_state)
        .values(dataset_id=id, **values)
        .on_conflict_do_update(
            index_elements=["dataset_id"],
            set_=values,
            # In format version 1 all Iceberg sequence numbers are 0: there the last write wins.
            where=sa.or_(stored.is_(None), stored < anchor.sequence, stored == 0),
        )
    )


def accept(connection: sa.Connection, id: DatasetId, anchor: Anchor | None) -> None:
    """Accepts the table as it is, by a person's decision: from now on only this anchor counts."""
    snapshot, number = (None, None) if anchor is None else (anchor.snapshot, anchor.sequence)
    _put(connection, id, settled_snapshot=snapshot, settled_sequence=number, doubt=None)


def record_doubt(connection: sa.Connection, id: DatasetId, doubt: str) -> bool:
    """Stores the doubt. False, without a change, if there is one: it stays until a person accepts the table."""
    if get(connection, id).doubt is not None:
        return False
    _put(connection, id, doubt=doubt)
    return True


def record_trouble(connection: sa.Connection, id: DatasetId, trouble: str) -> None:
    since = get(connection, id).trouble_since
    _put(connection, id, trouble=trouble, trouble_since=utc_now() if since is None else since)


def clear_trouble(connection: sa.Connection, id: DatasetId) -> None:
    _put(connection, id, trouble=None, trouble_since=None)


def _put(connection: sa.Connection, id: DatasetId, **values: object) -> None:
    upsert(connection, table_state, {"dataset_id": id}, **values)
