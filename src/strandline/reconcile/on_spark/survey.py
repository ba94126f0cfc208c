"""The same survey on Spark, for lakes that do not fit into one process.

Executors list storage and read manifests, and Spark compares both. The driver sees prefixes, counts and differences.
From there on everything works as without Spark: the same guards, the same checks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from strandline.iceberg.session.job_watch import cancel_when_called_off, watched
from strandline.iceberg.session.lake_session import open_session
from strandline.iceberg.session.spark_internals import PUSHED_THROUGH_UNIONS
from strandline.iceberg.spark.java_errors import JAVA_ERRORS, explaining
from strandline.reconcile.compare.compared import DriftComparison, Survey
from strandline.reconcile.compare.findings import Spill
from strandline.reconcile.compare.places import Places, Unclaimed
from strandline.reconcile.model import LedgerContext, Phase, PrefixFailure, Watch
from strandline.reconcile.on_spark.compare import Comparing
from strandline.reconcile.on_spark.listing import (
    LISTED,
    TASKS_PER_CORE,
    StorageListing,
    batches_of,
    inventory_on_spark,
    list_on_spark,
)
from strandline.reconcile.on_spark.paths import decoded, decoded_column, encoded
from strandline.reconcile.on_spark.references import SparkReferenceReader, SparkReferences, decode
from strandline.reconcile.references.collect import LakeReferences
from strandline.reconcile.references.manifest_workers import ManifestReading
from strandline.reconcile.storage.listing import Listing
from strandline.reconcile.storage.pool import Pool
from strandline.reconcile.survey import KnownFolders, LakeSurveyor

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_PER_PARTITION = 500_000
_FAILED = "comparing on Spark failed"
_EXCLUDED_RULES = "spark.sql.optimizer.excludedRules"


class SparkSurveyor:
    def __init__(self, light: LakeSurveyor) -> None:
        self._light = light
        # A session of its own, because its number of partitions must not affect what else the lake does.
        self._spark = open_session(light.config)
        # Files and references are unions. With this rule, Spark would join each part of one with each part of the
        # other, and shuffle everything again for each of them.
        rules = self._spark.conf.get(_EXCLUDED_RULES, "") or ""
        self._spark.conf.set(_EXCLUDED_RULES, ",".join(filter(None, (rules, PUSHED_THROUGH_UNIONS))))
        self._persisted: list[DataFrame] = []
        self._expect(0)

    def _expect(self, rows: int) -> None:
        least = self._spark.sparkContext.defaultParallelism * TASKS_PER_CORE
        self._spark.conf.set("spark.sql.shuffle.partitions", str(max(least, rows // ROWS_PER_PARTITION)))

    def survey(self, ledger_context: LedgerContext, watch: Watch) -> Survey:
        light = self._light
        cancel_when_called_off(self._spark)
        with explaining(_FAILED, JAVA_ERRORS), watched(self._spark, watch.check):
            watch.phase(Phase.LIST)
            known = light.known()
            planned, listing = self._list(known, watch)
            failures: list[PrefixFailure] = [*listing.failures, *planned.failures]
            watch.phase(Phase.REFERENCES)
            references = self._read(None, watch, links=[*listing.links, *planned.links])
            watch.phase(Phase.COMPARE)
            files = self._with(listing.files, planned)
            comparing = Comparing(files, references, planned.roots, failures, self._persisted)
            difference = comparing.difference()
            sought = comparing.sought(difference.listed, lambda names: self._manifests(names, references))
            places = known.places(references)
            if light.inventory_file is not None:
                places = self._bounded(places, known, listing.files, failures)
            context = light.compare_context(watch)
            compared = DriftComparison(
                light.warehouse, failures, difference, references, ledger_context, context, places
            )
            return compared.survey(sought, Spill)

    def references(self, known: LakeReferences | None, watch: Watch) -> SparkReferences:
        """The present references."""
        cancel_when_called_off(self._spark)
        with explaining(_FAILED, JAVA_ERRORS), watched(self._spark, watch.check):
            return self._read(known, watch)

    def close(self) -> None:
        """Unpersists what executors keep."""
        for frame in self._persisted:
            frame.unpersist()
        self._persisted.clear()

    def _bounded(self, places: Places, known: KnownFolders, files: DataFrame, failures: list[PrefixFailure]) -> Places:
        unclaimed = self._light.unclaimed(known)
        most = max(self._light.config.settings.reconcile.unknown_roots_max, 0)
        found = files.select("folder").distinct().mapInArrow(_Rooting(unclaimed).run, "root binary").distinct()
        roots = [decoded(row.root) for row in found.orderBy("root").limit(most + 1).collect()]
        newest_ns = files.agg(F.max("modified_ns").alias("newest")).collect()[0].newest or 0
        return self._light.bounded(places, unclaimed, roots, newest_ns, failures)

    def _list(self, known: KnownFolders, watch: Watch) -> tuple[Listing, StorageListing]:
        """Also returns what was found beside the roots."""
        light = self._light
        if light.inventory_file is not None:
            planned = Listing((light.warehouse,))
            listing = inventory_on_spark(self._spark, light.inventory_file, light.warehouse.rstrip("/"))
        else:
            self._expect(known.expected)
            with Pool() as pool:
                planned = light.plan_listing(known, pool, watch)
            watch.check()
            seconds = light.config.settings.reconcile.prefix_timeout_seconds
            listing = list_on_spark(self._spark, planned.roots, light.bucket, timeout_seconds=seconds)
        self._persisted += listing.persisted
        return planned, listing

    def _with(self, files: DataFrame, planned: Listing) -> DataFrame:
        """Adds the files in folders above the tables' folders, which are few."""
        import pyarrow as pa

        batches = list(batches_of(Listing((), folders=planned.folders)))
        if not batches:
            return files
        rows = self._spark.createDataFrame(pa.Table.from_batches(batches), LISTED)
        return files.unionByName(rows.drop("kind", "why"))

    def _read(self, known: LakeReferences | None, watch: Watch, links: Sequence[str] = ()) -> SparkReferences:
        seconds = self._light.config.settings.reconcile.prefix_timeout_seconds
        with Pool() as pool:
            reading = ManifestReading(pool, timeout_seconds=seconds, check=watch.check)
            reader = SparkReferenceReader(self._light.catalog, reading, self._spark, self._persisted)
            return reader.read(known, links=links)

    def _manifests(self, names: Sequence[str], references: SparkReferences) -> DataFrame:
        """The manifest of each entry of these tables, which the references do not keep."""
        manifests = {
            name: {path: place.listed for path, place in references.by_name[name].listed.items()} for name in names
        }
        ios = {name: self._light.catalog.load(name).io for name in names}
        seconds = self._light.config.settings.reconcile.prefix_timeout_seconds
        found = decode(self._spark, manifests, ios, timeout_seconds=seconds)
        return found.where("why IS NULL").select("table", "manifest", "key")


@dataclass(frozen=True)
class _Rooting:
    unclaimed: Unclaimed

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            roots = {self.unclaimed.root_of(folder) for folder in decoded_column(batch, "folder")}
            found = [encoded(root) for root in roots if root is not None]
            yield pa.RecordBatch.from_arrays([pa.array(found, pa.binary())], names=["root"])
