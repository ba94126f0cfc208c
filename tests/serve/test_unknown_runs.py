"""What a run of the reconciler found and did, as long as nobody knows it: null and `unknown`, never 0."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest

from strandline.core.records.reconcile_records import AbortReason, Asked, Counts, Done, StorageKind, SweepOutcome
from strandline.core.roles import Role
from strandline.ledger.reconcile import reconcile_runs
from tests.serve.conftest import API, Gate, Served
from tests.waiting import eventually

RUNS = f"{API}/reconciliation/runs"
FOUND = ("partial", "listed", "referenced", "found", "planned")
ACTED = Done(missing=1, orphans=2, foreign=4, restored=8, superseded=16)


@pytest.fixture
def browser(served: Served) -> Iterator[httpx.Client]:
    with served.client() as client:
        assert client.post(f"{API}/session", json={"token": served.secrets[Role.ADMIN]}).status_code == 201
        yield client


def cells(page: str, run: int) -> dict[str, str]:
    """Of the run's line in the table of runs, by their labels."""
    [line] = [row for row in page.split("<tr>") if row.startswith(f'<td class="name"><a href="/drift/runs/{run}">')]
    found = re.findall(r'data-label="([^"]+)"[^>]*>(.*?)</td>', line, re.DOTALL)
    return {label: re.sub(r"<[^>]+>", "", text).strip() for label, text in found}


def part(page: str, id: str) -> str:
    return re.sub(r"<[^>]+>|\s+", " ", page.partition(f'id="{id}"')[2].partition("</section>")[0])


def start(served: Served, *, act: bool = True) -> int:
    assert reconcile_runs.take_lease(served.lake.ledger, seconds=600) is not None
    with served.lake.ledger.write() as connection:
        return reconcile_runs.start(connection, Asked(act=act), StorageKind.LOCAL)


def test_a_run_that_has_compared_nothing_yet(admin: httpx.Client, browser: httpx.Client, surveying: Gate) -> None:
    run = admin.post(f"{API}/reconciliation/trigger", params={"dry_run": "false", "act": "true"}).json()["run"]
    assert surveying.reached.wait(60)
    shown = admin.get(f"{RUNS}/{run}").json()
    assert {name: shown[name] for name in (*FOUND, "done")} == dict.fromkeys((*FOUND, "done"))
    assert admin.get(f"{API}/reconciliation/status").json()["last_run"]["found"] is None
    for page in ("/drift", "/runs"):
        line = cells(browser.get(page).text, run)
        assert (line["Missing"], line["Orphans"], line["Acted on"]) == ("unknown",) * 3, page
    one = browser.get(f"/drift/runs/{run}").text
    assert "unknown" in part(one, "found") and "unknown" in part(one, "done") and "Nothing" not in part(one, "done")
    assert part(one, "about").count("unknown") == 2, "how much it has listed, and how many references it has read"
    surveying.set()
    eventually(lambda: admin.get(f"{RUNS}/{run}").json()["ended_at"])
    assert cells(browser.get("/drift").text, run)["Acted on"] == "0"
    report = admin.post(f"{API}/reconciliation/trigger").json()["place"]
    eventually(lambda: admin.get(report).json()["ended_at"])
    assert None not in [admin.get(report).json()[name] for name in (*FOUND, "done")]


def test_a_dry_run_under_way_is_known_to_do_nothing(served: Served, browser: httpx.Client) -> None:
    run = start(served, act=False)
    assert cells(browser.get("/drift").text, run)["Acted on"] == "0"
    assert "dry run" in part(browser.get(f"/drift/runs/{run}").text, "done")


def test_what_a_run_under_way_has_found_so_far_is_a_lower_bound(served: Served, browser: httpx.Client) -> None:
    run = start(served)
    so_far = SweepOutcome(listed=9, referenced=8, found=Counts(missing=1, orphans=3))
    with served.lake.ledger.write() as connection:
        assert reconcile_runs.progress(connection, run, so_far)  # type: ignore[arg-type]
    line = cells(browser.get("/drift").text, run)
    assert (line["Missing"], line["Orphans"], line["Acted on"]) == ("≥ 1", "≥ 3", "unknown")
    assert "at least 3" in part(browser.get(f"/drift/runs/{run}").text, "found")


def test_a_run_that_ended_before_it_compared(served: Served, admin: httpx.Client, browser: httpx.Client) -> None:
    run = start(served)
    with served.lake.ledger.write() as connection:
        reconcile_runs.abort(connection, run, SweepOutcome(), AbortReason.GUARD, "the clock is wrong")  # type: ignore[arg-type]
    shown = admin.get(f"{RUNS}/{run}").json()
    assert {name: shown[name] for name in FOUND} == dict.fromkeys(FOUND) and shown["done"]["orphans"] == 0
    line = cells(browser.get("/drift").text, run)
    assert (line["Missing"], line["Orphans"], line["Acted on"]) == ("unknown", "unknown", "0")
    assert "unknown" in part(browser.get(f"/drift/runs/{run}").text, "found")


def test_what_a_run_that_died_has_done_is_known_when_somebody_has_settled_it(
    served: Served, admin: httpx.Client, browser: httpx.Client
) -> None:
    run = start(served)
    with served.lake.ledger.write() as connection:
        reconcile_runs.leases.release_all(connection)
    assert admin.get(f"{RUNS}/{run}").json()["aborted"] == "died"
    assert admin.get(f"{RUNS}/{run}").json()["done"] is None
    assert cells(browser.get("/drift").text, run)["Acted on"] == "unknown"
    again = admin.post(f"{API}/reconciliation/trigger").json()["place"]
    eventually(lambda: admin.get(again).json()["ended_at"])
    assert admin.get(f"{RUNS}/{run}").json()["done"]["orphans"] == 0
    assert cells(browser.get("/drift").text, run)["Acted on"] == "0"


def test_everything_that_a_run_has_acted_on_counts(served: Served, browser: httpx.Client) -> None:
    run = start(served)
    with served.lake.ledger.write() as connection:
        reconcile_runs.complete(connection, run, SweepOutcome(listed=40, referenced=9, done=ACTED))  # type: ignore[arg-type]
    assert cells(browser.get("/drift").text, run)["Acted on"] == "31"
