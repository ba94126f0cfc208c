"""One Spark per process, one session per lake.

A session has its own settings, so that two lakes in one process do not see each other's catalog or credentials. They
share the JVM, its class path and the executors.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

from pyspark import SparkContext
from pyspark.sql import SparkSession

from strandline.core.errors import ConfigError, RuntimeMissing
from strandline.core.secrets import resolve_catalog_options, resolve_secret
from strandline.core.settings.lake_config import LakeConfig
from strandline.iceberg.metadata.identifier import CATALOG
from strandline.iceberg.session import spark_internals
from strandline.iceberg.session.class_archive import use_flags
from strandline.iceberg.session.executor_code import send_code
from strandline.iceberg.session.jars import needed_jars
from strandline.iceberg.session.launch import REDACTED, context_options, is_local, start_context, stop_context
from strandline.iceberg.session.runtime import cache_folder, ensure_runtime
from strandline.storage.s3_settings import S3Settings

_BUSY_TIMEOUT_MILLISECONDS = 60_000

_LOGS_MAX = 20
_lock = threading.Lock()


def open_session(
    config: LakeConfig,
    *,
    with_s3: bool = False,
    check_pages: bool = False,
    progress: Callable[[str], None] | None = None,
) -> SparkSession:
    """A new session on the lake's catalog. Starts Spark if this process has none. `with_s3` prepares the process for
    lakes on S3 that it opens later: a running JVM cannot load more jars. `check_pages`: reading a file in a folder
    verifies the checksums of its pages, so that damage is noticed."""
    settings = config.settings
    catalog = catalog_options(config)
    with _lock:
        if (context := spark_internals.running_context()) is None:
            context = _start(config, s3=with_s3 or settings.warehouse.is_s3, progress=progress)
        else:
            _check_fit(context, config)
        send_code(context)
        spark_internals.print_no_query_errors()
        root = spark_internals.running_session() or SparkSession(context)
        session = root.newSession()
    options = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # Otherwise a union of single-partition frames is one partition: a single task.
        "spark.sql.unionOutputPartitioning": "false",
        # If the user has started this Spark, its context lacks our pattern, but the session can have it.
        "spark.sql.redaction.options.regex": f"{REDACTED}|url",
    }
    for key, value in (options | spark_options(config)).items():
        if key.startswith("spark.sql.") and session.conf.isModifiable(key):
            session.conf.set(key, value)
    if check_pages:
        catalog |= {".hadoop.parquet.page.verify-checksum.enabled": "true"}
    for key, value in catalog.items():
        session.conf.set(f"spark.sql.catalog.{CATALOG}{key}", value)
    return session


def stop_spark() -> None:
    """Stops the process's Spark and its JVM. All its sessions and DataFrames become useless."""
    with _lock:
        stop_context()


def spark_options(config: LakeConfig) -> dict[str, str]:
    """The setting `spark.options`, with `env:NAME` replaced by the present value of the variable."""
    return {key: resolve_secret(value) or "" for key, value in config.settings.spark.options.items()}


def catalog_options(config: LakeConfig) -> dict[str, str]:
    """The options of the Iceberg catalog for Spark. Keys are relative to `spark.sql.catalog.<name>`."""
    catalog = config.settings.catalog
    options = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        # With the cache, a session would not see what another one has just committed.
        ".cache-enabled": "false",
        # Manifests never change: with a cache, planning reads only new ones.
        ".io.manifest.cache-enabled": "true",
        ".warehouse": config.warehouse_url,
    }
    if catalog.kind == "sqlite":
        path = config.path(catalog.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        options |= {
            ".type": "jdbc",
            ".uri": sqlite_jdbc_url(path),
            ".jdbc.schema-version": "V1",
            ".jdbc.busy_timeout": str(_BUSY_TIMEOUT_MILLISECONDS),
            ".jdbc.synchronous": "FULL",
        }
    else:
        options |= {".type": "rest", ".uri": catalog.uri or ""}
        options |= {f".{key}": value for key, value in resolve_catalog_options(catalog.options).items()}
    if config.settings.warehouse.is_s3:
        # Credentials are catalog options, because executors on other machines would not get them from the environment.
        # They are set on the session, never on the context, and Spark redacts them wherever it prints settings.
        store = S3Settings.of_warehouse(config.settings.warehouse)
        options |= {f".{key}": value for key, value in store.spark_options().items()}
    return options


def sqlite_jdbc_url(path: Path) -> str:
    """The JDBC address of a SQLite file. A `?` in a path would begin the driver's own options. SQLite's URI form can
    escape it."""
    if "?" in str(path):
        return "jdbc:sqlite:file:" + quote(str(path))
    return f"jdbc:sqlite:{path}"


def _start(config: LakeConfig, *, s3: bool, progress: Callable[[str], None] | None) -> SparkContext:
    runtime = ensure_runtime(s3=s3, progress=progress)
    spark = config.settings.spark
    cache = cache_folder()
    options = context_options(
        master=spark.master,
        driver_memory=spark.driver_memory,
        jars=runtime.jars,
        archive_flags=use_flags(runtime.archive),
        scratch=cache,
        options=spark_options(config),
    )
    return start_context(options, runtime.java, _log_file(cache / "logs"))


def _log_file(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for old in sorted(folder.glob("spark-*.log"), key=_modified, reverse=True)[_LOGS_MAX - 1 :]:
        old.unlink(missing_ok=True)
    return folder / f"spark-{os.getpid()}.log"


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0  # another process has just removed it


def _check_fit(context: SparkContext, config: LakeConfig) -> None:
    """Raises RuntimeMissing or ConfigError if the Spark of this process, ours or the user's, cannot serve this lake."""
    if missing := [name for name in _needed_classes(config) if not spark_internals.has_class(context, name)]:
        packages = ",".join(jar.coordinates for jar in needed_jars(s3=config.settings.warehouse.is_s3))
        raise RuntimeMissing(
            f"this process already runs a Spark that cannot open this lake: it lacks {', '.join(missing)}",
            hint="Open the lake before other code starts Spark, or stop that Spark first (`spark.stop()`, then "
            f"`strandline.iceberg.session.lake_session.stop_spark()`), or start it with "
            f"spark.jars.packages={packages}.",
        )
    wanted = config.settings.spark.master
    if not is_local(wanted) and context.master != wanted:
        raise ConfigError(
            f"this process already runs Spark on {context.master}, and the lake asks for {wanted}",
            hint="One process has one Spark. Use another process, or the same spark.master for both.",
        )


def _needed_classes(config: LakeConfig) -> Iterator[str]:
    yield "org.apache.iceberg.spark.SparkCatalog"
    if config.settings.catalog.kind == "sqlite":
        yield "org.sqlite.JDBC"
    if config.settings.warehouse.is_s3:
        yield "software.amazon.awssdk.services.s3.S3Client"
