"""Bodies that were received: each identity is new once, whoever else brings it, and at whatever moment."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event

from strandline.core.forward_protocol import KeyIdentity, LaneName
from strandline.core.roles import Role
from strandline.core.settings.lake_config import CONFIG_NAME
from strandline.core.types import Seq, SeqRange, merge_ranges
from strandline.ledger.engine import Ledger, utc_now
from strandline.ledger.ingest import datasets
from strandline.ledger.receive import batches, receive_report, received, senders, spool_files, tokens
from strandline.ledger.receive.received import BodyGone, New, OtherBody, Overlaps, Repeat, UnrecordedBody
from strandline.ledger.receive.senders import NotClaimed, NotOwner, PlacedBody, SourceRecord
from tests.campaign import scaled
from tests.ledger.conftest import LakeState
from tests.ledger.receiving import SENDER, Receiving, at_once, by_range, new_receiving, span

LATER = timedelta(days=1)
LONG = "k=" + random.Random(1).randbytes(4_000).hex()
"""Longer than what PostgreSQL indexes, also when it is compressed."""


# --- ranges ---


def test_a_range_is_new_once_and_then_answered_as_it_was(receiving: Receiving) -> None:
    first = receiving.body(by_range(1, 100), rows=90)
    [new] = receiving.record(first)
    assert isinstance(new, New)
    again = receiving.body(by_range(1, 100), rows=80, digest="other bytes: someone deleted rows meanwhile")
    stored = Repeat(90, first.digest, (span(1, 100),))
    assert receiving.known(again.identity, again.digest) == stored
    assert receiving.record(again) == [stored]
    assert [row.id for row in receiving.stored()] == [new.id]


def test_a_late_parent_after_its_parts_is_a_repeat_and_so_are_parts_after_their_parent(receiving: Receiving) -> None:
    receiving.accept(by_range(1, 50), by_range(51, 100))
    assert receiving.record(receiving.body(by_range(1, 100))) == [Repeat(None, None, (span(1, 100),))]
    assert receiving.record(receiving.body(by_range(20, 70))) == [Repeat(None, None, (span(1, 100),))]
    receiving.accept(by_range(101, 200))
    parts = [receiving.body(by_range(101, 150)), receiving.body(by_range(151, 200)), receiving.body(by_range(150, 150))]
    assert receiving.record(*parts) == [Repeat(None, None, (span(101, 200),))] * 3
    assert receiving.held() == [span(1, 50), span(51, 100), span(101, 200)]


def test_a_range_that_overlaps_is_answered_with_what_is_held(receiving: Receiving) -> None:
    receiving.accept(by_range(10, 19), by_range(20, 29), by_range(40, 49), by_range(100, 200))
    cases = {
        (1, 10): [(10, 19)],
        (5, 60): [(10, 29), (40, 49)],
        (25, 45): [(20, 29), (40, 49)],
        (29, 30): [(20, 29)],
        (150, 201): [(100, 200)],
        (99, 100): [(100, 200)],
        (1, 1000): [(10, 29), (40, 49), (100, 200)],
    }
    for (lo, hi), held in cases.items():
        expected = Overlaps(tuple(span(*h) for h in held))
        assert receiving.known(by_range(lo, hi)) == expected, (lo, hi)
        assert receiving.record(receiving.body(by_range(lo, hi))) == [expected], (lo, hi)
    assert receiving.known(by_range(30, 39)) is None
    receiving.accept(by_range(30, 39))
    assert receiving.known(by_range(10, 49)) == Repeat(None, None, (span(10, 49),))


def test_bodies_of_one_call_repeat_and_overlap_each_other(receiving: Receiving) -> None:
    ranges = [(1, 10), (1, 10), (5, 15), (11, 20), (3, 18), (21, 21), (21, 30)]
    bodies = [receiving.body(by_range(*r), digest=f"body {n}") for n, r in enumerate(ranges)]
    first, same, overlaps, second, covered, third, last = receiving.record(*bodies)
    assert [type(d) for d in (first, second, third)] == [New, New, New]
    assert same == Repeat(10, "body 0", (span(1, 10),))
    assert overlaps == Overlaps((span(1, 10),))
    assert covered == Repeat(None, None, (span(1, 20),))
    assert last == Overlaps((span(21, 21),))
    assert receiving.held() == [span(1, 10), span(11, 20), span(21, 21)]


def test_lanes_of_other_senders_are_their_own(receiving: Receiving, shared: LakeState) -> None:
    other = new_receiving(shared)
    lanes = [
        SENDER,
        replace(SENDER, partition="k=a"),
        replace(SENDER, partition="k=A"),
        *(replace(SENDER, partition=f"{LONG}{end}") for end in ("", "a", "A")),
        replace(SENDER, lake="third-lake"),
        replace(SENDER, dataset="default.other"),
    ]
    for lane in lanes[6:]:
        receiving.claim(lane)
    bodies = [receiving.body(by_range(1, 10, lane)) for lane in lanes]
    bodies.append(receiving.body(by_range(1, 10), dataset=other.dataset.id, token=other.token))
    assert [type(d) for d in receiving.record(*bodies)] == [New] * len(bodies)
    assert [type(d) for d in receiving.record(*bodies)] == [Repeat] * len(bodies)
    second = replace(SENDER, generation=2)
    receiving.claim(second)
    assert [type(d) for d in receiving.record(receiving.body(by_range(1, 10, second)))] == [New]


def test_a_lane_takes_rows_from_its_owner_alone_in_the_generation_that_was_claimed(
    receiving: Receiving, shared: LakeState
) -> None:
    other = new_receiving(shared)
    [kept] = receiving.accept(by_range(1, 10))
    bodies = [
        receiving.body(by_range(1, 2**63 - 1), token=other.token),
        receiving.body(by_range(1, 10), token=other.token),
        receiving.body(by_range(11, 20, replace(SENDER, instance="another sink"))),
        receiving.body(by_range(11, 20, replace(SENDER, lake="nobody's"))),
        receiving.body(by_range(11, 20, replace(SENDER, generation=2))),
        receiving.body(by_range(11, 20)),
    ]
    decisions = receiving.record(*bodies)
    assert decisions[:5] == [NotOwner()] * 3 + [NotClaimed(None), NotClaimed(1)] and isinstance(decisions[5], New)
    assert receiving.known(by_range(1, 10, replace(SENDER, instance="another sink"))) == NotOwner()
    receiving.claim(replace(SENDER, generation=2))
    late = receiving.record(receiving.body(by_range(21, 30)), receiving.body(by_range(1, 10)))
    assert late == [NotClaimed(2), Repeat(10, kept.digest, (span(1, 10),))]
    assert receiving.held() == [span(1, 10), span(11, 20)]


def test_a_record_from_before_owners_were_kept_is_its_that_claims_it_next(
    receiving: Receiving, shared: LakeState
) -> None:
    lane = replace(SENDER, lake="older")
    with receiving.ledger.write() as connection:
        values = "(:dataset, 'older', 'default.source', 'sink-instance', 'u', 3, 0)"
        columns = "(dataset_id, lake, source_dataset, instance, table_uuid, generation, created_at)"
        connection.execute(sa.text(f"INSERT INTO source {columns} VALUES {values}"), {"dataset": receiving.dataset.id})
    body = receiving.body(by_range(1, 10, replace(lane, generation=3)))
    assert receiving.record(body) == [NotClaimed(3)]
    stranger = new_receiving(shared).token
    for again in (receiving.claim(replace(lane, generation=3)), receiving.claim(replace(lane, generation=3), stranger)):
        assert again is not None and (again.generation, again.owner) == (3, receiving.token.id)
    assert [type(d) for d in receiving.record(body)] == [New]


def test_what_a_sender_asks_for_is_what_its_lanes_hold_beyond_a_number(receiving: Receiving) -> None:
    lane = replace(SENDER, partition="k=a")
    made = receiving.accept(by_range(31, 40), by_range(1, 10), by_range(11, 30))
    receiving.accept(by_range(5, 6, lane))
    assert receiving.held() == [span(1, 10), span(11, 30), span(31, 40)]
    assert receiving.held(10) == receiving.held(29) == [span(11, 30), span(31, 40)] == receiving.held(11)
    assert receiving.held(30) == [span(31, 40)]
    assert receiving.held(40) == receiving.held(2**63 - 1) == []
    with receiving.ledger.read() as connection:
        asked = [("k=a", Seq(4)), ("", Seq(30)), ("never seen", None), ("k=a", Seq(6)), ("k=a", None)]
        found = senders.held_bodies(connection, receiving.dataset.id, SENDER, asked, bodies_max=100)
    assert [[b.rows for b in lane.bodies] for lane in found] == [[span(5, 6)], [span(31, 40)], [], [], [span(5, 6)]]
    assert not any(lane.more for lane in found)
    [body] = found[1].bodies
    assert (body.count, body.digest, body.size) == (10, made[0].digest, 1000)


@pytest.mark.parametrize("bodies_max", [1, 2, 3, 4, 100])
def test_an_answer_about_what_is_held_is_bounded_and_can_be_gone_on_from(receiving: Receiving, bodies_max: int) -> None:
    lanes = {name: replace(SENDER, partition=name) for name in ("a", "b", "c")}
    sizes = {"a": 3, "b": 1, "c": 2}
    for name, count in sizes.items():
        receiving.accept(*(by_range(10 * n + 1, 10 * n + 5, lanes[name]) for n in range(count)))
    told: dict[str, list[SeqRange]] = {name: [] for name in sizes}
    left: list[str] = sorted(sizes, reverse=True)
    while left:
        asked = [(name, told[name][-1].hi if told[name] else None) for name in left]
        with receiving.ledger.read() as connection:
            found = senders.held_bodies(connection, receiving.dataset.id, SENDER, asked, bodies_max=bodies_max)
        assert 0 < sum(len(lane.bodies) for lane in found) <= bodies_max or not any(lane.more for lane in found)
        for name, lane in zip(left, found, strict=True):
            told[name] += [body.rows for body in lane.bodies]
        left = [name for name, lane in zip(left, found, strict=True) if lane.more]
    assert told == {name: [span(10 * n + 1, 10 * n + 5) for n in range(count)] for name, count in sizes.items()}


def test_a_claim_of_the_wrong_token_is_released_and_what_it_brought_stays_known(
    receiving: Receiving, shared: LakeState
) -> None:
    other = new_receiving(shared).token
    lane = replace(SENDER, lake="contested", instance="wrong")
    right = replace(lane, instance="right")
    assert receiving.claim(lane, other) is not None

    def release(name: LaneName) -> senders.Released | None:
        with receiving.ledger.write() as connection:
            return senders.release(connection, receiving.dataset.id, name.lake, name.dataset)

    assert receiving.record(receiving.body(by_range(1, 5, right))) == [NotOwner()]
    assert release(lane) == senders.Released("wrong", 1, forgotten=True), "it brought no rows: as if it had not been"
    assert release(lane) is None
    taken = receiving.claim(right)
    assert taken is not None and taken.owner == receiving.token.owner
    receiving.claim(replace(right, generation=2))
    receiving.accept(by_range(1, 5, replace(right, generation=2)))
    assert release(right) == senders.Released("right", 2, forgotten=False)
    kept = receiving.claim(replace(right, generation=1), other)
    assert kept is not None and kept.generation == 2 and kept.owner is None, "a deliverer of the past does not get it"
    again = receiving.claim(replace(right, generation=2), other)
    assert again is not None and again.owner == other.owner
    repeat = receiving.body(by_range(1, 5, replace(right, generation=2)), token=other)
    assert isinstance(receiving.record(repeat)[0], Repeat)


def test_a_body_without_rows_is_held_and_waits_for_nothing(receiving: Receiving) -> None:
    receiving.accept(by_range(1, 100), rows=0)
    assert receiving.form() is None
    assert receiving.record(receiving.body(by_range(1, 100), rows=0)) == [
        Repeat(0, receiving.stored()[0].digest, (span(1, 100),))
    ]


class Model:
    """What a lane is, in as few words as possible: numbers, and the ranges that brought them."""

    def __init__(self) -> None:
        self.ranges: list[SeqRange] = []

    def offer(self, rows: SeqRange) -> str:
        held = {n for r in self.ranges for n in range(r.lo, r.hi + 1)}
        wanted = set(range(rows.lo, rows.hi + 1))
        if wanted <= held:
            return "exact" if rows in self.ranges else "covered"
        if wanted & held:
            return "overlaps"
        self.ranges.append(rows)
        return "new"


ranges = st.tuples(st.integers(1, 40), st.integers(0, 12)).map(lambda given: span(given[0], given[0] + given[1]))
offers = st.tuples(st.sampled_from(["", "k=a"]), ranges)


@settings(max_examples=scaled(20, 300), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(groups=st.lists(st.lists(offers, min_size=1, max_size=8), max_size=8))
def test_whatever_is_offered_in_whatever_groups_a_lane_is_a_set_of_ranges(
    shared_sqlite: LakeState, groups: list[list[tuple[str, SeqRange]]]
) -> None:
    _check_against_the_model(shared_sqlite, groups)


@settings(max_examples=scaled(8, 100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(groups=st.lists(st.lists(offers, min_size=1, max_size=8), max_size=6))
def test_and_so_it_is_in_either_database(shared: LakeState, groups: list[list[tuple[str, SeqRange]]]) -> None:
    _check_against_the_model(shared, groups)


def _check_against_the_model(lake: LakeState, groups: list[list[tuple[str, SeqRange]]]) -> None:
    receiving = new_receiving(lake)
    models = {"": Model(), "k=a": Model()}
    for group in groups:
        bodies = [receiving.body(by_range(r.lo, r.hi, replace(SENDER, partition=p))) for p, r in group]
        for (partition, rows), decision in zip(group, receiving.record(*bodies), strict=True):
            model = models[partition]
            match model.offer(rows), decision:
                case "new", New():
                    pass
                case "exact", Repeat(count, digest, held):
                    assert count == len(rows) and digest is not None and held == (rows,)
                case "covered", Repeat(None, None, held) | Overlaps(held) as found:
                    assert isinstance(found, Repeat) and len(held) == 1
                    assert held[0].lo <= rows.lo and rows.hi <= held[0].hi
                case "overlaps", Overlaps(held):
                    assert held == tuple(merge_ranges(r for r in model.ranges if r.overlaps(rows)))
                case expected, found:
                    raise AssertionError(f"{expected} became {found}")
    for partition, model in models.items():
        assert receiving.held(partition=partition) == sorted(model.ranges)


# --- keys ---


def test_a_key_is_new_once_and_another_body_is_told_what_it_was_used_for(receiving: Receiving) -> None:
    first = receiving.body("a", rows=7)
    [new] = receiving.record(first)
    assert isinstance(new, New)
    assert receiving.known(KeyIdentity("a"), first.digest) == Repeat(7, first.digest, ())
    assert receiving.known(KeyIdentity("a"), "another") == OtherBody(first.digest)
    assert receiving.known(KeyIdentity("b"), first.digest) is None
    assert receiving.record(receiving.body("a", digest=first.digest), receiving.body("a", digest="another")) == [
        Repeat(7, first.digest, ()),
        OtherBody(first.digest),
    ]
    assert len(receiving.stored()) == 1


def test_a_key_belongs_to_its_token_and_its_dataset(receiving: Receiving, shared: LakeState) -> None:
    other = new_receiving(shared)
    bodies = [
        receiving.body("a"),
        receiving.body("a", token=other.token),
        receiving.body("a", dataset=other.dataset.id),
        receiving.body("A"),
    ]
    assert [type(d) for d in receiving.record(*bodies)] == [New] * 4


def test_of_one_key_twice_in_a_call_the_first_is_new(receiving: Receiving) -> None:
    bodies = [receiving.body("z", digest="1"), receiving.body("z", digest="2"), receiving.body("z", digest="1")]
    new, other, same = receiving.record(*bodies)
    assert isinstance(new, New) and (other, same) == (OtherBody("1"), Repeat(10, "1", ()))
    mixed = [receiving.body(by_range(1, 5)), receiving.body("y"), receiving.body(by_range(1, 5)), receiving.body("y")]
    assert [type(d) for d in receiving.record(*mixed)] == [New, New, Repeat, Repeat]
    assert receiving.record() == []


def test_a_key_of_a_body_that_is_not_published_and_gone_from_the_spool_is_never_forgotten(receiving: Receiving) -> None:
    receiving.accept("waits for a batch")
    receiving.accept(by_range(1, 10))

    def forget(after: timedelta = LATER) -> int:
        before = len(receiving.stored())
        received.forget_keys(receiving.ledger, utc_now() + after)
        return before - len(receiving.stored())

    assert forget() == 0
    batch = receiving.form()
    assert batch is not None and forget() == 0, "it is in a batch that is not published"
    receiving.publish_formed(batch, 1)
    assert forget() == 0, "its file is still there"
    receiving.remove_files()
    assert forget(-LATER) == 0, "a client may still ask"
    assert forget() == 1, "and ranges are kept for ever"
    assert receiving.known(KeyIdentity("waits for a batch"), "x") is None
    receiving.accept("no rows", rows=0)
    assert forget(-LATER) == 0 and forget() == 1
    for needed in receiving.stored():
        assert receiving.is_refused(f"DELETE FROM received WHERE id = {needed.id}")


def test_thousands_of_keys_are_forgotten(shared_sqlite: LakeState) -> None:
    receiving = new_receiving(shared_sqlite)
    receiving.accept(*(f"key {n}" for n in range(1_300)), rows=0)
    assert received.forget_keys(receiving.ledger, utc_now() + LATER) >= 1_300
    assert receiving.stored() == []


# --- at the same moment ---


def _only_new(decisions: list[list[object]]) -> int:
    return sum(isinstance(d, New) for some in decisions for d in some)


@pytest.mark.parametrize("identity", ["a key", by_range(1, 100)], ids=["key", "range"])
def test_of_many_that_record_the_same_at_once_one_is_new_and_the_others_get_its_answer(
    receiving: Receiving, shared: LakeState, identity: str
) -> None:
    bodies = [receiving.body(identity, digest="the same") for _ in range(6)]
    decisions = at_once(shared, [lambda ledger, b=b: received.record(ledger, [b]) for b in bodies])  # type: ignore[misc]
    assert _only_new(decisions) == 1
    assert {(d.rows, d.digest) for [d] in decisions if isinstance(d, Repeat)} == {(bodies[0].rows, "the same")}
    assert len(receiving.stored()) == 1


def test_of_many_ranges_that_overlap_and_come_at_once_those_that_are_held_are_disjoint(
    receiving: Receiving, shared: LakeState
) -> None:
    groups = [[receiving.body(by_range(lo, lo + 9)) for lo in range(first, 200, 7)] for first in (1, 2, 3, 4)]
    decisions = at_once(shared, [lambda ledger, g=g: received.record(ledger, g) for g in groups])  # type: ignore[misc]
    held = receiving.held()
    assert _only_new(decisions) == len(held) > 0
    assert all(a.hi < b.lo for a, b in pairwise(held))
    offered = {b.identity.rows for g in groups for b in g}  # type: ignore[union-attr]
    assert set(held) <= offered


def test_groups_with_many_lanes_and_keys_in_any_order_never_wait_for_each_other(
    receiving: Receiving, shared: LakeState
) -> None:
    def group(order: int) -> list[UnrecordedBody]:
        bodies = [receiving.body(by_range(1, 5, replace(SENDER, partition=f"k={n}"))) for n in range(12)]
        bodies += [receiving.body(f"key {n}", digest="same") for n in range(12)]
        return bodies[::order]

    work = [group(1), group(-1), group(1), group(-1)]
    decisions = at_once(shared, [lambda ledger, g=g: received.record(ledger, g) for g in work])  # type: ignore[misc]
    assert _only_new(decisions) == 24 == len(receiving.stored())


RECORDER = """
import json, sys
from pathlib import Path
from strandline.core.settings.lake_config import load_config
from strandline.ledger.receive import received
from strandline.ledger.engine import Ledger
from strandline.ledger.receive.received import UnrecordedBody, New
from strandline.core.types import SeqRange
from strandline.core.forward_protocol import KeyIdentity, LaneName, RangeIdentity

ledger = Ledger(load_config(Path(sys.argv[1])))
name, dataset, token = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
lane = LaneName("other-lake", "sink-instance", 1, "default.source", "")
with ledger.read(): pass
print("ready", flush=True)
sys.stdin.readline()
new = []
for n in range(40):
    identities = [RangeIdentity(lane, SeqRange(10 * n + 1, 10 * n + 10)), KeyIdentity(f"key {n}")]
    bodies = [UnrecordedBody(dataset, i, token, 5, "same", 9, f"{name}-{n}-{k}", 9) for k, i in enumerate(identities)]
    new += [b.spool for b, d in zip(bodies, received.record(ledger, bodies)) if isinstance(d, New)]
print(json.dumps(new))
"""


def test_two_processes_that_bring_the_same_bodies_record_each_once(receiving: Receiving, shared: LakeState) -> None:
    home = str(shared.config.home / CONFIG_NAME)
    running = [
        subprocess.Popen(
            [sys.executable, "-c", RECORDER, home, name, str(receiving.dataset.id), str(receiving.token.id)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("left", "right")
    ]
    for process in running:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    told = [json.loads(p.communicate("go\n")[0]) for p in running]
    assert [p.returncode for p in running] == [0, 0]
    files = sorted(row.spool for row in receiving.stored())
    assert len(files) == 80 and sorted(told[0] + told[1]) == files, "a body was told to be new, and is not there"


# --- who may ---


def test_what_a_token_brings_after_it_was_revoked_is_not_recorded(receiving: Receiving) -> None:
    with receiving.ledger.write() as connection:
        other, _ = tokens.create(connection, f"other-{receiving.dataset.id}", None)
    good, late = receiving.body("a"), receiving.body("b", token=other)
    in_range = replace(receiving.body(by_range(1, 10)), token=other.id)
    with receiving.ledger.write() as connection:
        assert tokens.revoke(connection, other.name)
    decisions = receiving.record(late, good, in_range)
    assert decisions[0] == decisions[2] == BodyGone("token") and isinstance(decisions[1], New)
    assert len(receiving.stored()) == 1


def test_what_a_token_brings_that_has_expired_or_may_not_write_is_not_recorded(receiving: Receiving) -> None:
    """The commit point decides: a caller that was checked a moment ago is remembered."""
    with receiving.ledger.write() as connection:
        made = [
            tokens.create(
                connection, f"{role} {expires_in} {receiving.dataset.id}", None, role=role, expires_in=expires_in
            )[0]
            for role in Role
            for expires_in in (None, timedelta(microseconds=1))
        ]
    bodies = [receiving.body(f"key {n}", token=token) for n, token in enumerate(made)]
    decisions = receiving.record(*bodies)
    new = [token for token, decision in zip(made, decisions, strict=True) if isinstance(decision, New)]
    assert [(t.role, t.expires_at) for t in new] == [(Role.WRITE, None), (Role.ADMIN, None)]
    assert decisions.count(BodyGone("token")) == len(made) - 2 and len(receiving.stored()) == 2


def test_nothing_is_recorded_for_a_dataset_that_was_dropped(receiving: Receiving) -> None:
    with receiving.ledger.write() as connection:
        datasets.mark_dropped(connection, receiving.dataset.id)
    assert receiving.record(receiving.body("a"), receiving.body(by_range(1, 10))) == [BodyGone("dataset")] * 2
    assert receiving.stored() == []


# --- what it costs, and what the store refuses ---


def test_a_group_of_bodies_costs_a_few_statements_however_long_the_lane_is(shared_sqlite: LakeState) -> None:
    receiving = new_receiving(shared_sqlite)
    for first in range(0, 4_000, 500):
        receiving.accept(*(by_range(10 * n + 1, 10 * n + 10) for n in range(first, first + 500)))
    asked: list[str] = []
    looked = [0]

    def count(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        asked.append(statement)

    event.listen(receiving.ledger.engine, "before_cursor_execute", count)
    try:
        receiving.accept(*(by_range(40_001 + 10 * n, 40_010 + 10 * n) for n in range(32)), *map(str, range(32)))
    finally:
        event.remove(receiving.ledger.engine, "before_cursor_execute", count)
    assert len(asked) <= 8, asked
    with receiving.ledger.read() as connection:
        raw = connection.connection.dbapi_connection
        raw.set_progress_handler(lambda: looked.__setitem__(0, looked[0] + 1), 1)  # type: ignore[union-attr]
        identity = by_range(20_005, 20_025)
        assert received.find_decision(connection, receiving.dataset.id, identity, receiving.token.id, "") is not None
        raw.set_progress_handler(None, 0)  # type: ignore[union-attr]
    assert looked[0] < 2_000, "all of the lane was looked at"


def test_a_body_that_cannot_be_recorded_holds_up_no_other_of_its_group(receiving: Receiving) -> None:
    good = [receiving.body(by_range(1, 10)), receiving.body("key"), receiving.body(by_range(1, 10))]
    bad = replace(receiving.body(by_range(11, 20)), size=2**70)
    first, refused, by_key, again = received.record_each(receiving.ledger, [good[0], bad, *good[1:]])
    assert isinstance(refused, Exception)
    assert isinstance(first, New) and isinstance(by_key, New)
    assert again == Repeat(10, good[0].digest, (span(1, 10),))
    assert [row.id for row in receiving.stored()] == [first.id, by_key.id]


def test_the_store_itself_refuses_ranges_that_overlap(receiving: Receiving) -> None:
    receiving.accept(by_range(10, 19), by_range(40, 49))
    lane = receiving.stored()[0].lane_id

    def insert(lo: int, hi: int) -> bool:
        values = f"(:dataset, {lane}, {lo}, {hi}, 1, 'd', 1, 'file {lo} {hi} {lane}', 1, 0)"
        columns = "(dataset_id, lane_id, lo, hi, rows, digest, size, spool, spool_bytes, received_at)"
        return receiving.is_refused(f"INSERT INTO received {columns} VALUES {values}")

    overlapping = [(10, 19), (1, 10), (19, 20), (12, 13), (1, 100), (30, 40), (49, 60), (11, 45)]
    assert [insert(*r) for r in overlapping] == [True] * len(overlapping)
    assert [insert(*r) for r in [(1, 9), (20, 39), (50, 50)]] == [False] * 3


@pytest.mark.parametrize(
    "change",
    [
        "lo = 2",
        "hi = 11",
        "lane_id = NULL, lo = NULL, hi = NULL",
        "rows = 9",
        "digest = 'x'",
        "size = 1",
        "spool = 'x'",
        "spool_removed_at = 1",
        "batch = NULL, place = NULL",
        "place = 5",
    ],
)
def test_the_store_itself_refuses_to_change_what_was_received(receiving: Receiving, change: str) -> None:
    receiving.accept(by_range(1, 10))
    assert receiving.form() is not None
    assert receiving.is_refused(f"UPDATE received SET {change} WHERE dataset_id = :dataset")


def test_a_body_is_a_range_or_a_key_and_has_a_file_exactly_if_it_has_rows(receiving: Receiving) -> None:
    columns = "(dataset_id, token_id, key, rows, digest, size, spool, spool_bytes, received_at)"
    for token, key, rows, spool in (
        ("NULL", "NULL", 1, "'a file'"),
        (str(receiving.token.id), "NULL", 1, "'a file'"),
        (str(receiving.token.id), "'k'", 0, "'a file'"),
        (str(receiving.token.id), "'k'", 1, "NULL"),
    ):
        values = f"(:dataset, {token}, {key}, {rows}, 'd', 1, {spool}, 1, 0)"
        assert receiving.is_refused(f"INSERT INTO received {columns} VALUES {values}")


# --- the sender's record, and where bodies are ---


def test_a_claim_is_written_once_and_its_generation_only_rises(receiving: Receiving, shared: LakeState) -> None:
    def claim(instance: str, generation: int, lake: str = "lake a", uuid: str = "u") -> tuple[str, int]:
        with receiving.ledger.write() as connection:
            found = senders.claim(
                connection,
                receiving.dataset.id,
                SourceRecord(lake, "default.source", instance, uuid, generation, receiving.token.owner),
            )
            assert found is not None
            assert found == senders.find_claim(connection, receiving.dataset.id, lake, "default.source")
        return found.instance, found.generation

    with receiving.ledger.read() as connection:
        assert senders.find_claim(connection, receiving.dataset.id, "lake a", "default.source") is None
    assert claim("one", 1) == ("one", 1)
    assert claim("one", 2) == ("one", 2)
    assert claim("one", 4) == ("one", 2), "generations go up by one step"
    assert claim("one", 1) == ("one", 2)
    assert claim("two", 3) == ("one", 2), "another's record is told and not touched"
    assert claim("one", 3, uuid="made anew") == ("one", 2)
    assert claim("two", 1, lake="lake b") == ("two", 1), "several lakes may feed one dataset"
    for change in ("generation = 1", "generation = 4", "instance = 'x'", "owner_id = 999", "owner_id = NULL"):
        statement = f"UPDATE source SET {change} WHERE dataset_id = :dataset AND generation = 2"
        assert receiving.is_refused(statement), change


def test_of_many_that_claim_at_once_one_has_the_record(receiving: Receiving, shared: LakeState) -> None:
    def claim(instance: str, ledger: Ledger) -> str:
        with ledger.write() as connection:
            made = senders.claim(
                connection, receiving.dataset.id, SourceRecord("l", "d", instance, "u", 1, receiving.token.owner)
            )
            assert made is not None
            return made.instance

    told = at_once(shared, [lambda ledger, n=n: claim(f"instance {n}", ledger) for n in range(4)])  # type: ignore[misc]
    assert len(set(told)) == 1


def test_a_body_tells_the_numbers_that_its_rows_have_here_once_they_are_published(receiving: Receiving) -> None:
    def placed(lo: int, hi: int, limit: int = 10, lane: LaneName = SENDER) -> list[PlacedBody]:
        with receiving.ledger.read() as connection:
            return senders.list_placed(connection, receiving.dataset.id, lane, Seq(lo), Seq(hi), limit)

    first, second = receiving.accept(by_range(11, 20), by_range(1, 10))
    [none] = receiving.accept(by_range(21, 30), rows=0)
    assert placed(1, 30) == [
        PlacedBody(span(1, 10), 10, second.digest, None, second.spool),
        PlacedBody(span(11, 20), 10, first.digest, None, first.spool),
        PlacedBody(span(21, 30), 0, none.digest, None, None),
    ]
    receiving.publish(1001)
    assert [(b.rows.lo, b.first, b.spool) for b in placed(1, 20)] == [(1, 1011, second.spool), (11, 1001, first.spool)]
    receiving.remove_files()
    assert [b.spool for b in placed(1, 20)] == [None, None]
    assert [b.rows.lo for b in placed(5, 11)] == [1, 11]
    assert [b.rows.lo for b in placed(10, 10)] == [1]
    assert [b.rows.lo for b in placed(1, 30, limit=2)] == [1, 11]
    assert placed(31, 40) == [] == placed(1, 30, lane=replace(SENDER, partition="k=a"))


def test_bytes_on_the_disk_are_counted_until_the_files_are_gone(sqlite_lake: LakeState) -> None:
    receiving = new_receiving(sqlite_lake)

    def waiting() -> int:
        with receiving.ledger.read() as connection:
            return sum(spool_files.waiting_bytes(connection).values())

    assert waiting() == 0
    bodies = receiving.accept(by_range(1, 10), "a key")
    receiving.accept("nothing", rows=0)
    assert waiting() == 200
    receiving.publish(1)
    assert waiting() == 200
    names = [b.spool for b in bodies if b.spool]
    with receiving.ledger.read() as connection:
        assert spool_files.spooled(connection, [*names, "left by a dead one"]) == set(names)
    receiving.remove_files()
    assert waiting() == 0
    with receiving.ledger.read() as connection:
        assert spool_files.spooled(connection, names) == set()


def test_what_is_asked_often_looks_at_what_waits_and_not_at_all_that_ever_came(sqlite_lake: LakeState) -> None:
    receiving = new_receiving(sqlite_lake)
    asked: list[tuple[str, Any]] = []

    def note(_connection: object, _cursor: object, statement: str, given: Any, *_rest: object) -> None:
        asked.append((statement, given))

    event.listen(receiving.ledger.engine, "before_cursor_execute", note)
    with receiving.ledger.read() as connection:
        spool_files.waiting_bytes(connection)
        batches.due(connection, rows_max=10, older_than=utc_now())
        batches.to_remove(connection)
        receive_report.report(connection)
        tokens.find(connection, "secret")
    receiving.form()
    event.remove(receiving.ledger.engine, "before_cursor_execute", note)
    with receiving.ledger.read() as connection:
        for statement, given in asked:
            plan = [row.detail for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", given)]
            looks = [step for step in plan if re.match(r"(SCAN|SEARCH) (received|receive_batch|api_token)", step)]
            fine = ("spooled_bodies", "waiting_bodies", "unfinished_batches", "one_token_of_a_hash", "PRIMARY KEY")
            assert all(any(index in step for index in fine) for step in looks), (statement, plan)
    assert len(asked) >= 8
