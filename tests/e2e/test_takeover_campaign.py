"""Take-overs, one after another, of a lake with 4 shards, an arbiter and sinks that wait for its followers. Writers and
deliverers of each leader stand still and go on when another site leads. In the end each row is in each sink once."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from strandline.iceberg.schema.schema_file import parse_columns
from tests.campaign import TORTURE, scaled, seed
from tests.conftest import MakeHome
from tests.e2e.following import sites
from tests.e2e.takeover_faults import AWAY, PROMOTIONS, RETURNS, TakeOverCampaign
from tests.e2e.taking_over import COLUMNS, settings_in
from tests.servers import Postgres
from tests.spark.deliveries import Destination, in_catalog, in_folder, in_table

pytestmark = pytest.mark.timeout(scaled(600, 1800))

ROWS = scaled(300, 100_000)
SHARDS = 4
SEEDS = scaled(1, 20)
TAKE_OVERS = scaled(2, 6)
BATCHES_EACH = 7


def dealt(choose: random.Random, names: list[str]) -> Iterator[str]:
    """In a random order, each as often as the others."""
    while True:
        yield from choose.sample(names, len(names))


@pytest.mark.parametrize("n", range(SEEDS))
def test_every_sink_has_each_row_once_however_often_another_site_takes_over(
    tmp_path: Path, make_home: MakeHome, postgres_server: Postgres, spark_started: object, n: int
) -> None:
    choose = random.Random(seed(20261118) + n)
    decks = [dealt(choose, sorted(kinds)) for kinds in (AWAY, PROMOTIONS, RETURNS)]
    faults = list(islice(zip(*decks, strict=True), TAKE_OVERS))
    print(f"seed {n}: {faults}")
    settings = settings_in(tmp_path)
    with sites(tmp_path, make_home, settings("leader")) as made:
        made.following = settings
        dsn = postgres_server.create_database()
        made.environ.setenv("CAMPAIGN_DSN", dsn)
        sinks: dict[str, Destination] = {
            "files": in_folder(tmp_path / "out"),
            "postgres": in_table(dsn, dsn="env:CAMPAIGN_DSN"),
        }
        if TORTURE:
            sinks["iceberg"] = in_catalog(tmp_path / "other")
        made.leader.create_dataset("events", parse_columns(COLUMNS), shards=SHARDS)
        for name, sink in sinks.items():
            made.leader.delivery.add(name, "events", sink.kind, dict(sink.options))
        lakes = {"leader": made.leader, "near": made.add("near", "http"), "far": made.add("far", "shared")}
        run = TakeOverCampaign(made, choose, lakes, sinks)
        try:
            for away, promoting, rejoining in faults:
                run.take_over(-(-ROWS // (TAKE_OVERS * BATCHES_EACH)), away, promoting, rejoining)
            run.check()
        finally:
            run.close()
        assert run.rows >= ROWS
        assert {fault for of_one in faults for fault in of_one} <= run.fired.keys(), run.fired
        assert sum(fault.startswith("stopped at ") for fault in run.fired.elements()) == 2 * TAKE_OVERS, run.fired
