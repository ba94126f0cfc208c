"""Runs that a request begins over a lake with files: what a guard or the gate refuses is the outcome of the run."""

from __future__ import annotations

from strandline.core.roles import Role
from tests.reconcile.whole_lakes import WholeLake, there
from tests.serve.conftest import API, Served, serving
from tests.waiting import eventually

ACT = {"dry_run": "false", "act": "true"}


def trigger(lake: WholeLake, **query: str) -> dict[str, object]:
    """Begins a run over HTTP; the run, when it has ended."""
    secret = lake.lake.receiver.create_token(f"admin {len(lake.lake.reconciler.runs())}", role=Role.ADMIN)[1]
    with serving(lake.lake) as url, Served(lake.lake, url, {Role.ADMIN: secret}).as_role() as admin:
        begun = admin.post(f"{API}/reconciliation/trigger", params=query)
        assert begun.status_code == 202, begun.text
        eventually(lambda: admin.get(begun.json()["place"]).json()["ended_at"])
        found: dict[str, object] = admin.get(begun.json()["place"]).json()
        return found


def test_a_manual_act_is_honoured_where_the_schedule_only_reports(lake: WholeLake) -> None:
    orphans = lake.puts(3)
    lake.settings(enabled=True, dry_run=True)
    acted = trigger(lake, **ACT)
    assert (acted["aborted"], acted["held"]) == (None, 3) and not any(there(orphans))


def test_what_a_guard_refuses_is_the_outcome_of_the_run_and_no_status_code(lake: WholeLake) -> None:
    orphans = lake.puts(150)
    refused = trigger(lake, **ACT)
    assert refused["aborted"] == "guard" and "deletes_max_share" in str(refused["why"]), refused
    assert refused["doubts"] == ["refused"] and all(there(orphans))
    reported = trigger(lake)
    assert (reported["aborted"], reported["dry_run"]) == (None, True) and reported["refusals"], "it would be refused"


def test_what_the_gate_refuses_is_the_outcome_of_the_run_too(lake: WholeLake) -> None:
    orphans = lake.puts(3)
    lake.lake.catalog.drop(lake.dataset.name)
    refused = trigger(lake, **ACT)
    assert refused["aborted"] == "guard" and refused["why"] and all(there(orphans)), refused
