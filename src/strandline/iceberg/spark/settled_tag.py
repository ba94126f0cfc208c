"""Checks, through Spark, whether a table's main descends from our tag, and moves the tag forward (see `lineage.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pyspark.sql import functions as F

from strandline.core import failpoints
from strandline.core.errors import StrandlineError
from strandline.core.types import SEQ_COLUMN, Anchor, SeqRange
from strandline.iceberg.metadata.lineage import LineageVerdict, Links, Memory, RolledBack, judge, links_of
from strandline.iceberg.metadata.table_metadata import SETTLED_TAG, TableView
from strandline.iceberg.spark.java_errors import JAVA_ERRORS
from strandline.iceberg.spark.tables import SparkTables


def judge_table(tables: SparkTables, name: str, view: TableView, memory: Memory) -> LineageVerdict:
    """Judges the table's lineage. Reads earlier metadata files, and rows, only if the current metadata does not
    decide."""

    def all_have_rows(blocks: Sequence[SeqRange]) -> bool:
        if view.main is None:
            return False
        rows = tables.read(name, view.main).select(SEQ_COLUMN)
        number = F.col(SEQ_COLUMN)
        counts = [F.count(F.when(number.between(b.lo, b.hi), 1)) for b in blocks]
        lowest, highest = min(b.lo for b in blocks), max(b.hi for b in blocks)
        return all(rows.where(number.between(lowest, highest)).agg(*counts).collect()[0])

    return judge(view, memory, lambda: _earlier(tables, name, view), all_have_rows)


def _earlier(tables: SparkTables, name: str, view: TableView) -> Iterator[Links]:
    """The links in earlier metadata files, as far back as the files exist: Iceberg may have deleted old ones."""
    table = tables.load(name)
    for location in reversed(view.metadata_log):
        try:
            yield links_of(tables.earlier_view(table, location))
        except (StrandlineError, *JAVA_ERRORS):
            return


def move(
    tables: SparkTables, name: str, memory: Memory, on_verdict: Callable[[LineageVerdict], None] = lambda verdict: None
) -> Anchor | None:
    """Puts the tag on main, unless main was rolled back. Returns the tag's position. `on_verdict` is called before the
    commit, and may raise to prevent it."""

    def attempt() -> Anchor | None:
        change = tables.change(name)
        view = tables.view_of(change.table)
        if view.main is None or view.refs.get(SETTLED_TAG) == view.main:
            return view.settled
        verdict = judge_table(tables, name, view, memory)
        on_verdict(verdict)
        if isinstance(verdict, RolledBack):
            return view.settled
        failpoints.hit("settled.before_tag")
        change.commit(settle=True)
        failpoints.hit("settled.after_tag")
        return tables.view(name).settled

    return tables.repeat(attempt, f"tag {SETTLED_TAG} of {name} cannot be moved")


def accept(tables: SparkTables, name: str) -> Anchor | None:
    """Puts the tag on main, whatever its position, because a person decided so. Returns the tag's position. None for a
    table without rows."""

    def attempt() -> Anchor | None:
        change = tables.change(name)
        view = tables.view_of(change.table)
        main = None if view.main is None else view.snapshots.get(view.main)
        if main is None:
            return None
        if view.refs.get(SETTLED_TAG) != main.id:
            change.commit(settle=True)
        # Not below any of Iceberg's sequence numbers of the table, so that a process that reports an earlier publish
        # late cannot lower the position.
        return Anchor(main.id, max(main.sequence, view.sequence))

    return tables.repeat(attempt, f"tag {SETTLED_TAG} of {name} cannot be moved")
