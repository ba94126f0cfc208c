"""The only module that names Iceberg's Java classes. They are called through Spark's JVM.

`tests/spark/test_internals.py` fails with a plain sentence if an upgrade of Iceberg removes one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from strandline.iceberg.session.spark_internals import java_session, jvm_of, session_catalog, set_active

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EXCEPTIONS = "org.apache.iceberg.exceptions"
COMMIT_FAILED = f"{_EXCEPTIONS}.CommitFailedException"
COMMIT_UNKNOWN = f"{_EXCEPTIONS}.CommitStateUnknownException"
NO_SUCH_TABLE = frozenset({f"{_EXCEPTIONS}.NoSuchTableException", f"{_EXCEPTIONS}.NoSuchIcebergTableException"})
REFUSED = f"{_EXCEPTIONS}.ValidationException"  # the table has changed since the commit was planned
NOT_LANDED = frozenset({COMMIT_FAILED, REFUSED})
LOST_OR_UNKNOWN = frozenset(
    {
        COMMIT_FAILED,
        COMMIT_UNKNOWN,
        "org.apache.iceberg.jdbc.UncheckedSQLException",
        f"{_EXCEPTIONS}.RESTException",  # no answer, or one without information
        f"{_EXCEPTIONS}.DuplicateWAPCommitException",
        f"{_EXCEPTIONS}.CherrypickAncestorCommitException",
    }
)
REST_UNREACHABLE = frozenset(
    f"{_EXCEPTIONS}.{name}" for name in ("RESTException", "ServiceFailureException", "ServiceUnavailableException")
)
REST_DENIED = frozenset({f"{_EXCEPTIONS}.NotAuthorizedException", f"{_EXCEPTIONS}.ForbiddenException"})
_PART_CHARS = 4000  # half of the buffer of the JVM's socket
_PARTS_MAX = 40  # beyond this, the parts cost more than the wait


class IcebergJava:
    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._java: Any = jvm_of(spark).java
        self._iceberg: Any = jvm_of(spark).org.apache.iceberg

    def load_table(self, name: str) -> Any:
        return self._iceberg.spark.Spark3Util.loadIcebergTable(java_session(self._spark), name)

    def catalog(self, name: str) -> Any:
        return session_catalog(self._spark, name).icebergCatalog()

    def root_namespace(self) -> Any:
        return self._iceberg.catalog.Namespace.empty()

    def read_metadata(self, table: Any, location: str) -> Any:
        return self._iceberg.TableMetadataParser.read(table.io(), location)

    def metadata_json(self, metadata: Any) -> str:
        written = self._java.io.StringWriter()
        generator = self._iceberg.util.JsonUtil.factory().createGenerator(written)
        self._iceberg.TableMetadataParser.toJson(metadata, generator)
        generator.flush()
        return _in_parts(written.getBuffer())

    def long_reader(self) -> Callable[[Any], int]:
        """A function that reads the bound of a long column. Calls to the JVM take time, so values that do not change
        are read once."""
        kind, read = self.long_type(), self._iceberg.types.Conversions.fromByteBuffer
        return lambda bound: int(read(kind, bound))

    def long_type(self) -> Any:
        return self._iceberg.types.Types.LongType.get()

    def string_type(self) -> Any:
        return self._iceberg.types.Types.StringType.get()

    def is_null(self, column: str) -> Any:
        return self._iceberg.expressions.Expressions.isNull(column)

    def between(self, column: str, lowest: int, highest: int) -> Any:
        """The expression for values from `lowest` to `highest`."""
        expressions = self._iceberg.expressions.Expressions
        return getattr(expressions, "and")(
            expressions.greaterThanOrEqual(column, lowest), expressions.lessThanOrEqual(column, highest)
        )

    def not_a_string(self, text: str) -> Any:
        """A path to pass to `deleteFile`. For a string, Py4J would call the closest method of any visibility. That is
        SnapshotProducer's own `deleteFile(String)`, which deletes the file from storage, and no entry from the
        table."""
        return self._java.lang.StringBuilder(text)

    def listed(self, items: Iterable[Any]) -> Any:
        java_list = self._java.util.ArrayList()
        for item in items:
            java_list.add(item)
        return java_list

    @property
    def table_cache(self) -> Any:
        return self._iceberg.spark.SparkTableCache.get()

    @property
    def scan_tasks(self) -> Any:
        return self._iceberg.spark.ScanTaskSetManager.get()

    @property
    def rewrites(self) -> Any:
        return self._iceberg.spark.FileRewriteCoordinator.get()

    @property
    def content_files(self) -> Any:
        return self._iceberg.util.ContentFileUtil

    def actions(self) -> Any:
        set_active(self._spark)
        return self._iceberg.spark.actions.SparkActions.get(java_session(self._spark))


def _in_parts(buffer: Any) -> str:
    """A long text from the JVM, fetched in parts. In one answer, the second packet would wait 40 ms: the socket holds
    it back until the first one is acknowledged (Nagle), and the acknowledgement is delayed."""
    length = buffer.length()
    if length > _PART_CHARS * _PARTS_MAX:
        return str(buffer.toString())
    return "".join(buffer.substring(at, min(at + _PART_CHARS, length)) for at in range(0, length, _PART_CHARS))
