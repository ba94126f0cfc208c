"""What a follower knows of the bodies that its leader's receiver took, on both ledgers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from strandline.core import batch_names
from strandline.core.errors import BlockLost, RefusedError, StorageError, WatermarkMoved
from strandline.core.forward_protocol import KeyIdentity, LaneName
from strandline.core.settings.lake_config import LakeConfig
from strandline.core.sites.replication import FIRST_TERM
from strandline.core.types import DatasetUuid, Published, Reserved
from strandline.ledger.engine import utc_now
from strandline.ledger.ingest import blocks, sequence
from strandline.ledger.receive import announced_bodies, batches, ended_batches, receive_holds, received, senders, tokens
from strandline.ledger.receive.announced_bodies import AnnouncedBatch
from strandline.ledger.receive.receipts import Note, ReceiptBody, open_receipts
from strandline.ledger.receive.received import New, Repeat
from strandline.ledger.receive.senders import NotOwner
from strandline.ledger.replicate import promotion_claims, promotions, rejoining
from strandline.ledger.replicate.promotions import Led
from strandline.replicate.follow import fetch_bodies as take_told
from strandline.replicate.follow.fetch_bodies import ASK_AGAIN_SECONDS, FAILED_IN_A_ROW_MAX, MissingBodies, take_bodies
from strandline.replicate.source import LeaderSource
from tests.ledger.conftest import LakeState, new_lake
from tests.ledger.receiving import SENDER, Receiving, by_range, new_receiving, span
from tests.ledger.test_cuts import CUT, carry_out
from tests.ledger.test_following import apply, cut, follower, offer, record, segment, take
from tests.ledger.test_rejoin import new_leader

__all__ = ["follower"]

LATER = LaneName(SENDER.lake, SENDER.instance, 2, SENDER.dataset, "")


@dataclass
class Leader:
    """A site of its own, on SQLite, and what it tells: a source as a follower has it."""

    lake: LakeState
    receiving: Receiving
    asked: list[str] = field(default_factory=list)
    tells: bool = True

    def publish(self) -> AnnouncedBatch:
        """Everything that waits."""
        batch = self.receiving.form()
        assert batch is not None
        block = self.lake.publish(self.lake.reserve(batch.batch_id, batch.rows, dataset=self.receiving.dataset))
        self.receiving.publish_formed(batch, block.head.rows.lo)
        found = self.read(batch.batch_id)
        assert found is not None and found.numbers == block.head.rows
        return found

    def read(self, batch_id: str) -> AnnouncedBatch | None:
        return self.lake.ledger.query(announced_bodies.read, self.receiving.dataset.id, batch_id)

    def bodies(self, dataset: DatasetUuid, batch_id: str) -> AnnouncedBatch | None:
        self.asked.append(batch_id)
        return self.read(batch_id) if self.tells else None

    @property
    def source(self) -> LeaderSource:
        return cast("LeaderSource", self)


@pytest.fixture
def leader(tmp_path: Path, make_home: Callable[..., LakeConfig]) -> Iterator[Leader]:
    made = new_lake(make_home(tmp_path / "leader"))
    yield Leader(made, new_receiving(made))
    made.ledger.close()


def offered(lake: LakeState, *batches: AnnouncedBatch, after: int = 0) -> None:
    items = [segment(b.numbers.lo, b.numbers.hi, batch_id=b.receipt.batch_id) for b in batches]
    assert record(lake, offer(lake.dataset, after, batches[-1].numbers.hi, *items))


def take_from(lake: LakeState, leader: Leader, lo: int) -> Reserved:
    """What an applier does before it stages rows."""
    held = take(lake, lo)
    take_bodies(lake.ledger, open_receipts(lake.config), leader.source, lake.dataset, held)
    return held


def applied(lake: LakeState, leader: Leader, told: AnnouncedBatch) -> None:
    lake.publish(take_from(lake, leader, told.numbers.lo))


def told_and_applied(lake: LakeState, told: AnnouncedBatch) -> None:
    held = take(lake, told.numbers.lo)
    assert announced_bodies.record_bodies(lake.ledger, held, told)
    lake.publish(held)


def promoted(lake: LakeState, term: int = 32, replaces: int = 17) -> Led:
    promotion_claims.claim(lake.ledger, term, of=promotion_claims.begin(lake.ledger, replaces))
    return promotions.lead(lake.ledger, lake.witness, term, prepared=(), lost=(), fenced={})


def receiving_at(lake: LakeState, token: str) -> Receiving:
    """The receiver of this site, and a new token that continues the line of one that the leader told."""
    with lake.ledger.write() as connection:
        made, _ = tokens.create(connection, f"new-{token}", None, replaces=token)
    return Receiving(lake.ledger, lake.witness, lake.dataset, made)


def holds(lake: LakeState) -> str | None:
    return lake.ledger.query(receive_holds.list_holds).get(lake.dataset.id)


def test_a_site_that_takes_over_answers_a_repeat_and_knows_what_a_sender_has_sent(
    follower: LakeState, leader: Leader
) -> None:
    bodies = leader.receiving.accept("a", by_range(1, 10), "b", by_range(21, 30))
    told = leader.publish()
    offered(follower, told)
    applied(follower, leader, told)
    assert open_receipts(follower.config).read(follower.dataset.table_uuid, told.receipt.batch_id) == told.receipt
    assert promoted(follower).receivers_on_hold == {}
    stranger = replace(leader.receiving, ledger=follower.ledger, dataset=follower.dataset)
    with follower.ledger.write() as connection:
        stranger.token, _ = tokens.create(connection, "stranger", None)
    assert isinstance(stranger.record(stranger.body(by_range(31, 40)))[0], NotOwner)
    here = receiving_at(follower, leader.receiving.token.name)
    again = here.record(*(here.body(body.identity) for body in bodies))
    assert [(d.rows, d.digest) for d in again if isinstance(d, Repeat)] == [(b.rows, b.digest) for b in bodies]
    assert here.held() == [span(1, 10), span(21, 30)] and here.form() is None
    assert isinstance(here.record(here.body(by_range(31, 40)))[0], New), "it goes on behind them, without a claim"
    with follower.ledger.read() as connection:
        first_row, last_row = span(1, 1).lo, span(99, 99).lo
        [first, second, _] = senders.list_placed(connection, follower.dataset.id, SENDER, first_row, last_row, 9)
    lo = told.numbers.lo
    assert (first.first, second.first, first.spool) == (lo, lo + 10, None), "the sender's verify finds the rows"


def test_bodies_are_asked_for_once_and_recorded_before_the_rows(follower: LakeState, leader: Leader) -> None:
    leader.receiving.accept("a", by_range(1, 10))
    told = leader.publish()
    offered(follower, told)
    held = take_from(follower, leader, told.numbers.lo)
    assert follower.ledger.query(announced_bodies.unknown_batches, follower.dataset.id) == []
    assert announced_bodies.record_bodies(follower.ledger, held, told), "again, by the next applier"
    assert len(_stored(follower)) == 2
    record(follower, offer(follower.dataset, told.numbers.hi, 50, segment(41, 50)))
    take_from(follower, leader, 41)
    assert leader.asked == [told.receipt.batch_id], "only batches of a receiver have bodies"


def _stored(lake: LakeState) -> list[Any]:
    return Receiving(lake.ledger, lake.witness, lake.dataset, cast("Any", None)).stored()


def test_bodies_of_a_batch_that_a_promotion_gives_up_are_new_again(follower: LakeState, leader: Leader) -> None:
    leader.receiving.accept("in", by_range(1, 10))
    first = leader.publish()
    leader.receiving.accept("out", by_range(11, 20))
    second = leader.publish()
    offered(follower, first, second)
    applied(follower, leader, first)
    held = take_from(follower, leader, second.numbers.lo)
    assert len(_stored(follower)) == 4
    led = promoted(follower)
    assert [g.batch_id for g in led.given_up] == [second.receipt.batch_id] and led.receivers_on_hold == {}
    assert not announced_bodies.record_bodies(follower.ledger, held, second), "an applier that was taken for dead"
    with pytest.raises(BlockLost):
        take_bodies(
            follower.ledger, open_receipts(follower.config), leader.source, follower.dataset, held
        )  # fmt: skip
    here = receiving_at(follower, leader.receiving.token.name)
    assert here.held() == [span(1, 10)]
    decided = here.record(*(here.body(i) for i in ("in", "out", by_range(1, 10), by_range(11, 20))))
    assert [type(d) for d in decided] == [Repeat, New, Repeat, New]


@dataclass
class Replaced:
    """A site that led, and follows another one since."""

    lake: LakeState
    receiving: Receiving
    kept: str
    lost: str


def replaced(lake: LakeState) -> Replaced:
    """Batch `kept` has bodies that the new leader has, `lost` has not; `under way` was not settled; `f` waits."""
    receiving = new_receiving(lake)
    own = replace(lake, dataset=receiving.dataset)
    names = []
    for keys in (("a", by_range(1, 10)), ("b", by_range(11, 20))):
        receiving.accept(*keys)
        batch = receiving.form()
        assert batch is not None
        block = own.publish(own.reserve(batch.batch_id, batch.rows))
        receiving.publish_formed(batch, block.head.rows.lo)
        names.append(batch.batch_id)
    receiving.accept("d", "e")
    under_way = receiving.form()
    assert under_way is not None
    own.publish(own.reserve(under_way.batch_id, under_way.rows))
    receiving.accept("f")
    receiving.remove_files()
    rejoining.become_follower(lake.ledger, lake.witness, new_leader(own))
    return Replaced(own, receiving, *names)


def test_a_cut_forgets_the_bodies_of_what_it_cuts_out_and_no_others(lake: LakeState) -> None:
    old = replaced(lake)
    bound = lake.ledger.query(sequence.read).last
    record(lake, offer(old.lake.dataset, bound, CUT, cut(CUT, 20), term=17))
    assert len(old.receiving.stored()) == 7, "recording it settles nothing"
    carry_out(old.lake)
    with lake.ledger.read() as connection:
        assert announced_bodies.read(connection, old.lake.dataset.id, old.kept) is not None
        assert announced_bodies.read(connection, old.lake.dataset.id, old.lost) is None
    led = promoted(lake)
    assert led.receivers_on_hold == {}
    assert led.bodies_aside == ((old.lake.dataset.name, 3),), "d, e and f: nobody was told that their rows are in"
    decided = old.receiving.record(*(old.receiving.body(k) for k in ("a", "b", by_range(1, 10), by_range(11, 20))))
    assert [type(d) for d in decided] == [Repeat, New, Repeat, New]


def test_a_receiver_that_stood_still_does_not_settle_a_batch_that_was_cut_out(lake: LakeState) -> None:
    old = replaced(lake)
    with lake.ledger.read() as connection:
        ids = connection.exec_driver_sql("SELECT id FROM receive_batch WHERE published_at IS NULL").scalars().all()
        [batch] = batches.read(connection, ids)
        block = blocks.of_batch(connection, old.lake.dataset.id, batch.batch_id)
    assert isinstance(block, Published)
    bound = lake.ledger.query(sequence.read).last
    record(lake, offer(old.lake.dataset, bound, CUT, cut(CUT, 20), term=17))
    carry_out(old.lake)
    with pytest.raises(BlockLost):
        batches.settle(lake.ledger, batch, block.head.rows)
    assert old.receiving.remove_files() == 0
    led = promoted(lake)
    assert led.bodies_aside == ((old.lake.dataset.name, 3),), "nobody is told that the rows of d, e and f are in"


def test_a_body_that_waited_at_the_old_leader_and_was_sent_again_to_the_new_one_waits_no_more(
    lake: LakeState, leader: Leader
) -> None:
    old = replaced(lake)
    bound = lake.ledger.query(sequence.read).last
    record(lake, offer(old.lake.dataset, bound, CUT, cut(CUT, 20), term=17))
    carry_out(old.lake)
    with lake.ledger.read() as connection:
        owner = tokens.fingerprint_of(connection, old.receiving.token.owner)
    again = [ReceiptBody(Note(KeyIdentity(k), owner, 5, f"sha256:{k}", 1), f"new/{k}", 1, 5 * n, utc_now())
             for n, k in enumerate("dfb")]  # fmt: skip
    leader.receiving.accept("anything")
    made = leader.publish()
    told = AnnouncedBatch(span(CUT + 1, CUT + 15), replace(made.receipt, bodies=tuple(again)), ())
    record(lake, offer(old.lake.dataset, CUT, CUT + 15,
                        segment(CUT + 1, CUT + 15, old.lake.dataset.first_shard, batch_id=made.receipt.batch_id),
                        term=17))  # fmt: skip
    told_and_applied(lake, told)
    led = promoted(lake)
    assert led.bodies_aside == ((old.lake.dataset.name, 1),) and led.receivers_on_hold == {}
    assert [b.key for b in lake.ledger.query(ended_batches.list_set_aside, old.lake.dataset.name)] == ["e"]
    decided = old.receiving.record(*(old.receiving.body(k, digest=f"sha256:{k}") for k in "dfb"))
    assert [type(d) for d in decided] == [Repeat] * 3


def test_a_range_that_is_in_two_batches_makes_the_receiver_hold_and_stops_no_rows(
    lake: LakeState, leader: Leader
) -> None:
    old = replaced(lake)
    bound = lake.ledger.query(sequence.read).last
    record(lake, offer(old.lake.dataset, bound, CUT, cut(CUT, 20), term=17))
    carry_out(old.lake)
    leader.receiving.accept(by_range(5, 14), "x")
    made = leader.publish()
    rows = span(CUT + 1, CUT + 20)
    record(lake, offer(old.lake.dataset, CUT, rows.hi,
                        segment(rows.lo, rows.hi, old.lake.dataset.first_shard, batch_id=made.receipt.batch_id),
                        term=17))  # fmt: skip
    told_and_applied(lake, replace(made, numbers=rows))
    led = promoted(lake)
    assert "the range 5..14" in led.receivers_on_hold[old.lake.dataset.name]


def test_bodies_that_nobody_told_make_the_receiver_hold_until_they_are_told(
    follower: LakeState, leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader of an older version. It is asked again now and then, and not with every pass."""
    leader.receiving.accept("a")
    first = leader.publish()
    leader.receiving.accept("b")
    second = leader.publish()
    leader.tells = False
    offered(follower, first, second)
    applied(follower, leader, first)
    applied(follower, leader, second)
    now = 1000.0
    monkeypatch.setattr("strandline.replicate.follow.fetch_bodies.time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(take_told, "BATCHES_AT_ONCE_MAX", 1)
    missing = MissingBodies(follower.ledger, open_receipts(follower.config))
    leader.asked.clear()
    while missing.is_due():
        assert missing.take(leader.source, [follower.dataset], FIRST_TERM) == 0
    assert leader.asked == [first.receipt.batch_id, second.receipt.batch_id]
    now, leader.tells = now + ASK_AGAIN_SECONDS, True
    assert missing.is_due() and missing.take(leader.source, [follower.dataset], FIRST_TERM) == 1
    leader.tells = False
    led = promoted(follower)
    assert second.receipt.batch_id in led.receivers_on_hold[follower.dataset.name]
    here = receiving_at(follower, leader.receiving.token.name)
    assert isinstance(here.record(here.body("b"))[0], received.OnHold)


def test_a_leader_that_knows_all_bodies_by_now_tells_them_of_batches_that_were_applied_before(
    follower: LakeState, leader: Leader
) -> None:
    leader.receiving.accept("a", by_range(1, 10))
    told = leader.publish()
    offered(follower, told)
    apply(follower, told.numbers.lo)
    missing = MissingBodies(follower.ledger, open_receipts(follower.config))
    assert missing.take(leader.source, [follower.dataset], FIRST_TERM) == 1 and not missing.is_due()
    assert promoted(follower).receivers_on_hold == {} and len(_stored(follower)) == 2


def test_bodies_that_come_after_the_site_has_left_the_leader_that_told_them_are_not_recorded(
    follower: LakeState, leader: Leader
) -> None:
    leader.receiving.accept("a")
    told = leader.publish()
    offered(follower, told)
    apply(follower, told.numbers.lo)
    [head] = follower.ledger.query(announced_bodies.unknown_batches, follower.dataset.id)
    with pytest.raises(WatermarkMoved):
        announced_bodies.record_bodies_later(follower.ledger, head, told, FIRST_TERM + 1)
    promotion_claims.claim(follower.ledger, 17, of=promotion_claims.begin(follower.ledger, FIRST_TERM))
    with pytest.raises(RefusedError):
        announced_bodies.record_bodies_later(follower.ledger, head, told, FIRST_TERM)
    assert _stored(follower) == []


def test_a_batch_of_which_the_leader_tells_nonsense_keeps_no_other_batch_waiting(
    follower: LakeState, leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []
    for n in range(5):
        leader.receiving.accept(f"key {n}")
        told.append(leader.publish())
    offered(follower, *told)
    for one in told:
        apply(follower, one.numbers.lo)
    answers = dict(zip((t.receipt.batch_id for t in told), _NONSENSE, strict=False))
    monkeypatch.setattr(leader, "read", lambda id: answers[id](leader, id) if id in answers else _read(leader, id))
    missing = MissingBodies(follower.ledger, open_receipts(follower.config))
    assert missing.take(leader.source, [follower.dataset], FIRST_TERM) == 0
    assert len(leader.asked) == FAILED_IN_A_ROW_MAX and missing.is_due(), "the next pass goes on"
    assert missing.take(leader.source, [follower.dataset], FIRST_TERM) == 2 and not missing.is_due()
    assert leader.asked == [t.receipt.batch_id for t in told]


def _read(leader: Leader, batch_id: str) -> AnnouncedBatch | None:
    return Leader.read(leader, batch_id)


def _away(leader: Leader, batch_id: str) -> AnnouncedBatch | None:
    raise StorageError("the leader does not answer")


def _of_another(leader: Leader, batch_id: str) -> AnnouncedBatch | None:
    found = _read(leader, batch_id)
    return None if found is None else replace(found, numbers=span(found.numbers.lo, found.numbers.hi + 1))


def _of_no_type(leader: Leader, batch_id: str) -> AnnouncedBatch | None:
    return cast("Any", {"batch": batch_id})


_NONSENSE = (_away, _of_another, _of_no_type)


def test_the_hold_of_a_leader_comes_along_and_ends_with_it(follower: LakeState, leader: Leader) -> None:
    def told(after: int, why: str | None) -> None:
        made = offer(follower.dataset, after, after + 10, segment(after + 1, after + 10))
        record(follower, replace(made, receiver_hold=why))

    told(0, "a receipt is gone")
    assert "a receipt is gone" in (holds(follower) or "")
    told(10, "a receipt is gone")
    told(20, None)
    assert holds(follower) is None
    with follower.ledger.write() as connection:
        receive_holds.put(connection, follower.dataset.id, "of its own")
    told(30, None)
    assert holds(follower) == "of its own"


def test_what_a_site_itself_does_not_know_outlives_a_hold_of_its_leader(follower: LakeState) -> None:
    def told(after: int, why: str | None) -> None:
        made = offer(follower.dataset, after, after + 10, segment(after + 1, after + 10))
        record(follower, replace(made, receiver_hold=why))

    def put(reason: str, **how: bool) -> None:
        with follower.ledger.write() as connection:
            receive_holds.put(connection, follower.dataset.id, reason, **how)

    told(0, "a receipt is gone")
    put("until its table can be read", replaces_leader_hold=False)
    assert "a receipt is gone" in (holds(follower) or ""), "it ends by itself, and would end the leader's with it"
    put("a contradiction")
    put("another one")
    told(10, "a receipt is gone")
    told(20, None)
    assert holds(follower) == "a contradiction"


def test_keys_that_the_leader_has_forgotten_are_not_told_and_ranges_always_are(
    follower: LakeState, leader: Leader
) -> None:
    leader.receiving.accept("old", by_range(1, 10))
    told = leader.publish()
    leader.receiving.remove_files()
    assert received.forget_keys(leader.lake.ledger, utc_now()) == 1
    offered(follower, told)
    applied(follower, leader, told)
    assert promoted(follower).receivers_on_hold == {}
    here = receiving_at(follower, leader.receiving.token.name)
    assert here.held() == [span(1, 10)] and isinstance(here.record(here.body("old"))[0], New)


def test_a_claim_comes_with_the_bodies_and_an_older_one_does_not_replace_it(
    follower: LakeState, leader: Leader
) -> None:
    leader.receiving.accept(by_range(1, 10))
    first = leader.publish()
    assert leader.receiving.claim(LATER) is not None
    leader.receiving.accept(by_range(1, 10, LATER))
    second = leader.publish()
    offered(follower, first, second)
    applied(follower, leader, second)
    told_and_applied(follower, first)  # by a slow applier
    promoted(follower)
    [claim] = follower.ledger.query(senders.list_claims)
    assert (claim.record.generation, claim.token) == (2, leader.receiving.token.name)
    here = receiving_at(follower, leader.receiving.token.name)
    late = here.record(here.body(by_range(11, 20)), here.body(by_range(11, 20, LATER)))
    assert [type(d) for d in late] == [senders.NotClaimed, New], "a deliverer of the generation before adds nothing"


def test_a_batch_that_a_person_called_received_is_no_receivers(
    follower: LakeState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announced_bodies, "_PAGE_BLOCKS", 2)
    names = ["received-2026-03", batch_names.new_name(), "received-", f"{batch_names.new_name()}.0", "received-a.0"]
    items = [segment(10 * n + 1, 10 * n + 10, batch_id=name) for n, name in enumerate(names)]
    record(follower, offer(follower.dataset, 0, 50, *items))
    for item in items:
        apply(follower, item.lo)
    with follower.ledger.read() as connection:
        found = [announced_bodies.unknown_batches(connection, follower.dataset.id, batches_max=m) for m in (None, 1)]
    assert [[head.batch_id for head in heads] for heads in found] == [[names[1], names[3]], [names[1]]]
    assert not batch_names.is_received(names[0])


def test_what_a_leader_does_not_know_it_does_not_tell(leader: Leader) -> None:
    leader.receiving.accept("a")
    batch = leader.receiving.form()
    assert batch is not None and leader.read(batch.batch_id) is None, "it is not in the table"
    known = leader.lake.publish(leader.lake.reserve("received-of-nobody", 5, dataset=leader.receiving.dataset))
    assert isinstance(known, Published) and leader.read(known.head.batch_id) is None
