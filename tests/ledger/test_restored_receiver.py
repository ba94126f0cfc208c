"""A ledger that was restored from an older copy: what it takes back from the warehouse, and when its receiver holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strandline.core.forward_protocol import KeyIdentity
from strandline.ledger.receive import batch_receipts, batches, receive_holds, received, tokens
from strandline.ledger.receive.receipts import Note, Receipt, TokenFingerprint, parse_receipt
from strandline.ledger.receive.received import BodyGone, New, OnHold, OtherBody, Repeat
from tests.ledger.conftest import LakeState
from tests.ledger.receiving import SENDER, Receiving, by_range, new_receiving, span


@pytest.fixture
def restored(receiving: Receiving, shared: LakeState) -> Receiving:
    """The same dataset in a ledger that has forgotten its bodies: as good as another dataset."""
    dataset = shared.add_dataset(f"{receiving.dataset.name}.restored")
    made = Receiving(receiving.ledger, receiving.witness, dataset, receiving.token)
    assert made.claim() is not None
    return made


def receipt(receiving: Receiving) -> Receipt:
    batch = receiving.form()
    assert batch is not None
    with receiving.ledger.read() as connection:
        made = batch_receipts.read_receipt(connection, batch.id, batch.batch_id)
    assert parse_receipt(made.to_bytes()) == made
    renamed = tuple(replace(b, spool=f"again-{b.spool}") for b in made.bodies)  # one ledger knows a file once
    return Receipt(f"{made.batch_id}-forgotten", renamed)


def take_back(receiving: Receiving, made: Receipt, lo: int = 500) -> str | None:
    with receiving.ledger.write() as connection:
        return batch_receipts.restore_batch(connection, receiving.dataset.id, made, span(lo, lo + made.rows - 1))


def test_bodies_of_a_forgotten_batch_are_repeats_again_and_wait_for_nothing(
    receiving: Receiving, restored: Receiving
) -> None:
    bodies = receiving.accept(by_range(1, 10), "a key", by_range(11, 30))
    made = receipt(receiving)
    assert take_back(restored, made) is None and take_back(restored, made) is None, "twice is fine"
    again = [restored.body(body.identity) for body in bodies]
    assert [d.rows for d in restored.record(*again) if isinstance(d, Repeat)] == [10, 10, 20]
    assert restored.held() == [span(1, 10), span(11, 30)] and restored.form() is None
    with restored.ledger.read() as connection:
        left = {name for _, name in batches.to_remove(connection)}
    assert {body.spool for body in made.bodies} <= left, "what lies in the spool is not needed any more"


def test_a_body_that_waits_by_the_copy_is_placed_in_the_batch_that_the_table_has(
    receiving: Receiving, restored: Receiving
) -> None:
    receiving.accept("one", by_range(1, 5))
    made = receipt(receiving)
    restored.accept(by_range(1, 5), "one")
    restored.accept("new")
    assert take_back(restored, made) is None
    batch = restored.form()
    assert batch is not None and [body.rows for body in batch.bodies] == [10] and batch.rows == 10


def test_a_receipt_that_the_ledger_contradicts_changes_nothing(receiving: Receiving, restored: Receiving) -> None:
    receiving.accept("one", by_range(1, 5))
    made = receipt(receiving)
    restored.accept(by_range(3, 7))
    before = restored.stored()
    assert "the range 1..5" in (take_back(restored, made) or "")
    assert restored.stored() == before
    assert "15 rows" in (_with_numbers(restored, made, 14) or "")


def test_a_key_that_was_used_again_for_other_rows_contradicts_the_receipt(
    receiving: Receiving, restored: Receiving
) -> None:
    receiving.accept("one")
    made = receipt(receiving)
    [decision] = restored.record(restored.body("one", digest="of other rows"))
    assert isinstance(decision, New)
    assert "'one'" in (take_back(restored, made) or ""), "its rows are in no table"


def _with_numbers(receiving: Receiving, made: Receipt, count: int) -> str | None:
    with receiving.ledger.write() as connection:
        return batch_receipts.restore_batch(connection, receiving.dataset.id, made, span(1, count))


def test_a_body_that_is_in_another_batch_by_now_is_told(receiving: Receiving, restored: Receiving) -> None:
    receiving.accept("one")
    made = receipt(receiving)
    restored.accept("one")
    assert restored.form() is not None
    assert "'one'" in (take_back(restored, made) or "")


def test_a_token_that_was_forgotten_still_owns_its_keys_and_can_be_replaced(
    receiving: Receiving, restored: Receiving
) -> None:
    [body] = receiving.accept("one")
    made = receipt(receiving)
    mark = TokenFingerprint(f"lost-{receiving.token.id}", f"{receiving.token.id:016}")
    note = replace(made.bodies[0].note, owner=mark)
    assert take_back(restored, replace(made, bodies=(replace(made.bodies[0], note=note),))) is None
    assert isinstance(restored.record(restored.body("one"))[0], New), "another token's key is another key"
    with restored.ledger.write() as connection:
        assert tokens.recall(connection, mark) == tokens.recall(connection, mark)
        new, _ = tokens.create(connection, f"new-{receiving.token.id}", None, replaces=mark.name)
    assert isinstance(restored.record(restored.body("one", token=new, digest=body.digest))[0], Repeat)


def test_a_body_found_in_the_spool_is_decided_as_if_it_came_in_now(receiving: Receiving) -> None:
    with receiving.ledger.write() as connection:
        owner = tokens.fingerprint_of(connection, receiving.token.owner)

    def find(identity: object, digest: str = "d", **other: object) -> received.Decision:
        note = replace(Note(KeyIdentity("k"), owner, 5, digest, 10), identity=identity, **other)  # type: ignore[arg-type]
        spool = f"{receiving.dataset.table_uuid}/{next(numbers)}.body.arrow"
        return received.record_found(receiving.ledger, receiving.dataset.id, note, spool=spool, spool_bytes=9)

    numbers = iter(range(10_000, 20_000))
    key, rows = KeyIdentity("found"), by_range(1, 5)
    assert isinstance(find(key), New) and isinstance(find(rows), New)
    assert isinstance(find(key), Repeat) and isinstance(find(rows), Repeat) and find(key, "e") == OtherBody("d")
    assert not isinstance(find(by_range(1, 5, replace(SENDER, generation=2))), New | Repeat), "nobody has claimed it"
    with receiving.ledger.write() as connection:
        assert tokens.revoke(connection, receiving.token.name)
    assert isinstance(find(KeyIdentity("acknowledged before it was revoked")), New)
    assert receiving.record(receiving.body("later")) == [BodyGone("token")]


def test_a_receiver_that_holds_records_nothing_until_a_person_clears_it(
    receiving: Receiving, shared: LakeState
) -> None:
    other = new_receiving(shared)
    with receiving.ledger.write() as connection:
        receive_holds.put(connection, receiving.dataset.id, "first")
        receive_holds.put(connection, receiving.dataset.id, "second")
        assert receive_holds.list_holds(connection)[receiving.dataset.id] == "first"
    mixed = [receiving.body("a"), other.body("b"), receiving.body(by_range(1, 5))]
    assert [type(d) for d in receiving.record(*mixed)] == [OnHold, New, OnHold]
    assert receiving.stored() == []
    with receiving.ledger.write() as connection:
        assert receive_holds.clear(connection, receiving.dataset.id)
        assert not receive_holds.clear(connection, receiving.dataset.id)
    assert isinstance(receiving.record(receiving.body("a"))[0], New)


def test_only_receipts_of_batches_whose_files_are_gone_are_done_with(receiving: Receiving) -> None:
    receiving.accept("a")
    batch = receiving.publish(700)
    receiving.accept("b")
    open_batch = receiving.form()
    assert open_batch is not None
    ids = [batch.batch_id, open_batch.batch_id, "received-unknown"]
    with receiving.ledger.read() as connection:
        assert batch_receipts.settled_batches(connection, receiving.dataset.id, ids) == set()
    receiving.remove_files()
    with receiving.ledger.read() as connection:
        assert batch_receipts.settled_batches(connection, receiving.dataset.id, ids) == {batch.batch_id}
        assert batch_receipts.finished_batches(connection, ids) == {batch.batch_id}
        assert [batch_receipts.has_batch(connection, id) for id in ids] == [True, True, False]
