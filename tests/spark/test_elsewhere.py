"""The protocol beyond one machine: the ledger in PostgreSQL, the warehouse and its witness on S3; real servers both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import strandline
from strandline import Lake
from strandline.core.settings.lake_config import LakeConfig
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.lake_admin import rebuild_ledger
from tests.servers import S3
from tests.spark.protocol import COLUMNS, LEASE_SECONDS, assert_sound, crash_at, frame, outlive_lease, rows

BEFORE = list(range(1000, 1010))
BATCH = list(range(10))


@pytest.fixture
def lake(
    tmp_path: Path,
    make_home: Callable[..., LakeConfig],
    postgres_database: str,
    s3: S3,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Lake]:
    monkeypatch.setenv("TEST_ACCESS_KEY", s3.access_key)
    monkeypatch.setenv("TEST_SECRET_KEY", s3.secret_key)
    make_home(
        tmp_path,
        {
            "ledger": {"url": postgres_database},
            "warehouse": {
                "url": f"s3://{s3.make_bucket()}/lake",
                "endpoint": s3.endpoint,
                "access_key": "env:TEST_ACCESS_KEY",
                "secret_key": "env:TEST_SECRET_KEY",
            },
            "ingest": {"lease_seconds": LEASE_SECONDS},
        },
    )
    with strandline.init_lake(tmp_path) as made:
        made.create_dataset("events", parse_columns(COLUMNS))
        made.append("events", frame(made, 1000), batch_id="before")
        yield made


@pytest.mark.parametrize(
    "point", ["stage.after_branch", "stage.after_commit", "stage.after_mark", "settle.before_mark"]
)
def test_a_dead_writer_is_settled(lake: Lake, point: str) -> None:
    crash_at(lake, point, lambda: lake.append("events", frame(lake, 0), batch_id="a"))
    outlive_lease(lake)
    lake.recover()
    lake.append("events", frame(lake, 0), batch_id="a")
    assert_sound(lake, BEFORE + BATCH)


def test_numbers_that_the_witness_knows_and_the_ledger_does_not_are_never_given_out(lake: Lake) -> None:
    crash_at(lake, "reserve.after_witness", lambda: lake.append("events", frame(lake, 0), batch_id="a"))
    done = lake.append("events", frame(lake, 0), batch_id="a")
    assert done.rows is not None and done.rows.lo > 20
    assert_sound(lake, BEFORE + BATCH)


def test_a_lost_database_is_rebuilt_from_tables_and_witness(lake: Lake) -> None:
    crash_at(lake, "stage.after_mark", lambda: lake.append("events", frame(lake, 0), batch_id="a"))
    with lake.ledger.write() as connection:
        connection.exec_driver_sql("DROP SCHEMA public CASCADE")
        connection.exec_driver_sql("CREATE SCHEMA public")
    rebuild_ledger(lake.config)
    with strandline.open(lake.config.home) as again:
        assert_sound(again, BEFORE + BATCH)
        assert again.append("events", frame(again, 0), batch_id="a").duplicate


def test_old_rows_are_numbered_and_others_rows_are_counted(lake: Lake) -> None:
    lake.spark.sql("CREATE TABLE lake.default.old (id BIGINT, text STRING) USING iceberg")
    frame(lake, 0, 30).writeTo("lake.default.old").append()
    crash_at(lake, "adopt.after_commit", lambda: lake.adopt_dataset("old"))
    outlive_lease(lake)
    lake.adopt_dataset("old")
    assert_sound(lake, list(range(30)), "old")
    lake.spark.sql("INSERT INTO lake.default.events VALUES (777777, 5, 'made up')")
    assert sorted(r["id"] for r, _ in lake.read_since("events")) == BEFORE
    events, old = lake.status().datasets
    assert (events.rows, events.foreign, events.unnumbered) == (11, 1, 0)
    assert (old.rows, old.foreign, old.unnumbered) == (30, 0, 0)
    assert len(rows(lake)) == 11


def test_metadata_reaches_a_store_that_keeps_connections_and_reads_no_trailers(lake: Lake) -> None:
    """One upload in ten was refused while checksums followed the bodies."""
    table = lake.catalog.load("default.events")
    for n in range(100):
        with table.io.new_output(f"{table.location()}/metadata/try-{n}").create() as file:
            file.write(b"x" * 3000)
