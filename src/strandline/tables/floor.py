"""What retention commits to a table: the floor first, then the delete."""

from __future__ import annotations

import random
import time

from strandline.errors import CommitUnknown
from strandline.tables.metadata import FLOOR_PREFIX
from strandline.tables.spark_tables import CATALOG, JAVA_ERRORS, SparkTables, explain, java_class, root_cause
from strandline.types import Seq

_LOST = ("CommitFailedException", "ValidationException", "CommitStateUnknownException", "UncheckedSQLException")


def tell(tables: SparkTables, name: str, floor: Seq) -> None:
    """Each floor is a property of its own, and the highest counts: one that is told late, by a process that was given
    up for dead, takes nothing back."""

    def attempt() -> None:
        table = tables.load(name)
        known = tables.view_of(table).floors
        if any(f >= floor for f in known):
            return
        update = table.updateProperties()
        update.set(f"{FLOOR_PREFIX}{floor}", str(floor))
        for lower in known:
            update.remove(f"{FLOOR_PREFIX}{lower}")
        update.commit()

    tables.repeat(attempt, f"the floor of {name} cannot be set")


def delete(tables: SparkTables, name: str, condition: str) -> None:
    """Whole files where all of their rows go, else as the table's own properties say. The same again deletes nothing,
    so a commit that lost, or whose outcome is unknown, is simply repeated."""
    table = ".".join(f"`{part}`" for part in (CATALOG, *name.split(".")))
    last: Exception | None = None
    for n in range(tables.attempts_max):
        try:
            tables.spark.sql(f"DELETE FROM {table} WHERE {condition}")
            return
        except JAVA_ERRORS as e:
            text = f"{java_class(e)} {root_cause(e)} {e}"
            if not any(word in text for word in _LOST):
                raise explain(e, f"rows of {name} cannot be deleted") from e
            last = e
            time.sleep(min(2.0, 0.05 * 2 ** min(n, 6)) * random.random())
    raise CommitUnknown(
        f"rows of {name} cannot be deleted: {tables.attempts_max} attempts, the last one: "
        f"{'' if last is None else root_cause(last)}",
        hint="Nothing is lost: the next run goes on with it.",
    )
