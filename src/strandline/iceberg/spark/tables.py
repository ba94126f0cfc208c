"""Tables through Spark's JVM: load, read, branches, properties. Reads metadata, calls a pure function, commits.

A commit that removes a branch succeeds only on the metadata that it was planned on; otherwise Iceberg refuses it with
"refresh is required". So a decision on `view` is still valid when the commit lands.

Over a network, the answer "conflict" does not prove that a commit failed: one that the HTTP client or a gateway sent
twice conflicts with itself. Iceberg then deletes the files that it wrote for the refused commit, which are live
metadata (shown by experiment). So with a REST catalog, Iceberg prepares our commits, we send them ourselves, and
nothing is cleaned up after them (docs/adr/0023).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from strandline.core import failpoints
from strandline.core.errors import CommitUnknown, NoSuchDataset, StorageError
from strandline.core.text.wording import plural
from strandline.core.types import SEQ_COLUMN, SEQ_MAX, SeqRange, SnapshotId
from strandline.iceberg.commit_retry import COMMIT_RETRY
from strandline.iceberg.metadata.block_placement import NumberSpan
from strandline.iceberg.metadata.identifier import CATALOG, in_spark
from strandline.iceberg.metadata.table_metadata import EPOCH_PROPERTY, TableView, WapId, parse_view
from strandline.iceberg.session.job_watch import cancel_when_called_off
from strandline.iceberg.spark import java
from strandline.iceberg.spark.java import IcebergJava
from strandline.iceberg.spark.java_errors import (
    JAVA_ERRORS,
    explain,
    explaining,
    is_missing_table,
    java_class,
    root_cause,
)
from strandline.iceberg.spark.number_bounds import NewFile, NumberBounds, new_files
from strandline.iceberg.spark.table_change import TableChange, check_epoch


@dataclass(frozen=True, slots=True)
class DataFile:
    location: str
    rows: int
    lo: int
    hi: int
    is_parquet: bool
    has_deletes: bool


class ReadAgain(Exception):
    """A commit was sent, and its result has not been read back yet. Or the table has changed since it was read."""


T = TypeVar("T")
_SETTLED_LATER = "Nothing is lost. `strandline status` shows the open block, and the next run settles it."


class SparkTables:
    def __init__(self, spark: SparkSession, *, attempts_max: int) -> None:
        self._spark = spark
        self.attempts_max = attempts_max
        self._views: dict[str, TableView] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._java = IcebergJava(spark)
        self.is_remote = spark.conf.get(f"spark.sql.catalog.{CATALOG}.type", "") == "rest"
        # The JVM loads a catalog with the settings of the session that uses it first: that must be this one.
        with explaining("the catalog cannot be opened"):
            spark.sql(f"SHOW NAMESPACES IN {CATALOG}")

    @property
    def spark(self) -> SparkSession:
        cancel_when_called_off(self._spark)
        return self._spark

    @property
    def java(self) -> IcebergJava:
        cancel_when_called_off(self._spark)
        return self._java

    @property
    def may_delete_live_files(self) -> bool:
        """Whether Iceberg's own commits could delete live files. Over a REST catalog, a commit that arrives twice
        conflicts with itself, and in a folder nothing stops Iceberg from deleting its files (docs/adr/0023)."""
        return self.is_remote and not self._is_bucket

    @property
    def _is_bucket(self) -> bool:
        store = self.spark.conf.get(f"spark.sql.catalog.{CATALOG}.io-impl", "") or ""
        return store.endswith(".S3FileIO")

    @cached_property
    def not_deleting(self) -> SparkTables:
        """The tables for operations that Iceberg itself commits and cleans up. With a REST catalog, they use a session
        that deletes nothing from the bucket. The reconciler finds the files of a commit that lost."""
        prefix = f"spark.sql.catalog.{CATALOG}"
        if not self.is_remote or not self._is_bucket:
            return self
        session = self.spark.newSession()
        for key, value in self.spark.conf.getAll.items():
            if key.startswith(prefix) or (key.startswith("spark.sql.") and session.conf.isModifiable(key)):
                session.conf.set(key, value)
        session.conf.set(f"{prefix}.s3.delete-enabled", "false")
        return SparkTables(session, attempts_max=self.attempts_max)

    def load(self, name: str) -> Any:
        try:
            return self.java.load_table(in_spark(name))
        except JAVA_ERRORS as e:
            if is_missing_table(e):
                raise NoSuchDataset(f"the catalog has no table {name}") from e
            raise explain(e, f"table {name} cannot be loaded") from e

    def view(self, name: str) -> TableView:
        return self.view_of(self.load(name))

    def view_of(self, table: Any) -> TableView:
        return self._parsed(table.operations().current())

    def earlier_view(self, table: Any, location: str) -> TableView:
        """The table as of an earlier metadata file."""
        return self._parsed(self.java.read_metadata(table, location))

    def _parsed(self, metadata: Any) -> TableView:
        """The parsed metadata. It is cached, because a metadata file never changes, and each batch reads the table many
        times. Some REST catalogs have metadata without a file, which is parsed each time."""
        if (location := metadata.metadataFileLocation()) is None:
            return parse_view(self.java.metadata_json(metadata))
        if (view := self._views.get(location)) is None:
            while len(self._views) >= _VIEWS_MAX:
                self._views.pop(next(iter(self._views)), None)
            view = self._views[location] = parse_view(self.java.metadata_json(metadata))
        return view

    def count(self, name: str, rows: SeqRange, snapshot: SnapshotId | None) -> int:
        """How many rows of this range the snapshot has. Reads the sequence numbers, so that deletes are applied."""
        if snapshot is None:
            return 0
        in_range = self.read(name, snapshot).where(F.col(SEQ_COLUMN).between(rows.lo, rows.hi))
        return int(in_range.select(SEQ_COLUMN).count())

    def read(self, name: str, snapshot: SnapshotId) -> DataFrame:
        return self.spark.read.option("versionAsOf", str(snapshot)).table(in_spark(name))

    def staged_files(self, name: str, snapshot: SnapshotId) -> list[NewFile]:
        """The files that one snapshot added, from its manifests."""
        table = self.load(name)
        return new_files(self.java, table, iterate(table.snapshot(snapshot).addedDataFiles(table.io())))

    def data_files(
        self, name: str, snapshot: SnapshotId, after: int, until: int, *, files_max: int
    ) -> list[DataFile] | None:
        """The files of one snapshot that may have rows above `after` and up to `until`. None if there are more than
        `files_max`, or if one has no bounds."""
        table = self.load(name)
        bounds = self.java.between(SEQ_COLUMN, after + 1, until)
        scan = table.newScan().useSnapshot(snapshot).filter(bounds).includeColumnStats()
        files: list[DataFile] = []
        numbers = NumberBounds(self.java, table)
        with explaining(f"the files of {name} cannot be listed"):
            for task in planned_files(scan):
                if len(files) == files_max:
                    return None
                file = task.file()
                if (span := numbers.of(file)) is None:
                    return None
                is_parquet, has_deletes = file.format().toString() == "PARQUET", not task.deletes().isEmpty()
                files.append(DataFile(str(file.location()), file.recordCount(), *span, is_parquet, has_deletes))
        return files

    def spans_above(self, name: str, number: int) -> list[NumberSpan]:
        """The spans of main's files with sequence numbers above this one, according to manifests. A file without bounds
        may have any number."""
        above = self._numbered_files(name).where(F.col("hi").isNull() | (F.col("hi") > number))
        with explaining(f"the files of {name} cannot be listed"):
            rows = above.distinct().collect()  # none, in a table that only Strandline writes to
        return [NumberSpan(number + 1, SEQ_MAX) if r["hi"] is None else NumberSpan(r["lo"], r["hi"]) for r in rows]

    def highest_number(self, name: str, limit: int) -> int:
        """The highest sequence number that main may have according to manifests, but at most the limit. 0 if it has
        none."""
        highest = F.max(F.coalesce(F.least(F.col("hi"), F.lit(limit)), F.lit(limit)))
        with explaining(f"the files of {name} cannot be listed"):
            return int(self._numbered_files(name).agg(highest).collect()[0][0] or 0)

    def _numbered_files(self, name: str) -> DataFrame:
        """The lowest and the highest sequence number, `lo` and `hi`, of each data file of main, according to manifests.
        Both are null if the manifest has no bounds. Files without a sequence number are left out."""
        metrics = f"readable_metrics.{SEQ_COLUMN}"
        files = self.spark.table(f"{CATALOG}.{name}.files").where("content = 0")
        numbered = files.where(f"NOT coalesce({metrics}.null_value_count >= record_count, false)")
        return numbered.select(F.col(f"{metrics}.lower_bound").alias("lo"), F.col(f"{metrics}.upper_bound").alias("hi"))

    def numbers_around(self, name: str, above: int, limit: int) -> tuple[int | None, int | None]:
        """Of main's sequence numbers above `above`, the highest one up to the limit, and the lowest one beyond it.
        Reads rows."""
        number = F.col(SEQ_COLUMN)
        df = self.spark.table(in_spark(name)).where(number > above)
        with explaining(f"the sequence numbers of {name} cannot be read"):
            highest = F.max(F.when(number <= limit, number))
            return tuple(df.agg(highest, F.min(F.when(number > limit, number))).collect()[0])

    def own_head(self, name: str, branch: str, wap: WapId) -> SnapshotId | None:
        """The branch's head, if its snapshot added the rows of this block; otherwise None."""
        view = self.view(name)
        head = view.refs.get(branch)
        snapshot = None if head is None else view.snapshots.get(head)
        return snapshot.id if snapshot is not None and snapshot.added_block(wap) else None

    def names(self) -> list[str]:
        """All tables of the catalog, in all namespaces."""
        catalog = self.java.catalog(CATALOG)
        names: list[str] = []

        def walk(namespace: Any) -> None:
            for child in catalog.listNamespaces(namespace):
                names.extend(t.toString() for t in catalog.listTables(child))
                walk(child)

        with explaining("the catalog cannot be listed"):
            walk(self.java.root_namespace())
        return sorted(names)

    def change(self, name: str) -> TableChange:
        return TableChange(self.load(name), is_remote=self.is_remote)

    @contextmanager
    def changing(self, table: Any) -> Iterator[Any]:
        """Yields the object on which to make the change: the table, or with a REST catalog a transaction, which is then
        sent."""
        if not self.is_remote:
            yield table
            return
        change = TableChange(table, is_remote=True)
        yield change.transaction
        change.send()

    def create_branch(self, name: str, branch: str) -> None:
        """Creates the branch from main. Does nothing if it exists."""
        failpoints.hit("stage.before_branch")

        def attempt() -> None:
            change = self.change(name)
            if branch not in self.view_of(change.table).refs:
                change.commit(create=branch)

        self.repeat(attempt, f"branch {branch} of {name} cannot be created", lock_table=name)
        failpoints.hit("stage.after_branch")

    def remove_branch(self, name: str, branch: str) -> None:
        self.remove_branches(name, lambda view: [branch])

    def remove_branches(self, name: str, which: Callable[[TableView], Iterable[str]]) -> None:
        """Removes branches. `which` gets the metadata that the commit replaces, and returns the names. Names of
        branches that do not exist are ignored."""

        def attempt() -> None:
            change = self.change(name)
            view = self.view_of(change.table)
            if existing := sorted(view.refs.keys() & set(which(view))):
                change.commit(remove=existing)

        self.repeat(attempt, f"a branch of {name} cannot be removed", lock_table=name)

    def set_properties(self, name: str, values: Mapping[str, str]) -> None:
        def attempt() -> None:
            update = self.load(name).updateProperties()
            for key, value in values.items():
                update.set(key, value)
            update.commit()

        self.repeat(attempt, f"properties of {name} cannot be set")

    def raise_epoch(self, name: str, epoch: int, properties: Mapping[str, str] | None = None) -> None:
        """Sets the table's epoch, and `properties` in the same commit. After it, no commit that was planned before can
        publish. A REST catalog does not compare properties, so there a snapshot without files also moves main. If two
        ledgers resync at once, neither lowers the other's epoch."""

        def attempt() -> None:
            change = self.change(name)
            check_epoch(self.view_of(change.table), epoch)
            update = change.transaction.updateProperties()
            for key, value in {**(properties or {}), EPOCH_PROPERTY: str(epoch)}.items():
                update.set(key, value)
            update.commit()
            if self.is_remote:
                nothing = change.transaction.newFastAppend()
                nothing.set(EPOCH_PROPERTY, str(epoch))
                nothing.commit()
            change.send()

        self.repeat(attempt, f"the epoch of {name} cannot be raised")

    def repeat(
        self, attempt: Callable[[], T], what: str, hint: str = _SETTLED_LATER, *, lock_table: str | None = None
    ) -> T:
        """Calls `attempt` until it returns, within bounds. After a commit that lost, or whose outcome is unknown, the
        next attempt begins by reading the table, so it finds what landed and does not commit it again. With
        `lock_table`, threads of this process commit to that table one after the other: of several at once, only one
        would land. Raises CommitUnknown."""
        lock = nullcontext() if lock_table is None else self._locks.setdefault(lock_table, threading.Lock())
        last: Exception | None = None
        for now in replace(COMMIT_RETRY, attempts_max=self.attempts_max).attempts():
            try:
                with lock:
                    return attempt()
            except ReadAgain as e:
                last = e
                now.at_once = True
            except JAVA_ERRORS as e:
                if not _is_retryable(e):
                    failure = explain(e, what)
                    if last is None or not self.is_remote or not isinstance(failure, StorageError):
                        raise failure from e
                last = e
            except StorageError as e:
                if last is None:
                    raise
                last = e  # a commit was sent, and its outcome is unknown while the catalog does not answer
        raise CommitUnknown(
            f"{what}: {plural(self.attempts_max, 'attempt')}, the last one: {'' if last is None else root_cause(last)}",
            hint=hint,
        )


def planned_files(scan: Any) -> Iterator[Any]:
    """The tasks of a scan: files, and the deletes that apply to each."""
    planned = scan.planFiles()
    try:
        yield from iterate(planned)
    finally:
        planned.close()


def iterate(iterable: Any) -> Iterator[Any]:
    """The items of a Java Iterable. Py4J converts only collections into Python iterators."""
    items = iterable.iterator()
    while items.hasNext():
        yield items.next()


_VIEWS_MAX = 4
_STALE = (  # Iceberg has no classes for these
    "Branch does not exist",
    "already exists",
    # Of REST catalogs: another block was staged meanwhile, which changes the table's counters, but not main.
    "last sequence number",
    "first-row-id is behind",
    "to unknown snapshot",  # expired between the read and the commit that would tag it
)


def _is_retryable(error: Exception) -> bool:
    kind, text = java_class(error), root_cause(error)
    return kind in java.LOST_OR_UNKNOWN or any(words in text for words in _STALE)
