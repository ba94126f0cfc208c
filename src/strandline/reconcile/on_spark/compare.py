"""Compares storage with references on Spark's executors: `diff.py` for what does not fit into one process.

Differences come to the driver sorted, one piece at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from strandline.core.errors import StorageError
from strandline.reconcile.compare.compared import CHECKED_MAX, UnlistedFiles
from strandline.reconcile.compare.diff import Difference, TableKeys, Unreferenced, is_metadata
from strandline.reconcile.compare.vanished import READ_MAX
from strandline.reconcile.model import FileContent, PrefixFailure
from strandline.reconcile.on_spark.listing import divide
from strandline.reconcile.on_spark.paths import decoded, decoded_column, encoded
from strandline.reconcile.on_spark.references import SparkReferences
from strandline.reconcile.paths import Roots, key
from strandline.reconcile.references.collect import TableReferences
from strandline.reconcile.references.manifest_workers import ManifestFiles
from strandline.reconcile.storage.local_store import LocalStore

if TYPE_CHECKING:
    import pyarrow as pa

MISSING_AT_ONCE = 20_000  # keys that are described and checked together
SENT_MAX = 100_000  # rows that every executor may hold in addition to its own
_NAMED = "named"
_MISSING, _ELSEWHERE = "missing", "elsewhere"
_NOWHERE = "CAST(NULL AS array<string>)"
_GONE = "table string, key binary, content string, shared boolean, label string"
_STRAY = "path binary, owner string, size bigint, modified_ns bigint"
_OWNED = "owner string, is_metadata boolean, files bigint"

# given tables: the manifest (`table`, `manifest`, `key`) of each of their entries
Locate = Callable[[Sequence[str]], DataFrame]


@dataclass(frozen=True)
class Owning:
    """Finds the table that owns a folder. Runs on the executors."""

    tables: Mapping[str, TableKeys]  # without their keys

    @classmethod
    def of(cls, references: SparkReferences) -> Owning:
        found = references.by_name.items()
        return cls({name: TableKeys(t.folders, frozenset(), t.metadata_folder) for name, t in found})

    def owner_of(self) -> Callable[[str], tuple[str | None, bool]]:
        """Given a folder's key: the table, and whether the table's metadata is there."""
        owners = {folder: name for name in sorted(self.tables, reverse=True) for folder in self.tables[name].folders}
        roots = Roots(owners)

        def owner(folder: str) -> tuple[str | None, bool]:
            root = roots.of(folder)
            if root is None:
                return None, False
            return owners[root], is_metadata(folder, root, self.tables[owners[root]])

        return owner

    def count(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        owner = self.owner_of()
        for batch in batches:
            found = [owner(folder) for folder in decoded_column(batch, "folder")]
            owners = pa.array([name for name, _ in found], pa.string())
            metadata = pa.array([is_metadata for _, is_metadata in found], pa.bool_())
            columns: dict[str, Any] = {"owner": owners, "is_metadata": metadata, "files": batch.column("files")}
            yield pa.record_batch(columns)

    def place(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Adds each file's owner, and size and time, which a local listing lacks. Skips files deleted meanwhile."""
        import pyarrow as pa

        owner, store = self.owner_of(), LocalStore()
        whole = pa.int64()
        types: dict[str, Any] = {"path": pa.binary(), "owner": pa.string(), "size": whole, "modified_ns": whole}
        for batch in batches:
            rows: list[dict[str, Any]] = []
            for row in batch.to_pylist():
                size, modified_ns = row["size"], row["modified_ns"]
                path = decoded(row["path"])
                if size is None and path.startswith("/"):
                    try:
                        stat = store.find_file(path)
                    except StorageError:
                        pass  # the driver tries again, and reports the failure
                    else:
                        if stat is None:
                            continue
                        size, modified_ns = stat.size, stat.modified_ns
                name = owner(decoded(row["folder"]))[0]
                rows.append({"path": row["path"], "owner": name, "size": size, "modified_ns": modified_ns})
            yield pa.RecordBatch.from_pylist(rows, pa.schema(types))


@dataclass(frozen=True)
class _Labels:
    failed: Sequence[str]
    covered: Sequence[str]

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        failed, covered = Roots(self.failed), Roots(self.covered)
        for batch in batches:
            found = decoded_column(batch, "key")
            labels = [
                None if failed.of(k) is not None else _ELSEWHERE if covered.of(k) is None else _MISSING for k in found
            ]
            yield batch.append_column("label", pa.array(labels, pa.string()))


class Comparing:
    def __init__(
        self,
        files: DataFrame,
        references: SparkReferences,
        roots: Sequence[str],
        failures: Sequence[PrefixFailure],
        persisted: list[DataFrame],
    ) -> None:
        self._spark = files.sparkSession
        self._files = files
        self._references = references
        self._owning = Owning.of(references)
        self._labels = _Labels([key(f.prefix) for f in failures], [key(root) for root in roots])
        self._persisted = persisted

    def _keep(self, frame: DataFrame) -> DataFrame:
        self._persisted.append(frame.persist(StorageLevel.DISK_ONLY))
        return frame

    def difference(self) -> Difference:
        """The unreferenced files can be iterated. Missing files are not in it: `sought` returns them."""
        reached = self._references.reached()
        stray = self._keep(self._files.join(reached, "key", "left_anti"))
        sums = stray.where(F.col("summed_path").isNotNull())
        listed, contents = self._counts(sums)
        found = stray.where(F.col("summed_path").isNull()).unionByName(self._lone(sums, reached))
        # Listings by pages may show a file twice; the later time counts.
        latest = F.max(F.struct("modified_ns", "size")).alias("seen")
        once = found.groupBy("path").agg(F.max("folder").alias("folder"), latest)
        once = once.select("path", "folder", "seen.size", "seen.modified_ns")
        placed = once.mapInArrow(self._owning.place, _STRAY)
        return Difference(Unreached(placed), {}, {}, listed, contents, self._vanished(stray))

    def _vanished(self, stray: DataFrame) -> set[str]:
        owner = self._owning.owner_of()
        path = F.col("path").cast("string")
        found = stray.where(path.endswith(".metadata.json") | path.endswith(".metadata.json.gz"))
        folders = [row.folder for row in found.select("folder").distinct().collect()]  # one row per table
        unowned = [(bytes(folder),) for folder in folders if owner(key(decoded(folder)))[0] is None]
        if not unowned:
            return set()
        wanted = F.broadcast(self._spark.createDataFrame(unowned, "folder binary"))
        some = found.join(wanted, "folder", "left_semi").select("path").limit(READ_MAX + 1)
        return {decoded(row.path) for row in some.collect()}

    def _lone(self, sums: DataFrame, reached: DataFrame) -> DataFrame:
        """Checksums of files that neither exist nor are referenced. Checksums are few, so they are broadcast: otherwise
        every file would be shuffled once more."""
        there = self._files.select(F.col("path").alias("summed_path"))
        held = reached.select(F.col("key").alias("summed_key"))
        if sums.count() <= SENT_MAX:
            there = there.join(F.broadcast(sums.select("summed_path")), "summed_path", "left_semi")
            held = held.join(F.broadcast(sums.select("summed_key")), "summed_key", "left_semi")
        return sums.join(there, "summed_path", "left_anti").join(held, "summed_key", "left_anti")

    def _counts(self, sums: DataFrame) -> tuple[dict[str | None, int], dict[str, int]]:
        """Files by table, without unreferenced checksums; and how many of them are not metadata."""
        every = self._files.groupBy("folder").agg(F.count("path").alias("files"))
        less = sums.groupBy("folder").agg((-F.count("path")).alias("files"))
        owned = every.unionByName(less).mapInArrow(self._owning.count, _OWNED)
        listed: dict[str | None, int] = {}
        contents: dict[str, int] = {}
        # one row per table
        for row in owned.groupBy("owner", "is_metadata").agg(F.sum("files").alias("files")).collect():
            listed[row.owner] = listed.get(row.owner, 0) + row.files
            if row.owner is not None and not row.is_metadata:
                contents[row.owner] = contents.get(row.owner, 0) + row.files
        return listed, contents

    def sought(self, listed: Mapping[str | None, int], locate: Locate) -> Iterator[UnlistedFiles]:
        gone = self._gone()
        contents = F.count(F.when(F.col("content") != _NAMED, 1)).alias("contents")
        # one row per table
        totals = gone.groupBy("table", "label").agg(F.count("key").alias("count"), contents).collect()
        described = sorted({row.table for row in totals if row.contents and listed.get(row.table)})
        rows = self._located(gone, locate(described)) if described else gone.withColumn("manifests", F.expr(_NOWHERE))
        counts = {(row.table, row.label): row["count"] for row in totals}
        for name, table in sorted(self._references.by_name.items()):
            apart = counts.get((name, _ELSEWHERE), 0)
            some = self._some(rows, name, _ELSEWHERE, 1 if apart > CHECKED_MAX else apart)
            is_away = not listed.get(name)
            yield UnlistedFiles(_narrowed(table, some, is_away=is_away), (), _keys(some), apart, _shared(some))
            if (name, _MISSING) not in counts:
                continue
            reported = {encoded(key(path)) for path in table.gone}
            here = rows.where((F.col("table") == name) & (F.col("label") == _MISSING)).toLocalIterator()
            for piece in divide((row for row in here if bytes(row.key) not in reported), MISSING_AT_ONCE):
                narrow = replace(_narrowed(table, piece, is_away=is_away), gone={})
                yield UnlistedFiles(narrow, _keys(piece), (), 0, _shared(piece))

    @staticmethod
    def _some(rows: DataFrame, name: str, label: str, count: int) -> list[Any]:
        if not count:
            return []
        return rows.where((F.col("table") == name) & (F.col("label") == label)).orderBy("key").limit(count).collect()

    def _gone(self) -> DataFrame:
        references = self._references
        found = [frame for frame in (references.content(),) if frame is not None]
        named = references.named.where(F.col("table") != "").withColumn("content", F.lit(_NAMED))
        every = reduce(DataFrame.unionByName, found, named)
        gone = every.join(self._files.select("key"), "key", "left_anti")
        shared = F.count("table").over(Window.partitionBy("key")) > 1
        labelled = gone.select("table", "key", "content", shared.alias("shared"))
        return self._keep(labelled.mapInArrow(self._labels.run, _GONE).where("label IS NOT NULL"))

    def _located(self, gone: DataFrame, manifests: DataFrame) -> DataFrame:
        """Adds the manifests of each entry."""
        wanted = gone.where(F.col("content") != _NAMED).select("table", "key")
        found = manifests.join(wanted, ["table", "key"]).groupBy("table", "key")
        return self._keep(gone.join(found.agg(F.collect_set("manifest").alias("manifests")), ["table", "key"], "left"))


class Unreached:
    """Fetches files from Spark while it is iterated."""

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame

    def __iter__(self) -> Iterator[Unreferenced]:
        for row in self._frame.toLocalIterator():
            yield Unreferenced(decoded(row.path), row.owner, row.size, row.modified_ns)


def _keys(rows: Sequence[Any]) -> list[str]:
    return [decoded(row.key) for row in rows]


def _shared(rows: Sequence[Any]) -> set[str]:
    return {decoded(row.key) for row in rows if row.shared}


def _narrowed(table: TableReferences, rows: Sequence[Any], *, is_away: bool) -> TableReferences:
    """The table with only the manifests of these entries. If the table's storage is away, no manifest is read, and one
    without a name stands for all. An entry whose manifest disappeared since the tables were read was expired."""
    found: dict[str, ManifestFiles] = {}
    for row in rows:
        if row.content == _NAMED:
            continue
        its_key = decoded(row.key)
        for path in ("",) if is_away else row.manifests or ():
            manifest = found.setdefault(path, ManifestFiles(path))
            if row.content == FileContent.DATA:
                manifest.data.append(its_key)
            else:
                manifest.others[its_key] = FileContent(row.content)
    return replace(table, manifests=tuple(found[path] for path in sorted(found)))
