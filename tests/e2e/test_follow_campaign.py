"""Followers of 4 shards under everything that may happen, in a random order: each row is there once in the end."""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.iceberg.schema.schema_file import parse_columns
from tests.campaign import TORTURE, Decks, report_fired, scaled, seed
from tests.conftest import MakeHome
from tests.e2e.follow_faults import EVERY_KIND, FAULTS, Campaign
from tests.e2e.following import sites
from tests.spark.network_cut import is_replication

pytestmark = pytest.mark.timeout(scaled(600, 1800))

ROWS = scaled(2_000, 100_000)
SHARDS = 4
SEED, SEEDS = 20261118, scaled(1, 20)
EACH = scaled(1, 2)
"""How often each fault happens."""
DEALT = scaled(len(FAULTS) // 2, len(FAULTS))
"""How many of them a short run deals: each has tests of its own, too."""
FAULTS_A_ROUND = 3
COLUMNS = [
    {"name": "id", "type": "long", "required": True},
    {"name": "text", "type": "string"},
    {"name": "at", "type": "timestamptz"},
]

DECKS, FIRED = Decks(), Counter[str]()  # of all seeds
SECONDS: defaultdict[str, float] = defaultdict(float)  # that each fault took


@pytest.mark.parametrize("n", range(SEEDS))
def test_a_follower_has_each_row_of_its_leader_once_whatever_happened(
    tmp_path: Path, make_home: MakeHome, spark_started: object, n: int
) -> None:
    choose = random.Random(seed(SEED) + n)
    deck = [fault for _ in range(EACH) for fault in choose.sample(sorted(FAULTS), DEALT)]
    DECKS.dealt |= set(deck)
    rounds = [deck[at : at + FAULTS_A_ROUND] for at in range(0, len(deck), FAULTS_A_ROUND)]
    print(f"seed {n}: {rounds}")
    with sites(tmp_path, make_home) as made:
        made.leader.create_dataset("events", parse_columns(COLUMNS), shards=SHARDS)
        campaign = Campaign(made, made.add("near", "http"), made.add("far", "shared"), choose, FIRED, DECKS)
        with campaign:
            campaign.sites.relay.concerns = is_replication
            for faults in rounds:
                campaign.take_copies()
                campaign.keep_following()
                for fault in faults:
                    campaign.append(choose.randint(1, 2 * ROWS // len(deck)))
                    began = time.monotonic()
                    FAULTS[fault](campaign)
                    FIRED[fault] += 1
                    SECONDS[fault] += time.monotonic() - began
                campaign.wake()
                time.sleep(choose.uniform(0, 1))
                campaign.heal()
                if choose.random() < 0.5:
                    campaign.end_processes()
            campaign.append(max(1, ROWS - campaign.rows))
            campaign.settle()
            campaign.check()
            FIRED.update(campaign.hit)
            assert campaign.rows >= ROWS


def test_each_fault_of_the_followers_campaign_has_fired(record_property: Callable[[str, object], None]) -> None:
    """Of those that were dealt; over all seeds, everything is dealt."""
    report_fired(record_property, FIRED, SEED)
    print(*(f"{seconds:6.1f} s {fault}" for fault, seconds in SECONDS.items()), sep="\n")
    assert DECKS.dealt and FIRED.keys() >= DECKS.dealt, sorted(DECKS.dealt - FIRED.keys())
    assert FIRED["taken for dead, and goes on"] == FIRED["stopped and taken for dead"]
    if FIRED["far one follows"] == SEEDS * EACH and TORTURE:
        assert FIRED.keys() >= EVERY_KIND, sorted(EVERY_KIND - FIRED.keys())
