"""`/metrics`: what Prometheus reads, that it is documented, and that the example rules ask for what there is."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
import yaml
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from scripts.metrics_reference import TARGET, text
from strandline.core.activity import Activity, ActivityKind, Stopwatch, report_activity
from strandline.core.delivery_types import SinkId
from strandline.core.roles import Role
from strandline.core.types import BlockKind, Seq, SeqRange, TableCounts
from strandline.ledger.ingest import datasets, restored_blocks, table_states
from strandline.ledger.maintain.retention_holds import Hold
from strandline.ledger.receive import receive_holds
from strandline.serve.process_metrics import ProcessMetrics
from strandline.status.maintenance import DatasetMaintenance, MaintenanceStatus
from strandline.status.metrics import HELP, LABELS, PREFIX, MetricSample, exposition, samples
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


@pytest.mark.parametrize("settings", [{"serve": {"refresh_seconds": 0}}])
def test_what_holds_a_dataset_up_can_be_alerted_on(served: Served, admin: httpx.Client, dataset: str) -> None:
    lake, known = served.lake, served.lake.dataset(dataset).id

    def told() -> dict[str, float]:
        shown = admin.get("/metrics").text
        found = [s for f in families(shown).values() for s in f.samples if s.labels == {"dataset": dataset}]
        return {s.name.removeprefix(PREFIX): s.value for s in found}

    quiet = told()
    assert {name: quiet[name] for name in ("dataset_open_blocks", "dataset_refused")} == {
        "dataset_open_blocks": 0,
        "dataset_refused": 0,
    }
    absent = {"dataset_sealed", "dataset_oldest_open_block_timestamp_seconds", "dataset_foreign_rows", "received_held"}
    assert not absent & quiet.keys(), "what nobody knows is left out"
    with lake.ledger.write() as connection:
        rows = SeqRange(Seq(1), Seq(7))
        restored_blocks.insert_published(connection, known, rows, kind=BlockKind.RECOVERED, batch_id="published")
        restored_blocks.postpone(connection, known, SeqRange(Seq(10), Seq(19)), "open")
        datasets.set_counts(connection, {known: TableCounts(None, 5, 6, AT, twice=1, twice_first=Seq(3))})
        table_states.record_doubt(connection, known, "it was rolled back")
        receive_holds.put(connection, known, "it was restored")
    busy = told()
    reserved_at = busy.pop("dataset_oldest_open_block_timestamp_seconds")
    assert abs(reserved_at - time.time()) < 600
    wanted = {
        "dataset_sealed": 7, "dataset_allocated": 19, "dataset_open_blocks": 1, "dataset_unnumbered_rows": 5,
        "dataset_foreign_rows": 6, "dataset_number_twice": 1, "dataset_refused": 1, "received_held": 1,
    }  # fmt: skip
    assert {name: busy.get(name) for name in wanted} == wanted
    with lake.ledger.write() as connection:
        datasets.set_counts(connection, {known: TableCounts(None, 0, 0, AT, twice=None)})
    unsure = told()
    assert unsure["dataset_unnumbered_rows"] == 0 and "dataset_foreign_rows" not in unsure, "too many to count"


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
        report_activity(Activity(ActivityKind.TICK, "partner", "delivered", 0.2, rows=7))
        report_activity(Activity(ActivityKind.TICK, "partner", "waiting", 3))
        report_activity(Activity(ActivityKind.BATCH, "default.events", "published", 2, rows=5))
        report_activity(Activity(ActivityKind.RUN, "compact", "failed", 40))
        Stopwatch(ActivityKind.RUN, "reconcile").report("done")
        body = counted.text().decode()
    report_activity(Activity(ActivityKind.TICK, "partner", "delivered", 0.2, rows=7))
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
        report_activity(Activity(ActivityKind.TICK, "partner", "delivered", 0.2))
    assert "could not be counted" in caplog.text


def test_every_gauge_of_the_lake_has_a_rule_or_tells_nothing_that_is_wrong() -> None:
    """Whatever needs a person can be alerted on: a new metric gets a rule, or its name here."""
    asked = set(re.findall(r"strandline_(\w+)", " ".join(_rules())))
    only_shown = {
        "sink_lag_rows", "sink_delivered_rows", "sink_held_rows", "received_waiting_rows", "received_waiting_bytes",
        "received_dropped_bytes", "dataset_sealed", "dataset_allocated", "dataset_open_blocks", "dataset_floor",
        "dataset_held_rows", "maintenance_last_run_seconds", "reconcile_last_run",
        "reconcile_last_run_ended_timestamp_seconds", "reconcile_last_run_aborted", "reconcile_last_run_doubts",
        "reconcile_orphan_files", "follower_lag_segments", "follower_lag_rows", "site_term",
        "following_lag_segments", "following_lag_rows", "following_applied",
        # How far a consumer is behind says nothing of what it should be: some read once a day.
        "consumer_watermark", "consumer_lag_rows", "consumer_lag_seconds", "consumer_heard_of_timestamp_seconds",
    }  # fmt: skip
    assert set(HELP) - asked == only_shown


def test_held_rows_that_nobody_counted_are_left_out_and_are_not_zero() -> None:
    def held(*rows: int | None) -> list[float]:
        holds = tuple(Hold(SinkId(n), f"s{n}", one, AT, Seq(9)) for n, one in enumerate(rows))
        care = MaintenanceStatus({}, (), (), (DatasetMaintenance("default.events", None, holds, ()),))
        found = samples((), care, ReconcileStatus())
        return [s.value for s in found if s.name == f"{PREFIX}dataset_held_rows"]

    assert (held(), held(7, 3), held(None), held(7, None)) == ([0], [7], [], [])


def test_the_text_is_what_the_client_library_reads_back() -> None:
    found = [MetricSample(PREFIX + name, {label: f'a"b\\c\n{label}' for label in LABELS[name]}, 3.5) for name in HELP]
    back = families(exposition(found))
    assert [MetricSample(s.name, s.labels, s.value) for f in back.values() for s in f.samples] == found
    assert {f.type for f in back.values()} == {"gauge"}


def test_every_metric_is_in_the_documentation() -> None:
    assert TARGET.read_text("utf-8") == text(), "run `make docs`"


def _rules() -> list[str]:
    rules = yaml.safe_load((DOCS / "alerts.yml").read_text("utf-8"))
    return [r["expr"] for g in rules["groups"] for r in g["rules"]]


def _expressions() -> list[str]:
    panels = json.loads((DOCS / "grafana.json").read_text("utf-8"))["panels"]
    return _rules() + [t["expr"] for p in panels for t in p["targets"]]


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


@pytest.fixture
def promtool() -> Callable[..., None]:
    try:
        program = find_program("promtool")
    except ServerMissing as e:  # nothing else needs it: also a run under CI goes on without
        pytest.skip(str(e))

    def run(*arguments: str | Path) -> None:
        done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    return run


def test_promtool_takes_the_example_rules(promtool: Callable[..., None]) -> None:
    promtool("check", "rules", DOCS / "alerts.yml")


# By metric and labels: a value for which a rule fires, and one for which none does. Times are seconds since 1970, which
# is when promtool's clock begins; the rules are asked four days later.
SERIES = {
    'up{job="strandline"}': ("0", "1"),
    'sink_state{sink="s",dataset="d",state="stopped"}': ("1", "stale"),
    'sink_failed_ticks{sink="s",dataset="d"}': ("5", "4"),
    'sink_lag_seconds{sink="s",dataset="d"}': ("901", "900"),
    'sink_lag_seconds{sink="p",dataset="d"}': ("stale", "901"),
    'follower_lag_seconds{follower="f",dataset="d",shard="0"}': ("901", "900"),
    'follower_heard_of_timestamp_seconds{follower="f",dataset="d",shard="0"}': ("0", "0+60x5760"),
    'follower_held_since_timestamp_seconds{follower="f",dataset="d",shard="0"}': ("0", "345000"),
    'follower_dropped_upto{follower="f",dataset="d",shard="0"}': ("0+1x5760", "7"),
    'consumer_held_since_timestamp_seconds{consumer="c",dataset="d"}': ("0", "345000"),
    'consumer_dropped_upto{consumer="c",dataset="d"}': ("0+1x5760", "7"),
    'leader_answered_timestamp_seconds{instance="i"}': ("0", "0+60x5760"),
    'leader_failing_since_timestamp_seconds{instance="i",step="ask"}': ("0", "stale"),
    'following_lag_seconds{instance="i",dataset="d",shard="0"}': ("901", "900"),
    'site_role{instance="i",role="leader"}': ("1", "1"),
    'site_superseded{instance="i"}': ("1", "0"),
    'site_promoting{instance="i"}': ("1", "0"),
    'site_member{instance="i",follower="f"}': ("0", "1"),
    'site_lease_seconds{instance="i"}': ("30", "30"),
    'site_lease_left_seconds{instance="i"}': ("10", "21"),
    'arbiter_answers{instance="i"}': ("0", "1"),
    'sink_state{sink="p",dataset="d",state="paused"}': ("stale", "1"),
    'sink_quarantined_rows{sink="s",dataset="d"}': ("1", "0"),
    'sink_unknown_losses{sink="s",dataset="d"}': ("1", "0"),
    'sink_held_since_timestamp_seconds{sink="s",dataset="d"}': ("0", "345000"),
    'received_oldest_timestamp_seconds{dataset="d"}': ("0", "345000"),
    'received_set_aside_bodies{dataset="d"}': ("1", "0"),
    'received_held{dataset="d"}': ("1", "stale"),
    'dataset_oldest_open_block_timestamp_seconds{dataset="d"}': ("0", "345000"),
    'dataset_refused{dataset="d"}': ("1", "0"),
    'dataset_foreign_rows{dataset="d"}': ("1", "0"),
    'dataset_unnumbered_rows{dataset="d"}': ("1", "0"),
    'maintenance_last_run_ok{dataset="d",kind="compact"}': ("0", "1"),
    'maintenance_last_run_timestamp_seconds{dataset="d",kind="compact"}': ("0", "345000"),
    'maintenance_last_run_timestamp_seconds{dataset="d",kind="purge"}': ("stale", "0"),
    "reconcile_missing_files": ("1", "0"),
    "reconcile_last_run_ok": ("0", "1"),
    "reconcile_compared_timestamp_seconds": ("0", "345000"),
    "reconcile_partial": ("1", "0"),
    'api_requests_total{method="GET",route="/",status="503"}': ("0+60x5760", "0"),
}
ASKED_AT = "4d"  # 345,600 seconds


@pytest.mark.parametrize("is_bad", [True, False])
def test_every_example_rule_fires_when_something_is_wrong_and_none_when_all_is_well(
    promtool: Callable[..., None], tmp_path: Path, is_bad: bool
) -> None:
    rules = yaml.safe_load((DOCS / "alerts.yml").read_text("utf-8"))["groups"][0]["rules"]
    names = [rule["alert"] for rule in rules] if is_bad else []
    series = [
        {"series": name if name.startswith("up") else PREFIX + name, "values": v if "x" in v else f"{v}x5760"}
        for name, values in SERIES.items()
        if (v := values[0 if is_bad else 1]) != "stale"
    ]
    asked = {
        "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
        "eval_time": ASKED_AT,
        "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(names)],
    }
    test = {"interval": "1m", "input_series": series, "promql_expr_test": [asked]}
    file = tmp_path / "rules_test.yml"
    whole = {"rule_files": [str(DOCS / "alerts.yml")], "evaluation_interval": "30m", "tests": [test]}
    file.write_text(yaml.safe_dump(whole), "utf-8")
    promtool("test", "rules", file)
