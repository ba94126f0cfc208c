"""Lists storage on executors, prefix by prefix, with the same code that lists in this process.

Two levels below each root are listed first, one job per level. Each deeper prefix is then listed as a whole. Executors
raise nothing: a prefix that failed is a row that says so, and others continue. If Spark loses a part of the listing, it
lists that part again, later than the tables were read; the sweep rechecks before it acts anyway.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from strandline.reconcile.model import PrefixFailure
from strandline.reconcile.on_spark.paths import decoded, decoded_column, encoded, encoded_column
from strandline.reconcile.paths import checksum_of, key, keys
from strandline.reconcile.storage.inventory import list_local, list_local_level
from strandline.reconcile.storage.inventory_file import count_parts, inventory_rows
from strandline.reconcile.storage.listing import ListedFolder, Listing
from strandline.reconcile.storage.object_inventory import list_level, list_prefixes
from strandline.reconcile.storage.pool import Pool
from strandline.storage.s3_listing import ListedBucket

if TYPE_CHECKING:
    import pyarrow as pa

# `summed_…`: of a checksum, the file that it belongs to. `folder`: the key of the folder.
LISTED = (
    "kind string, path binary, key binary, folder binary, summed_path binary, summed_key binary, "
    "size bigint, modified_ns bigint, why string"
)
_NAMES = [field.split()[0] for field in LISTED.split(", ")]
FILE, FOLDER, LINK, FAILED, TIMED_OUT = "file", "folder", "link", "failed", "timed out"
LEVELS = 2
TASKS_PER_CORE = 4
ROWS_AT_ONCE = 20_000

T = TypeVar("T")


@dataclass(frozen=True)
class StorageListing:
    """The files as rows, and what the driver needs of the rest."""

    files: DataFrame
    failures: Sequence[PrefixFailure]
    links: Sequence[str]
    persisted: Sequence[DataFrame]  # to be unpersisted in the end


@dataclass(frozen=True)
class Lister:
    bucket: ListedBucket | None
    timeout_seconds: float
    is_whole: bool  # everything below a prefix; otherwise one level, and the folders in it

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with Pool(1) as pool:
            for batch in batches:
                for prefix in decoded_column(batch, "path"):
                    yield from self._rows(prefix, pool)

    def _rows(self, prefix: str, pool: Pool) -> Iterator[pa.RecordBatch]:
        if self.is_whole:
            yield from batches_of(self._whole(prefix, pool))
        else:
            level, names = self._level(prefix, pool)
            yield from batches_of(level)
            yield from _folder_batches(f"{prefix}/{name}" for name in names)

    def _whole(self, prefix: str, pool: Pool) -> Listing:
        if self.bucket is not None:
            return list_prefixes(self.bucket, [prefix], timeout_seconds=self.timeout_seconds)
        return list_local([prefix], timeout_seconds=self.timeout_seconds, pool=pool)

    def _level(self, prefix: str, pool: Pool) -> tuple[Listing, list[str]]:
        if self.bucket is None and os.path.realpath(prefix) == prefix:
            return list_local_level(prefix, pool, timeout_seconds=self.timeout_seconds)
        if self.bucket is not None and self.bucket.key_of(f"{prefix}/") is not None:
            return list_level(self.bucket, prefix, timeout_seconds=self.timeout_seconds)
        # It cannot be listed; to list it as a whole reports why.
        return self._whole(prefix, pool), []


@dataclass(frozen=True)
class InventoryLister:
    file: Path
    base: str

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for piece in batch.column("id").to_pylist():
                for some in divide(inventory_rows(self.file, self.base, piece), ROWS_AT_ONCE):
                    yield from batches_of(Listing.of(some, roots=(self.base,)))


def list_on_spark(
    spark: SparkSession, roots: Sequence[str], bucket: ListedBucket | None, *, timeout_seconds: float
) -> StorageListing:
    tasks = spark.sparkContext.defaultParallelism * TASKS_PER_CORE
    persisted: list[DataFrame] = []
    prefixes = spark.createDataFrame([(encoded(root),) for root in roots], "path binary")
    count = len(roots)
    for level in range(LEVELS + 1):
        if count == 0:
            break
        lister = Lister(bucket, timeout_seconds, is_whole=level == LEVELS)
        found = prefixes.repartition(min(count, tasks)).mapInArrow(lister.run, LISTED)
        persisted.append(found.persist(StorageLevel.DISK_ONLY))
        prefixes = persisted[-1].where(F.col("kind") == FOLDER).select("path")
        count = prefixes.count()
    return _gathered(spark, persisted)


def inventory_on_spark(spark: SparkSession, file: Path, base: str) -> StorageListing:
    """One task per file of an export; for a single Parquet file, one per row group."""
    pieces = count_parts(file)
    frame = spark.range(0, pieces, 1, pieces).mapInArrow(InventoryLister(file, base).run, LISTED)
    frame = frame.persist(StorageLevel.DISK_ONLY)
    frame.count()
    return _gathered(spark, [frame])


def _gathered(spark: SparkSession, persisted: Sequence[DataFrame]) -> StorageListing:
    failures: list[PrefixFailure] = []
    links: list[str] = []
    files = spark.createDataFrame([], LISTED)
    for frame in persisted:
        files = files.unionByName(frame.where(F.col("kind") == FILE))
        # One row for each failed prefix and each link. They are few; a listing in this process would hold them as well.
        for row in frame.where(F.col("kind").isin(LINK, FAILED, TIMED_OUT)).select("kind", "path", "why").collect():
            path = decoded(row.path)
            if row.kind == LINK:
                links.append(path)
            else:
                failures.append(PrefixFailure(path, row.why, row.kind == TIMED_OUT))
    return StorageListing(files.drop("kind", "why"), sorted(failures, key=lambda f: f.prefix), sorted(links), persisted)


def batches_of(listing: Listing) -> Iterator[pa.RecordBatch]:
    """Everything in a listing. Column by column, because an executor may have millions of files."""
    rows = _ListedRows()
    for path, folder in listing.sorted_folders():
        for begin in range(0, len(folder.names), ROWS_AT_ONCE):
            rows.add_files(path, folder, slice(begin, begin + ROWS_AT_ONCE))
            if rows.count >= ROWS_AT_ONCE:
                yield rows.taken()
    for link in listing.links:
        rows.add(LINK, link)
    for failure in listing.failures:
        rows.add(TIMED_OUT if failure.timed_out else FAILED, failure.prefix, failure.why)
    if rows.count:
        yield rows.taken()


def _folder_batches(paths: Iterable[str]) -> Iterator[pa.RecordBatch]:
    for some in divide(paths, ROWS_AT_ONCE):
        rows = _ListedRows()
        for path in some:
            rows.add(FOLDER, path)
        yield rows.taken()


class _ListedRows:
    """Rows of `LISTED`."""

    def __init__(self) -> None:
        self._columns: tuple[list[Any], ...] = tuple([] for _ in _NAMES)

    @property
    def count(self) -> int:
        return len(self._columns[0])

    def add(self, kind: str, path: str, why: str | None = None) -> None:
        text = None if why is None else why.encode("utf-8", "backslashreplace").decode()
        for column, value in zip(self._columns, (kind, path, "", "", None, None, None, None, text), strict=True):
            column.append(value)

    def add_files(self, path: str, folder: ListedFolder, which: slice) -> None:
        names = folder.names[which]
        count = len(names)
        whole = [f"{path}/{name}" for name in names]
        summed: list[str | None] = [None] * count
        summed_keys: list[str | None] = [None] * count
        for n, name in enumerate(names):
            if (of := checksum_of(name)) is not None:
                summed[n] = f"{path}/{of}"
                summed_keys[n] = key(f"{path}/{of}")
        unknown = [None] * count
        sizes = unknown if folder.sizes is None else folder.sizes[which]
        modified_ns = unknown if folder.modified_ns is None else folder.modified_ns[which]
        columns = (
            [FILE] * count, whole, keys(whole), [key(path)] * count, summed, summed_keys, sizes, modified_ns, unknown,
        )  # fmt: skip
        for column, values in zip(self._columns, columns, strict=True):
            column.extend(values)

    def taken(self) -> pa.RecordBatch:
        """The rows that were added since the last call."""
        import pyarrow as pa

        text, number = pa.string(), pa.int64()
        kind, path, its_key, folder, summed, summed_key, size, modified_ns, why = self._columns
        names = [encoded_column(values) for values in (path, its_key, folder, summed, summed_key)]
        numbers = [pa.array(size, number), pa.array(modified_ns, number)]
        batch = pa.RecordBatch.from_arrays([pa.array(kind, text), *names, *numbers, pa.array(why, text)], names=_NAMES)
        for column in self._columns:
            column.clear()
        return batch


def divide(values: Iterable[T], count: int) -> Iterator[list[T]]:
    waiting = iter(values)
    while some := list(islice(waiting, count)):
        yield some
