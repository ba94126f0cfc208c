"""The classes of Spark's and Iceberg's Java side that we use are still there. If one of these fails after an upgrade,
mend the module that it names; nothing else calls them."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.iceberg.session.spark_internals import NARROW, PUSHED_THROUGH_UNIONS, has_class, jvm_of
from strandline.iceberg.spark import java

OF_ICEBERG = {
    "org.apache.iceberg.BaseTable": ("operations",),
    "org.apache.iceberg.MetadataTableType": ("ALL_FILES",),
    "org.apache.iceberg.StaticTableOperations": (),
    "org.apache.iceberg.TableMetadata": ("metadataFileLocation",),
    "org.apache.iceberg.TableMetadataParser": ("read", "toJson"),
    "org.apache.iceberg.TableOperations": ("commit", "current"),
    "org.apache.iceberg.catalog.Namespace": ("empty",),
    "org.apache.iceberg.expressions.Expressions": ("and", "greaterThanOrEqual", "isNull", "lessThanOrEqual"),
    "org.apache.iceberg.spark.FileRewriteCoordinator": ("clearRewrite", "fetchNewFiles", "get"),
    "org.apache.iceberg.spark.ScanTaskSetManager": ("get", "removeTasks", "stageTasks"),
    "org.apache.iceberg.spark.Spark3Util": ("loadIcebergTable",),
    "org.apache.iceberg.spark.SparkCatalog": ("icebergCatalog",),
    "org.apache.iceberg.spark.SparkTableCache": ("add", "get", "remove"),
    "org.apache.iceberg.spark.SparkTableUtil": ("loadMetadataTable",),
    "org.apache.iceberg.spark.actions.SparkActions": (
        "expireSnapshots",
        "get",
        "removeDanglingDeleteFiles",
        "rewriteManifests",
    ),
    "org.apache.iceberg.types.Conversions": ("fromByteBuffer",),
    "org.apache.iceberg.types.Types$LongType": ("get",),
    "org.apache.iceberg.types.Types$StringType": ("get",),
    "org.apache.iceberg.util.ContentFileUtil": ("isFileScoped",),
    "org.apache.iceberg.util.JsonUtil": ("factory",),
}
OF_SPARK = {
    "org.apache.spark.SparkStatusTracker": ("getJobIdsForTag",),
    "org.apache.spark.SparkThrowable": ("getCondition",),
    "org.apache.spark.sql.SparkSession": ("setActiveSession",),
    "org.apache.spark.sql.catalyst.analysis.NoSuchTableException": (),
    "org.apache.spark.sql.catalyst.optimizer.SpecialDatetimeValues": ("apply",),
    "org.apache.spark.sql.catalyst.trees.TreePattern": ("CURRENT_LIKE", "PLAN_EXPRESSION"),
    **dict.fromkeys((*NARROW, PUSHED_THROUGH_UNIONS), ()),
    "org.apache.spark.sql.classic.Dataset": ("ofRows",),
    "org.apache.spark.sql.classic.SparkSession": ("internalCreateDataFrame", "sessionState"),
    "org.apache.spark.sql.connector.catalog.CatalogManager": ("catalog",),
    "org.apache.spark.sql.execution.QueryExecution": ("analyzed", "executedPlan", "toRdd"),
    "org.apache.spark.sql.internal.SessionState": ("catalogManager", "sqlParser"),
}
ERRORS = java.NO_SUCH_TABLE | java.NOT_LANDED | java.LOST_OR_UNKNOWN | java.REST_UNREACHABLE | java.REST_DENIED


@pytest.fixture(scope="module")
def jvm(spark_started: Any) -> Any:
    from pyspark import SparkContext

    return jvm_of(SparkContext.getOrCreate())


@pytest.mark.parametrize(
    ("name", "used", "home"),
    [
        *((name, used, "iceberg/spark/java.py") for name, used in OF_ICEBERG.items()),
        *((name, used, "iceberg/session/spark_internals.py") for name, used in sorted(OF_SPARK.items())),
    ],
)
def test_a_java_class_still_has_what_we_call(jvm: Any, name: str, used: tuple[str, ...], home: str) -> None:
    from pyspark import SparkContext

    assert has_class(SparkContext.getOrCreate(), name), f"there is no class {name} any more: mend {home}"
    found = jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
    has = {m.getName() for m in (*found.getMethods(), *found.getDeclaredMethods(), *found.getFields())}
    for method in used:
        assert method in has, f"{name} has no {method} any more: mend {home}"


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_an_error_of_iceberg_still_has_a_class_of_its_own(jvm: Any, name: str) -> None:
    from pyspark import SparkContext

    assert has_class(SparkContext.getOrCreate(), name), f"Iceberg has no {name} any more: mend iceberg/spark/java.py"
