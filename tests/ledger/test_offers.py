"""Offers: one read of the ledger, every settled item behind a bound, none that is open."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strandline.core.sites.replication import Item, TakeoverCut
from strandline.core.types import BlockKind, Dataset, DatasetUuid, ItemKind, Seq, SeqRange, merge_ranges
from strandline.ledger.engine import utc_now
from strandline.ledger.ingest import blocks, dataset_report, datasets, restored_blocks, sequence
from strandline.ledger.replicate import cuts, offers
from strandline.ledger.schema.core import block
from strandline.replicate.lead.offer_plan import cut_items
from tests.ledger.conftest import LakeState


def offered(lake: LakeState, after: int = 0, items_max: int = 100, of: Dataset | None = None) -> tuple[Item, ...]:
    dataset = of or lake.dataset
    with lake.ledger.read_consistent() as connection:
        state = offers.read_state(connection, {dataset.uuid: Seq(after)}, items_max=items_max)
    news = [n for n in state.news if n.dataset.uuid == dataset.uuid]
    return cut_items(news[0], items_max=items_max) if news else ()


def spans(items: tuple[Item, ...]) -> list[tuple[int, int]]:
    return [(i.lo, i.hi) for i in items]


def purge(lake: LakeState, *rows: tuple[int, int], of: Dataset | None = None) -> int:
    """The item of a purge, as the transaction that says that it is done stores it."""
    with lake.ledger.write() as connection:
        taken, _ = sequence.take(connection, lake.witness, 1, step="floor")
        connection.execute(
            block.insert().values(
                dataset_id=(of or lake.dataset).id, lo=taken.lo, hi=taken.hi, kind="batch",
                batch_id=f"purge-{taken.lo}", state="published", fence=1, item="purge",
                ranges=json.dumps(rows), row_count=0, reserved_at=utc_now(), changed_at=utc_now(),
            )
        )  # fmt: skip
    return int(taken.lo)


def test_a_published_batch_is_a_segment_with_its_id_its_digest_and_its_count(lake: LakeState) -> None:
    lake.publish(lake.reserve("a", 10, digest="d"))
    assert offered(lake) == (
        Item(ItemKind.SEGMENT, Seq(1), Seq(10), lake.dataset.first_shard, 10, "a", "d", BlockKind.BATCH),
    )


def test_nothing_at_or_above_an_open_block_is_offered(lake: LakeState) -> None:
    first, second, third = (lake.reserve(name, 10) for name in "abc")
    lake.publish(third)
    assert offered(lake) == ()
    lake.publish(first)
    assert spans(offered(lake)) == [(1, 10)]
    assert blocks.abandon(lake.ledger, lake.witness, second, "its writer died")
    assert spans(offered(lake)) == [(1, 10), (21, 30)]


def test_an_offer_is_cut_short_in_the_order_of_numbers_and_goes_on_behind_it(lake: LakeState) -> None:
    for name in "abcde":
        lake.publish(lake.reserve(name, 10))
    assert spans(offered(lake, items_max=2)) == [(1, 10), (11, 20)]
    assert spans(offered(lake, 20, items_max=2)) == [(21, 30), (31, 40)]
    assert offered(lake, 50) == ()


def test_a_range_across_the_bound_begins_behind_it(lake: LakeState) -> None:
    lake.publish(lake.reserve("a", 10, digest="d"))
    assert offered(lake, 4) == (
        Item(ItemKind.SEGMENT, Seq(5), Seq(10), lake.dataset.first_shard, 6, "a", "d", BlockKind.BATCH),
    )


def test_a_lost_ledgers_range_gives_what_the_blocks_inside_of_it_leave_in_the_first_shard(lake: LakeState) -> None:
    lake.publish(lake.reserve("a", 10))
    lake.publish(lake.reserve("b", 5))  # 11..15
    lake.reserve("other", 15, dataset=lake.add_dataset("default.other"))  # 16..30
    with lake.ledger.write() as connection:
        restored_blocks.insert_published(
            connection, lake.dataset.id, SeqRange(Seq(9), Seq(30)), kind=BlockKind.RECOVERED, batch_id="recovered-2"
        )
    found = offered(lake)
    assert spans(found) == [(1, 10), (11, 15), (16, 30)]
    assert [(i.source, i.batch_id, i.rows) for i in found[2:]] == [(BlockKind.RECOVERED, None, None)]
    assert found[2].shard == lake.dataset.first_shard
    assert spans(offered(lake, items_max=2)) == [(1, 10), (11, 15)]
    assert spans(offered(lake, 20)) == [(21, 30)]


def test_a_dataset_that_waits_for_its_resync_offers_only_what_lies_before_it(lake: LakeState) -> None:
    lake.publish(lake.reserve("a", 10))
    lake.reserve("b", 10)
    with lake.ledger.write() as connection:
        restored_blocks.postpone(connection, lake.dataset.id, SeqRange(Seq(11), Seq(20)), "recovered-2")
    assert spans(offered(lake)) == [(1, 10)]


def test_a_purge_is_an_item_of_every_shard_behind_the_rows_that_it_is_about(lake: LakeState) -> None:
    lake.publish(lake.reserve("a", 10))
    number = purge(lake, (2, 4), (7, 7))
    lake.publish(lake.reserve("b", 10))
    first, second, third = offered(lake)
    assert (second.kind, second.shard, second.lo, second.hi) == (ItemKind.PURGE, None, number, number)
    assert second.ranges == (SeqRange(Seq(2), Seq(4)), SeqRange(Seq(7), Seq(7)))
    assert first.hi < second.lo < third.lo


def test_a_cut_is_offered_with_what_it_leaves(lake: LakeState) -> None:
    lake.publish(lake.reserve("a", 10))
    number = Seq(17 * 2**40)
    cut = TakeoverCut(17, Seq(10), (SeqRange(Seq(14), Seq(15)), SeqRange(Seq(18), Seq(18))), 3)
    with lake.ledger.write() as connection:
        cuts.insert(connection, lake.dataset.id, number, cut)
    assert offered(lake, after=10) == (
        Item(ItemKind.CUT, number, number, None, None, f"cut-{number}", None, cut=cut),
    )  # fmt: skip
    with lake.ledger.read() as connection:
        assert blocks.sealed(connection, lake.dataset.id) == number


def test_one_read_tells_of_all_datasets_new_and_dropped_ones_and_only_of_those_that_may_be_seen(
    lake: LakeState,
) -> None:
    lake.publish(lake.reserve("a", 10))
    other, gone = lake.add_dataset("default.other"), lake.add_dataset("default.gone")
    lake.publish(lake.reserve("b", 10, dataset=other))
    with lake.ledger.write() as connection:
        assert datasets.mark_dropped(connection, gone.id)
    known = {lake.dataset.uuid: Seq(10), gone.uuid: Seq(0), DatasetUuid("nobody's"): Seq(3)}
    with lake.ledger.read_consistent() as connection:
        state = offers.read_state(connection, known, items_max=10)
        limited = offers.read_state(connection, known, items_max=10, only=[lake.dataset.name])
    assert [n.dataset.name for n in state.news] == ["default.other"]
    assert (state.lake, state.term, state.dropped) == ("lake-under-test", 1, (gone.uuid,))
    assert state.seals == {lake.dataset.uuid: 10}, "of those that it named"
    assert [d.name for d in state.unknown] == ["default.other"]
    assert limited.news == limited.unknown == ()


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.tuples(st.integers(1, 5), st.sampled_from(("publish", "open", "abandon", "purge", "lose"))), max_size=8
    ),
    st.integers(1, 4),
)
def test_offers_of_a_real_ledger_tile_what_is_settled(
    sqlite_lake: LakeState, steps: list[tuple[int, str]], items_max: int
) -> None:
    """The same ledger for all examples: it only grows, and each example has a dataset of its own."""
    lake = sqlite_lake
    dataset = lake.add_dataset(f"default.d{next(_COUNT)}")
    start = lake.ledger.query(sequence.read).last
    for rows, step in steps:
        name = f"b{next(_COUNT)}"
        if step == "purge":
            purge(lake, (1, 1), of=dataset)
            continue
        reserved = lake.reserve(name, rows, dataset=dataset)
        if step == "publish":
            lake.publish(reserved)
        elif step == "abandon":
            assert blocks.abandon(lake.ledger, lake.witness, reserved, "died")
        elif step == "lose":
            assert blocks.abandon(lake.ledger, lake.witness, reserved, "lost")
            with lake.ledger.write() as connection:
                restored_blocks.insert_published(
                    connection, dataset.id, reserved.head.rows, kind=BlockKind.RECOVERED, batch_id=f"recovered-{name}"
                )
    with lake.ledger.read() as connection:
        page = dataset_report.page(connection, dataset.id, before=None, blocks_max=1000)
    opened = [b.head.rows.lo for b in page if isinstance(b, blocks.Reserved | blocks.Staged)]
    below = min(opened, default=2**62)
    settled = [b.head.rows for b in page if isinstance(b, blocks.Published) and b.head.rows.hi < below]
    after, found = int(start), list[Item]()
    while items := offered(lake, after, items_max, dataset):
        found += items
        after = int(items[-1].hi)
    assert all(a.hi < b.lo for a, b in itertools.pairwise(found))
    assert merge_ranges(i.numbers for i in found) == merge_ranges(settled)


_COUNT = itertools.count()


def test_a_follower_that_has_everything_costs_the_leader_one_query(lake: LakeState) -> None:
    lake.publish(lake.reserve("a", 10))
    lake.publish(lake.reserve("b", 10, dataset=lake.add_dataset("default.other")))
    known = {d.uuid: Seq(20) for d in lake.ledger.query(datasets.list_datasets)}
    with lake.ledger.read_consistent() as connection, asked(connection) as statements:
        state = offers.read_state(connection, known, items_max=10)
    assert (state.news, state.unknown, state.dropped) == ((), (), ())
    assert len(statements) == 1


@contextmanager
def asked(connection: sa.Connection) -> Iterator[list[str]]:
    """The statements that are sent meanwhile."""
    found: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_more: object) -> None:
        found.append(statement)

    sa.event.listen(connection, "before_cursor_execute", note)
    yield found
    sa.event.remove(connection, "before_cursor_execute", note)


def test_a_ledger_without_datasets_says_its_lake(lake: LakeState) -> None:
    with lake.ledger.write() as connection:
        assert datasets.mark_dropped(connection, lake.dataset.id)
    with lake.ledger.read_consistent() as connection:
        state = offers.read_state(connection, {}, items_max=10)
    assert (state.lake, state.term, state.unknown) == ("lake-under-test", 1, ())


def test_a_dataset_that_waits_for_its_resync_has_no_seal_that_a_follower_could_go_by(lake: LakeState) -> None:
    lake.publish(lake.reserve("a", 10))
    with lake.ledger.write() as connection:
        restored_blocks.postpone(connection, lake.dataset.id, SeqRange(Seq(11), Seq(20)), "recovered")
    with lake.ledger.read_consistent() as connection:
        assert offers.read_state(connection, {lake.dataset.uuid: Seq(10)}, items_max=10).seals == {}


def test_an_answer_is_of_few_datasets_and_those_that_are_furthest_behind_come_first(
    lake: LakeState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offers, "DATASETS_MAX", 2)
    made = [lake.dataset, *(lake.add_dataset(f"default.more{n}") for n in range(3))]
    for n, d in enumerate(made):
        lake.publish(lake.reserve(f"b{n}", dataset=d))

    def ask(after: dict[DatasetUuid, Seq]) -> offers.LeaderState:
        with lake.ledger.read_consistent() as connection:
            return offers.read_state(connection, after, items_max=10)

    after: dict[DatasetUuid, Seq] = {}
    for expected in (2, 4):
        state = ask(after)
        assert len(state.unknown) == len(state.news) == 2 and len(state.datasets) == 4
        after |= {d.uuid: Seq(0) for d in state.unknown}
        assert len(after) == expected
    after |= {made[0].uuid: Seq(5), made[1].uuid: Seq(12)}
    assert {n.dataset.uuid for n in ask(after).news} == {made[2].uuid, made[3].uuid}
    after |= {made[2].uuid: Seq(30), made[3].uuid: Seq(40)}
    assert {n.dataset.uuid for n in ask(after).news} == {made[0].uuid, made[1].uuid}


def test_datasets_whose_tables_cannot_be_read_take_the_places_that_others_leave(
    lake: LakeState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offers, "DATASETS_MAX", 2)
    made = [lake.dataset, *(lake.add_dataset(f"default.more{n}") for n in range(3))]
    for n, d in enumerate(made):
        lake.publish(lake.reserve(f"b{n}", dataset=d))
    ids = [d.uuid for d in made]

    def ask(after: dict[DatasetUuid, Seq]) -> offers.LeaderState:
        with lake.ledger.read_consistent() as connection:
            return offers.read_state(connection, after, items_max=10, last=frozenset(ids[:2]))

    assert {d.uuid for d in ask({}).unknown} == {n.dataset.uuid for n in ask({}).news} == set(ids[2:])
    known = {ids[0]: Seq(1), ids[1]: Seq(1), ids[2]: Seq(25), ids[3]: Seq(35)}
    assert {n.dataset.uuid for n in ask(known).news} == set(ids[2:])
    known |= {ids[2]: Seq(30), ids[3]: Seq(40)}
    assert {n.dataset.uuid for n in ask(known).news} == set(ids[:2])
