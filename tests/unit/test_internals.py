"""What PySpark, Py4J and PyIceberg keep to themselves, and we use, is still there. If one of these fails after an
upgrade, mend the module that it names; nothing else reaches for it."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

from strandline.iceberg.pyiceberg import internals
from strandline.ledger.engine import Ledger

SOURCES = Path(internals.__file__).parents[2]
SPARK = "iceberg/session/spark_internals.py"
PYICEBERG = "iceberg/pyiceberg/internals.py"
JAVA = "iceberg/spark/java.py"
OF_CONTEXT = ("_active_spark_context", "_gateway", "_jvm")
OF_SESSION = ("_instantiatedSession", "_activeSession")
OF_SPARK = {"_jsc", "_jdf", "_jsparkSession", "_gateway_client", "_origin", *OF_CONTEXT, *OF_SESSION}


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


def test_pyiceberg_still_reads_delete_files_and_makes_the_session_of_a_rest_catalog() -> None:
    from pyiceberg.catalog.rest import RestCatalog
    from pyiceberg.io import pyarrow

    read = getattr(pyarrow, "_read_all_delete_files", None)
    assert read is not None, f"PyIceberg has no _read_all_delete_files any more: mend {PYICEBERG}"
    assert list(inspect.signature(read).parameters) == ["io", "tasks"], f"it takes something else: mend {PYICEBERG}"
    assert hasattr(RestCatalog, "_create_session"), f"PyIceberg's RestCatalog has no _create_session: mend {PYICEBERG}"


def test_only_the_module_of_a_library_reaches_for_what_it_keeps_to_itself() -> None:
    for path in sorted(SOURCES.rglob("*.py")):
        name = path.relative_to(SOURCES).as_posix()
        if name in (SPARK, PYICEBERG, JAVA):
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr == "apache":
                raise AssertionError(f"{name}:{node.lineno} names a Java class: that belongs in {JAVA}")
            if isinstance(node, ast.Attribute) and node.attr in OF_SPARK:
                own = isinstance(node.value, ast.Name) and node.value.id == "self"
                assert own, f"{name}:{node.lineno} uses {node.attr} of Spark: that belongs in {SPARK}"
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pyiceberg"):
                private = [a.name for a in node.names if a.name.startswith("_")]
                assert not private, f"{name}:{node.lineno} imports {private} of PyIceberg: that belongs in {PYICEBERG}"


IDLE = ("cli.commands.daemon", "cli.commands.follow", "cli.commands.promote", "replicate.facade", "replicate.follower",
        "replicate.leader", "replicate.lease", "replicate.promote", "serve.api.replication")  # fmt: skip
"""What runs also where there is nothing to apply."""


def test_a_site_with_nothing_to_apply_loads_no_spark() -> None:
    imports = "".join(f"import strandline.{name}\n" for name in IDLE)
    loaded = "print(sorted({'pyspark', 'py4j'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", f"import sys\n{imports}{loaded}"], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


TRANSACTIONS = ("read", "read_at_once", "query", "change", "write")


def test_every_way_to_a_transaction_of_the_ledger_is_known() -> None:
    own = [name for name, value in vars(Ledger).items() if callable(value) and not name.startswith("_")]
    assert set(own) - {*TRANSACTIONS, "exists", "revision", "create", "open", "backup", "close"} == set()


def test_the_command_line_opens_no_transaction() -> None:
    for path in sorted((SOURCES / "cli").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in TRANSACTIONS:
                name = getattr(node.value, "attr", getattr(node.value, "id", None))
                where = f"{path.name}:{node.lineno}"
                assert name != "ledger", f"{where}: a command asks the lake or status/, which opens the transaction"
