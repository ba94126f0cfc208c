"""`/metrics`: what Prometheus reads, that it is documented, and that the example rules ask for what there is."""

from __future__ import annotations

import json
import re
import subprocess
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
import yaml
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from scripts.metrics_reference import TARGET, text
from strandline.core.activity import Activity, ActivityKind, Stopwatch, tell
from strandline.core.delivery_types import SinkId
from strandline.core.roles import Role
from strandline.core.types import Seq
from strandline.ledger.maintain.retention_holds import Hold
from strandline.serve.process_metrics import ProcessMetrics
from strandline.status.maintenance import DatasetMaintenance, MaintenanceStatus
from strandline.status.metrics import HELP, LABELS, PREFIX, Sample, exposition, samples
from strandline.status.reconcile import ReconcileStatus
from tests.serve.conftest import API, COLUMNS, Served
from tests.servers import ServerMissing, find_program

DOCS = Path(__file__).parents[2] / "docs"

AT = datetime(2026, 3, 1, tzinfo=UTC)


def families(body: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(body)}


def value(body: str, name: str, **labels: str) -> float:
    found = [s for f in families(body).values() for s in f.samples if s.name == name and s.labels == labels]
    assert len(found) == 1, f"{name} {labels}"
    return float(found[0].value)


def test_the_server_shows_the_lake_and_what_it_has_done_itself(served: Served, admin: httpx.Client) -> None:
    assert admin.post(f"{API}/datasets", json={"name": "events", "columns": COLUMNS}).status_code == 201
    assert admin.get(f"{API}/datasets/nothing").status_code == 404
    with served.as_role(Role.READ) as reader:
        answer = reader.get("/metrics")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    body = answer.text
    assert value(body, "strandline_dataset_held_rows", dataset="default.events") == 0
    made = {"method": "POST", "route": f"{API}/datasets", "status": "201"}
    assert value(body, "strandline_api_requests_total", **made) == 1
    unknown = [s.labels for s in families(body)["strandline_api_requests"].samples if s.labels.get("status") == "404"]
    assert all("nothing" not in labels["route"] for labels in unknown) and unknown
    assert value(body, "strandline_api_request_seconds_count", route=f"{API}/datasets") == 1
    assert value(body, "strandline_status_reading_seconds_count") >= 1
    assert "process_resident_memory_bytes" in families(body)


def test_paths_that_clients_make_up_make_no_time_series(served: Served, admin: httpx.Client) -> None:
    for n in range(20):
        assert admin.get(f"/{n}").status_code == 404
    routes = {s.labels["route"] for s in families(admin.get("/metrics").text)["strandline_api_requests"].samples}
    assert "none" in routes and not any(re.search(r"\d{1,2}$", route) for route in routes)


def test_a_token_for_some_datasets_gets_no_metrics_of_the_others(served: Served, admin: httpx.Client) -> None:
    assert admin.post(f"{API}/datasets", json={"name": "a", "columns": COLUMNS}).status_code == 201
    with served.client(served.token("limited", Role.ADMIN, ["default.a"])) as client:
        assert client.get("/metrics").status_code == 403
    with served.client() as nobody:
        assert nobody.get("/metrics").status_code == 401


def test_work_is_counted_by_outcome_with_its_rows_and_time() -> None:
    with closing(ProcessMetrics()) as counted:
        tell(Activity(ActivityKind.TICK, "partner", "delivered", 0.2, rows=7))
        tell(Activity(ActivityKind.TICK, "partner", "waiting", 3))
        tell(Activity(ActivityKind.BATCH, "default.events", "published", 2, rows=5))
        tell(Activity(ActivityKind.RUN, "compact", "failed", 40))
        Stopwatch(ActivityKind.RUN, "reconcile").tell("done")
        body = counted.text().decode()
    tell(Activity(ActivityKind.TICK, "partner", "delivered", 0.2, rows=7))
    assert counted.text().decode().count('strandline_delivered_rows_total{sink="partner"} 7.0') == 1, "it is closed"
    assert value(body, "strandline_ticks_total", sink="partner", outcome="delivered") == 1
    assert value(body, "strandline_delivered_rows_total", sink="partner") == 7
    assert value(body, "strandline_tick_seconds_sum", outcome="waiting") == 3
    assert value(body, "strandline_ingested_rows_total", dataset="default.events") == 5
    assert value(body, "strandline_batches_total", dataset="default.events", outcome="published") == 1
    assert value(body, "strandline_runs_total", kind="compact", outcome="failed") == 1
    assert value(body, "strandline_run_seconds_count", kind="reconcile") == 1


def test_an_observer_that_fails_does_not_harm_the_work(caplog: pytest.LogCaptureFixture) -> None:
    from strandline.core.activity import observing

    def broken(_: Activity) -> None:
        raise RuntimeError("no")

    with observing(broken):
        tell(Activity(ActivityKind.TICK, "partner", "delivered", 0.2))
    assert "could not be counted" in caplog.text


def test_held_rows_that_nobody_counted_are_left_out_and_are_not_zero() -> None:
    def held(*rows: int | None) -> list[float]:
        holds = tuple(Hold(SinkId(n), f"s{n}", one, AT, Seq(9)) for n, one in enumerate(rows))
        care = MaintenanceStatus({}, (), (), (DatasetMaintenance("default.events", None, holds, ()),))
        found = samples((), care, ReconcileStatus())
        return [s.value for s in found if s.name == f"{PREFIX}dataset_held_rows"]

    assert (held(), held(7, 3), held(None), held(7, None)) == ([0], [7], [], [])


def test_the_text_is_what_the_client_library_reads_back() -> None:
    found = [Sample(PREFIX + name, {label: f'a"b\\c\n{label}' for label in LABELS[name]}, 3.5) for name in HELP]
    back = families(exposition(found))
    assert [Sample(s.name, s.labels, s.value) for f in back.values() for s in f.samples] == found
    assert {f.type for f in back.values()} == {"gauge"}


def test_every_metric_is_in_the_documentation() -> None:
    assert TARGET.read_text("utf-8") == text(), "run `make docs`"


def _expressions() -> list[str]:
    rules = yaml.safe_load((DOCS / "alerts.yml").read_text("utf-8"))
    panels = json.loads((DOCS / "grafana.json").read_text("utf-8"))["panels"]
    return [r["expr"] for g in rules["groups"] for r in g["rules"]] + [t["expr"] for p in panels for t in p["targets"]]


def test_example_rules_and_the_dashboard_ask_only_for_metrics_and_labels_that_there_are() -> None:
    known = {PREFIX + name: set(labels) for name, labels in LABELS.items()}
    with closing(ProcessMetrics()) as counted:
        for family, labels in counted.described():
            for ending in ("", "_total", "_bucket", "_sum", "_count"):
                known[family.name + ending] = {*labels, "le"}
    for expression in _expressions():
        for name, matchers in re.findall(r"(strandline_\w+)(?:\{([^}]*)\})?", expression):
            assert name in known, expression
            assert set(re.findall(r"(\w+)\s*=", matchers)) <= known[name], expression
        assert expression.count("(") == expression.count(")")


def test_promtool_takes_the_example_rules() -> None:
    try:
        promtool = find_program("promtool")
    except ServerMissing as e:  # nothing else needs it: also a run under CI goes on without
        pytest.skip(str(e))
    checked = subprocess.run(
        [promtool, "check", "rules", DOCS / "alerts.yml"], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
