"""The audit log and records of runs say who did it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from strandline.core.actor import SCHEDULE, Actor, Trigger, acting_as, set_process_actor
from strandline.core.records.audit_events import Event, events_named
from strandline.core.records.reconcile_records import Asked, StorageKind, SweepOutcome
from strandline.core.types import Lease
from strandline.ledger import audit
from strandline.ledger.engine import utc_now
from strandline.ledger.maintain import runs
from strandline.ledger.maintain.runs import MaintenanceKind, NewRun
from strandline.ledger.reconcile import reconcile_runs
from tests.ledger.conftest import LakeState

ANN, BOB = Actor("ann", Trigger.API), Actor("bob", Trigger.PAGE)
CLI = Actor("root", Trigger.COMMAND)


@pytest.fixture(autouse=True)
def a_command() -> Iterator[None]:
    set_process_actor(CLI)
    yield
    set_process_actor(None)


def test_an_event_says_who_did_it_without_being_told(lake: LakeState) -> None:
    with lake.ledger.write() as connection:
        audit.record(connection, Event.SINK_PAUSED, sink="a")
        with acting_as(ANN):
            audit.record(connection, Event.SINK_RESUMED, sink="a")
        found = audit.latest(connection)
    assert [(e.event, e.actor, e.detail) for e in found] == [
        ("sink.resumed", ANN, {"sink": "a"}),
        ("sink.paused", CLI, {"sink": "a"}),
    ]


def test_events_are_found_by_who_how_and_what_and_paged_by_their_ids(lake: LakeState) -> None:
    every = [Event.SINK_PAUSED, Event.SINK_RESUMED, Event.RUN_STARTED, Event.TOKEN_CREATED]
    with lake.ledger.write() as connection:
        for n in range(24):
            with acting_as((ANN, BOB, SCHEDULE)[n % 3]):
                audit.record(connection, every[n % 4], n=n)

        def found(**wanted: object) -> list[int]:
            pages, before = [], None
            while page := audit.latest(connection, events_max=5, before=before, **wanted):  # type: ignore[arg-type]
                before = page[-1].id
                pages += [e.detail["n"] for e in page]
            return pages

        down = list(range(23, -1, -1))
        assert found() == down
        assert found(actor="ann") == found(trigger=Trigger.API) == [n for n in down if n % 3 == 0]
        assert found(trigger=Trigger.SCHEDULE) == found(actor="schedule") == [n for n in down if n % 3 == 2]
        assert found(events=events_named("sink.")) == [n for n in down if n % 4 < 2]
        assert found(events=events_named("reconcile.run_started"), actor="bob") == [n for n in down if n % 12 == 10]
        assert found(actor="ann", trigger=Trigger.PAGE) == found(actor="Ann") == []
        newest = audit.newest(connection, Event.TOKEN_CREATED)
    assert newest is not None and newest.detail == {"n": 23}


def test_an_event_can_neither_be_changed_nor_removed(lake: LakeState) -> None:
    with lake.ledger.write() as connection:
        audit.record(connection, Event.SINK_PAUSED, sink="a")
    for statement in ("UPDATE audit SET actor = 'other'", "UPDATE audit SET detail = '{}'", "DELETE FROM audit"):
        with pytest.raises(sa.exc.IntegrityError), lake.ledger.write() as connection:
            connection.exec_driver_sql(statement)


@pytest.mark.parametrize("values", ["'x', NULL", "NULL, 'api'", "'x', 'magic'"])
def test_the_store_refuses_an_actor_without_a_trigger_and_a_trigger_that_is_not_known(
    lake: LakeState, values: str
) -> None:
    statement = f"INSERT INTO audit (at, event, detail, actor, \"trigger\") VALUES (0, 'x', '{{}}', {values})"
    with pytest.raises(sa.exc.IntegrityError), lake.ledger.write() as connection:
        connection.exec_driver_sql(statement)


def test_a_run_of_maintenance_and_one_of_the_reconciler_keep_who_began_them(lake: LakeState) -> None:
    with lake.ledger.write() as connection, acting_as(ANN):
        begun = runs.begin(connection, NewRun(lake.dataset.id, MaintenanceKind.COMPACT, "node"), lease_seconds=60)
        assert begun is not None
    lease = reconcile_runs.take_lease(lake.ledger, seconds=60)
    assert isinstance(lease, Lease)
    with lake.ledger.write() as connection, acting_as(SCHEDULE):
        swept = reconcile_runs.start(connection, Asked(), StorageKind.LOCAL)
    with lake.ledger.write() as connection, acting_as(BOB):  # whoever ends it did not begin it
        runs.end(connection, begun, runs.MaintenanceOutcome.DONE, reason=None, result={})
        reconcile_runs.complete(connection, swept, SweepOutcome())
    with lake.ledger.read() as connection:
        assert runs.get(connection, begun).actor == ANN
        assert reconcile_runs.get(connection, swept).actor == SCHEDULE
        told = {e.event: e.actor for e in audit.latest(connection)}
    assert told == {"reconcile.run_started": SCHEDULE, "reconcile.run_completed": BOB}
    for table in ("maintenance_run", "reconcile_run"):
        with pytest.raises(sa.exc.IntegrityError), lake.ledger.write() as connection:
            connection.exec_driver_sql(f"UPDATE {table} SET actor = 'other'")


def test_since_when_a_schedule_is_followed_is_on_record_with_the_daemon_that_began(lake: LakeState) -> None:
    now = utc_now()
    assert audit.followed_since(lake.ledger, {"reconcile": "0 3 * * *"}, now) == now
    with lake.ledger.read() as connection:
        found = audit.newest(connection, Event.SCHEDULE_FOLLOWED)
    assert found is not None and (found.actor, found.at) == (CLI, now)
