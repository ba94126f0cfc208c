"""The sealed watermark: the formula, on both ledgers, over random histories; and the watch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strandline.core.errors import LedgerBusy, StrandlineError
from strandline.core.settings.lake_config import LakeConfig
from strandline.core.types import Dataset, Reserved, Seq, SnapshotId, Staged
from strandline.ledger.ingest import blocks
from strandline.ledger.maintain import floors
from strandline.read.seal import SealedWatermark
from tests.campaign import scaled
from tests.ledger.conftest import LakeState, new_lake


def test_there_is_no_seal_before_anything_is_published(lake: LakeState) -> None:
    assert lake.sealed() is None
    lake.reserve("a")
    assert lake.sealed() is None


def test_a_lower_open_block_holds_the_seal_until_it_is_published(lake: LakeState) -> None:
    a, b = lake.reserve("a", 100), lake.reserve("b", 100)
    lake.publish(b)
    assert lake.sealed() is None
    lake.publish(a)
    assert lake.sealed() == 200


def test_a_lower_open_block_holds_the_seal_until_it_is_abandoned(lake: LakeState) -> None:
    a, b = lake.reserve("a", 100), lake.reserve("b", 100)
    lake.publish(b)
    blocks.abandon(lake.ledger, lake.witness, a, "a test")
    assert lake.sealed() == 200


def test_a_staged_block_is_not_settled(lake: LakeState) -> None:
    a, b = lake.reserve("a"), lake.reserve("b")
    blocks.mark_staged(lake.ledger, lake.witness, a, SnapshotId(1))
    lake.publish(b)
    assert lake.sealed() is None


def test_another_datasets_open_block_does_not_hold_the_seal(lake: LakeState) -> None:
    other = lake.add_dataset("default.other")
    lake.reserve("a", dataset=other)
    lake.publish(lake.reserve("b"))
    assert lake.sealed() == 20 and lake.sealed(other) is None


# One step of a history: (which dataset, what happens to which of its open blocks).
_ACTS = ["reserve", "stage", "publish", "abandon", "retain"]
_steps = st.lists(
    st.tuples(
        st.integers(0, 2), st.sampled_from(["reserve", "stage", "publish", "abandon", "retain"]), st.integers(0, 5)
    ),
    max_size=40,
)


@settings(max_examples=scaled(15, 300), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=_steps)
def test_the_seal_is_monotonic_and_never_passes_an_open_block(
    steps: list[tuple[int, str, int]], tmp_path_factory: pytest.TempPathFactory, make_home: Callable[..., LakeConfig]
) -> None:
    lake = new_lake(make_home(tmp_path_factory.mktemp("history")))
    names = [lake.dataset, lake.add_dataset("default.b"), lake.add_dataset("default.c")]
    _run_history(lake, names, steps)


def test_the_seal_is_monotonic_over_a_long_history_on_both_ledgers(lake: LakeState) -> None:
    names = [lake.dataset, lake.add_dataset("default.b"), lake.add_dataset("default.c")]
    acts = ["reserve", "stage", "publish", "abandon", "reserve", "publish", "retain"]
    _run_history(lake, names, [(i % 3, acts[(i * 5 + i // 5) % 7], i % 4) for i in range(150)])


def _run_history(lake: LakeState, names: list[Dataset], steps: list[tuple[int, str, int]]) -> None:
    """Against a model that is written down differently: a set of settled numbers, walked upwards."""
    states: list[dict[int, tuple[int, int, str]]] = [{} for _ in names]  # lo → (lo, hi, state)
    held: list[dict[int, Reserved]] = [{} for _ in names]
    before: list[int | None] = [None for _ in names]
    for number, (d, act, which) in enumerate(steps):
        candidates = sorted(held[d])
        if act == "retain":
            _raise_floor(lake, names[d])
        elif act == "reserve" or not candidates:
            made = lake.reserve(f"batch-{number}", 3, dataset=names[d])
            held[d][made.head.rows.lo] = made
            states[d][made.head.rows.lo] = (made.head.rows.lo, made.head.rows.hi, "open")
        else:
            lo = candidates[which % len(candidates)]
            _act(lake, held[d], states[d], lo, act)
        for i, dataset in enumerate(names):
            expected = None
            for lo in sorted(states[i]):
                if states[i][lo][2] == "open":
                    break
                if states[i][lo][2] == "published":
                    expected = states[i][lo][1]
            now = lake.sealed(dataset)
            assert now == expected
            assert before[i] is None or (now is not None and now >= before[i]), "the seal moved back"
            before[i] = now


def _raise_floor(lake: LakeState, dataset: Dataset) -> None:
    """As retention does it before it deletes everything that is settled; it takes a number."""
    if (sealed := lake.sealed(dataset)) is None:
        return
    with lake.ledger.write() as connection:
        floors.lock_to_raise(connection, dataset.id)
        floors.take_number(connection, lake.witness)
        floors.raise_to(connection, dataset.id, sealed)


def _act(
    lake: LakeState, held: dict[int, Reserved], states: dict[int, tuple[int, int, str]], lo: int, act: str
) -> None:
    block = held[lo]
    now = blocks.find_block(lake.ledger, block.head)
    if act == "stage":
        blocks.mark_staged(lake.ledger, lake.witness, block, SnapshotId(1))
    elif act == "publish":
        if isinstance(now, Reserved):
            blocks.mark_staged(lake.ledger, lake.witness, block, SnapshotId(1))
            now = blocks.find_block(lake.ledger, block.head)
        assert isinstance(now, Staged)
        blocks.mark_published(lake.ledger, now, row_count=3, snapshot=SnapshotId(1))
        states[lo] = (*states[lo][:2], "published")
        del held[lo]
    elif isinstance(now, Reserved):
        blocks.abandon(lake.ledger, lake.witness, block, "a test")
        states[lo] = (*states[lo][:2], "abandoned")
        del held[lo]


def test_a_watch_never_moves_back_whatever_a_look_says() -> None:
    looks = iter([Seq(5), Seq(3), None, Seq(9)])
    watch = SealedWatermark(lambda: next(looks), poll_seconds=0.01)
    assert watch.value is None
    assert [watch.refresh() for _ in range(4)] == [5, 5, 5, 9]
    assert watch.value == 9


def test_a_waiter_wakes_when_the_seal_passes_its_value_and_gives_up_after_the_timeout(lake: LakeState) -> None:
    watch = SealedWatermark(lambda: lake.sealed(), poll_seconds=0.01)  # type: ignore[arg-type, return-value]
    assert watch.wait_past(None, 0.05) is None
    held = lake.reserve("a", 10)
    publisher = threading.Timer(0.1, lambda: lake.publish(held))
    publisher.start()
    assert watch.wait_past(None, 60) == 10
    publisher.join()
    assert watch.wait_past(Seq(10), 0.05) is None
    assert watch.wait_past(Seq(9), 0.05) == 10


def test_subscribers_get_each_value_once_in_order_until_they_leave() -> None:
    now = [Seq(1)]
    watch = SealedWatermark(lambda: now[0], poll_seconds=0.005)
    seen: list[int] = []
    end = watch.subscribe(seen.append)
    for value in (Seq(2), Seq(2), Seq(4)):
        now[0] = value
        watch.refresh()
        while value not in seen:  # the poller may have found it first, and is about to tell it
            time.sleep(0.001)
    end()
    now[0] = Seq(8)
    watch.refresh()
    watch.close()
    assert seen == sorted(set(seen)) and seen[-1] == 4 and {2, 4} <= set(seen)


def test_a_subscriber_hears_of_another_processs_progress_without_asking(lake: LakeState) -> None:
    watch = SealedWatermark(lambda: lake.sealed(), poll_seconds=0.01)  # type: ignore[arg-type, return-value]
    heard = threading.Event()
    watch.subscribe(lambda _: heard.set())
    lake.publish(lake.reserve("a"))
    assert heard.wait(60)
    watch.close()


def test_reading_a_watch_takes_no_lock(tmp_path: Path) -> None:
    watch = SealedWatermark(lambda: Seq(1), poll_seconds=1)
    watch.refresh()
    with watch._moved:  # whoever holds the lock, readers do not wait
        done: list[int | None] = []
        reader = threading.Thread(target=lambda: done.append(watch.value))
        reader.start()
        reader.join(timeout=60)
        assert done == [1]


def test_a_watch_outlives_a_ledger_that_is_away_and_a_subscriber_that_fails() -> None:
    looks: list[Seq | StrandlineError | None] = [Seq(1), LedgerBusy("away"), Seq(2)]

    def look() -> Seq | None:
        found = looks.pop(0) if len(looks) > 1 else looks[0]
        if isinstance(found, StrandlineError):
            raise found
        return found

    watch = SealedWatermark(look, poll_seconds=0.005)
    reached = threading.Event()

    def fails(_: Seq) -> None:
        raise ValueError("its own fault")

    watch.subscribe(fails)
    watch.subscribe(lambda value: reached.set() if value == 2 else None)
    assert reached.wait(60), "the poller died"
    watch.close()
