"""What PySpark, Py4J and PyIceberg keep to themselves, and we use, is still there. If one of these fails after an
upgrade, mend the module that it names; nothing else reaches for it."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys

from strandline.iceberg.pyiceberg import internals

SPARK = "iceberg/session/spark_internals.py"
PYICEBERG = "iceberg/pyiceberg/internals.py"
OF_CONTEXT = ("_active_spark_context", "_gateway", "_jvm")
OF_SESSION = ("_instantiatedSession", "_activeSession")


def test_pyspark_still_has_what_starts_and_ends_its_jvm() -> None:
    from py4j.java_gateway import JavaPackage
    from pyspark import SparkContext, find_spark_home, java_gateway
    from pyspark.sql import SparkSession

    for owner, names in (
        (SparkContext, OF_CONTEXT),
        (SparkSession, OF_SESSION),
    ):
        for name in names:
            assert hasattr(owner, name), f"PySpark's {owner.__name__} has no {name} any more: mend {SPARK}"
    for module in (find_spark_home, java_gateway):
        assert hasattr(module, "os"), f"{module.__name__} does not ask `os` for its environment any more: mend {SPARK}"
    takes = list(inspect.signature(JavaPackage.__init__).parameters)[1:4]
    assert takes == ["fqn", "gateway_client", "jvm_id"], f"Py4J's JavaPackage is made of {takes} now: mend {SPARK}"


def test_pyspark_still_names_the_jvm_behind_a_session_and_a_frame() -> None:
    from pyspark.errors.exceptions.captured import CapturedException
    from pyspark.sql.classic.dataframe import DataFrame
    from pyspark.sql.session import SparkSession

    for owner, name in ((SparkSession, "_jsparkSession"), (SparkSession, "_jvm"), (DataFrame, "_jdf")):
        assert name in inspect.getsource(owner.__init__), f"PySpark's {owner.__name__} has no {name}: mend {SPARK}"
    for name in ("_origin", "_cause"):
        found = name in inspect.getsource(CapturedException.__init__)
        assert found, f"PySpark's errors do not name their Java exception as {name} any more: mend {SPARK}"


def test_pyspark_still_prints_failed_queries_through_the_loggers_that_we_switch_off() -> None:
    import pyspark.errors.exceptions.base as errors

    printing = re.findall(r'PySparkLogger.getLogger\("(\w+)"\)', inspect.getsource(errors))
    assert sorted(printing) == ["DataFrameQueryContextLogger", "SQLQueryContextLogger"], "see print_no_query_errors"


def test_pyiceberg_still_lets_us_remove_files_and_read_damaged_avro() -> None:
    from pyiceberg.avro.file import AvroFile
    from pyiceberg.table import Transaction
    from pyiceberg.table.update import snapshot

    overwrite = getattr(snapshot, "_OverwriteFiles", None)
    assert overwrite is not None and hasattr(overwrite, "_commit"), (
        f"PyIceberg has no _OverwriteFiles: mend {PYICEBERG}"
    )
    kept = "_snapshot_producers" in inspect.getsource(Transaction)
    assert kept, f"PyIceberg's transactions do not keep what they wrote as _snapshot_producers: mend {PYICEBERG}"
    for name in ("_read_header", "_read_block"):
        assert hasattr(AvroFile, name), f"PyIceberg's AvroFile has no {name} any more: mend {PYICEBERG}"
    assert internals.compiled_decoder() is not None, f"PyIceberg has no compiled Avro decoder: mend {PYICEBERG}"


def test_pyiceberg_still_gives_rows_of_a_file_the_columns_of_the_table() -> None:
    from pyiceberg.io import pyarrow

    found = getattr(pyarrow, "_to_requested_schema", None)
    assert found is not None, f"PyIceberg has no _to_requested_schema any more: mend {PYICEBERG}"
    takes = list(inspect.signature(found).parameters)[:4]
    wanted = ["requested_schema", "file_schema", "batch", "downcast_ns_timestamp_to_us"]
    assert takes == wanted, f"PyIceberg's _to_requested_schema takes {takes} now: mend {PYICEBERG}"


def test_pyiceberg_still_reads_delete_files_judges_files_by_bounds_and_makes_the_session_of_a_rest_catalog() -> None:
    from pyiceberg.catalog.rest import RestCatalog
    from pyiceberg.expressions import visitors
    from pyiceberg.io import pyarrow

    read = getattr(pyarrow, "_read_all_delete_files", None)
    assert read is not None, f"PyIceberg has no _read_all_delete_files any more: mend {PYICEBERG}"
    assert list(inspect.signature(read).parameters) == ["io", "tasks"], f"it takes something else: mend {PYICEBERG}"
    evaluator = hasattr(visitors, "_InclusiveMetricsEvaluator")
    assert evaluator, f"PyIceberg has no _InclusiveMetricsEvaluator, which judges files by bounds: mend {PYICEBERG}"
    assert hasattr(RestCatalog, "_create_session"), f"PyIceberg's RestCatalog has no _create_session: mend {PYICEBERG}"


IDLE = (
    "cli.commands.daemon",
    "cli.commands.follow",
    "cli.commands.promote",
    "replicate.facade",
    "replicate.follow.follower",
    "replicate.lead.leader",
    "replicate.lead.lease",
    "replicate.take_over.promote",
    "serve.api.replication",
)
"""What runs also where there is nothing to apply."""


def test_a_site_with_nothing_to_apply_loads_no_spark() -> None:
    imports = "".join(f"import strandline.{name}\n" for name in IDLE)
    loaded = "print(sorted({'pyspark', 'py4j'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", f"import sys\n{imports}{loaded}"], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")
