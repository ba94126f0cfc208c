"""Fixtures that several folders share: real servers, lakes in temporary folders, and one Spark per test process.

Tests in tests/spark share one JVM per test process: it starts before the first of them, ready for S3 too, and ends
with the run.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as examples

from strandline.cli.start import OBJECTS_BEFORE_A_SEARCH
from strandline.core.settings.lake_config import CONFIG_NAME, LakeConfig, load_config
from tests import run_report
from tests.campaign import TORTURE, choose_seed
from tests.servers import S3, Postgres, ServerMissing, Toxiproxy, start_postgres, start_s3, start_toxiproxy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.rest_catalog import RestCatalogs

HERE = Path(__file__).parent
MEMORY = Path("/dev/shm")
MEMORY_FREE_MIN = 6 << 30
SLOW = ("e2e/", "spark/")
_JVM_FLAGS = (
    # Compiled once and not again: a suite that runs everything once takes a third less of a processor's time.
    "-XX:TieredStopAtLevel=1",
    # Room for all of it. With the 48 MB of that level an eighth of the time goes into making room, and what was thrown
    # out is interpreted again.
    "-XX:ReservedCodeCacheSize=256m -XX:-UseCodeCacheFlushing",
    # Half a gigabyte for new objects: a collection for each 100 MB of them took a twentieth of the time.
    "-XX:+UseSerialGC -Xmn512m",
    run_report.note_start(),
)
QUICK_JVM = {"spark.driver.extraJavaOptions": " ".join(_JVM_FLAGS)}
QUICK_SPARK = QUICK_JVM | {
    # No code is made for a query that runs once: another third less.
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    # Tables of some rows, shuffled into 200 parts by default, are 200 tasks that do nothing.
    "spark.sql.shuffle.partitions": "3",
    # Plans of some rows need no second thought: a sixth less. Those of `make torture` get it, and those of test_stamp.
    "spark.sql.adaptive.enabled": "true" if TORTURE else "false",
    # Where in Python a column was made, for messages: five calls to the JVM more for each function of a column.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}
WARM_WORKERS = {"spark.python.daemon.module": "tests.worker_daemon"}
"""For a JVM that is started in the folder of the project."""

# An example that takes long is no finding: machines stall.
examples.register_profile("patient", examples.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
examples.load_profile("patient")

TIMES = json.loads((HERE / "times.json").read_text("utf-8"))
"""Seconds that each file took when they were last recorded (`make test-times`)."""
TYPICAL_SECONDS = 10
"""For a file that was not there then."""
AS_USED = ("test_demo", "test_secrets", "test_wheel")
"""Files of tests/e2e that show what users see: each process has a JVM of its own."""

MakeHome = Callable[..., LakeConfig]
_Started = TypeVar("_Started")


def _use_memory_for_temporary_folders() -> None:
    """No test cuts the power, so none needs a disk; and a disk that stalls holds up every commit of every test."""
    if "TMPDIR" in os.environ or not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < MEMORY_FREE_MIN:
        return
    os.environ["TMPDIR"] = str(MEMORY)
    tempfile.tempdir = None  # which is asked for again then


_use_memory_for_temporary_folders()
choose_seed()


def pytest_configure(config: pytest.Config) -> None:
    run_report.register(config)
    gc.disable()  # modules and tests are not garbage


def pytest_collection_finish() -> None:
    """Python's garbage collector took a fifth of the CPU of tests without Spark: it searches thousands of collected
    tests and all modules, again and again."""
    gc.freeze()
    gc.set_threshold(OBJECTS_BEFORE_A_SEARCH)
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from tests.scheduling import ByJvm

    if config.option.dist != "loadfile":
        return None
    return ByJvm(config, log, needs_jvm, lambda file: _recorded(file.removeprefix("tests/")))


def pytest_report_header() -> str | None:
    return f"STRANDLINE_SEED={os.environ['STRANDLINE_SEED']}" if "STRANDLINE_SEED" in os.environ else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if _file(item).startswith(SLOW):
            item.add_marker(pytest.mark.spark)
    if not TORTURE:
        long = [item for item in items if item.get_closest_marker("torture")]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in set(long)]
    # A run of several processes hands out whole files in this order. The longest go first, so that all processes end
    # at about the same time.
    items.sort(key=lambda item: (-_recorded(file := _file(item)), file))


def _file(item: pytest.Item) -> str:
    """Below tests/. From the name of the test: thousands of paths cost a second."""
    return item.nodeid.partition("::")[0].removeprefix("tests/")


def _recorded(file: str) -> float:
    return float(TIMES.get(file, TYPICAL_SECONDS))


def needs_jvm(file: str) -> bool:
    """Whether its tests use the JVM of the process that runs them (`spark_started`)."""
    if file.startswith("tests/e2e/"):
        return Path(file).stem not in AS_USED
    return file.startswith("tests/spark/") or file == "tests/browser/test_dashboard.py"


def missing(what: str) -> NoReturn:
    """For a test whose server or program is not there: skips it; where CI is set, fails it."""
    if os.environ.get("CI", "").lower() in ("", "0", "false"):
        pytest.skip(what)
    pytest.fail(f"{what}, and a test run under CI must not leave anything out")


def _start(start: Callable[[], _Started]) -> _Started:
    try:
        return start()
    except ServerMissing as e:
        missing(str(e))


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    server = _start(start_postgres)
    yield server
    server.server.stop()


@pytest.fixture(scope="session")
def postgres_url(postgres_server: Postgres) -> str:
    """The server's own database; for a database of the test's own see `postgres_database`."""
    return postgres_server.url


@pytest.fixture
def postgres_database(postgres_server: Postgres) -> Iterator[str]:
    """A fresh, empty database: `postgresql://…`."""
    url = postgres_server.create_database()
    yield url
    postgres_server.drop_database(url)


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    server = _start(start_s3)
    yield server
    server.server.stop()


@pytest.fixture(scope="session")
def toxiproxy() -> Iterator[Toxiproxy]:
    server = _start(start_toxiproxy)
    yield server
    server.server.stop()


@pytest.fixture(scope="module")
def rest_catalogs(s3: S3) -> Iterator[RestCatalogs]:
    """Iceberg REST catalogs on one server; each test takes those that it needs."""
    from tests.rest_catalog import start_rest_catalogs

    catalogs = _start(lambda: start_rest_catalogs(folders=3, buckets=2, s3=s3))
    yield catalogs
    catalogs.server.stop()


@pytest.fixture(scope="session")
def make_home() -> MakeHome:
    """`make_home(folder, {"ledger": {"url": …}})` writes a strandline.toml there and loads it."""

    def make(folder: Path, settings: Mapping[str, Mapping[str, Any]] | None = None) -> LakeConfig:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / CONFIG_NAME
        path.write_text(toml_of(settings or {}), "utf-8")
        return load_config(path)

    return make


def toml_of(settings: Mapping[str, Mapping[str, Any]]) -> str:
    # A TOML basic string and a JSON string are the same for everything that tests put in one.
    lines: list[str] = []
    for section, values in settings.items():
        lines.append(f"[{section}]")
        for key, value in values.items():
            if isinstance(value, Mapping):
                inner = ", ".join(f"{json.dumps(k)} = {json.dumps(v)}" for k, v in value.items())
                lines.append(f"{key} = {{ {inner} }}")
            else:
                lines.append(f"{key} = {json.dumps(value)}")
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module", autouse=True)
def _quick_ledgers(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.path == HERE / "ledger" / "test_versions.py":
        yield
        return
    from tests.quick_ledger import quick_ledgers

    with quick_ledgers():
        yield


@pytest.fixture
def next_release(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> str:
    """The migrations as they will be with one more, which adds a column; every ledger that is there is older."""
    from strandline.ledger import engine

    migrations = tmp_path_factory.mktemp("next") / "migrations"
    shutil.copytree(engine.MIGRATIONS, migrations)
    (migrations / "versions" / "next.py").write_text(
        f"""from alembic import op

revision = "next"
down_revision = "{engine.REVISIONS[-1]}"


def upgrade() -> None:
    op.execute("ALTER TABLE sequence ADD COLUMN more BIGINT NOT NULL DEFAULT 7")
"""
    )
    monkeypatch.setattr(engine, "MIGRATIONS", migrations)
    monkeypatch.setattr(engine, "REVISIONS", (*engine.REVISIONS, "next"))
    return "next"


@pytest.fixture(scope="session")
def spark_started(tmp_path_factory: pytest.TempPathFactory, make_home: MakeHome) -> Iterator[SparkSession]:
    """The one JVM of this process, with S3 on its class path, so that any lake can be opened in it later."""
    from strandline.iceberg.session.lake_session import open_session, stop_spark
    from tests.fork_server import write_python
    from tests.quick_jvm import use_quick_jvm

    python = {"spark.pyspark.python": str(write_python(tmp_path_factory.mktemp("python")))}
    quick = {"spark": {"options": QUICK_SPARK | WARM_WORKERS | python}}
    session = open_session(make_home(tmp_path_factory.mktemp("shared"), quick), with_s3=True)
    use_quick_jvm(session._jvm, session._jsc.hadoopConfiguration())
    yield session
    stop_spark()


@pytest.fixture(scope="session")
def spark(spark_started: SparkSession) -> SparkSession:
    """A session on a lake of its own, shared by all tests of the process; give tables names of your own."""
    return spark_started


@pytest.fixture(scope="session")
def lake_home(tmp_path_factory: pytest.TempPathFactory, make_home: MakeHome) -> Callable[..., LakeConfig]:
    """A factory of fresh lakes' settings, each in a new folder."""

    def make(settings: Mapping[str, Mapping[str, Any]] | None = None) -> LakeConfig:
        return make_home(tmp_path_factory.mktemp("lake"), settings)

    return make
