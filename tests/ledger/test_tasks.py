"""Tasks: on record before they begin, ended once, called off from any process, and known to be dead by their lease."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from strandline.core.actor import Actor, Trigger, acting_as, current_actor
from strandline.core.errors import (
    AlreadyRunning,
    CalledOff,
    NoSuchRun,
    RefusedError,
    StorageError,
    TooManyTasks,
    UsageError,
)
from strandline.jobs import tasks as jobs
from strandline.jobs.heartbeat import beating
from strandline.jobs.tasks import Tasks
from strandline.ledger import tasks
from strandline.ledger.engine import Ledger
from strandline.ledger.tasks import Task, TaskOutcome
from tests.fork_server import Forked
from tests.ledger.conftest import LakeState
from tests.ledger.receiving import at_once

ANN = Actor("ann", Trigger.API)
POINTS = ["task.after_begin", "task.before_end", "task.after_end"]


@pytest.fixture
def here(shared: LakeState) -> Iterator[Tasks]:
    made = Tasks(shared.ledger, lease_seconds=60)
    yield made
    assert made.close(seconds_max=60)


def begin(lake: LakeState, subject: str, kind: str = "verify") -> tuple[Task, Any]:
    with lake.ledger.write() as connection, acting_as(ANN):
        return tasks.begin(connection, kind, subject, "node:1", lease_seconds=60)


def get(lake: LakeState, id: int) -> Task:
    with lake.ledger.read() as connection:
        return tasks.get(connection, id)


def outlive_lease(lake: LakeState) -> None:
    """As if an hour had passed."""
    with lake.ledger.write() as connection:
        connection.exec_driver_sql("UPDATE task SET lease_until = lease_until - 3600000000 WHERE ended_at IS NULL")


def ended(found: Callable[[], Task]) -> Task:
    while (task := found()).outcome is None:
        threading.Event().wait(0.01)
    return task


# The record.


def test_a_task_says_who_began_it_and_ends_once(shared: LakeState) -> None:
    begun, lease = begin(shared, "once")
    assert (begun.kind, begun.subject, begun.node, begun.actor) == ("verify", "once", "node:1", ANN)
    assert begun.outcome is begun.ended_at is begun.result is begun.error is None
    with shared.ledger.write() as connection:
        assert tasks.renew(connection, lease, seconds=60) == tasks.Renewed(stop_asked=False)
        assert tasks.end(connection, lease, TaskOutcome.DONE, result={"rows": 3, "name": "\udcff"})
        assert not tasks.end(connection, lease, TaskOutcome.FAILED, error={"message": "no"}), "it has ended"
        assert tasks.renew(connection, lease, seconds=60) is None
    found = get(shared, begun.id)
    assert (found.outcome, found.result, found.error) == (TaskOutcome.DONE, {"rows": 3, "name": "\udcff"}, None)
    assert found.ended_at is not None and found.lease_until is None
    with pytest.raises(NoSuchRun, match="999999"):
        get(shared, 999_999)


def test_a_subject_has_one_task_of_a_kind_at_a_time(shared: LakeState) -> None:
    begun, lease = begin(shared, "busy")
    with pytest.raises(AlreadyRunning, match=f"verify of busy is under way already: task {begun.id} on node:1"):
        begin(shared, "busy")
    begin(shared, "busy", kind="tick")
    begin(shared, "busy 2")
    with shared.ledger.write() as connection:
        tasks.end(connection, lease, TaskOutcome.CANCELLED)
    assert begin(shared, "busy")[0].id > begun.id


def test_of_many_that_begin_the_same_task_at_once_one_does(shared: LakeState) -> None:
    def start(ledger: Ledger) -> bool:
        try:
            with ledger.write() as connection:
                tasks.begin(connection, "tick", "raced", "n", lease_seconds=60)
        except AlreadyRunning:
            return False
        return True

    assert sorted(at_once(shared, [start] * 4)) == [False, False, False, True]


@pytest.mark.parametrize("hours", [-1, 49])
def test_a_task_whose_lease_has_run_out_or_is_from_another_time_has_died(shared: LakeState, hours: int) -> None:
    begun, lease = begin(shared, f"dies {hours}")
    with shared.ledger.write() as connection:
        connection.execute(
            sa.text("UPDATE task SET lease_until = lease_until + :by WHERE id = :id"),
            {"by": hours * 3_600_000_000, "id": begun.id},
        )
    begin(shared, f"dies {hours}")  # nobody has to close it first
    found = get(shared, begun.id)
    assert found.outcome is TaskOutcome.DIED and found.error is not None and found.error["retryable"]
    with shared.ledger.write() as connection:
        assert tasks.renew(connection, lease, seconds=60) is None
        assert not tasks.end(connection, lease, TaskOutcome.DONE, result={}), "the dead stay dead"
    assert get(shared, begun.id) == found


def test_tasks_are_listed_newest_first_in_pages_and_old_ones_are_forgotten(lake: LakeState) -> None:
    made = [begin(lake, name, kind) for name in ("a", "b", "c") for kind in ("tick", "verify")]
    ids = [task.id for task, _ in made]
    with lake.ledger.write() as connection:
        for _, lease in made[1:]:
            tasks.end(connection, lease, TaskOutcome.DONE)
        pages = [tasks.latest(connection, tasks_max=4)]
        pages.append(tasks.latest(connection, tasks_max=4, before=pages[0][-1].id))
        assert [task.id for page in pages for task in page] == ids[::-1]
        assert [t.subject for t in tasks.latest(connection, kind="tick")] == ["c", "b", "a"]
        assert [t.kind for t in tasks.latest(connection, subject="b")] == ["verify", "tick"]
        assert tasks.forget_old(connection, tasks_kept=2) == 3
        assert [t.id for t in tasks.latest(connection)] == [ids[5], ids[4], ids[0]], "one that is under way stays"


@pytest.mark.parametrize(
    "change",
    ["kind = 'x'", "subject = 'x'", "actor = 'x'", "started_at = 0", "lease_token = 'x'", "node = 'x'"],
)
def test_the_store_itself_refuses_to_change_a_task(shared: LakeState, change: str) -> None:
    begun, lease = begin(shared, f"fixed {change}")
    statement = sa.text(f"UPDATE task SET {change} WHERE id = :id")
    with pytest.raises(sa.exc.IntegrityError), shared.ledger.write() as connection:
        connection.execute(statement, {"id": begun.id})
    with pytest.raises(sa.exc.IntegrityError), shared.ledger.write() as connection:
        connection.execute(sa.text("DELETE FROM task WHERE id = :id"), {"id": begun.id})
    with shared.ledger.write() as connection:
        tasks.end(connection, lease, TaskOutcome.DONE)
    with pytest.raises(sa.exc.IntegrityError), shared.ledger.write() as connection:
        connection.execute(sa.text("UPDATE task SET outcome = 'failed' WHERE id = :id"), {"id": begun.id})


def test_whatever_happens_a_task_has_one_end_and_a_subject_one_task(lake: LakeState) -> None:
    """Processes begin, renew, end, die and are called off in any order, and some that were taken for dead go on."""

    class Processes(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.leases: list[Any] = []
            self.ends: dict[int, TaskOutcome] = {}
            self.all_die()

        @rule(subject=st.sampled_from(["a", "b"]))
        def start(self, subject: str) -> None:
            with lake.ledger.read() as connection:
                before = [t for t in tasks.latest(connection, tasks_max=1000) if t.outcome is None]
            free = not any(t.subject == subject for t in before)
            try:
                self.leases.append(begin(lake, subject)[1])
            except AlreadyRunning:
                assert not free
            else:
                assert free

        @precondition(lambda self: self.leases)
        @rule(data=st.data(), outcome=st.sampled_from([TaskOutcome.DONE, TaskOutcome.CANCELLED]))
        def end(self, data: st.DataObject, outcome: TaskOutcome) -> None:
            lease = data.draw(st.sampled_from(self.leases))
            with lake.ledger.write() as connection:
                if tasks.end(connection, lease, outcome):
                    assert lease.row not in self.ends
                    self.ends[lease.row] = outcome

        @precondition(lambda self: self.leases)
        @rule(data=st.data())
        def call_off_and_renew(self, data: st.DataObject) -> None:
            lease = data.draw(st.sampled_from(self.leases))
            with lake.ledger.write() as connection:
                asked = tasks.ask_to_stop(connection, lease.row)
                renewed = tasks.renew(connection, lease, seconds=60)
            assert (renewed is None) == (asked.outcome is not None)
            assert renewed is None or renewed.stop_asked

        @rule()
        def all_die(self) -> None:
            outlive_lease(lake)
            with lake.ledger.write() as connection:
                tasks.close_dead(connection)
            for lease in self.leases:
                self.ends.setdefault(lease.row, TaskOutcome.DIED)

        @invariant()
        def ends_stay(self) -> None:
            with lake.ledger.read() as connection:
                found = {t.id: t for t in tasks.latest(connection, tasks_max=1000)}
            for lease in self.leases:
                assert found[lease.row].outcome == self.ends.get(lease.row)

    run_state_machine_as_test(Processes, settings=settings(max_examples=8, stateful_step_count=12, deadline=None))


# The work.


def test_the_work_is_done_for_whoever_asked_and_its_result_is_on_record(here: Tasks) -> None:
    def work(stopping: threading.Event) -> Mapping[str, Any]:
        return {"by": current_actor().name, "stopping": stopping.is_set()}

    with acting_as(ANN):
        begun = here.start("verify", "works", work)
    found = ended(lambda: here.get(begun.id))
    assert (found.outcome, found.actor, found.result) == (TaskOutcome.DONE, ANN, {"by": "ann", "stopping": False})


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (RefusedError("no", hint="ask"), TaskOutcome.REFUSED),
        (UsageError("wrong"), TaskOutcome.REFUSED),
        (StorageError("away"), TaskOutcome.FAILED),
        (CalledOff("called off"), TaskOutcome.CANCELLED),
        (ZeroDivisionError("zero"), TaskOutcome.FAILED),
    ],
)
def test_how_work_ends_is_told_with_what_to_do(here: Tasks, error: Exception, outcome: TaskOutcome) -> None:
    def work(stopping: threading.Event) -> Mapping[str, Any]:
        raise error

    begun = here.start("verify", f"ends with {error}", work)
    found = ended(lambda: here.get(begun.id))
    assert found.outcome is outcome and found.result is None
    assert found.error is not None and {"type", "message", "hint", "retryable"} == set(found.error)
    assert str(error) in found.error["message"]


def test_a_result_that_is_no_json_or_too_large_does_not_hide_the_end(
    here: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "RESULT_CHARS_MAX", 100)
    strange = here.start("verify", "strange", lambda stopping: {"what": object()})
    large = here.start("verify", "large", lambda stopping: {"what": "x" * 200})
    assert ended(lambda: here.get(strange.id)).outcome is TaskOutcome.FAILED
    found = ended(lambda: here.get(large.id))
    assert found.outcome is TaskOutcome.DONE and found.result is not None and "omitted" in found.result


def until_called_off(stopping: threading.Event) -> Mapping[str, Any]:
    assert stopping.wait(60)
    raise CalledOff("called off at the next step")


@pytest.fixture
def renewed_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease that a slow machine does not lose, and a heart that beats as if it were short."""
    monkeypatch.setattr(jobs, "beating", lambda renew, lease_seconds: beating(renew, lease_seconds=0.3))


@pytest.mark.usefixtures("renewed_often")
def test_a_task_is_called_off_from_this_process_and_from_any_other(shared: LakeState) -> None:
    first, second = Tasks(shared.ledger, lease_seconds=60), Tasks(Ledger(shared.config), lease_seconds=600)
    near, far = first.start("verify", "near", until_called_off), second.start("verify", "far", until_called_off)
    assert first.cancel(near.id).stop_asked_at is not None
    assert first.cancel(far.id).outcome is None
    for task in (near, far):
        found = ended(lambda task=task: first.get(task.id))
        assert found.outcome is TaskOutcome.CANCELLED and found.stop_asked_at is not None
        assert first.cancel(task.id) == found, "calling it off again changes nothing"
    with pytest.raises(NoSuchRun):
        first.cancel(999_999)
    assert first.close() and second.close()


def test_a_process_takes_so_many_tasks_and_none_when_it_ends(shared: LakeState) -> None:
    busy = Tasks(shared.ledger, lease_seconds=60, at_once_max=1)
    begun = busy.start("verify", "only", until_called_off)
    with pytest.raises(TooManyTasks):
        busy.start("verify", "more", until_called_off)
    busy.cancel(begun.id)
    ended(lambda: busy.get(begun.id))
    begin(shared, "held elsewhere")
    with pytest.raises(AlreadyRunning):
        busy_again(busy, "held elsewhere")
    last = busy_again(busy, "last")
    assert busy.close(seconds_max=60) and busy.get(last.id).outcome is TaskOutcome.CANCELLED
    with pytest.raises(TooManyTasks):
        busy.start("verify", "late", until_called_off)


def busy_again(tasks: Tasks, subject: str) -> Task:
    """The place of a task that has ended is free a moment later."""
    while True:
        try:
            return tasks.start("verify", subject, until_called_off)
        except TooManyTasks:
            threading.Event().wait(0.01)


def test_an_end_is_stored_when_the_ledger_answers_again(shared: LakeState, monkeypatch: pytest.MonkeyPatch) -> None:
    here, store, failures = Tasks(shared.ledger, lease_seconds=60), tasks.end, iter((True, True, False))

    def end(connection: Any, *args: Any, **named: Any) -> bool:
        stored = store(connection, *args, **named)
        if next(failures, False):
            raise StorageError("the ledger is away")
        return stored

    monkeypatch.setattr(tasks, "end", end)
    begun = here.start("verify", "away", lambda stopping: {"rows": 1})
    assert ended(lambda: here.get(begun.id)).result == {"rows": 1}
    assert here.close()


@pytest.mark.usefixtures("renewed_often")
def test_a_task_that_was_taken_for_dead_is_told_to_stop_and_stays_dead(shared: LakeState) -> None:
    short = Tasks(shared.ledger, lease_seconds=60)
    stopped = threading.Event()

    def work(stopping: threading.Event) -> Mapping[str, Any]:
        assert stopping.wait(60)
        stopped.set()
        return {"rows": 1}

    begun = short.start("verify", "presumed", work)
    with shared.ledger.write() as connection:
        connection.execute(sa.text("UPDATE task SET lease_until = 1 WHERE id = :id"), {"id": begun.id})
        assert tasks.close_dead(connection) >= 1
    assert stopped.wait(60) and short.close()
    assert short.get(begun.id).outcome is TaskOutcome.DIED


@pytest.mark.parametrize("point", POINTS)
def test_a_task_whose_process_is_killed_is_told_as_died_and_can_be_begun_again(lake: LakeState, point: str) -> None:
    process = Forked(
        ["tests.ledger.task_process", str(lake.config.home)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"STRANDLINE_FAILPOINT": f"{point}=kill"},
    )
    out, err = process.communicate(timeout=200)
    assert process.returncode == -signal.SIGKILL, f"{point} was not reached: {out} {err}"
    assert (lake.config.home / "worked").exists() == (point != "task.after_begin")
    here = Tasks(lake.ledger, lease_seconds=60)
    [left] = here.latest()
    if point == "task.after_end":
        assert (left.outcome, left.result) == (TaskOutcome.DONE, {"rows": 7})
        return
    assert left.outcome is None, "nobody can know yet"
    with pytest.raises(AlreadyRunning):
        here.start("verify", "partner", lambda stopping: {})
    outlive_lease(lake)
    assert [t.outcome for t in here.latest()] == [here.get(left.id).outcome] == [TaskOutcome.DIED]
    again = here.start("verify", "partner", lambda stopping: {})
    assert ended(lambda: here.get(again.id)).outcome is TaskOutcome.DONE
    assert here.close()
