"""The read model reads all sinks and datasets at once: the values are those of one at a time, the queries few."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy import event

from strandline.core.delivery_types import ChunkState, LanePlan
from strandline.core.roles import Role
from strandline.core.types import Reserved, Seq, SnapshotId, TableCounts
from strandline.iceberg.metadata.table_metadata import SnapshotView, TableView, WapId
from strandline.ledger.deliver import losses, quarantine, sinks
from strandline.ledger.deliver.losses import NewLoss
from strandline.ledger.deliver.quarantine import StoredRefusedRow
from strandline.ledger.engine import Ledger, utc_now
from strandline.ledger.ingest import blocks, dataset_report, datasets, published_blocks, table_states
from strandline.ledger.maintain import floors, retention_holds, runs
from strandline.ledger.maintain.runs import MaintenanceKind, MaintenanceOutcome, NewRun
from strandline.ledger.receive import tokens
from strandline.ledger.replicate import followers
from strandline.ledger.replicate.followers import NewFollower
from strandline.ledger.schema.core import block, table_count
from strandline.read import foreign_rows
from strandline.status.maintenance import read_maintenance
from strandline.status.report import load_status
from strandline.status.sinks import SinkStatus, load_sinks
from strandline.status.whole_sinks import WholeSink, read_whole_sinks
from tests.campaign import scaled
from tests.ledger.conftest import LAKE, LakeState
from tests.ledger.delivery import Delivery, landed, new_delivery, one_chunk, planned
from tests.ledger.sink_by_sink import load_sinks_one_by_one


@contextmanager
def counted(ledger: Ledger) -> Iterator[list[str]]:
    asked: list[str] = []

    def note(_c: object, _cursor: object, statement: str, *_: object) -> None:
        asked.append(statement)

    event.listen(ledger.engine, "before_cursor_execute", note)
    try:
        yield asked
    finally:
        event.remove(ledger.engine, "before_cursor_execute", note)


_RANDOM = settings(
    max_examples=scaled(8, 100),
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # an example is many transactions: shrinking takes minutes
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


# What may happen to a sink, in any order. Each takes the delivery and a number to vary by.


def _settle(delivery: Delivery, n: int) -> None:
    top = _top(delivery)
    delivery.settle(top + 1 + n % 3, top + 10 + n)


def _top(delivery: Delivery) -> int:
    with delivery.ledger.read() as connection:
        return blocks.highest(connection, delivery.dataset.id) or 0


def _plan(delivery: Delivery, n: int) -> None:
    with delivery.ledger.read() as connection:
        sealed = blocks.sealed(connection, delivery.dataset.id)
    after = delivery.sink.planned
    if sealed is None or sealed <= (after or 0) or delivery.open():
        return
    names = [f"k={x}" for x in range(1 + n % 4)] if delivery.dataset.deliver_by else [""]
    middle = ((after or 0) + sealed) // 2
    plans = []
    for name in names:
        # A partition that is new begins where the others are planned up to: below that it had no rows.
        mark = delivery.marks().get(name, after or delivery.sink.start)
        chunks = [planned((mark or 0) + 1, sealed, n % 7 + 1)]
        if (mark or 0) < middle < sealed:
            chunks = [planned((mark or 0) + 1, middle, n % 5 + 1), planned(middle + 1, sealed)]
        plans.append(LanePlan(name, mark, sealed, tuple(chunks)))
    delivery.plan(sealed, *plans)


def _land_some(delivery: Delivery, n: int) -> None:
    left = [c for i in delivery.open() for c in i.chunks if c.state is ChunkState.PLANNED]
    delivery.acknowledge(*(landed(c, withheld=n % 3) for c in left[: 1 + n % 3]))


def _close_some(delivery: Delivery, n: int) -> None:
    done = [i for i in delivery.open() if all(c.state is not ChunkState.PLANNED for c in i.chunks)]
    delivery.close(done[: 1 + n % 2])


def _fail(delivery: Delivery, n: int) -> None:
    with delivery.ledger.write() as connection:
        sinks.failed(connection, delivery.sink.id, f"no answer {n}", utc_now() + timedelta(minutes=n), utc_now())


def _pause(delivery: Delivery, _n: int) -> None:
    with delivery.ledger.write() as connection:
        sinks.pause(connection, delivery.sink.id)


def _reset(delivery: Delivery, n: int) -> None:
    delivery.reset(None if n % 2 else min(n, _top(delivery)) or None)


def _quarantine(delivery: Delivery, n: int) -> None:
    for lane in delivery.lanes().values():
        row = StoredRefusedRow(lane.id, Seq(n + 1), "too long", f"object-{lane.id}-{n}", 5, {}, "jsonl")
        with delivery.ledger.write() as connection:
            quarantine.add(connection, row)


def _lose(delivery: Delivery, n: int) -> None:
    with delivery.ledger.write() as connection:
        losses.add(connection, delivery.sink, losses.Reason.DELETED, [NewLoss("", None, Seq(n + 1), n + 1)])
        losses.add(connection, delivery.sink, losses.Reason.FORGOTTEN, [NewLoss("", Seq(n + 1), Seq(n + 5), None)])


def _hold(delivery: Delivery, n: int) -> None:
    with delivery.ledger.write() as connection:
        rows = n if n % 2 else None
        retention_holds.keep(
            connection, delivery.dataset.id, delivery.sink.id, rows=rows, up_to=Seq(n + 1), now=utc_now()
        )


def _damage(delivery: Delivery, _n: int) -> None:
    delivery.damage("UPDATE lane SET continuation = 'nonsense', version = version + 1 WHERE sink_id = :sink")


def _drop(delivery: Delivery, _n: int) -> None:
    with delivery.ledger.write() as connection:
        datasets.mark_dropped(connection, delivery.dataset.id)


Change = Callable[[Delivery, int], None]
_OFTEN: list[Change] = [_settle, _plan, _land_some, _close_some]
_CHANGES: list[Change] = [*_OFTEN * 4, _fail, _pause, _reset, _quarantine, _lose, _hold]
_LAST: list[Change | None] = [None, None, None, _damage, _drop]

_Life = tuple[bool, list[tuple[Change, int]], Change | None]
_lives: st.SearchStrategy[_Life] = st.tuples(
    st.booleans(),
    st.lists(st.tuples(st.sampled_from(_CHANGES), st.integers(0, 9)), max_size=14),
    st.sampled_from(_LAST),
)


@_RANDOM
@given(st.lists(_lives, min_size=1, max_size=3))
def test_all_sinks_at_once_are_the_same_as_one_at_a_time(shared: LakeState, lives: list[_Life]) -> None:
    made = []
    for partitioned, changes, last in lives:
        delivery = new_delivery(shared, partitioned=partitioned, settled=30)
        made.append(delivery)
        for change, n in changes:
            change(delivery, n)
        if last is not None:
            last(delivery, 0)
    now = utc_now()
    at_once = load_sinks(shared.ledger, LAKE, now=now)
    assert at_once == load_sinks_one_by_one(shared.ledger, LAKE, now)
    names = sorted({s.name for s in at_once}, key=[s.name for s in at_once].index)
    assert at_once == tuple(s for name in names for s in load_sinks(shared.ledger, LAKE, name, now=now))
    with shared.ledger.read_consistent() as connection:
        whole = read_whole_sinks(connection, LAKE, datasets.list_datasets(connection), now=now)
    assert list(map(_figures, whole)) == [_summed_up(list(g)) for _, g in groupby(at_once, key=lambda s: s.name)]
    with shared.ledger.write() as connection:  # the next example must not read these, too
        for delivery in made[1:]:
            sinks.remove(connection, delivery.sink.id)


def _figures(one: WholeSink) -> tuple[object, ...]:
    return (
        one.sink.name,
        one.dataset_name,
        one.state,
        one.sink.failures,
        one.lag_rows,
        one.lag_seconds,
        one.exported_rows,
        one.quarantined_rows,
        one.held_rows,
        one.held_since,
        one.lost.rows,
        one.lost.unknown,
    )


def _summed_up(lanes: list[SinkStatus]) -> tuple[object, ...]:
    one = lanes[0]
    exported = [lane.exported for lane in lanes]
    return (
        one.name,
        one.dataset,
        one.state,
        one.retries,
        one.sink_lag_rows,
        one.sink_lag_seconds,
        None if None in exported else sum(n or 0 for n in exported),
        sum(lane.quarantined for lane in lanes),
        one.held_rows,
        one.held_since,
        one.lost_rows,
        one.unknown_losses,
    )


@_RANDOM
@given(st.data())
def test_all_datasets_at_once_are_the_same_as_one_at_a_time(shared: LakeState, data: st.DataObject) -> None:
    """Blocks in every state, with and without a remembered snapshot, many of them with the same time."""
    made = [shared.add_dataset(f"default.of{_next(shared)}") for _ in range(data.draw(st.integers(1, 3)))]
    for dataset in made:
        for n in range(data.draw(st.integers(0, 20))):
            what = data.draw(st.sampled_from(["publish", "publish", "publish", "reserve", "stage", "abandon"]))
            reserved = shared.reserve(f"{dataset.name}-{n}", dataset=dataset)
            if what == "publish":
                shared.publish(reserved)
            elif what == "stage":
                assert blocks.mark_staged(shared.ledger, shared.witness, reserved, SnapshotId(n + 1))
            elif what == "abandon":
                assert blocks.abandon(shared.ledger, shared.witness, reserved, "gone")
        with shared.ledger.write() as connection:
            if data.draw(st.booleans()):
                connection.execute(block.update().where(block.c.dataset_id == dataset.id).values(changed_at=utc_now()))
            if data.draw(st.booleans()):
                table_states.raise_settled(connection, dataset.id, blocks.Anchor(SnapshotId(7), 3))
            if data.draw(st.booleans()):
                floors.raise_to(connection, dataset.id, Seq(5))
            for kind in data.draw(st.lists(st.sampled_from(MaintenanceKind))):
                dry = {"started_at": utc_now(), "outcome": MaintenanceOutcome.DONE, "reason": None, "result": {}}
                if data.draw(st.booleans()):
                    runs.record_dry_run(connection, NewRun(dataset.id, kind, "here:1"), **dry)
                else:
                    run = runs.begin(connection, NewRun(dataset.id, kind, "here:1"), lease_seconds=60)
                    assert run is not None
                    runs.end(connection, run, MaintenanceOutcome.DONE, reason=None, result=None)
    with shared.ledger.read() as connection:
        facts = {f.dataset.id: f for f in dataset_report.read_datasets(connection)}
        assert [f.dataset for f in facts.values()] == datasets.list_datasets(connection)
        for dataset in datasets.list_datasets(connection):
            found, state = facts[dataset.id], table_states.get(connection, dataset.id)
            assert found.allocated == blocks.highest(connection, dataset.id)
            assert found.sealed == blocks.sealed(connection, dataset.id)
            assert list(found.open_blocks) == blocks.open_blocks(connection, dataset.id)
            assert found.state == state
            last = published_blocks.last_settled(connection, dataset.id) if state.settled is None else []
            assert list(found.published) == last
            assert found.counts == datasets.counts(connection, dataset.id)
        shown = {m.dataset: m for m in read_maintenance(shared.config, connection).datasets}
        for dataset in datasets.list_datasets(connection):
            care = shown[dataset.name]
            assert care.floor == floors.get(connection, dataset.id)
            assert list(care.held_by) == retention_holds.of_dataset(connection, dataset.id)
            newest: dict[str, int] = {}
            for run in runs.latest(connection, datasets=[dataset.id], runs_max=1000):
                if not run.dry_run:
                    newest.setdefault(run.kind, run.id)
            assert [(r.kind.value, r.id) for r in care.last] == sorted(newest.items())


def _next(lake: LakeState) -> int:
    with lake.ledger.read() as connection:
        return len(datasets.list_datasets(connection)) + 1


def follow(ledger: Ledger, name: str) -> None:
    with ledger.write() as connection:
        token, _ = tokens.create(connection, name, None, role=Role.REPLICATE)
        followers.add(connection, NewFollower(name, token.id))


def test_the_status_of_a_larger_lake_costs_no_more_queries(shared: LakeState) -> None:
    def queries() -> int:
        with counted(shared.ledger) as asked:
            load_status(shared.config, shared.ledger, shared.witness)
        return len([text for text in asked if text.startswith(("SELECT", "WITH", "INSERT", "UPDATE"))])

    few = new_delivery(shared)
    few.deliver(100, one_chunk("k=a", None, 100))
    follow(shared.ledger, "first")
    before = queries()
    for number in range(20):
        follow(shared.ledger, f"follower{number}")
        more = new_delivery(shared)
        more.deliver(100, *(one_chunk(f"k={n}", None, 100) for n in range(30)))
        more.settle(101, 150)
        more.plan(150, *(one_chunk(f"k={n}", 100, 150) for n in range(30)))
        with shared.ledger.write() as connection:
            run = runs.begin(connection, NewRun(more.dataset.id, MaintenanceKind.COMPACT, "here:1"), lease_seconds=60)
            assert run is not None
    assert queries() == before < 40


def test_all_queries_of_one_reading_see_one_moment(shared: LakeState) -> None:
    delivery = new_delivery(shared, settled=None)
    with shared.ledger.read_consistent() as connection:
        assert blocks.sealed(connection, delivery.dataset.id) is None
        if not shared.ledger.is_sqlite:  # SQLite lets nobody write meanwhile, except in WAL mode
            delivery.settle(1, 10)
        assert blocks.sealed(connection, delivery.dataset.id) is None


def test_a_block_that_is_reserved_is_open_in_the_facts(sqlite_lake: LakeState, tmp_path: Path) -> None:
    reserved = sqlite_lake.reserve("b1")
    with sqlite_lake.ledger.read() as connection:
        [facts] = dataset_report.read_datasets(connection)
    assert [type(b) for b in facts.open_blocks] == [Reserved]
    assert facts.allocated == reserved.head.rows.hi and facts.sealed is None


def test_counts_that_history_tells_are_those_of_one_table_at_a_time(
    shared: LakeState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of ours on top of a count; a foreign commit; an open block, whose count is not stored; an empty table."""
    monkeypatch.setattr(foreign_rows, "_count_again", lambda *_: None)
    stored = TableCounts(SnapshotId(1), 0, 3, utc_now(), 0)
    tables, reserved = [], {}
    for name in ("ours", "foreign", "open", "empty", "never"):
        dataset = shared.add_dataset(f"default.{name}{_next(shared)}")
        block = reserved[name] = shared.reserve(f"batch of {dataset.name}", dataset=dataset)
        if name != "open":
            shared.publish(block)
        wap = None if name == "foreign" else str(WapId(LAKE, block.head.rows, None, "b"))
        chain = [
            SnapshotView(SnapshotId(1), None, "append", None, 0, {}, 1),
            SnapshotView(SnapshotId(2), SnapshotId(1), "append", wap, 0, {}, 2),
        ]
        refs = {} if name == "empty" else {"main": SnapshotId(2)}
        view = TableView("u", "file:/t", 2, {}, refs, {s.id: s for s in chain}, {"fields": []}, 0)
        tables.append((dataset, view))
        if name not in ("empty", "never"):
            with shared.ledger.write() as connection:
                datasets.set_counts(connection, {dataset.id: stored})
    one_by_one = {d.id: foreign_rows.count(shared.config, shared.ledger, d, view, LAKE) for d, view in tables}
    with shared.ledger.read() as connection:
        kept = {d.id: datasets.counts(connection, d.id) for d, _ in tables}
    with shared.ledger.write() as connection:  # as it was before
        connection.execute(table_count.delete())
        datasets.set_counts(connection, {d.id: stored for d, _ in tables[:3]})
    at_once = foreign_rows.counts_from_history(shared.ledger, LAKE, tables)
    ours, foreign, opened, empty, never = (d.id for d, _ in tables)
    assert set(at_once) == {ours, opened, empty}
    assert {id: at_once.get(id) for id in (ours, foreign, opened, never)} == {
        id: one_by_one[id] for id in (ours, foreign, opened, never)
    }
    assert (at_once[empty].snapshot, at_once[empty].foreign) == (None, 0)
    with shared.ledger.read() as connection:
        assert datasets.counts(connection, ours) == kept[ours] == at_once[ours]
        assert datasets.counts(connection, opened) == kept[opened] == stored, "settling decides whose rows those are"
    with counted(shared.ledger) as asked:
        again = foreign_rows.counts_from_history(shared.ledger, LAKE, [tables[0]])
    assert again == {ours: at_once[ours]} and not any("INSERT" in text for text in asked)
