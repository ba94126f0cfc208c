"""Iceberg maintenance through Spark's JVM: lists, rewrites and replaces files; manifests; snapshots.

Files are read and written through Iceberg's own rewrite groups, with deletes applied and row ids kept. Nothing is
visible until the commit. The commit fails if one of the replaced files is gone, or had rows deleted meanwhile. A
process that dies before the commit leaves orphan files.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame

from strandline.core.errors import CommitUnknown, FailedError, LeaseLost, RefusedError, StrandlineError
from strandline.core.types import SEQ_COLUMN, SnapshotId
from strandline.iceberg.metadata.live_files import FilePart, LiveFile
from strandline.iceberg.metadata.table_metadata import BLOCK_SUMMARY, VOID_PREFIX, WapId
from strandline.iceberg.session.spark_internals import set_active
from strandline.iceberg.spark import java
from strandline.iceberg.spark.java_errors import JAVA_ERRORS, explain, explaining, java_class, root_cause
from strandline.iceberg.spark.number_bounds import NewFile, NumberBounds, new_files
from strandline.iceberg.spark.rewrite import discard, replace_files, staged, write_files
from strandline.iceberg.spark.tables import SparkTables, iterate, planned_files

# in the summary of a snapshot that replaced files: identifies the commit if its answer was lost
COMPACTION_SUMMARY = "strandline.compaction"
TARGET_PROPERTY = "write.target-file-size-bytes"
ROW_GROUP_PROPERTY = "write.parquet.row-group-size-bytes"
_TARGET_DEFAULT = 512 << 20
_ROLL_OVER_SHARE = 1.4  # a new file may become larger than planned: up to this share of the target, it stays one file


@dataclass(frozen=True)
class Main:
    """One snapshot of main, file by file, with Java's handles for them."""

    name: str
    table: Any
    snapshot: SnapshotId
    sequence: int
    files: tuple[LiveFile, ...]
    tasks: dict[str, Any]
    delete_files: int
    manifests: int

    @property
    def file_bytes_target(self) -> int:
        return int(self.table.properties().get(TARGET_PROPERTY) or _TARGET_DEFAULT)


class CommitLost(Exception):
    """Another commit replaced one of the files, or deleted rows from it, so the rewritten files cannot be used."""


@dataclass(frozen=True, slots=True)
class FilesDeleted:
    data: int
    deletes: int
    manifests: int
    manifest_lists: int


def list_main(tables: SparkTables, name: str) -> Main | None:
    """The files of main's current snapshot. None for a table without a snapshot."""
    table = tables.load(name)
    if (current := table.currentSnapshot()) is None:
        return None
    files: list[LiveFile] = []
    tasks: dict[str, Any] = {}
    scan = table.newScan().useSnapshot(current.snapshotId()).includeColumnStats().ignoreResiduals()
    facts = _Facts(tables, table)
    with explaining(f"the files of {name} cannot be listed"):
        for task in planned_files(scan):
            file = facts.of(task)
            files.append(file)
            tasks[file.location] = task
        manifests = current.dataManifests(table.io()).size()
    deletes = int(current.summary().get("total-delete-files") or 0)
    snapshot = SnapshotId(current.snapshotId())
    return Main(name, table, snapshot, int(current.sequenceNumber()), tuple(files), tasks, deletes, manifests)


class _Facts:
    """Reads the metadata of files. Calls to the JVM take time, so values that do not change are read once."""

    def __init__(self, tables: SparkTables, table: Any) -> None:
        self._numbers = NumberBounds(tables.java, table)
        self._specs = {int(spec.specId()): spec for spec in table.specs().values()}
        self._ours = frozenset(int(s.sequenceNumber()) for s in iterate(table.snapshots()) if _is_ours(s.summary()))

    def of(self, task: Any) -> LiveFile:
        file = task.file()
        spec = int(file.specId())
        lo, hi = self._numbers.of_all_rows(file) or (None, None)
        written_with = self._specs[spec]
        partition = "" if written_with.isUnpartitioned() else str(written_with.partitionToPath(file.partition()))
        return LiveFile(
            str(file.location()),
            spec,
            partition,
            int(file.fileSizeInBytes()),
            int(file.recordCount()),
            lo,
            hi,
            int(task.deletes().size()),
            self._is_ordered(file),
        )

    def _is_ordered(self, file: Any) -> bool:
        """Whether the file's rows are known to be in order: it is ours, and has no sort order. A table may have a sort
        order of its own, which our writes follow, too."""
        added = file.fileSequenceNumber()
        return added is not None and int(added) > 0 and int(added) in self._ours and not file.sortOrderId()


def _is_ours(summary: Any) -> bool:
    """Whether a snapshot added the files of a block, or of a compaction of ours."""
    wap = summary.get("published-wap-id") or summary.get("wap.id") or summary.get(BLOCK_SUMMARY)
    return WapId.parse(wap) is not None or summary.get(COMPACTION_SUMMARY) is not None


class Rewrite:
    """Rewrites the files of some parts in one Spark job, and replaces the old files in one commit."""

    def __init__(self, tables: SparkTables, main: Main, parts: Sequence[FilePart], target: int) -> None:
        self.id = f"strandline-{uuid.uuid4().hex}"
        self._tables, self._main, self._parts, self._target = tables, main, parts, target
        self._written: list[Any] = []

    def write(self) -> list[NewFile]:
        """Writes the new files. No snapshot references them yet."""
        options = {
            "output-spec-id": str(self._parts[0].files[0].spec),
            "target-file-size-bytes": str(int(self._target * _ROLL_OVER_SHARE)),
            # Rows arrive in the right order: the table's own order would undo that.
            "use-table-distribution-and-ordering": "false",
        }
        main = self._main
        with ExitStack() as stack:
            frames = [stack.enter_context(self._reading(f"{self.id}-{n}", p)) for n, p in enumerate(self._parts)]
            rows = reduce(DataFrame.unionAll, frames)
            # Any of the ids identifies the table to write to.
            self._written = write_files(self._tables, main.name, main.table, f"{self.id}-0", rows, options)
        return new_files(self._tables.java, main.table, self._written)

    def live_rows(self) -> int:
        """How many rows the files to be replaced have. Manifests show it, except for files with deletes: their rows are
        counted."""
        from_manifests = sum(f.rows for part in self._parts for f in part.files if not f.deletes)
        if not (with_deletes := [f for part in self._parts for f in part.files if f.deletes]):
            return from_manifests
        id = f"{self.id}-live"
        with explaining(f"rows of {self._main.name} cannot be counted"), self._staged(id, with_deletes):
            return from_manifests + int(self._tables.spark.read.format("iceberg").load(id).count())

    @contextmanager
    def _reading(self, id: str, part: FilePart) -> Iterator[DataFrame]:
        """The live rows of the part's files, in the order that the part needs. One task reads them in the order of the
        files, unless they are shuffled."""
        split = (1 << 60) if part.order != "shuffled" else self._target
        with self._staged(id, part.files):
            reader = self._tables.spark.read.format("iceberg").option("file-open-cost", "0")
            frame = reader.option("split-size", str(split)).load(id)
            if part.order == "shuffled":
                frame = frame.repartitionByRange(part.outputs, SEQ_COLUMN)
            yield frame if part.order == "kept" else frame.sortWithinPartitions(SEQ_COLUMN)

    def _staged(self, id: str, files: Sequence[LiveFile]) -> AbstractContextManager[None]:
        return staged(self._tables, self._main.table, id, (self._main.tasks[f.location] for f in files))

    def commit(self, last_check: Callable[[], None] = lambda: None) -> None:
        """Replaces the files. `last_check` is called before each attempt, and may raise to prevent it. Raises
        `CommitLost` if the files have changed since they were read. After either of these, removes the new files, if no
        attempt can have landed."""
        unknown = False

        def attempt() -> None:
            nonlocal unknown
            table = self._tables.load(self._main.name)
            if unknown and self._landed(table):
                return
            last_check()
            try:
                self._replace_as_read(table)
            except JAVA_ERRORS as e:
                # Over a network, a commit that was sent twice conflicts with itself.
                unknown = unknown or self._tables.is_remote or java_class(e) not in java.NOT_LANDED
                raise

        try:
            self._tables.repeat(attempt, f"rewritten files of {self._main.name} cannot be committed")
        except StrandlineError as e:
            cause = e.__cause__
            is_lost = isinstance(cause, Py4JJavaError) and java_class(cause) == java.REFUSED
            if (is_lost or isinstance(e, LeaseLost)) and not unknown:
                self.discard()
            if isinstance(cause, Py4JJavaError) and is_lost:
                raise CommitLost(root_cause(cause)) from e
            raise

    def _replace_as_read(self, table: Any) -> None:
        try:
            self._replace(table, self._main.snapshot)
        except JAVA_ERRORS as e:
            if "Cannot determine history" not in root_cause(e) or not self._is_as_read(table):
                raise
            # Somebody has expired the snapshots since, and the files are unchanged.
            self._replace(table, SnapshotId(table.currentSnapshot().snapshotId()))

    def discard(self) -> None:
        discard(self._main.table, self._written)

    def _replace(self, table: Any, since: SnapshotId) -> None:
        with self._tables.changing(table) as change:
            replace_files(
                change.newRewrite(),
                since,
                self._replaced(),
                self._written,
                sequence=self._main.sequence,
                summary=(COMPACTION_SUMMARY, self.id),
            )

    def _replaced(self) -> Iterator[Any]:
        scopes = self._tables.java.content_files
        for file in self._old:
            task = self._main.tasks[file.location]
            yield task.file()
            # A delete file that applies to this file alone is replaced, too.
            yield from (d for d in (task.deletes() if file.deletes else ()) if scopes.isFileScoped(d))

    @property
    def _old(self) -> Iterator[LiveFile]:
        return (file for part in self._parts for file in part.files)

    def _landed(self, table: Any) -> bool:
        """Whether an attempt landed whose answer was lost. If snapshots were expired meanwhile, looks for one of the
        new files."""
        view = self._tables.view_of(table)
        if any(s.summary.get(COMPACTION_SUMMARY) == self.id for s in view.ancestors(view.main)):
            return True
        if not self._written or view.chain_reaches(self._main.snapshot):
            return False
        new_file = str(self._written[0].location())
        current = list_main(self._tables, self._main.name)
        return current is not None and new_file in current.tasks

    def _is_as_read(self, table: Any) -> bool:
        """Whether the table still has all files to be replaced, with the same deletes."""
        wanted = {file.location: _deletes(self._main.tasks[file.location]) for file in self._old}
        for task in planned_files(table.newScan().ignoreResiduals()):
            location = str(task.file().location())
            if location in wanted and wanted.pop(location) != _deletes(task):
                return False
        return not wanted


def _deletes(task: Any) -> frozenset[tuple[str, int | None]]:
    """The deletes of a file, each by its location and offset: one file may have several deletion vectors."""
    return frozenset((str(d.location()), d.contentOffset()) for d in task.deletes())


# Manifests, deletes and snapshots: Iceberg's own actions.


def remove_dangling_deletes(tables: SparkTables, name: str) -> None:
    """Removes delete files that no longer apply to any data file."""
    with _not_deleting(tables) as safe:
        action = safe.java.actions().removeDanglingDeleteFiles(safe.load(name))
        _execute(safe, action.execute, f"dangling deletes of {name} cannot be removed")


def rewrite_manifests(tables: SparkTables, name: str) -> None:
    with _not_deleting(tables) as safe:
        action = safe.java.actions().rewriteManifests(safe.load(name))
        _execute(safe, action.execute, f"manifests of {name} cannot be rewritten")


def expire_snapshots(tables: SparkTables, name: str, *, cutoff_ms: int, keep_min: int) -> FilesDeleted:
    """Expires snapshots, then deletes unreferenced files. A process that dies in between leaves orphan files."""
    what = f"snapshots of {name} cannot be expired"
    action = tables.java.actions().expireSnapshots(tables.load(name)).expireOlderThan(cutoff_ms).retainLast(keep_min)
    if tables.is_remote:
        # A REST catalog does not compare refs here: if a ref was set back meanwhile, its snapshot is expired, too.
        before = tables.view(name)
        _execute(tables, action.expireFiles, what)
        to_keep = {ref for ref in before.refs if ref not in before.branches and not ref.startswith(VOID_PREFIX)}
        if gone := sorted(to_keep - tables.view(name).refs.keys()):
            raise FailedError(
                f"snapshots of {name} were expired, and with them {', '.join(gone)}, which somebody set back or "
                "removed meanwhile",
                hint="No file was deleted. Set the ref to a snapshot that the table still has. Then `strandline "
                "reconcile` finds the files that no snapshot references.",
            )
    result = _execute(tables, action.execute, what)
    return FilesDeleted(
        int(result.deletedDataFilesCount()),
        int(result.deletedPositionDeleteFilesCount()) + int(result.deletedEqualityDeleteFilesCount()),
        int(result.deletedManifestsCount()),
        int(result.deletedManifestListsCount()),
    )


@contextmanager
def _not_deleting(tables: SparkTables) -> Iterator[SparkTables]:
    """The tables in a session in which Iceberg cannot delete live files. Raises RefusedError if there is none."""
    if tables.may_delete_live_files:
        raise RefusedError(
            "manifests are not rewritten, and dangling deletes not removed, over a REST catalog with a warehouse in a "
            "folder: a request that arrives twice could destroy the table",
            hint="Put the warehouse into a bucket. All other steps of a compaction are safe in a folder.",
        )
    try:
        yield tables.not_deleting
    finally:
        set_active(tables.spark)


def _execute(tables: SparkTables, execute: Any, what: str) -> Any:
    try:
        return execute()
    except JAVA_ERRORS as e:
        # Over a network, a request that arrives twice is refused the second time.
        if tables.is_remote and java_class(e) in {*java.NOT_LANDED, java.COMMIT_UNKNOWN}:
            raise CommitUnknown(
                f"{what}, or the change landed and its answer was lost: {root_cause(e)}",
                hint="Run it again. It finds the changes that landed.",
            ) from e
        if java_class(e) in java.NOT_LANDED:
            raise RefusedError(
                f"{what}: others keep committing to the table ({root_cause(e)})",
                hint="Nothing was changed. Run it again.",
            ) from e
        raise explain(e, what) from e
