"""The range of a missing file is known only if every row of it has a number."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from strandline.core.types import SEQ_COLUMN, Seq, SeqRange
from strandline.reconcile.model import Protection, TableSeal
from strandline.reconcile.references.missing_entries import _range
from tests.reconcile.conftest import DAY_NS, SomeLake, data_files


@pytest.mark.parametrize(("numbers", "rows"), [([1, 2, 3], SeqRange(Seq(1), Seq(3))), ([1, None, 3], None)])
def test_rows_without_a_number_are_never_given_up(
    some_lake: SomeLake, numbers: list[int | None], rows: SeqRange | None
) -> None:
    """They are in no range: that sinks are beyond it says nothing about them."""
    table = some_lake.create()
    with table.update_schema() as update:
        update.make_column_optional(SEQ_COLUMN)
    for some in (numbers, [9]):
        v, p = pa.nulls(len(some), pa.string()), pa.nulls(len(some), pa.int32())
        table.append(pa.table({SEQ_COLUMN: pa.array(some, pa.int64()), "v": v, "p": p}))
    table = some_lake.catalog.load("ns.t")
    path = next(f for f in data_files(table) if _holds(table, f, len(numbers)))
    Path(path).unlink()
    seal = TableSeal("ns.t", Seq(9), {"sink": Seq(9)})
    context = some_lake.context(seals={"ns.t": seal}, now_ns=time.time_ns() + 3 * DAY_NS)
    (finding,) = some_lake.survey(context).drift.missing()
    assert (finding.rows, finding.protected) == (rows, None if rows is not None else Protection.UNSEALED)


def _holds(table: object, path: str, rows: int) -> bool:
    tasks = table.scan().plan_files()  # type: ignore[attr-defined]
    return any(t.file.file_path.endswith(path) and t.file.record_count == rows for t in tasks)


def test_where_nobody_counted_rows_without_a_number_only_a_required_column_has_none(some_lake: SomeLake) -> None:
    table = some_lake.create()
    field = table.schema().find_field(SEQ_COLUMN)
    bounds = {field.field_id: (3).to_bytes(8, "little")}
    file: Any = SimpleNamespace(lower_bounds=bounds, upper_bounds=bounds, null_value_counts=None)
    assert _range(file, field) == SeqRange(Seq(3), Seq(3))
    assert _range(file, field.model_copy(update={"required": False})) is None
