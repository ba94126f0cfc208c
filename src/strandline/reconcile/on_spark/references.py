"""Reads what the tables reference, and leaves the content files on Spark's executors.

The driver reads metadata and manifest lists, and executors read the manifests, both with the same reader as always.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import KW_ONLY, dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from strandline.reconcile.model import FileContent
from strandline.reconcile.on_spark.listing import ROWS_AT_ONCE, TASKS_PER_CORE, divide
from strandline.reconcile.on_spark.paths import decoded, decoded_column, encoded
from strandline.reconcile.paths import key
from strandline.reconcile.references.collect import (
    LakeReferences,
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

_KEYED = "table string, key binary"
_LISTED = "table string, manifest string, live bigint, length bigint"
_DECODED = "table string, manifest string, key binary, content string, why string, is_missing boolean"


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


class SparkReferenceReader(ReferenceReader):
    def __init__(
        self,
        catalog: PyIcebergCatalog,
        reading: ManifestReading,
        spark: SparkSession,
        persisted: list[DataFrame],
    ) -> None:
        """The caller unpersists the frames in `persisted`."""
        super().__init__(catalog, reading, references_max=sys.maxsize)
        self._spark = spark
        self._persisted = persisted
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
        if not tables:
            return {}
        parts = self._read_lists(tables)
        self._check()
        manifests = {name: {m.path: m for m in parts[name].listed()} for name in tables}
        ios = {name: table.io for name, table in tables.items()}
        raw = decode(self._spark, manifests, ios, timeout_seconds=self._reading.timeout_seconds)
        raw.persist(StorageLevel.DISK_ONLY)
        try:
            problems = raw.where("why IS NOT NULL").select("table", "manifest", "why", "is_missing").collect()
            for row in sorted(problems):  # one row per manifest
                parts[row.table].lacks(row.manifest, row.why, FileContent.MANIFEST if row.is_missing else None)
            totals = self._hold(list(tables), raw.where(_readable({row.table for row in problems})))
        finally:
            raw.unpersist()
        found: dict[str, TableReferences] = {}
        for name, table in tables.items():
            one = references_from(name, table, parts[name], damage=self.damage_of(table))
            count, odd = totals.get(name, (0, None))
            problem = one.problem or (None if odd is None else not_understood([odd]))
            found[name] = replace(one, apart=count, problem=problem)
        return found

    def _hold(self, names: Sequence[str], rows: DataFrame) -> dict[str, tuple[int, str | None]]:
        """By table: the number of its keys, and a key that is no path, if there is one."""
        frame = rows.groupBy("table", "key").agg(F.max("content").alias("content")).persist(StorageLevel.DISK_ONLY)
        self._persisted.append(frame)
        self._held |= dict.fromkeys(names, frame)
        text = F.col("key").cast("string")
        odd = F.min(F.when(~text.startswith("/") & ~text.startswith("s3://"), F.col("key")))
        # one row per table
        totals = frame.groupBy("table").agg(F.count("key").alias("count"), odd.alias("odd")).collect()
        return {row.table: (row["count"], None if row.odd is None else decoded(row.odd)) for row in totals}

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
        self._persisted.append(found)
        return found


def decode(
    spark: SparkSession,
    manifests: Mapping[str, Mapping[str, ListedManifest]],
    ios: Mapping[str, FileIO],
    *,
    timeout_seconds: float,
) -> DataFrame:
    """One row for each live entry, with its manifest, and one for each manifest that cannot be read."""
    listed = [(name, m) for name in sorted(manifests) for _, m in sorted(manifests[name].items())]
    rows = [(name, m.path, m.live, m.length) for name, m in listed]
    tasks = max(1, min(len(rows), spark.sparkContext.defaultParallelism * TASKS_PER_CORE))
    frame = spark.createDataFrame(rows, _LISTED).repartition(tasks)
    return frame.mapInArrow(_Decoding(dict(ios), timeout_seconds).run, _DECODED)


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
            rows = [(encoded(k), FileContent.DATA.value, None, None) for k in found.data]
            rows += [(encoded(k), content.value, None, None) for k, content in found.others.items()]
        types = (pa.binary(), pa.string(), pa.string(), pa.bool_())
        for some in divide(rows, ROWS_AT_ONCE):
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
            yield pa.record_batch({"key": pa.array([encoded(k) for k in sorted(found)], pa.binary())})


def _readable(troubled: Set[str]) -> Column:
    """Selects the rows of entries. Spark recomputes what it loses: a manifest that has become unreadable raises an
    error, because the table would seem to have fewer references. For `troubled` tables that is known already."""
    lost = F.raise_error(F.concat(F.lit("cannot be read again: "), "manifest", F.lit(": "), "why")).cast("boolean")
    is_entry = F.when(F.col("why").isNull(), True)
    return is_entry.when(F.col("table").isin(sorted(troubled)), False).otherwise(lost)
