"""Reserve, mark, take over: the promises of the sequence, on both ledgers."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from strandline.core.errors import BatchConflict, ResyncNeeded, WitnessUnreadable
from strandline.core.types import Abandoned, Published, Reserved, Seq, SeqRange, SnapshotId, Staged
from strandline.ledger import postgres
from strandline.ledger.engine import Ledger
from strandline.ledger.ingest import blocks, reserve_sql, restored_blocks, sequence
from strandline.ledger.witness import LocalWitness
from tests.ledger.conftest import LakeState


def test_numbers_start_at_one_and_blocks_are_contiguous(lake: LakeState) -> None:
    first, second = lake.reserve("a", 10), lake.reserve("b", 5)
    assert (first.head.rows, second.head.rows) == (SeqRange(1, 10), SeqRange(11, 15))


def test_the_same_batch_twice_is_one_block(lake: LakeState) -> None:
    first = lake.reserve("a", 10, digest="d")
    again, new = blocks.reserve(
        lake.ledger, lake.witness, blocks.NewBlock(lake.dataset.id, 10, "a", "d"), lease_seconds=60
    )
    assert not new and again.head == first.head
    assert lake.reserve("b", 1).head.rows.lo == 11


def test_the_same_batch_id_with_other_rows_is_refused_and_takes_no_number(lake: LakeState) -> None:
    lake.reserve("a", 10, digest="d")
    with pytest.raises(BatchConflict):
        lake.reserve("a", 10, digest="other")
    assert lake.reserve("b", 1).head.rows.lo == 11


def test_a_batch_id_belongs_to_its_dataset(lake: LakeState) -> None:
    other = lake.add_dataset("default.other")
    assert lake.reserve("a").head.rows != lake.reserve("a", dataset=other).head.rows


def test_a_dataset_whose_resync_was_postponed_gets_no_block(lake: LakeState) -> None:
    with lake.ledger.write() as connection:
        restored_blocks.postpone(connection, lake.dataset.id, SeqRange(Seq(1000), Seq(2000)), "postponed")
    with pytest.raises(ResyncNeeded, match=r"default\.events"):
        lake.reserve("a")
    [waiting] = lake.ledger.query(restored_blocks.postponed)
    lake.ledger.change(restored_blocks.settle_postponed, waiting)
    assert lake.reserve("a").head.rows.lo == 1, "a refusal takes no number"


def test_a_resync_that_is_postponed_while_a_writer_waits_for_the_counter_refuses_the_writer(lake: LakeState) -> None:
    refused: list[ResyncNeeded] = []

    def late() -> None:
        try:
            lake.reserve("a")
        except ResyncNeeded as e:
            refused.append(e)

    held = Ledger(lake.config)
    waiting = threading.Thread(target=late)
    with held.write() as connection:
        sequence.lock(connection)
        waiting.start()
        if not held.is_sqlite:
            _until_someone_waits(connection)  # its statement has begun, and does not see what follows
        restored_blocks.postpone(connection, lake.dataset.id, SeqRange(Seq(1000), Seq(2000)), "postponed")
    waiting.join(60)
    held.close()
    assert len(refused) == 1


def test_a_resync_that_is_made_up_for_between_the_refusal_and_its_words_costs_nothing(
    lake: LakeState, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = iter([reserve_sql.ResyncPostponed()])
    real = reserve_sql.place

    def place(connection: sa.Connection, new: dict[str, Any]) -> Any:
        for refusal in refusals:
            raise refusal
        return real(connection, new)

    monkeypatch.setattr(reserve_sql, "place", place)
    assert lake.reserve("a").head.rows.lo == 1


def test_whether_a_resync_was_postponed_is_looked_up_and_open_blocks_are_not_read(sqlite_lake: LakeState) -> None:
    statements: list[tuple[str, tuple[object, ...]]] = []
    event.listen(
        sqlite_lake.ledger.engine, "before_cursor_execute", lambda *a: statements.append((a[2], a[3])), named=False
    )
    sqlite_lake.ledger.query(blocks.check_resynced, sqlite_lake.dataset.id)
    with sqlite_lake.ledger.read() as connection:
        [asked] = statements
        plan = [r[3] for r in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {asked[0]}", asked[1])]
    assert any("postponed_blocks" in step for step in plan), plan


def test_an_abandoned_batch_may_come_again_under_new_numbers(lake: LakeState) -> None:
    first = lake.reserve("a", 10)
    assert blocks.abandon(lake.ledger, lake.witness, first, "a test")
    again = lake.reserve("a", 10)
    assert again.head.rows.lo > first.head.rows.hi


def test_abandoning_takes_a_number_so_that_a_restore_which_undoes_it_is_noticed(lake: LakeState) -> None:
    held = lake.reserve("a", 10)
    blocks.abandon(lake.ledger, lake.witness, held, "a test")
    assert lake.witness.read().highest == 11


def test_racing_threads_get_disjoint_blocks_and_one_block_per_batch(lake: LakeState) -> None:
    got: list[SeqRange] = []
    outcomes: list[tuple[SeqRange, bool]] = []

    def work(worker: int) -> None:
        for i in range(20):
            got.append(lake.reserve(f"{worker}-{i}", 3).head.rows)
            block, new = blocks.reserve(
                lake.ledger, lake.witness, blocks.NewBlock(lake.dataset.id, 2, f"shared-{i}", "d"), lease_seconds=60
            )
            outcomes.append((block.head.rows, new))

    threads = [threading.Thread(target=work, args=(w,)) for w in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(got) == 120 and len(outcomes) == 120
    numbers = [n for r in got for n in range(r.lo, r.hi + 1)]
    assert len(numbers) == len(set(numbers))
    assert len({r for r, _ in outcomes}) == 20 == sum(new for _, new in outcomes)


def test_the_commit_point_needs_the_fence(lake: LakeState) -> None:
    held = lake.reserve("a", lease_seconds=0)
    taken = blocks.take_over(lake.ledger, held, lease_seconds=60)
    assert taken is not None and taken.fence == held.fence + 1
    assert not blocks.mark_staged(lake.ledger, lake.witness, held, SnapshotId(1)), "a fenced writer staged"
    assert blocks.mark_staged(lake.ledger, lake.witness, taken, SnapshotId(1))


def test_a_live_lease_cannot_be_taken_over_and_is_renewed_by_its_holder_only(lake: LakeState) -> None:
    held = lake.reserve("a", lease_seconds=60)
    assert blocks.take_over(lake.ledger, held, lease_seconds=60) is None
    short = lake.reserve("b", lease_seconds=0)
    assert blocks.renew(lake.ledger, short, lease_seconds=60)
    assert blocks.take_over(lake.ledger, short, lease_seconds=60) is None, "it was renewed since it was seen"
    third = lake.reserve("c", lease_seconds=0)
    assert blocks.take_over(lake.ledger, third, lease_seconds=60) is not None
    assert not blocks.renew(lake.ledger, third, lease_seconds=60)


def test_two_recoverers_cannot_both_take_a_block(lake: LakeState) -> None:
    held = lake.reserve("a", lease_seconds=0)
    won = [blocks.take_over(lake.ledger, held, lease_seconds=60) for _ in range(3)]
    assert sum(w is not None for w in won) == 1


def test_abandon_and_stage_exclude_each_other(lake: LakeState) -> None:
    held = lake.reserve("a")
    assert blocks.mark_staged(lake.ledger, lake.witness, held, SnapshotId(1))
    assert not blocks.abandon(lake.ledger, lake.witness, held, "too late")
    assert isinstance(blocks.find_block(lake.ledger, held.head), Staged)
    other = lake.reserve("b")
    assert blocks.abandon(lake.ledger, lake.witness, other, "first")
    assert not blocks.mark_staged(lake.ledger, lake.witness, other, SnapshotId(1))
    assert isinstance(blocks.find_block(lake.ledger, other.head), Abandoned)


def test_publishing_is_marked_by_anyone_any_number_of_times(lake: LakeState) -> None:
    published = lake.publish(lake.reserve("a"))
    staged = Staged(published.head, blocks.Fence(1), SnapshotId(7), published.published_at)
    assert blocks.mark_published(lake.ledger, staged, row_count=10, snapshot=SnapshotId(9))
    again = blocks.find_block(lake.ledger, published.head)
    assert isinstance(again, Published) and again.snapshot == 7, "the first mark stays"


@pytest.mark.parametrize(
    "illegal",
    [
        "UPDATE block SET state = 'reserved', lease_until = 1, row_count = NULL, snapshot_id = NULL",
        "UPDATE block SET state = 'abandoned', reason = 'no', row_count = NULL, snapshot_id = NULL",
        "UPDATE block SET lo = lo + 1",
        "UPDATE block SET fence = 0",
        "UPDATE block SET row_count = NULL",
        "UPDATE sequence SET last = 1",
        "UPDATE sequence SET epoch = 0",
        "UPDATE sequence SET lake = 'another'",
        "INSERT INTO sequence (id, lake, last, epoch, created_at) VALUES (2, 'x', 0, 1, 0)",
    ],
)
def test_the_store_itself_refuses_an_illegal_move(lake: LakeState, illegal: str) -> None:
    lake.publish(lake.reserve("a"))
    with pytest.raises(sa.exc.IntegrityError), lake.ledger.write() as connection:
        connection.exec_driver_sql(illegal)


def test_a_staged_block_can_only_be_voided_by_name(lake: LakeState) -> None:
    held = lake.reserve("a")
    blocks.mark_staged(lake.ledger, lake.witness, held, SnapshotId(1))
    with pytest.raises(sa.exc.IntegrityError), lake.ledger.write() as connection:
        connection.exec_driver_sql("UPDATE block SET state = 'abandoned', reason = 'quietly', snapshot_id = NULL")
    staged = blocks.find_block(lake.ledger, held.head)
    assert isinstance(staged, Staged)
    with lake.ledger.write() as connection:
        assert blocks.void(connection, staged, "a person said so")


def test_nothing_is_stamped_without_the_witness(lake: LakeState) -> None:
    assert isinstance(lake.witness, LocalWitness)
    lake.witness.path.unlink()
    with pytest.raises(WitnessUnreadable):
        lake.reserve("a")


def test_a_ledger_behind_its_witness_takes_no_number_and_stages_nothing(lake: LakeState) -> None:
    held = lake.reserve("a")
    lake.witness.raise_to(500, expected=10)
    with pytest.raises(ResyncNeeded):
        lake.reserve("b")
    with pytest.raises(ResyncNeeded):
        blocks.mark_staged(lake.ledger, lake.witness, held, SnapshotId(1))
    with pytest.raises(ResyncNeeded):
        blocks.abandon(lake.ledger, lake.witness, held, "a test")
    with lake.ledger.read() as connection:
        assert sequence.read(connection).last == 10
    assert isinstance(blocks.find_block(lake.ledger, held.head), Reserved)


def test_a_block_that_a_restored_ledger_gave_to_another_is_not_mistaken_for_ours(lake: LakeState) -> None:
    held = lake.reserve("a")
    stranger = blocks.BlockHead(
        held.head.id,
        held.head.dataset,
        SeqRange(901, 910),
        held.head.kind,
        "a",
        None,
        held.head.reserved_at,
        held.head.shard,
    )
    assert blocks.find_block(lake.ledger, stranger) is None
    assert not blocks.mark_staged(
        lake.ledger, lake.witness, Reserved(stranger, held.fence, held.lease_until), SnapshotId(1)
    )


def test_a_reservation_that_the_witness_refuses_leaves_no_block(lake: LakeState) -> None:
    lake.witness.raise_to(500, expected=0)
    with pytest.raises(ResyncNeeded):
        lake.reserve("a")
    assert lake.ledger.query(blocks.of_batch, lake.dataset.id, "a") is None


def test_a_batch_that_is_abandoned_while_it_comes_again_gets_a_new_block(lake: LakeState) -> None:
    if lake.ledger.is_sqlite:
        pytest.skip("writers take turns: nobody abandons a block while another looks for it")
    first = lake.reserve("a", 10)
    other = Ledger(lake.config)
    abandoned: list[bool] = []

    @sa.event.listens_for(lake.ledger.engine, "after_cursor_execute")
    def _(*_: object) -> None:
        if not abandoned:
            abandoned.append(blocks.abandon(other, lake.witness, first, "a test"))

    again = lake.reserve("a", 10)
    other.close()
    assert abandoned == [True] and again.head.rows == SeqRange(12, 21)


def test_a_racing_duplicate_that_was_not_seen_is_the_same_block(lake: LakeState) -> None:
    if lake.ledger.is_sqlite:
        pytest.skip("writers take turns: a known batch is always seen")
    outcomes: list[tuple[SeqRange, bool]] = []

    def late() -> None:
        wanted = blocks.NewBlock(lake.dataset.id, 10, "a", "d")
        block, new = blocks.reserve(lake.ledger, lake.witness, wanted, lease_seconds=60)
        outcomes.append((block.head.rows, new))

    held = Ledger(lake.config)
    waiting = threading.Thread(target=late)
    with held.write() as connection:
        sequence.lock(connection)
        waiting.start()
        _until_someone_waits(connection)  # it has looked for the batch, and waits for the counter
        connection.exec_driver_sql(
            "INSERT INTO block (dataset_id, lo, hi, kind, batch_id, digest, state, fence, lease_until, reserved_at, "
            f"changed_at, shard) VALUES ({lake.dataset.id}, 900, 909, 'batch', 'a', 'd', 'reserved', 1, 1, 1, 1, 0)"
        )
    waiting.join(60)
    held.close()
    assert outcomes == [(SeqRange(900, 909), False)]
    assert lake.reserve("b", 1).head.rows.lo == 11, "its numbers stay unused, with counter and witness in step"


def _until_someone_waits(connection: sa.Connection) -> None:
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    deadline = time.monotonic() + 60
    while connection.exec_driver_sql(query).scalar() == 0:
        assert time.monotonic() < deadline, "nobody waits"
        time.sleep(0.01)
        connection.exec_driver_sql("SELECT pg_stat_clear_snapshot()")


def test_a_server_that_dropped_an_idle_connection_costs_no_failed_call(
    lake: LakeState, monkeypatch: pytest.MonkeyPatch
) -> None:
    if lake.ledger.is_sqlite:
        pytest.skip("a file has no server that drops connections")
    monkeypatch.setattr(postgres, "_PING_AFTER_IDLE_SECONDS", 0.0)
    lake.reserve("a")
    other = Ledger(lake.config)
    with other.write() as connection:
        dropped = connection.exec_driver_sql(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        ).scalar()
    other.close()
    assert dropped == 1
    lake.reserve("b")
