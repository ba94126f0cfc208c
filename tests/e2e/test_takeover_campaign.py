"""Take-overs, one after another, of a lake with 4 shards, an arbiter and sinks that wait for its followers. Writers and
deliverers of each leader stand still and go on when another site leads. In the end each row is in each sink once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.iceberg.schema.schema_file import parse_columns
from tests.campaign import TORTURE, Decks, report_fired, scaled, seed
from tests.conftest import MakeHome
from tests.e2e.following import sites
from tests.e2e.takeover_faults import AWAY, EVERY_FAULT, PROMOTING_DECK, PROMOTIONS, RETURNS, STOPPED, TakeOverCampaign
from tests.e2e.taking_over import COLUMNS, settings_in
from tests.servers import Postgres
from tests.spark.deliveries import Destination, in_catalog, in_folder, in_table

pytestmark = pytest.mark.timeout(scaled(600, 1800))

ROWS = scaled(300, 100_000)
SHARDS = 4
SEED, SEEDS = 20261118, scaled(1, 20)
TAKE_OVERS = scaled(2, 5)
BATCHES_EACH = 7

DECKS, FIRED = Decks(), Counter[str]()  # of all seeds
KINDS = {"why": AWAY, PROMOTING_DECK: PROMOTIONS, "returns": RETURNS}


@pytest.mark.parametrize("n", range(SEEDS))
def test_every_sink_has_each_row_once_however_often_another_site_takes_over(
    tmp_path: Path, make_home: MakeHome, postgres_server: Postgres, spark_started: object, n: int
) -> None:
    choose = random.Random(seed(SEED) + n)
    faults = [[DECKS.deal(choose, kind, of) for kind, of in KINDS.items()] for _ in range(TAKE_OVERS)]
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
        run = TakeOverCampaign(made, choose, lakes, sinks, fired=FIRED, decks=DECKS)
        try:
            for away, promoting, rejoining in faults:
                run.take_over(-(-ROWS // (TAKE_OVERS * BATCHES_EACH)), away, promoting, rejoining)
            run.check()
        finally:
            run.close()
        assert run.rows >= ROWS


def test_each_fault_of_the_campaign_has_fired(record_property: Callable[[str, object], None]) -> None:
    """Of those that were dealt; over all seeds, everything is dealt."""
    report_fired(record_property, FIRED, SEED)
    assert FIRED.keys() >= DECKS.dealt and DECKS.dealt, sorted(DECKS.dealt - FIRED.keys())
    assert sum(n for fault, n in FIRED.items() if fault in AWAY) * 2 == sum(
        n for fault, n in FIRED.items() if fault.startswith(STOPPED)
    ), "a writer and a deliverer stood still in each take-over"
    if sum(n for fault, n in FIRED.items() if fault in AWAY) == SEEDS * TAKE_OVERS and TORTURE:
        assert FIRED.keys() >= EVERY_FAULT, sorted(EVERY_FAULT - FIRED.keys())
