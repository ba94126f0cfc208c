"""A deliverer of the old leader that stands still in the middle of its delivery, and goes on when the new leader has
delivered: each row is in the sink once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.iceberg.schema.schema_file import parse_columns
from tests.conftest import MakeHome
from tests.e2e.following import WAIT_SECONDS_MAX, sites
from tests.e2e.taking_over import COLUMNS, TakeOvers, rows_of, settings_in
from tests.e2e.test_deliver_crash import stopped
from tests.processes import own_jvm
from tests.servers import S3, Postgres
from tests.spark.deliveries import Destination, in_bucket, in_catalog, in_folder, in_table, keys_of

pytestmark = pytest.mark.timeout(900)

IN_A_WORKER = [
    ("files", "files.before_link"),
    *(
        pytest.param(kind, point, marks=pytest.mark.torture)
        for kind, point in (
            ("files", "deliver.before_send"),
            ("files", "files.after_link"),
            ("s3", "s3.before_put"),
            ("postgres", "postgres.before_commit"),
            ("iceberg", "deliver.before_send"),
        )
    ),
]


@pytest.mark.parametrize(("kind", "where"), IN_A_WORKER)
def test_a_deliverer_that_stood_still_while_another_site_took_over_adds_nothing(
    tmp_path: Path,
    make_home: MakeHome,
    spark_started: object,
    request: pytest.FixtureRequest,
    kind: str,
    where: str,
) -> None:
    settings = settings_in(tmp_path)
    with sites(tmp_path, make_home, settings("leader")) as made:
        made.following = settings
        sink = DESTINATIONS[kind](request, tmp_path, made.environ)
        made.leader.create_dataset("events", parse_columns(COLUMNS))
        made.leader.delivery.add(kind, "events", kind, dict(sink.options))
        lakes = {"leader": made.leader, "far": made.add("far", "shared")}
        run = TakeOvers(made, random.Random(1), lakes, {kind: sink})
        try:
            run.append(5)
            run.follow()
            run.deliver()
            run.append(5)
            run.follow()
            assert run.update_members() == ["far"]
            made.kill_server()
            # With workers of its own: those that stop are looked for among its children.
            process = subprocess.Popen(
                own_jvm("strandline.cli.main", "tick", "--json"),
                cwd=made.leader.config.home, env=os.environ | {"STRANDLINE_FAILPOINT": f"{where}=stop"},
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            stopped(process, made.leader)
            made.leader = run.lakes[run.promote("far")]
            made.leader = run.reopen("far")
            run.deliver()
            run.append(5)
            run.deliver()
            assert sink.see().rows == rows_of(made.leader)
            for each in stopped(process, run.lakes["leader"]):
                each.send_signal(signal.SIGCONT)
            said = process.communicate(timeout=WAIT_SECONDS_MAX)
            assert process.returncode != 0, said
            assert sink.see().rows == rows_of(made.leader)
            made.serve()
            run.join("leader")
            run.append(5)
            run.check()
        finally:
            run.close()


def _folder(request: pytest.FixtureRequest, folder: Path, environ: pytest.MonkeyPatch) -> Destination:
    return in_folder(folder / "out")


def _bucket(request: pytest.FixtureRequest, folder: Path, environ: pytest.MonkeyPatch) -> Destination:
    s3: S3 = request.getfixturevalue("s3")
    for name, value in keys_of(s3).items():
        environ.setenv(name, value)
    return in_bucket(s3)


def _table(request: pytest.FixtureRequest, folder: Path, environ: pytest.MonkeyPatch) -> Destination:
    server: Postgres = request.getfixturevalue("postgres_server")
    dsn = server.create_database()
    environ.setenv("SINK_DSN", dsn)
    return in_table(dsn, dsn="env:SINK_DSN")


def _catalog(request: pytest.FixtureRequest, folder: Path, environ: pytest.MonkeyPatch) -> Destination:
    return in_catalog(folder / "other")


DESTINATIONS: dict[str, Callable[[pytest.FixtureRequest, Path, pytest.MonkeyPatch], Destination]] = {
    "files": _folder,
    "s3": _bucket,
    "postgres": _table,
    "iceberg": _catalog,
}
