"""What Spark loses of the references it reads again: they never become fewer by it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame

from strandline.iceberg.session.lake_session import open_session
from strandline.iceberg.spark.java_errors import JAVA_ERRORS
from strandline.reconcile.model import Protection
from strandline.reconcile.on_spark.references import SparkReferenceReader, _readable
from strandline.reconcile.on_spark.survey import SparkSurveyor
from strandline.reconcile.references.manifest_workers import ManifestReading
from strandline.reconcile.storage.pool import Pool
from tests.reconcile.conftest import SomeLake, Watching, acted_on, by_path
from tests.reconcile.test_places import inventory, nested


@pytest.fixture
def some_lake(tmp_path: Path) -> Iterator[SomeLake]:
    lake = SomeLake(tmp_path / "lake")
    yield lake
    lake.catalog.close()


def test_a_manifest_that_cannot_be_read_the_second_time_is_an_error_and_not_fewer_references(
    some_lake: SomeLake,
) -> None:
    some_lake.create()
    some_lake.append()
    table = some_lake.append()
    spark, kept = open_session(some_lake.config), list[DataFrame]()
    with Pool() as pool:
        reading = ManifestReading(pool, timeout_seconds=60)
        references = SparkReferenceReader(some_lake.catalog, reading, spark, kept).read()
    held = references.held["ns.t"]
    assert not references.unread and held.count() == 2
    snapshot = table.current_snapshot()
    assert snapshot is not None
    Path(snapshot.manifests(table.io)[0].manifest_path.removeprefix("file://")).unlink()
    for frame in kept:
        frame.unpersist(blocking=True)  # as if the executors that had it were gone
    with pytest.raises(JAVA_ERRORS):
        held.count()


def test_of_a_table_in_trouble_what_can_be_read_is_held(some_lake: SomeLake) -> None:
    spark = open_session(some_lake.config)
    rows = [("bad", "m1", "why"), ("bad", "m2", None), ("good", "m3", None)]
    frame = spark.createDataFrame(rows, "table string, manifest string, why string")
    assert sorted(row.manifest for row in frame.where(_readable({"bad"})).collect()) == ["m2", "m3"]
    with pytest.raises(JAVA_ERRORS):
        frame.where(_readable(set())).collect()


def test_strangers_bounds_and_other_names_are_seen_on_spark_as_well(tmp_path: Path) -> None:
    lake = SomeLake(tmp_path / "lake", unknown_roots_max=2)  # one is the folder of a table that was dropped
    lake.create()
    lake.append()
    lake.create("ns.other")
    lake.append("ns.other")
    inner = nested(lake)
    Path(inner.metadata_location.removeprefix("file://")).write_text("{")
    stray, other = lake.put("ns/t/data/stray.parquet"), lake.put("ns/other/data/stray.parquet")
    unknown = [lake.put(f"ns/{name}/data/x.parquet") for name in ("x", "y")]
    listed = inventory(lake, tmp_path / "inventory.parquet")
    for options in ({}, {"inventory_file": listed}):
        surveyor = SparkSurveyor(lake.surveyor(**options))
        survey = surveyor.survey(lake.context(seals={}), Watching())
        found = by_path(survey.drift.orphans())
        assert found[stray].protected is Protection.OVERLAP and acted_on(iter(found.values())) == [other]
        assert sum(path in found for path in unknown) in (1, 2)  # whose turn it is depends on the day
        assert any("more than 2 folders" in failure.why for failure in survey.failures)
        surveyor.close()
    lake.catalog.close()
