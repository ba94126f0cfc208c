"""Reads what the tables reference, and leaves the content files on Spark's executors.

The driver reads metadata and manifest lists, with the same reader as always. The entries of the manifests come from
Iceberg's metadata table `all_entries`, for the same metadata file that the driver read. The number of live entries must
agree with the manifest lists, and no manifest may name a file twice. If that fails, for example because a manifest is
gone, executors read the manifests of the table one by one with our own decoder, which says which of them is at fault.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import KW_ONLY, dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from strandline.core.errors import NoSuchDataset
from strandline.iceberg.spark.java_errors import JAVA_ERRORS
from strandline.reconcile.model import Content
from strandline.reconcile.on_spark.listing import ROWS_AT_ONCE, TASKS_PER_CORE, pieces
from strandline.reconcile.on_spark.paths import decoded, decoded_column, encoded, spelled, with_keys
from strandline.reconcile.paths import key
from strandline.reconcile.references.collect import (
    LakeReferences,
    Parts,
    ReferenceReader,
    TableReferences,
    not_understood,
    references_from,
)
from strandline.reconcile.references.manifest_workers import ListedManifest, ManifestReading
from strandline.reconcile.references.real_paths import RealPaths
from strandline.reconcile.storage.pool import Pool

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table

    from strandline.iceberg.pyiceberg.catalog import PyIcebergCatalog
    from strandline.iceberg.spark.tables import SparkTables

TABLES_AT_ONCE = 50  # more would make one query plan too large
_KEYED = "table string, key binary"
_LISTED = "table string, manifest string, live bigint, length bigint"
_DECODED = "table string, manifest string, key binary, content string, why string, is_missing boolean"
_CONTENT = (
    f"CASE data_file.content WHEN 0 THEN '{Content.DATA}' WHEN 2 THEN '{Content.EQUALITY_DELETES}' "
    f"ELSE CASE WHEN upper(data_file.file_format) = 'PUFFIN' THEN '{Content.DELETION_VECTOR}' "
    f"ELSE '{Content.POSITION_DELETES}' END END AS content"
)
_IS_LIVE = "status <> 2 AS is_live"
# A hash is enough: if two differ and have the same one, the decoder reads the table, and finds nothing wrong. Spark
# calls the manifest that it reads the input file. If it ever did not, all manifests of a table would count as one.
# Deletion vectors share a file.
_NAMED_ONCE = (
    "CASE WHEN upper(data_file.file_format) <> 'PUFFIN' THEN xxhash64(input_file_name(), data_file.file_path) END "
    "AS named_once"
)


@dataclass(frozen=True)
class SparkReferences(LakeReferences):
    _: KW_ONLY
    held: Mapping[str, DataFrame]  # by table: a frame with the keys of its content, which also has other tables
    named: DataFrame  # keys that this process holds, by table
    real: DataFrame | None = None  # like `also`, for content files

    def content(self) -> DataFrame | None:
        """Table, key and content type; each once."""
        frames: dict[int, tuple[DataFrame, list[str]]] = {}
        for name, frame in self.held.items():
            frames.setdefault(id(frame), (frame, []))[1].append(name)
        found = [frame.where(F.col("table").isin(names)) for frame, names in frames.values()]
        return reduce(DataFrame.unionByName, found) if found else None

    def reached(self) -> DataFrame:
        """All keys; some of them repeatedly."""
        found = [frame.select("key") for frame in (self.content(), self.real) if frame is not None]
        return reduce(DataFrame.unionByName, found, self.named.select("key"))

    def referenced(self, paths: Iterable[str]) -> set[str]:
        wanted: dict[bytes, list[str]] = {}
        for path in paths:
            wanted.setdefault(encoded(key(path)), []).append(path)
        if not wanted:
            return set()
        reached = self.reached()
        asked = reached.sparkSession.createDataFrame([(k,) for k in wanted], "key binary")
        met = reached.join(F.broadcast(asked), "key", "left_semi").collect()  # about as many rows as paths
        return {path for row in met for path in wanted[bytes(row.key)]}


@dataclass(frozen=True)
class _Read:
    """The content of some tables."""

    counts: Mapping[str, int]
    odd: Mapping[str, str]  # by table: a key that is no path
    # table, manifest, why it cannot be read, and whether it is missing
    problems: Sequence[tuple[str, str, str, bool]] = ()


class SparkReferenceReader(ReferenceReader):
    def __init__(
        self,
        catalog: PyIcebergCatalog,
        reading: ManifestReading,
        tables: SparkTables,
        *,
        timeout_seconds: float,
        check: Callable[[], None],
        kept: list[DataFrame],
    ) -> None:
        """The caller unpersists the frames in `kept`."""
        super().__init__(catalog, reading, references_max=sys.maxsize, check=check)
        self._tables = tables
        self._spark = tables.spark
        self._timeout_seconds = timeout_seconds
        self._kept = kept
        self._held: dict[str, DataFrame] = {}

    def read(self, known: LakeReferences | None = None, *, links: Sequence[str] = ()) -> SparkReferences:
        before = known if isinstance(known, SparkReferences) else None
        self._held = {}
        found = super().read(before, links=links)
        earlier = {} if before is None else before.held
        held = {name: self._held[name] if name in self._held else earlier[name] for name in found.by_name}
        named = [(name, encoded(k)) for name, table in found.by_name.items() for k in table.keys]
        named += [("", encoded(k)) for k in found.also]
        frame = self._spark.createDataFrame(named, _KEYED)
        references = SparkReferences(found.by_name, found.unread, found.also, found.links, held=held, named=frame)
        return replace(references, real=self._real(references))

    def _read_manifests(self, tables: Mapping[str, Table]) -> dict[str, TableReferences]:
        parts = self._read_lists(tables)
        counts: dict[str, int] = {}
        odd: dict[str, str] = {}
        for some in pieces(sorted(tables), TABLES_AT_ONCE):
            for read in self._contents({name: tables[name] for name in some}, parts):
                for name, path, why, is_missing in read.problems:
                    parts[name].lacks(path, why, Content.MANIFEST if is_missing else None)
                counts |= read.counts
                odd |= read.odd
        found: dict[str, TableReferences] = {}
        for name, table in tables.items():
            one = references_from(name, table, parts[name], damage=self.damage_of(table))
            problem = one.problem or (not_understood([odd[name]]) if name in odd else None)
            found[name] = replace(one, apart=counts.get(name, 0), problem=problem)
        return found

    def _contents(self, tables: Mapping[str, Table], parts: Mapping[str, Parts]) -> Iterator[_Read]:
        """The content of all tables: some from metadata tables, the rest through the decoder."""
        manifests = {name: {m.path: m for m in parts[name].listed()} for name in tables}
        whole = [name for name in tables if parts[name].problem is None]
        self._check()
        right = self._from_metadata_tables(whole, tables, manifests)
        if right is not None:
            yield right
        left = [name for name in tables if right is None or name not in right.counts]
        if left:
            self._check()
            ios = {name: tables[name].io for name in left}
            yield self._decoded({name: manifests[name] for name in left}, ios)

    def _from_metadata_tables(
        self, names: Sequence[str], tables: Mapping[str, Table], manifests: Mapping[str, Mapping[str, ListedManifest]]
    ) -> _Read | None:
        """The tables whose number of entries agrees with their manifest lists, and of which no manifest names a file
        twice; None if the query fails."""
        if not names:
            return None
        raw: DataFrame | None = None
        try:
            frames = [self._all_entries(name, tables[name].metadata_location) for name in names]
            raw = spelled(reduce(DataFrame.unionByName, frames)).persist(StorageLevel.DISK_ONLY)
            totals = raw.groupBy("table").agg(
                F.count(F.when(F.col("is_live"), F.col("path"))).alias("entries"),
                F.every("is_plain").alias("are_plain"),
                (F.count("named_once") > F.countDistinct("named_once")).alias("repeats"),
            )
            found = {row.table: row for row in totals.collect()}
            right = [
                name
                for name in names
                if _expected(manifests[name].values()) == (found[name].entries if name in found else 0)
                and not (name in found and found[name].repeats)
            ]
            if not right:
                return None
            all_plain = all(row.are_plain for row in found.values())
            live = raw.where(F.col("is_live") & F.col("table").isin(right)).drop("is_live", "named_once")
            return self._hold(right, with_keys(live, all_plain=all_plain))
        except (*JAVA_ERRORS, NoSuchDataset):
            return None  # One of the tables is at fault; reading them one by one shows which, and why.
        finally:
            if raw is not None:
                raw.unpersist()

    def _all_entries(self, name: str, metadata_location: str) -> DataFrame:
        """Deleted entries are checked, too, as in `manifests.live_files`."""
        found = self._tables.java.all_entries(self._tables.load(name), name, metadata_location)
        table, path = F.lit(name).alias("table"), F.col("data_file.file_path").alias("path")
        return found.select(table, path, *map(F.expr, (_CONTENT, _IS_LIVE, _NAMED_ONCE)))

    def _decoded(self, manifests: Mapping[str, Mapping[str, ListedManifest]], ios: Mapping[str, FileIO]) -> _Read:
        raw = self.decode(manifests, ios).persist(StorageLevel.DISK_ONLY)
        try:
            troubled = raw.where("why IS NOT NULL").select("table", "manifest", "why", "is_missing")
            problems = [(r.table, r.manifest, r.why, r.is_missing) for r in troubled.collect()]  # one row per manifest
            held = self._hold(list(manifests), raw.where(_readable({name for name, _, _, _ in problems})))
        finally:
            raw.unpersist()
        return replace(held, problems=sorted(problems))

    def decode(self, manifests: Mapping[str, Mapping[str, ListedManifest]], ios: Mapping[str, FileIO]) -> DataFrame:
        """One row for each live entry, with its manifest, and one for each manifest that cannot be read."""
        listed = [(name, m) for name in sorted(manifests) for _, m in sorted(manifests[name].items())]
        rows = [(name, m.path, m.live, m.length) for name, m in listed]
        tasks = max(1, min(len(rows), self._spark.sparkContext.defaultParallelism * TASKS_PER_CORE))
        frame = self._spark.createDataFrame(rows, _LISTED).repartition(tasks)
        return frame.mapInArrow(_Decoding(dict(ios), self._timeout_seconds).run, _DECODED)

    def _hold(self, names: Sequence[str], rows: DataFrame) -> _Read:
        frame = rows.groupBy("table", "key").agg(F.max("content").alias("content")).persist(StorageLevel.DISK_ONLY)
        self._kept.append(frame)
        text = F.col("key").cast("string")
        odd = F.min(F.when(~text.startswith("/") & ~text.startswith("s3://"), F.col("key")))
        # one row per table
        totals = frame.groupBy("table").agg(F.count("key").alias("count"), odd.alias("odd")).collect()
        self._held |= dict.fromkeys(names, frame)
        counts = dict.fromkeys(names, 0) | {row.table: row["count"] for row in totals}
        return _Read(counts, {row.table: decoded(row.odd) for row in totals if row.odd is not None})

    def _real(self, references: SparkReferences) -> DataFrame | None:
        content = references.content()
        folders = sorted({folder for table in references.by_name.values() for folder in table.folders})
        local = [folder for folder in folders if folder.startswith("/")]
        if content is None or not (local or references.links):
            return None
        real = RealPaths(folders, references.links)
        if not references.links:
            text = F.col("key").cast("string")
            content = content.where(~reduce(lambda a, b: a | b, map(text.startswith, real.plain), F.lit(False)))
        found = content.select("key").mapInArrow(_Following(tuple(folders), tuple(references.links)).run, "key binary")
        found = found.persist(StorageLevel.DISK_ONLY)
        self._kept.append(found)
        return found


@dataclass(frozen=True)
class _Decoding:
    ios: Mapping[str, FileIO]
    timeout_seconds: float

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with Pool(1) as pool:
            reading = ManifestReading(pool, timeout_seconds=self.timeout_seconds)
            for batch in batches:
                for row in batch.to_pylist():
                    listed = ListedManifest(row["manifest"], row["live"], None, None, row["length"])
                    yield from self._rows(row["table"], listed, reading)

    def _rows(self, name: str, listed: ListedManifest, reading: ManifestReading) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        found = reading.read_manifests([listed], {listed.path: self.ios[name]})[listed.path]
        rows: list[tuple[bytes | None, str | None, str | None, bool | None]]
        if found.problem is not None:
            rows = [(None, None, found.problem, found.is_missing)]
        else:
            rows = [(encoded(k), Content.DATA.value, None, None) for k in found.data]
            rows += [(encoded(k), content.value, None, None) for k, content in found.others.items()]
        types = (pa.binary(), pa.string(), pa.string(), pa.bool_())
        for some in pieces(rows, ROWS_AT_ONCE):
            columns = [pa.array(c, kind) for c, kind in zip(zip(*some, strict=True), types, strict=True)]
            of = [pa.array([value] * len(some), pa.string()) for value in (name, listed.path)]
            yield pa.RecordBatch.from_arrays([*of, *columns], names=[f.split()[0] for f in _DECODED.split(", ")])


@dataclass(frozen=True)
class _Following:
    folders: tuple[str, ...]
    links: tuple[str, ...]

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        real = RealPaths(self.folders, self.links)
        for batch in batches:
            found = real.also([decoded_column(batch, "key")])
            yield pa.RecordBatch.from_arrays(
                [pa.array([encoded(k) for k in sorted(found)], pa.binary())], names=["key"]
            )


def _readable(troubled: Set[str]) -> Column:
    """Selects the rows of entries. Spark recomputes what it loses: a manifest that was readable before and is not any
    more raises an error, because otherwise the table would seem to have fewer references. For `troubled` tables that is
    known already."""
    lost = F.raise_error(F.concat(F.lit("cannot be read again: "), "manifest", F.lit(": "), "why")).cast("boolean")
    is_entry = F.when(F.col("why").isNull(), True)
    return is_entry.when(F.col("table").isin(sorted(troubled)), False).otherwise(lost)


def _expected(manifests: Iterable[ListedManifest]) -> int | None:
    counts = [manifest.live for manifest in manifests]
    return None if None in counts else sum(count for count in counts if count is not None)
