"""Batches that cannot be ingested: each body is in one that can still come in, is set aside, or was given up; and one
that has ended never comes in."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from strandline.core import failpoints
from strandline.core.batch_names import can_share_rows, enclosing_batches, new_name, part_name
from strandline.core.errors import BatchEnded, FailedError, RefusedError, StorageError, UsageError
from strandline.core.types import Published, Reserved, SeqRange, SnapshotId, Staged
from strandline.ledger import audit
from strandline.ledger.engine import utc_now
from strandline.ledger.ingest import blocks, datasets
from strandline.ledger.receive import batch_receipts, batches, ended_batches, receive_report, received, spool_files
from strandline.ledger.receive.batches import Batch
from strandline.ledger.receive.ended_batches import FailedBatchFacts
from strandline.ledger.receive.receipts import open_receipts
from strandline.ledger.receive.received import Repeat
from strandline.ledger.witness import Witness, WitnessRecord
from strandline.receive.failed_batches import TRIES, TRIES_WITHOUT_PROOF, BatchFailure, next_step
from strandline.receive.intake import Intake, IntakeContext
from tests.campaign import scaled
from tests.ledger.conftest import LakeState
from tests.ledger.receiving import Receiving, at_once, by_range, new_receiving, span


def reserve(lake: LakeState, batch: Batch) -> Reserved:
    wanted = blocks.NewBlock(batch.dataset, batch.rows, batch.batch_id, None, received=True)
    held, new = blocks.reserve(lake.ledger, lake.witness, wanted, lease_seconds=60)
    assert new and isinstance(held, Reserved)
    return held


def taken(receiving: Receiving) -> Batch:
    [batch] = receiving.take()
    return batch


def alone(receiving: Receiving, *names: str) -> list[Batch]:
    """A batch of its own for each, taken."""
    for name in names:
        receiving.accept(name)
        assert receiving.form() is not None
    return receiving.take()


def listed(receiving: Receiving) -> list[ended_batches.SetAsideBody]:
    with receiving.ledger.read() as connection:
        return ended_batches.list_set_aside(connection, receiving.dataset.name)


# Divided.


def test_a_divided_batch_has_its_bodies_in_two_parts_in_order(receiving: Receiving) -> None:
    bodies = receiving.accept("a", "b", "c", rows=4)
    receiving.form()
    whole = taken(receiving)
    parts = ended_batches.divide(receiving.ledger, receiving.witness, whole)
    assert [[b.spool for b in p.bodies] for p in parts] == [[bodies[0].spool, bodies[1].spool], [bodies[2].spool]]
    assert [[b.place for b in p.bodies] for p in parts] == [[0, 4], [0]]
    assert [(t.batch_id, t.bodies, t.failures) for t in receiving.take()] == [(p.batch_id, p.bodies, 0) for p in parts]
    assert [p.batch_id for p in parts] == [f"{whole.batch_id}.0", f"{whole.batch_id}.1"]
    assert ended_batches.divide(receiving.ledger, receiving.witness, whole) == [], "it has ended"
    assert not batches.renew(receiving.ledger, whole, 60)
    assert not batches.failed(receiving.ledger, whole, "late", utc_now())


def test_a_receiver_that_still_holds_a_divided_batch_cannot_bring_it_in(
    shared: LakeState, receiving: Receiving
) -> None:
    receiving.accept("a", "b")
    receiving.form()
    whole = taken(receiving)
    first, second = ended_batches.divide(receiving.ledger, receiving.witness, whole)
    counter = reserve(shared, first).head.rows.hi
    with pytest.raises(BatchEnded):
        reserve(shared, whole)
    with pytest.raises(BatchEnded):  # the store itself says no, whoever asks
        blocks.reserve(
            shared.ledger, shared.witness, blocks.NewBlock(whole.dataset, 20, whole.batch_id, None), lease_seconds=60
        )
    assert reserve(shared, second).head.rows.lo == counter + 1, "the refused took no number"
    with pytest.raises(batches.BlockLost):
        batches.settle(receiving.ledger, whole, span(1, 20))


def test_a_batch_that_the_ledger_has_forgotten_gets_no_block(shared: LakeState, receiving: Receiving) -> None:
    receiving.accept("a")
    receiving.form()
    batch = taken(receiving)
    forgotten = Batch(batch.id, batch.dataset, new_name(), batch.rows, batch.bodies, 0, None, batch.lease)
    with pytest.raises(BatchEnded):
        reserve(shared, forgotten)


def test_a_batch_that_a_block_has_is_neither_divided_nor_set_aside(shared: LakeState, receiving: Receiving) -> None:
    receiving.accept("a")
    receiving.form()
    batch = taken(receiving)
    held = reserve(shared, batch)
    assert ended_batches.divide(receiving.ledger, receiving.witness, batch) == []
    assert not ended_batches.set_body_aside(receiving.ledger, receiving.witness, batch, "why")
    for ending in ("divided", "set_aside", "discarded", "replayed", "elsewhere"):
        assert receiving.is_refused(
            f"UPDATE receive_batch SET ending = '{ending}', ended_at = 1, reason = 'x', lease_token = NULL, "
            "lease_until = NULL WHERE dataset_id = :dataset"
        ), ending
    assert blocks.abandon(shared.ledger, shared.witness, held, "it failed")
    assert ended_batches.set_body_aside(receiving.ledger, receiving.witness, batch, "why")


def test_a_ledger_that_is_behind_the_witness_ends_no_batch(receiving: Receiving) -> None:
    """It was restored: the table may have the batch. Nor does one whose dataset is still to be opened."""

    class Ahead:
        def read(self) -> WitnessRecord:
            return WitnessRecord("lake", 1 << 40)

    receiving.accept("a", "b")
    receiving.form()
    whole = taken(receiving)
    ahead = cast("Witness", Ahead())
    assert ended_batches.divide(receiving.ledger, ahead, whole) == []
    assert not ended_batches.set_body_aside(receiving.ledger, ahead, replace(whole, bodies=whole.bodies[:1]), "why")
    parts = ended_batches.divide(receiving.ledger, receiving.witness, whole)
    with receiving.ledger.read() as connection:
        ended = [batch_receipts.has_ended(connection, b.batch_id) for b in (whole, *parts)]
    assert ended == [True, False, False], "what the table has of it by then makes the receiver hold"


def test_of_a_reservation_and_a_division_at_once_only_one_happens(shared: LakeState, receiving: Receiving) -> None:
    for round in range(8):
        receiving.accept(f"a{round}", f"b{round}")
        receiving.form()
        [batch] = [b for b in receiving.take() if len(b.bodies) == 2]

        def reserved(ledger: object, batch: Batch = batch) -> bool:
            with suppress(BatchEnded):
                reserve(LakeState(shared.config, ledger, shared.witness, shared.dataset), batch)  # type: ignore[arg-type]
                return True
            return False

        def divided(ledger: object, batch: Batch = batch) -> bool:
            return bool(ended_batches.divide(ledger, shared.witness, batch))  # type: ignore[arg-type]

        assert sorted(at_once(shared, [reserved, divided])) == [False, True]


# Set aside.


def test_a_body_that_was_set_aside_is_still_held_and_its_repeat_is_answered(receiving: Receiving) -> None:
    [body] = receiving.accept(by_range(1, 10))
    receiving.form()
    assert ended_batches.set_body_aside(receiving.ledger, receiving.witness, taken(receiving), "the name is too long")
    assert isinstance(receiving.record(receiving.body(by_range(1, 10)))[0], Repeat)
    assert receiving.held() == [span(1, 10)]
    assert receiving.form() is None and receiving.take() == []
    [told] = listed(receiving)
    assert (told.reason, told.rows, told.key, told.spool) == ("the name is too long", 10, None, body.spool)
    assert told.sender is not None and told.sender.endswith("1-10")
    with receiving.ledger.read() as connection:
        [status] = [w for w in receive_report.report(connection) if w.dataset == receiving.dataset.id]
        assert (status.set_aside.bodies, status.set_aside.rows, status.to_ingest.bodies) == (1, 10, 0)
        assert batches.waiting(connection, receiving.dataset.id) == (0, 0)
        assert spool_files.spooled(connection, [told.spool]) == {told.spool}, "its file stays"


def test_a_replayed_body_is_in_line_again_and_one_that_was_discarded_never(
    receiving: Receiving, shared: LakeState
) -> None:
    for batch in alone(receiving, "a", "b"):
        assert ended_batches.set_body_aside(receiving.ledger, receiving.witness, batch, "why")
    first, second = listed(receiving)
    assert ended_batches.replay(receiving.ledger, [first.id]) == [first]
    assert ended_batches.discard(receiving.ledger, [second.id]) == [second]
    assert listed(receiving) == []
    [again] = receiving.take()
    assert [b.id for b in again.bodies] == [first.id] and again.failures == 0
    receiving.publish_formed(again, 1)
    with receiving.ledger.read() as connection:
        own = {s for _, s in batches.to_remove(connection)} & {first.spool, second.spool}
        events = [e for e in audit.latest(connection) if e.detail.get("dataset") == receiving.dataset.name]
    assert own == {first.spool, second.spool}, "the one is in, the other given up"
    assert [(e.event, e.detail["rows"]) for e in events] == [
        ("receive.bodies_discarded", 10),
        ("receive.bodies_replayed", 10),
    ]
    assert receiving.remove_files() == 2
    assert isinstance(receiving.record(receiving.body("b"))[0], Repeat), "still known"
    assert received.forget_keys(receiving.ledger, utc_now()) >= 2, "and forgotten in time"
    for gone in (first.id, second.id):
        with pytest.raises(UsageError, match="not set aside"):
            ended_batches.replay(receiving.ledger, [gone])


@pytest.mark.parametrize(
    "change",
    [
        "ending = NULL, ended_at = NULL",
        "published_at = 1, lo = 1, hi = 10",
        "lease_token = 'x', lease_until = 1",
        "ending = 'divided'",
    ],
)
def test_the_store_itself_refuses_to_open_an_ended_batch_again(receiving: Receiving, change: str) -> None:
    [batch] = alone(receiving, "a")
    assert ended_batches.set_body_aside(receiving.ledger, receiving.witness, batch, "why")
    assert receiving.is_refused(f"UPDATE receive_batch SET {change} WHERE dataset_id = :dataset")
    for moved in ("batch = NULL, place = NULL", "place = 5", "spool_removed_at = 1"):
        assert receiving.is_refused(f"UPDATE received SET {moved} WHERE dataset_id = :dataset"), moved


# A dataset that was dropped.


@pytest.mark.parametrize("point", ["spool.after_clear"])
def test_what_was_received_for_a_dropped_dataset_is_cleared_in_steps(
    receiving: Receiving, shared: LakeState, point: str
) -> None:
    receiving.accept("a", "b")
    receiving.form()
    reserve(shared, taken(receiving))  # by a writer that was under way
    [lone] = alone(receiving, "c")
    assert ended_batches.set_body_aside(receiving.ledger, receiving.witness, lone, "why")
    in_no_batch = receiving.accept("d", "e")
    name = receiving.dataset.name
    with pytest.raises(RefusedError, match="not dropped"):
        ended_batches.clear_dropped(receiving.ledger, name)
    with receiving.ledger.write() as connection:
        datasets.mark_dropped(connection, receiving.dataset.id)
    with pytest.raises(RefusedError, match="dropped"):
        ended_batches.replay(receiving.ledger, None, name)
    failpoints.arm(f"{point}=fail")
    try:
        with pytest.raises(failpoints.FailpointError):
            ended_batches.clear_dropped(receiving.ledger, name)
    finally:
        failpoints.arm("")
    rest = ended_batches.clear_dropped(receiving.ledger, name)
    assert 0 < rest.bodies < 5 and ended_batches.clear_dropped(receiving.ledger, name).bodies == 0
    assert receiving.remove_files() == 5
    with receiving.ledger.read() as connection:
        assert [w for w in receive_report.report(connection) if w.dataset == receiving.dataset.id] == []
        assert not spool_files.spooled(connection, [b.spool for b in in_no_batch if b.spool])
        events = [e.detail["bodies"] for e in audit.latest(connection) if e.event == "receive.spool_cleared"]
    assert sum(events[:3]) == 5


# What is known of the others.


def test_what_came_in_since_a_batch_failed_is_told_by_numbers(receiving: Receiving, shared: LakeState) -> None:
    first, second, third = alone(receiving, "a", "b", "c")
    held = reserve(shared, second)

    def standing(batch: Batch) -> FailedBatchFacts:
        with receiving.ledger.read() as connection:
            return ended_batches.failed_batch_facts(connection, batch, tries=2)

    assert standing(first) == FailedBatchFacts(others_got_in=False, smaller_under_trial=False)
    assert batches.failed(receiving.ledger, first, "why", utc_now() - timedelta(hours=1))
    shared.publish(held)
    assert not standing(first).others_got_in, "it was reserved before"
    shared.publish(reserve(shared, third))
    assert standing(first).others_got_in
    receiving.accept("d", "e")
    receiving.form()
    [large] = [b for b in receiving.take() if len(b.bodies) == 2]
    assert standing(large).smaller_under_trial
    for batch in (second, third):
        block = receiving.ledger.query(blocks.of_batch, batch.dataset, batch.batch_id)
        assert block is not None
        batches.settle(receiving.ledger, batch, block.head.rows)
    [again] = [b for b in receiving.take() if b.id == first.id] or [first]
    with receiving.ledger.write() as connection:
        connection.exec_driver_sql(f"UPDATE receive_batch SET failures = 2 WHERE id = {again.id}")
    assert not standing(large).smaller_under_trial, "it was tried often enough"


@pytest.mark.parametrize("bodies", [1, 2, 1000])
@pytest.mark.parametrize("proof", ["none", "others", "unfit"])
@pytest.mark.parametrize("smaller", [False, True])
def test_a_batch_is_divided_and_a_body_set_aside_only_with_reason(bodies: int, proof: str, smaller: bool) -> None:
    standing = FailedBatchFacts(proof == "others", smaller)

    def step(times: int, *, while_appending: bool = True) -> str:
        return next_step(BatchFailure(bodies, times, while_appending, proof == "unfit"), standing)

    assert {step(n) for n in range(TRIES)} == {"wait"}
    assert step(100, while_appending=False) == "wait"
    if proof != "none":
        assert step(TRIES) == ("set_aside" if bodies == 1 else "divide")
    else:
        assert step(TRIES) == "wait"
        assert step(TRIES_WITHOUT_PROOF) == ("divide" if bodies > 1 and not smaller else "wait")


def test_only_batches_of_one_line_can_share_rows() -> None:
    whole, other = new_name(), new_name()
    part = part_name(part_name(whole, 0), 1)
    assert can_share_rows(whole, part) and can_share_rows(part, whole) and can_share_rows(whole, whole)
    assert enclosing_batches(part) == [whole, f"{whole}.0"] and enclosing_batches(whole) == []
    for one, two in (
        (whole, other),
        (part_name(whole, 0), part_name(whole, 1)),
        ("day", "day.1"),
        (whole, f"{whole}.x"),
    ):
        assert not can_share_rows(one, two)
    assert enclosing_batches("day.1") == []
    deep = whole
    for _ in range(600):
        deep = part_name(deep, 0)
    assert len(deep) <= 1024


def test_a_restored_ledger_divides_again_what_the_table_holds_in_parts(receiving: Receiving, shared: LakeState) -> None:
    """Its copy is from before the division: it takes the whole for unfinished, even for reserved."""
    bodies = receiving.accept("a", "b", "c")
    receiving.form()
    whole = taken(receiving)
    reserve(shared, whole)
    with receiving.ledger.write() as connection:
        assert ended_batches.divide_again(connection, whole.dataset, f"{whole.batch_id}.0.1") == 2
        assert ended_batches.divide_again(connection, whole.dataset, f"{whole.batch_id}.0.1") == 0
    found = {b.batch_id.removeprefix(whole.batch_id): [x.spool for x in b.bodies] for b in receiving.take()}
    a, b, c = (body.spool for body in bodies)
    assert found == {".0.0": [a], ".0.1": [b], ".1": [c]}
    with pytest.raises(BatchEnded):
        reserve(shared, whole)


# The intake itself, with everything going wrong at random.


@dataclass(frozen=True)
class Entered:
    rows: SeqRange


@dataclass
class Door:
    """Stands for `append`: the ledger's own protocol, and a table that is a list."""

    lake: LakeState
    chance: random.Random
    bad: set[str] = field(default_factory=set)
    """Files that cannot be written."""
    trouble: float = 0.0
    """How often something else fails, or the process dies."""
    table: list[tuple[SeqRange, list[str]]] = field(default_factory=list)
    branches: dict[int, list[str]] = field(default_factory=dict)

    def catch_up(self) -> None:
        pass

    def append_received(self, name: str, frame: Batch, batch_id: str, check: Callable[[], None]) -> Entered:
        self.stumble()
        wanted = blocks.NewBlock(frame.dataset, frame.rows, batch_id, None, received=True)
        held, new = blocks.reserve(self.lake.ledger, self.lake.witness, wanted, lease_seconds=60)
        self.stumble()
        if not new:
            raise FailedError("another has it under way")
        assert isinstance(held, Reserved)
        files = [body.spool for body in frame.bodies]
        if self.bad & set(files):
            blocks.abandon(self.lake.ledger, self.lake.witness, held, "bad")
            raise FailedError("File name too long")
        self.branches[held.head.rows.lo] = files
        self.stumble()
        if not blocks.mark_staged(self.lake.ledger, self.lake.witness, held, SnapshotId(7)):
            raise FailedError("lost the block")
        self.stumble()
        return Entered(self.publish(blocks.find_block(self.lake.ledger, held.head)).head.rows)

    def publish(self, staged: object) -> Published:
        assert isinstance(staged, Staged)
        rows = staged.head.rows
        if all(numbers != rows for numbers, _ in self.table):
            self.table.append((rows, self.branches[rows.lo]))
        blocks.mark_published(self.lake.ledger, staged, row_count=len(rows), snapshot=SnapshotId(7))
        found = blocks.find_block(self.lake.ledger, staged.head)
        assert isinstance(found, Published)
        return found

    def stumble(self) -> None:
        if self.chance.random() < self.trouble:
            raise self.chance.choice((StorageError("the disk is away"), failpoints.FailpointError("killed")))

    def recover(self) -> None:
        with self.lake.ledger.read() as connection:
            found = blocks.open_blocks(connection)
        for block in found:
            if isinstance(block, Reserved):
                if block.head.rows.lo in self.branches and self.chance.random() < 0.5:
                    blocks.mark_staged(self.lake.ledger, self.lake.witness, block, SnapshotId(7))
                else:
                    blocks.abandon(self.lake.ledger, self.lake.witness, block, "its writer is gone")
            elif block.head.rows.lo in self.branches:
                self.publish(block)


class Removed:
    """A spool of which only the removals matter."""

    def __init__(self) -> None:
        self.gone: set[str] = set()

    def remove(self, names: list[str]) -> None:
        self.gone |= set(names)


def be_due(lake: LakeState) -> None:
    with lake.ledger.write() as connection:
        connection.exec_driver_sql("UPDATE receive_batch SET retry_at = NULL WHERE retry_at IS NOT NULL")


def intake_of(lake: LakeState, door: Door, spool: Removed, monkeypatch: pytest.MonkeyPatch) -> Intake:
    monkeypatch.setattr(Intake, "_frame", lambda self, dataset, batch: batch)
    receipts = open_receipts(lake.config)
    no_jobs = MagicMock()  # where Spark is; nothing here has a job that could be called off
    parts: Any = (lake.config, lake.ledger, spool, no_jobs, door, receipts, lake.witness)
    made = IntakeContext(*parts)
    return Intake(made)


@pytest.mark.parametrize("seed", range(scaled(2, 20)))
def test_whatever_fails_every_good_body_comes_in_once_and_every_bad_one_is_set_aside(
    sqlite_lake: LakeState, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    receiving = new_receiving(sqlite_lake)
    bodies = [receiving.accept(f"key {n}", rows=chance.randrange(1, 4))[0] for n in range(12)]
    files = [b.spool or "" for b in bodies]
    door = Door(sqlite_lake, chance, set(chance.sample(files, chance.randrange(1, 4))), trouble=0.1)
    spool = Removed()
    intake = intake_of(sqlite_lake, door, spool, monkeypatch)
    stale: list[Batch] = []
    receiving.form(rows_max=1000)
    for _ in range(50):
        be_due(sqlite_lake)
        some = receiving.take()
        chance.shuffle(some)
        stale += some[: chance.randrange(2)]
        late = chance.sample(stale, min(len(stale), 1))
        for batch in [*some, *late]:  # a zombie comes with what it took long ago
            with suppress(failpoints.FailpointError):
                intake._ingest(batch)
            with sqlite_lake.ledger.write() as connection:
                connection.exec_driver_sql("UPDATE receive_batch SET lease_until = 1 WHERE lease_until IS NOT NULL")
        if chance.random() < 0.3:
            door.recover()
        if chance.random() < 0.1 and (found := listed(receiving)):
            ended_batches.replay(receiving.ledger, [chance.choice(found).id])
        if chance.random() < 0.1:
            bodies += receiving.accept(f"later {len(bodies)}", rows=1)
            receiving.form()
    door.trouble = 0
    door.recover()
    for _ in range(20):
        bodies += receiving.accept(f"last {len(bodies)}", rows=1)  # others come in: so it is not the disk
        receiving.form()
        be_due(sqlite_lake)
        for batch in receiving.take():
            intake._ingest(batch)
    came_in = sorted(file for _, files in door.table for file in files)
    good = sorted(b.spool or "" for b in bodies if b.spool not in door.bad)
    assert came_in == good
    assert sorted(b.spool for b in listed(receiving)) == sorted(door.bad)
    assert {b.reason for b in listed(receiving)} == {"File name too long"}
    numbers = [n for rows, _ in door.table for n in range(rows.lo, rows.hi + 1)]
    assert len(set(numbers)) == len(numbers)
    intake.remove_files()
    assert spool.gone == set(good), "and no file went that is still needed"


@pytest.mark.parametrize(
    "point", ["receive.after_divide", "receive.after_set_aside", "spool.after_replay", "spool.after_discard"]
)
def test_a_receiver_that_dies_while_it_sorts_bodies_out_loses_and_doubles_nothing(
    sqlite_lake: LakeState, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiving = new_receiving(sqlite_lake)
    good, bad = receiving.accept("good", "bad", rows=2)
    door, spool = Door(sqlite_lake, random.Random(1), {bad.spool or ""}), Removed()
    intake = intake_of(sqlite_lake, door, spool, monkeypatch)
    receiving.form()
    died = 0

    def go(rounds: int) -> None:
        nonlocal died
        for n in range(rounds):
            receiving.accept(f"other {died} {rounds} {n}", rows=1)
            receiving.form()
            be_due(sqlite_lake)
            for batch in receiving.take():
                try:
                    intake._ingest(batch)
                except failpoints.FailpointError:
                    died += 1

    failpoints.arm(f"{point}=fail")
    try:
        go(15)
        if point.startswith("spool"):
            [aside] = listed(receiving)
            do = ended_batches.replay if point == "spool.after_replay" else ended_batches.discard
            with pytest.raises(failpoints.FailpointError):
                do(receiving.ledger, [aside.id])
            died += 1
    finally:
        failpoints.arm("")
    assert died == 1
    go(16)
    intake.remove_files()
    came_in = [file for _, files in door.table for file in files]
    assert came_in.count(good.spool or "") == 1 and bad.spool not in came_in
    if point == "spool.after_discard":
        assert listed(receiving) == [] and bad.spool in spool.gone
    else:
        assert [b.spool for b in listed(receiving)] == [bad.spool] and bad.spool not in spool.gone
