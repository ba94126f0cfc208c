"""What the ledger itself refuses while a site takes over, and after another one has."""

from __future__ import annotations

import pytest

from strandline.core.settings.lake_config import LakeConfig
from strandline.ledger.engine import Ledger
from tests.ledger.conftest import LakeState
from tests.ledger.test_replication_tables import BLOCK, _accepted, _refused
from tests.ledger.test_versions import create_at

FOLLOWS = "UPDATE site SET role = 'follower', leader = 'https://leader'"
OFFERED = BLOCK.format("lease_until, shard, offered", 1, 5, "batch", "reserved", "1, 0, TRUE")
RESERVED = BLOCK.format("lease_until, shard", 1, 5, "batch", "reserved", "1, 0")
STAGED = "UPDATE block SET state = 'staged', lease_until = NULL, snapshot_id = 1"


def test_an_older_ledgers_site_has_no_number_and_its_datasets_are_of_the_first_term(config: LakeConfig) -> None:
    ledger = Ledger(config)
    create_at(ledger, "0007")
    with ledger.write() as connection:
        connection.exec_driver_sql(
            "INSERT INTO dataset (name, table_uuid, deliver_by, adopted, history, created_at, uuid) "
            "VALUES ('d', 'd', '[]', FALSE, 'deliver', 0, 'd')"
        )
        connection.exec_driver_sql("INSERT INTO followed_dataset (dataset_id, bound) VALUES (1, 10)")
        connection.exec_driver_sql(
            "INSERT INTO follower (name, on_lag, waited_for, term, added_at) VALUES ('f', 'hold', FALSE, 1, 0)"
        )
    ledger.open()
    with ledger.read() as connection:
        site = connection.exec_driver_sql("SELECT number, superseded_term, promoting_term, claimed_term FROM site")
        assert site.one() == (None, None, None, None)
        assert connection.exec_driver_sql("SELECT term FROM followed_dataset").scalar() == 1
        assert connection.exec_driver_sql("SELECT site_number, member FROM follower").one() == (None, False)
    ledger.close()


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE site SET number = 16",
        "UPDATE site SET superseded_term = 1",  # not above its own
        "UPDATE site SET superseded_by = 'https://other'",
        "UPDATE site SET promoting_term = 1",  # a leader
        f"{FOLLOWS}, superseded_term = 2",
        f"{FOLLOWS}, claimed_term = 2",  # nobody has begun a promotion
        f"{FOLLOWS}, promoting_term = 2, claimed_term = 2",
        "INSERT INTO followed_dataset (dataset_id, bound, term) VALUES (1, 0, 0)",
        "INSERT INTO follower (name, on_lag, waited_for, term, added_at, site_number) "
        "VALUES ('f', 'hold', FALSE, 1, 0, 16)",
        "INSERT INTO follower (name, on_lag, waited_for, term, added_at, site_number, member) "
        "VALUES ('f', 'hold', FALSE, 1, 0, 1, TRUE)",  # not waited for
        "INSERT INTO follower (name, on_lag, waited_for, term, added_at, member) "
        "VALUES ('f', 'hold', TRUE, 1, 0, TRUE)",  # no number
    ],
)
def test_the_ledger_refuses(lake: LakeState, change: str) -> None:
    _refused(lake, change)


def test_a_site_number_belongs_to_one_follower_and_is_free_again_when_that_was_removed(lake: LakeState) -> None:
    add = (
        "INSERT INTO follower (name, on_lag, waited_for, term, added_at, site_number) "
        "VALUES ('{}', 'hold', FALSE, 1, 0, 1)"
    )
    _accepted(lake, add.format("f"))
    _refused(lake, add.format("g"))
    _accepted(lake, "UPDATE follower SET removed_at = 1")
    _accepted(lake, add.format("g"))


def test_a_site_keeps_its_number(lake: LakeState) -> None:
    _accepted(lake, "UPDATE site SET number = 3")
    for change in ("number = 4", "number = NULL"):
        _refused(lake, f"UPDATE site SET {change}")


def test_a_superseded_leader_takes_and_stages_nothing_until_it_follows(lake: LakeState) -> None:
    _accepted(lake, RESERVED)
    _accepted(lake, "UPDATE site SET superseded_term = 19, superseded_by = 'https://other'")
    _refused(lake, RESERVED.replace("1, 5,", "6, 9,").replace("'b'", "'c'"))
    _refused(lake, STAGED)
    _refused(lake, "UPDATE site SET superseded_term = NULL, superseded_by = NULL")
    _refused(lake, "UPDATE site SET superseded_term = 18")
    _accepted(lake, f"{FOLLOWS}, superseded_term = NULL, superseded_by = NULL")
    _refused(lake, STAGED)  # a batch of its own time as leader: the cut decides about it


def test_a_leader_stages_its_batches_and_a_follower_what_it_was_offered(lake: LakeState) -> None:
    _accepted(lake, RESERVED)
    _accepted(lake, STAGED)
    _accepted(lake, FOLLOWS)
    _accepted(lake, OFFERED.replace("1, 5,", "6, 9,").replace("'b'", "'c'"))
    _accepted(lake, f"{STAGED} WHERE lo = 6")


def test_a_site_that_claims_a_term_records_and_stages_nothing(lake: LakeState) -> None:
    for statement in (
        f"{FOLLOWS}, promoting_term = 1",
        OFFERED,
        "INSERT INTO followed_dataset (dataset_id, bound) VALUES (1, 5)",
        "UPDATE followed_dataset SET bound = 6",
        "UPDATE site SET claimed_term = 17",
    ):
        _accepted(lake, statement)
    _refused(lake, "UPDATE followed_dataset SET bound = 7")
    _refused(lake, STAGED)
    _accepted(lake, "UPDATE site SET claimed_term = NULL, promoting_term = NULL")  # another site was faster
    _accepted(lake, "UPDATE followed_dataset SET bound = 7")
    _accepted(lake, STAGED)


def test_the_term_of_a_followed_dataset_never_goes_back(lake: LakeState) -> None:
    _accepted(lake, "INSERT INTO followed_dataset (dataset_id, bound, term) VALUES (1, 10, 17)")
    _refused(lake, "UPDATE followed_dataset SET term = 16")
    _accepted(lake, "UPDATE followed_dataset SET term = 18")
