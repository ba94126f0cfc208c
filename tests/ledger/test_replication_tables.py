"""What the ledger itself refuses in dataset ids, shards, items, followers and terms; and how older ledgers get them."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from strandline.core.settings.lake_config import LakeConfig
from strandline.core.types import SeqRange, ShardId
from strandline.ledger.engine import Ledger
from strandline.ledger.ingest import blocks, datasets, restored_blocks
from tests.ledger.conftest import LakeState
from tests.ledger.test_versions import create_at


def _refused(lake: LakeState, statement: str) -> None:
    with pytest.raises(sa.exc.IntegrityError), lake.ledger.write() as connection:
        connection.exec_driver_sql(statement)


def _accepted(lake: LakeState, statement: str) -> None:
    with lake.ledger.write() as connection:
        connection.exec_driver_sql(statement)


BLOCK = (
    "INSERT INTO block (dataset_id, lo, hi, kind, batch_id, state, fence, reserved_at, changed_at, {}) "
    "VALUES (1, {}, {}, '{}', 'b', '{}', 1, 0, 0, {})"
)


def test_an_older_ledgers_datasets_get_their_tables_id_and_a_shard_each(config: LakeConfig) -> None:
    ledger = Ledger(config)
    create_at(ledger, "0006")
    with ledger.write() as connection:
        for n, name in enumerate(("dropped", "first", "second")):
            connection.exec_driver_sql(
                "INSERT INTO dataset (name, table_uuid, deliver_by, adopted, history, created_at, dropped_at) "
                f"VALUES ('{name}', 'uuid-{name}', '[]', FALSE, 'deliver', 0, {'NULL' if n else '1'})"
            )
            connection.exec_driver_sql(
                "INSERT INTO block (dataset_id, lo, hi, kind, batch_id, state, fence, row_count, reserved_at, "
                f"changed_at) VALUES ({n + 1}, {n + 1}, {n + 1}, 'batch', 'b', 'published', 1, 1, 0, 0)"
            )
    ledger.open()
    with ledger.write() as connection:
        known = datasets.list_datasets(connection)
        assert [(d.uuid, d.first_shard, d.shards) for d in known] == [("uuid-first", 1, 1), ("uuid-second", 2, 1)]
        shards = connection.exec_driver_sql("SELECT shard, item, offered FROM block ORDER BY lo").all()
        assert [tuple(r) for r in shards] == [(n, "segment", False) for n in range(3)]
        assert connection.exec_driver_sql("SELECT role, term, leader FROM site").one() == ("leader", 1, None)
        new = datasets.add(connection, name="new", table_uuid="uuid-new", shards=4)
        assert (new.first_shard, new.shards) == (3, 4) and datasets.next_shard(connection) == 7
    ledger.close()


def test_a_dropped_datasets_shards_are_never_given_again(lake: LakeState) -> None:
    with lake.ledger.write() as connection:
        datasets.mark_dropped(connection, lake.dataset.id)
        again = datasets.add(connection, name=lake.dataset.name, table_uuid=lake.dataset.table_uuid)
    assert again.first_shard == lake.dataset.first_shard + 1 and again.uuid == lake.dataset.uuid


def test_a_block_is_in_the_shard_that_was_asked_for_and_else_in_the_first(lake: LakeState) -> None:
    with lake.ledger.write() as connection:
        wide = datasets.add(connection, name="default.wide", table_uuid="wide", shards=3)
    last = ShardId(wide.first_shard + 2)
    named, _ = blocks.reserve(
        lake.ledger, lake.witness, blocks.NewBlock(wide.id, 5, "named", None, shard=last), lease_seconds=60
    )
    other = lake.reserve("other", dataset=wide)
    assert (named.head.shard, other.head.shard) == (last, wide.first_shard)
    assert [b.head.shard for b in lake.ledger.query(blocks.open_blocks)] == [last, wide.first_shard]
    beyond = blocks.NewBlock(wide.id, 5, "beyond", None, shard=ShardId(last + 1))
    with pytest.raises(sa.exc.IntegrityError, match="a_segment_has_a_shard_of_its_dataset"):
        _reserve_through_sqlalchemy(lake, beyond)
    with lake.ledger.write() as connection:
        restored_blocks.insert_published(
            connection, wide.id, SeqRange(900, 910), kind=blocks.BlockKind.BATCH, batch_id="found", row_count=11
        )
        found = blocks.of_batch(connection, wide.id, "found")
    assert found is not None and found.head.shard == wide.first_shard


def _reserve_through_sqlalchemy(lake: LakeState, wanted: blocks.NewBlock) -> None:
    """SQLite's own exception becomes that of SQLAlchemy."""
    import sqlite3

    try:
        blocks.reserve(lake.ledger, lake.witness, wanted, lease_seconds=60)
    except sqlite3.IntegrityError as e:
        raise sa.exc.IntegrityError("", None, e) from e


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE dataset SET uuid = 'other'",
        "UPDATE dataset SET shards = 2",
        "UPDATE dataset SET first_shard = 5",
        "INSERT INTO dataset (name, table_uuid, deliver_by, adopted, history, created_at, uuid, first_shard, shards) "
        "VALUES ('x', 'x', '[]', FALSE, 'deliver', 0, 'x', 0, 1)",
        "INSERT INTO dataset (name, table_uuid, deliver_by, adopted, history, created_at, uuid, first_shard, shards) "
        "VALUES ('x', 'x', '[]', FALSE, 'deliver', 0, 'uuid-of-events', 1, 1)",
        "INSERT INTO dataset (name, table_uuid, deliver_by, adopted, history, created_at, first_shard, shards) "
        "VALUES ('x', 'x', '[]', FALSE, 'deliver', 0, 1, 1)",
        "INSERT INTO dataset (name, table_uuid, deliver_by, adopted, history, created_at, uuid, first_shard, shards) "
        "VALUES ('x', 'x', '[]', FALSE, 'deliver', 0, 'x', 1, 1025)",
        BLOCK.format("lease_until", 1, 5, "batch", "reserved", "1"),  # a segment without a shard
        BLOCK.format("lease_until, shard", 1, 5, "batch", "reserved", "1, 1"),  # another dataset's shard
        BLOCK.format("item, ranges, row_count", 1, 2, "batch", "published", "'purge', '[]', 0"),  # two numbers
        BLOCK.format("item, ranges, row_count", 1, 1, "batch", "published", "'purge', '[]', 1"),  # a purge with rows
        BLOCK.format("item, row_count", 1, 1, "batch", "published", "'purge', 0"),  # where?
        BLOCK.format("item, ranges, row_count, shard", 1, 1, "batch", "published", "'purge', '[]', 0, 0"),
        BLOCK.format("item, ranges, row_count", 1, 1, "recovered", "published", "'purge', '[]', 0"),
        BLOCK.format("item, ranges, row_count", 1, 1, "batch", "published", "'other', '[]', 0"),
        BLOCK.format("lease_until, shard, ranges", 1, 5, "batch", "reserved", "1, 0, '[]'"),
        BLOCK.format("lease_until, shard, offered_rows", 1, 5, "batch", "reserved", "1, 0, 5"),
        "UPDATE site SET role = 'follower'",
        "UPDATE site SET leader = 'https://leader'",
        "UPDATE site SET term = 0",
        "DELETE FROM site",
        "INSERT INTO site (id, role, term) VALUES (2, 'leader', 1)",
        "INSERT INTO follower (name, on_lag, waited_for, term, added_at) VALUES ('f', 'drop', FALSE, 1, 0)",
        "INSERT INTO follower (name, on_lag, waited_for, term, added_at, removed_at) "
        "VALUES ('f', 'hold', TRUE, 1, 0, 1)",
        "INSERT INTO followed_dataset (dataset_id, bound) VALUES (1, -1)",
    ],
)
def test_the_ledger_refuses(lake: LakeState, change: str) -> None:
    _refused(lake, change)


def test_only_a_cut_abandons_an_offered_block(lake: LakeState) -> None:
    _accepted(
        lake, BLOCK.format("lease_until, shard, offered, offered_rows", 1, 5, "batch", "reserved", "1, 0, TRUE, 5")
    )
    _refused(lake, "UPDATE block SET state = 'abandoned', lease_until = NULL, reason = 'its lease ran out'")
    for change in ("offered = FALSE", "shard = NULL", "offered_rows = 4", "item = 'cut', ranges = '[]', shard = NULL"):
        _refused(lake, f"UPDATE block SET {change}")
    _accepted(lake, "UPDATE block SET state = 'abandoned', lease_until = NULL, reason = 'cut: of term 2'")


def test_an_offered_recovered_range_is_no_postponed_resync(lake: LakeState) -> None:
    _accepted(lake, BLOCK.format("lease_until, shard, offered", 1, 5, "recovered", "reserved", "1, 0, TRUE"))
    assert isinstance(lake.reserve("a"), blocks.Reserved)
    with lake.ledger.read() as connection:
        assert restored_blocks.postponed(connection) == []
        blocks.check_resynced(connection, lake.dataset.id)


def test_two_datasets_may_be_offered_the_same_recovered_numbers_and_each_finds_its_own(lake: LakeState) -> None:
    other = lake.add_dataset("default.other")
    own = BLOCK.format("lease_until, shard, offered", 1, 5, "batch", "reserved", "1, 0, TRUE")
    _accepted(lake, own)
    _refused(lake, own.replace("'b'", "'again'"))
    _accepted(
        lake, own.replace("(1, 1, 5", f"({other.id}, 1, 5").replace("1, 0, TRUE", f"1, {other.first_shard}, TRUE")
    )
    with lake.ledger.read() as connection:
        for dataset in (lake.dataset, other):
            found = blocks.of_number(connection, dataset.id, 1)
            assert found is not None and found.head.dataset == dataset.id and found.head.offered
        assert blocks.of_number(connection, other.id, 2) is None
        if connection.dialect.name == "sqlite":
            for words, index in ((blocks._OWN_NUMBERS, "one_block"), (blocks._OFFERED_NUMBERS, "one_offered_block")):
                asked = f"EXPLAIN QUERY PLAN SELECT * FROM block WHERE dataset_id = 1 AND lo = 1 AND {words}"
                assert f"{index}_of_a_number" in str(connection.exec_driver_sql(asked).all())


def test_terms_bounds_seals_and_marks_never_go_back(lake: LakeState) -> None:
    for statement in (
        "UPDATE site SET role = 'follower', leader = 'https://leader', term = 3",
        "INSERT INTO followed_dataset (dataset_id, bound, witnessed, leader_seal) VALUES (1, 10, 20, 15)",
        "INSERT INTO follower (name, on_lag, waited_for, term, added_at) VALUES ('f', 'hold', TRUE, 2, 0)",
        "INSERT INTO follower_seal (follower_id, dataset_id, seal, term, told_at) VALUES (1, 1, 10, 2, 0)",
        "INSERT INTO follower_mark (follower_id, dataset_id, shard, mark, term, told_at) VALUES (1, 1, 0, 10, 2, 0)",
    ):
        _accepted(lake, statement)
    for statement in (
        "UPDATE site SET term = 2",
        "UPDATE followed_dataset SET bound = 9",
        "UPDATE followed_dataset SET witnessed = 19",
        "UPDATE followed_dataset SET witnessed = NULL",
        "UPDATE follower SET term = 1",
        "DELETE FROM follower",
        "UPDATE follower_seal SET seal = 9",
        "UPDATE follower_seal SET term = 1, seal = 11",
        "UPDATE follower_mark SET mark = 9",
        "UPDATE follower_mark SET shard = 1",
    ):
        _refused(lake, statement)
    for statement in (
        "UPDATE followed_dataset SET bound = 20",
        "UPDATE followed_dataset SET witnessed = NULL",
        "UPDATE follower_seal SET term = 3, seal = 0",  # counted anew in a new term
        "UPDATE follower_mark SET term = 3, mark = 0",
    ):
        _accepted(lake, statement)
