"""Followers of 4 shards under everything that may happen, in a random order: each row is there once in the end."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from strandline.iceberg.schema.schema_file import parse_columns
from tests.campaign import scaled, seed
from tests.conftest import MakeHome
from tests.e2e.follow_faults import FAULTS, Campaign
from tests.e2e.following import sites

pytestmark = pytest.mark.timeout(scaled(600, 1800))

ROWS = scaled(2_000, 100_000)
SHARDS = 4
SEEDS = scaled(1, 20)
DECKS = scaled(1, 2)
"""How often each fault happens."""
FAULTS_A_ROUND = 3
COLUMNS = [
    {"name": "id", "type": "long", "required": True},
    {"name": "text", "type": "string"},
    {"name": "at", "type": "timestamptz"},
]


@pytest.mark.parametrize("n", range(SEEDS))
def test_a_follower_has_each_row_of_its_leader_once_whatever_happened(
    tmp_path: Path, make_home: MakeHome, spark_started: object, n: int
) -> None:
    choose = random.Random(seed(20261118) + n)
    deck = [fault for _ in range(DECKS) for fault in choose.sample(sorted(FAULTS), len(FAULTS))]
    rounds = [deck[at : at + FAULTS_A_ROUND] for at in range(0, len(deck), FAULTS_A_ROUND)]
    print(f"seed {n}: {rounds}")
    with sites(tmp_path, make_home) as made:
        made.leader.create_dataset("events", parse_columns(COLUMNS), shards=SHARDS)
        campaign = Campaign(made, made.add("near", "http"), made.add("far", "shared"), choose)
        with campaign:
            campaign.sites.relay.concerns = lambda request: "/replication/" in request.path
            for faults in rounds:
                campaign.take_copies()
                if not campaign.is_followed():
                    campaign.start()
                for fault in faults:
                    campaign.append(choose.randint(1, 2 * ROWS // len(deck)))
                    FAULTS[fault](campaign)
                campaign.wake()
                time.sleep(choose.uniform(0, 1))
                campaign.heal()
                if choose.random() < 0.5:
                    campaign.end_processes()
            campaign.append(max(1, ROWS - campaign.rows))
            campaign.settle()
            campaign.check()
            assert campaign.rows >= ROWS
