"""The Spark session: quiet, apart from other lakes, and on the catalog that the settings name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from py4j.java_gateway import GatewayClient, JavaPackage
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from strandline.core.errors import ConfigError
from strandline.core.settings.lake_config import LakeConfig
from strandline.iceberg.metadata.identifier import CATALOG
from strandline.iceberg.session.lake_session import open_session
from strandline.iceberg.session.launch import CLASSES
from strandline.iceberg.session.spark_internals import has_class
from tests.conftest import QUICK_SPARK
from tests.servers import S3

MakeLake = Callable[..., LakeConfig]


def make_table(session: SparkSession, rows: int = 3) -> None:
    session.sql(f"CREATE NAMESPACE {CATALOG}.a")
    session.sql(f"CREATE TABLE {CATALOG}.a.t (id bigint, at timestamp) USING iceberg")
    session.range(rows).select("id", F.timestamp_seconds("id").alias("at")).writeTo(f"{CATALOG}.a.t").append()


def test_rows_written_through_the_catalog_are_read_back(lake_home: MakeLake) -> None:
    config = lake_home()
    make_table(open_session(config))
    assert open_session(config).table(f"{CATALOG}.a.t").count() == 3
    assert config.warehouse_folder is not None
    assert list(config.warehouse_folder.glob("a/t/data/*.parquet"))


def test_a_table_that_another_session_has_just_changed_is_seen_as_it_is(lake_home: MakeLake) -> None:
    config = lake_home()
    one, other = open_session(config), open_session(config)
    make_table(one)
    assert other.table(f"{CATALOG}.a.t").count() == 3
    one.range(2).select("id", F.lit(None).cast("timestamp").alias("at")).writeTo(f"{CATALOG}.a.t").append()
    assert other.table(f"{CATALOG}.a.t").count() == 5


def test_two_lakes_in_one_process_do_not_see_each_other(lake_home: MakeLake) -> None:
    one = open_session(lake_home({"spark": {"options": {"spark.sql.shuffle.partitions": "7"}}}))
    other = open_session(lake_home())
    make_table(one)
    assert not other.catalog.tableExists(f"{CATALOG}.a.t")
    assert one.conf.get("spark.sql.shuffle.partitions") == "7"
    assert other.conf.get("spark.sql.shuffle.partitions") != "7"


def test_times_are_utc_whatever_the_machine_says(lake_home: MakeLake, monkeypatch: pytest.MonkeyPatch) -> None:
    session = open_session(lake_home())
    text = session.sql("SELECT date_format(timestamp_seconds(0), 'yyyy-MM-dd HH:mm'), current_timezone()").first()
    assert text is not None and tuple(text) == ("1970-01-01 00:00", "UTC")
    jvm = session.sparkContext._jvm
    assert jvm is not None and jvm.java.util.TimeZone.getDefault().getID() == "UTC"
    make_table(session, 1)
    row = session.sql(f"SELECT unix_seconds(at) FROM {CATALOG}.a.t").first()
    assert row is not None and datetime.fromtimestamp(row[0], UTC).year == 1970


def test_bad_casts_fail_and_arrow_is_on(lake_home: MakeLake) -> None:
    session = open_session(lake_home())
    with pytest.raises(Exception, match="CAST_INVALID_INPUT"):
        session.sql("SELECT cast('x' AS int)").collect()
    assert session.conf.get("spark.sql.execution.arrow.pyspark.enabled") == "true"
    assert [b.num_rows for b in session.range(5).coalesce(1).toArrow().to_batches()] == [5]


def test_branches_and_procedures_work_in_sql(lake_home: MakeLake) -> None:
    session = open_session(lake_home())
    make_table(session)
    session.sql(f"ALTER TABLE {CATALOG}.a.t CREATE BRANCH b")
    assert {r["name"] for r in session.sql(f"SELECT name FROM {CATALOG}.a.t.refs").collect()} == {"main", "b"}
    session.sql(f"CALL {CATALOG}.system.expire_snapshots(table => 'a.t')").collect()


@pytest.mark.parametrize("name", ["a folder with spaces", "Düne ☼", "what? 100% #1"])
def test_a_lake_may_lie_in_a_folder_with_any_name(
    name: str, tmp_path: Path, make_home: Callable[..., LakeConfig]
) -> None:
    config = make_home(tmp_path / name)
    session = open_session(config)
    make_table(session)
    assert session.table(f"{CATALOG}.a.t").count() == 3
    assert sorted(p.name for p in tmp_path.iterdir()) == [name]
    assert sorted(p.name for p in (tmp_path / name).iterdir()) == ["catalog.db", "strandline.toml", "warehouse"]


def test_pyiceberg_reads_and_writes_the_same_catalog_file(lake_home: MakeLake) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    config = lake_home()
    session = open_session(config)
    make_table(session)
    path = config.path(config.settings.catalog.path)
    light = SqlCatalog(CATALOG, uri=f"sqlite:///{path}", warehouse=config.warehouse_url)
    table = light.load_table("a.t")
    assert table.scan().to_arrow().num_rows == 3
    table.append(table.scan().to_arrow())
    assert session.table(f"{CATALOG}.a.t").count() == 6


def test_no_package_is_looked_for_among_the_classes(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look goes through all jars."""
    asked, ask = list[str](), JavaPackage.__getattr__

    def noted(package: JavaPackage, name: str) -> Any:
        asked.append(f"{package._fqn}.{name}")
        return ask(package, name)

    monkeypatch.setattr(JavaPackage, "__getattr__", noted)
    jvm: Any = spark._jvm
    assert (
        jvm.org.apache.iceberg.types.Types.LongType.get().toString() == "long" and jvm.java.util.ArrayList().size() == 0
    )
    assert set(asked) <= {"org.apache.iceberg.types.Types", "java.util.ArrayList"}, "each once in this process at most"


def test_what_is_named_again_is_not_looked_for_again(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    def name_some() -> None:
        F.lit(1) + F.col("a")
        assert jvm.org.apache.iceberg.types.Types.LongType.get().toString() == "long"
        assert jvm.java.lang.Integer.parseInt("7") == 7

    jvm: Any = spark._jvm
    name_some()
    asked, send = list[str](), GatewayClient.send_command

    def noted(client: GatewayClient, command: str, *more: Any, **options: Any) -> Any:
        if command.startswith("r\n"):
            asked.append(command)
        return send(client, command, *more, **options)

    monkeypatch.setattr(GatewayClient, "send_command", noted)
    name_some()
    assert len(asked) == 2 and all("Types" in one for one in asked), "the class inside a class, and its method"


def test_the_classes_that_pyspark_names_without_a_package_are_there(spark: SparkSession) -> None:
    for name in CLASSES:
        assert has_class(spark.sparkContext, name), f"Spark has no {name} any more: mend iceberg/session/launch.py"


def test_a_busy_catalog_is_waited_for(lake_home: MakeLake) -> None:
    config = lake_home()
    session = open_session(config)
    make_table(session)
    path = config.path(config.settings.catalog.path)
    # Longer than the 3 seconds after which the driver gives up by default.
    code = (
        "import sqlite3, sys, time; c = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "c.execute('BEGIN EXCLUSIVE'); print('locked', flush=True); time.sleep(5); c.execute('COMMIT')"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"locked\n"
        session.sql(f"ALTER TABLE {CATALOG}.a.t ADD COLUMN more string")
    assert "more" in session.table(f"{CATALOG}.a.t").columns


def test_an_s3_warehouse_works_and_its_credentials_are_not_shown(
    s3: S3, lake_home: MakeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SL_TEST_SECRET", s3.secret_key)
    bucket = s3.make_bucket()
    warehouse = {"url": f"s3://{bucket}/lake", "endpoint": s3.endpoint, "region": s3.region}
    keys = {"access_key": s3.access_key, "secret_key": "env:SL_TEST_SECRET"}
    session = open_session(lake_home({"warehouse": warehouse | keys}))
    make_table(session)
    assert session.table(f"{CATALOG}.a.t").count() == 3
    assert list((s3.server.folder / "data" / bucket / "lake" / "a" / "t" / "data").glob("*.parquet"))
    shown = "\n".join(str(tuple(row)) for row in session.sql("SET").collect())
    assert "s3.secret-access-key" in shown
    assert s3.secret_key not in shown and s3.access_key not in shown
    on_context = str(session.sparkContext.getConf().getAll())
    assert s3.secret_key not in on_context and s3.access_key not in on_context


def test_a_lake_that_wants_another_cluster_than_the_running_one_is_refused(lake_home: MakeLake) -> None:
    with pytest.raises(ConfigError, match="asks for spark"):
        open_session(lake_home({"spark": {"master": "spark://127.0.0.1:1"}}))


# --- starts of their own: each in a process apart ---------------------------------------------------------------------


def run(code: str, *arguments: str, prefix: tuple[str, ...] = (), **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*prefix, sys.executable, "-c", textwrap.dedent(code), *arguments],
        capture_output=True, text=True, timeout=240, check=False, env=os.environ | env,
    )  # fmt: skip


OPEN = f"""
    QUICK = {QUICK_SPARK | {"spark.ui.enabled": "false"}!r}
    import sys
    from pathlib import Path
    from strandline.core.settings.lake_config import load_config
    from strandline.core.errors import StrandlineError
    from strandline.iceberg.session.lake_session import open_session, stop_spark
    config = load_config(Path(sys.argv[1]))
"""


SHOW_ERROR = """
    try:
        open_session(config)
    except StrandlineError as e:
        print(type(e).__name__, e.message, e.hint)
"""
ALONE = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$0" "$@"')


def home(config: LakeConfig) -> str:
    return str(config.home / "strandline.toml")


def test_a_start_prints_nothing_and_can_be_repeated_after_a_stop(lake_home: MakeLake) -> None:
    done = run(
        OPEN
        + """
    first = open_session(config)
    first.sql("CREATE NAMESPACE lake.a")
    first.range(10).mapInArrow(lambda batches: batches, "id long").count()
    stop_spark()
    second = open_session(config)
    assert second.sql("SHOW NAMESPACES IN lake").count() == 1
    import sys
    assert second.sparkContext.pythonExec == sys.executable
    """,
        home(lake_home({"spark": {"options": QUICK_SPARK}})),
        LC_ALL="C",
        TZ="Asia/Tokyo",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_start_that_fails_is_one_clear_error_and_no_output(lake_home: MakeLake) -> None:
    done = run(
        OPEN + SHOW_ERROR,
        home(lake_home({"spark": {"options": {"spark.driver.extraJavaOptions": "--add-modules=no.such.module"}}})),
    )
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.startswith("RuntimeMissing Spark's Java process did not start: ")
    assert "no.such.module" in done.stdout and ".log" in done.stdout and "Traceback" not in done.stdout


def test_a_spark_of_the_users_own_without_iceberg_is_refused_with_what_to_do(lake_home: MakeLake) -> None:
    done = run(
        OPEN
        + """
    from pyspark.sql import SparkSession
    SparkSession.builder.master("local[1]").config(map=QUICK).getOrCreate()
    """
        + SHOW_ERROR,
        home(lake_home()),
    )
    assert "RuntimeMissing" in done.stdout and "org.apache.iceberg.spark.SparkCatalog" in done.stdout
    assert "spark.jars.packages=org.apache.iceberg:iceberg-spark-runtime" in done.stdout


def test_a_spark_of_the_users_own_with_iceberg_is_used(lake_home: MakeLake) -> None:
    done = run(
        OPEN
        + """
    from pyspark.sql import SparkSession
    from strandline.iceberg.session.runtime import ensure_runtime
    jars = ":".join(map(str, ensure_runtime(s3=False).jars))
    own = (SparkSession.builder.master("local[1]").config(map=QUICK)
           .config("spark.driver.extraClassPath", jars).config("spark.app.name", "theirs").getOrCreate())
    lake = open_session(config)
    lake.sql("CREATE NAMESPACE lake.a")
    found = lake.sql("SHOW NAMESPACES IN lake").count()
    print(lake.sparkContext.appName, found, lake.conf.get("spark.sql.session.timeZone"))
    """,
        home(lake_home()),
        TZ="Asia/Tokyo",
    )
    assert done.stdout == "theirs 1 UTC\n", done.stderr


def test_once_fetched_no_network_is_needed(lake_home: MakeLake) -> None:
    if os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("ip"):
        pytest.skip("only root on Linux can take the network away from a process")
    code = OPEN + '    open_session(config).sql("CREATE NAMESPACE lake.a")\n    print("works")\n'
    done = run(code, home(lake_home({"spark": {"options": QUICK_SPARK}})), prefix=ALONE)
    assert (done.stdout, done.stderr) == ("works\n", "")


def test_a_first_start_without_a_network_says_so(lake_home: MakeLake, tmp_path: Path) -> None:
    if os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("ip"):
        pytest.skip("only root on Linux can take the network away from a process")
    code = OPEN + SHOW_ERROR
    done = run(code, home(lake_home()), prefix=ALONE, STRANDLINE_CACHE=str(tmp_path / "c"), HOME=str(tmp_path))
    assert "there is no network" in done.stdout and "Without any network, put the file" in done.stdout
    assert done.stderr == ""


def test_workers_have_no_archives_to_read_before_every_task(lake_home: MakeLake) -> None:
    def archives(_: object) -> list[str]:
        import sys

        return [p for p in sys.path_importer_cache if ".jar" in p or "pyspark.zip" in p]

    context = open_session(lake_home()).sparkContext
    assert context.parallelize([0], 1).mapPartitions(archives).collect() == []
