"""Batches that are listed and not known: a restored ledger takes them over as they are, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from strandline.errors import OpeningNeeded, RefusedError
from strandline.ledger import batches, listed, received, sequence, tokens
from strandline.ledger.listed import ListedBatch, ListedBody, TokenName
from strandline.ledger.received import OtherBody, Repeat
from strandline.wire import Identity, KeyIdentity, RangeIdentity
from tests.ledger.conftest import Bench
from tests.ledger.delivery_bench import open_shared
from tests.ledger.receive_bench import Receiving, by_range, new_receiving, span


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def shared(request: pytest.FixtureRequest) -> Iterator[Bench]:
    yield from open_shared(request, request.param)


@pytest.fixture
def receiving(shared: Bench) -> Receiving:
    return new_receiving(shared)


def list_of(receiving: Receiving, *identities: Identity, rows: int = 10) -> ListedBatch:
    """Of bodies that the ledger does not know."""
    bodies = []
    for identity in identities:
        token = None if isinstance(identity, RangeIdentity) else listed.token_name(receiving.token)
        made = receiving.body(identity, rows=rows)
        bodies.append(ListedBody(identity, token, rows, made.digest, made.size, made.spool or "", made.spool_bytes))
    return ListedBatch(f"received-{receiving.dataset.name}", receiving.token.created_at, tuple(bodies), None)


def adopt(receiving: Receiving, batch: ListedBatch) -> bool:
    with receiving.ledger.write() as connection:
        return listed.adopt(connection, receiving.dataset.id, batch)


def test_a_batch_is_listed_with_all_that_is_needed_to_take_it_over(receiving: Receiving) -> None:
    for identity in (by_range(1, 10), "key", by_range(11, 20)):
        receiving.accept(identity)
    batch = receiving.form()
    assert batch is not None
    with receiving.ledger.read() as connection:
        told = listed.of_batch(connection, batch.id)
    assert told is not None and (told.batch_id, told.rows) == (batch.batch_id, 30)
    assert [b.identity for b in told.bodies] == [by_range(1, 10), KeyIdentity("key"), by_range(11, 20)]
    assert [b.spool for b in told.bodies] == [b.spool for b in batch.bodies]
    assert [b.token for b in told.bodies] == [None, listed.token_name(receiving.token), None]
    assert not adopt(receiving, told), "it is known"


def test_bodies_of_a_list_are_held_and_stand_at_their_places(receiving: Receiving) -> None:
    told = list_of(receiving, by_range(1, 10), KeyIdentity("key"), by_range(11, 20))
    assert adopt(receiving, told) and not adopt(receiving, told)
    [batch] = receiving.take()
    assert (batch.batch_id, batch.rows) == (told.batch_id, 30)
    assert [(b.spool, b.place) for b in batch.bodies] == [(b.spool, 10 * n) for n, b in enumerate(told.bodies)]
    assert receiving.held() == [span(1, 10), span(11, 20)]
    assert receiving.form() is None, "nothing waits"
    again, other = receiving.body("key", digest=told.bodies[1].digest), receiving.body("key", digest="sha256:other")
    assert [type(d) for d in receiving.record(again, other)] == [Repeat, OtherBody]


def test_bodies_that_the_ledger_has_waiting_are_placed_and_not_doubled(receiving: Receiving) -> None:
    receiving.accept(by_range(1, 10), by_range(21, 30))
    told = list_of(receiving, by_range(1, 10), by_range(11, 20))
    waiting = receiving.stored()[0].spool
    told = replace(told, bodies=(replace(told.bodies[0], spool=waiting), told.bodies[1]), numbers=span(101, 120))
    assert adopt(receiving, told)
    assert receiving.take() == [], "it is published"
    assert receiving.held() == [span(1, 10), span(11, 20), span(21, 30)]
    batch = receiving.form()
    assert batch is not None and batch.rows == 10, "only what was not in it"
    assert receiving.remove_files() == 2


@pytest.mark.parametrize("since", ["came in with another file", "is in another batch"])
def test_a_list_whose_bodies_came_in_otherwise_is_refused_whole(receiving: Receiving, since: str) -> None:
    told = list_of(receiving, by_range(1, 10), by_range(11, 20))
    receiving.accept(by_range(11, 20))
    if since == "is in another batch":
        spool = receiving.stored()[0].spool
        told = replace(told, bodies=(told.bodies[0], replace(told.bodies[1], spool=spool)))
        assert receiving.form() is not None
    with pytest.raises(RefusedError, match=told.batch_id):
        adopt(receiving, told)
    assert receiving.held() == [span(11, 20)] and len(receiving.stored()) == 1


def test_keys_of_a_token_that_is_lost_stay_taken_and_its_number_is_nobody_elses(receiving: Receiving) -> None:
    """It was made after the copy, and another one has got its number since."""
    lost = TokenName(receiving.token.id, f"lost of {receiving.dataset.name}", receiving.token.created_at)
    told = list_of(receiving, KeyIdentity("a"), KeyIdentity("b"))
    told = replace(told, bodies=tuple(replace(b, token=lost) for b in told.bodies))
    assert adopt(receiving, told)
    with receiving.ledger.read() as connection:
        [stand_in] = [t for t in tokens.every(connection) if t.name == lost.name]
    assert stand_in.revoked_at is not None and not stand_in.allows(receiving.dataset.name)
    assert {row.token_id for row in receiving.stored()} == {stand_in.id}
    receiving.accept("a"), "the keys of the token that has its number are its own"


def test_nothing_is_recorded_or_formed_in_another_epoch(receiving: Receiving) -> None:
    receiving.accept("waits")
    with receiving.ledger.read() as connection:
        epoch = sequence.read(connection).epoch
    assert received.record(receiving.ledger, [receiving.body("a")], epoch=epoch)
    with pytest.raises(OpeningNeeded):
        received.record(receiving.ledger, [receiving.body("b")], epoch=epoch + 1)
    with pytest.raises(OpeningNeeded):
        batches.form(
            receiving.ledger, receiving.dataset.id, rows_max=1, older_than=receiving.token.created_at,
            level=lambda connection: sequence.check_epoch(connection, epoch + 1),
        )  # fmt: skip
    assert {row.key for row in receiving.stored()} == {"waits", "a"}
