"""Pages of a large lake stay small: at most 100 KB with the stylesheet and the script, without compression."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import httpx
import pytest

from strandline.core.records.reconcile_records import Asked, FindingKind, StorageKind, SweepOutcome
from strandline.core.roles import Role
from strandline.deliver.quarantine import rows
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.lake import Lake
from strandline.ledger import tasks
from strandline.ledger.engine import utc_now
from strandline.ledger.maintain import runs
from strandline.ledger.reconcile import quarantined_files, reconcile_runs
from strandline.ledger.reconcile.quarantined_files import NewSwept
from strandline.serve.app import create_app
from strandline.serve.pages.history import APART_SECONDS_MIN, SAMPLES_MAX, HistorySample, SinkKey
from strandline.serve.pages.overview import SINKS_MAX
from strandline.serve.pages.sinks import PAGE
from strandline.serve.pages.static_files import _files
from strandline.serve.pages.tokens import PAGE as TOKENS
from strandline.status import sinks
from strandline.status.maintenance import DatasetMaintenance, MaintenanceStatus
from strandline.status.reconcile import Compared, ReconcileStatus
from strandline.status.report import DatasetStatus, LakeStatus
from strandline.status.sinks import SinkStatus
from tests.serve.test_dry_runs import refuse_rows

PAGE_BYTES_MAX = 100_000
DATASETS, SINKS, LANES = 1_000, 200, 5
WITH_SPARKS, WITH_CHARTS = ("/", "/sinks"), ("/", "/sinks/partner")
PATHS = (
    "/", "/datasets", "/datasets/events", "/sinks", "/sinks/partner", "/quarantine/rows?sink=partner", "/drift",
    "/drift/runs/1", "/runs", "/runs/maintenance/1", "/runs/tasks/1", "/audit", "/tokens",
)  # fmt: skip
COLUMNS = [{"name": f"column-{n}", "type": "string"} for n in range(100)]
NAME = "a-name-as-long-as-people-give-them"


def large() -> LakeStatus:
    """Everything is wrong in it: that makes pages longest."""
    at = utc_now()
    names = [f"warehouse.{NAME}-{n:04}" for n in range(DATASETS)]
    datasets = [
        DatasetStatus(name, 10**9 + n, 10**9, 10**9, 3, 2, 1, True, (), f"{name} was rolled back by somebody else", 7)
        for n, name in enumerate(names)
    ]
    sinks = [
        SinkStatus(
            f"{NAME}-{n:03}", "postgres", names[n], f"tenant={lane}", 1, 10**9, 1234, 987.0, "waiting",
            "the server closed the connection", None, 3, 0, 10**9, None, 7, at, "growing", 0,
            123456, 98765.0, 4321, at, 12, 1, at,
        )
        for n in range(SINKS) for lane in range(LANES)
    ]  # fmt: skip
    drift = ReconcileStatus(last_run=3, compared=Compared(3, at, 10, 2, partial=True))
    care = MaintenanceStatus({}, (), (), tuple(DatasetMaintenance(name, 10**6, (), ()) for name in names))
    return LakeStatus("lake", 10**9, 10**9, 1, "x", tuple(datasets), tuple(sinks), None, care, drift)


def fill(lake: Lake, found: LakeStatus, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of each thing that has a page of its own, each with much to show."""
    lake.create_dataset("events", parse_columns(COLUMNS), deliver_by=(), partition_by=None)
    lake.delivery.add("partner", "events", "files", {"path": str(lake.config.home / "out")}, from_now=False)
    refuse_rows(lake, *range(1, 101))
    lanes = tuple(replace(s, name="partner", dataset="default.events") for s in found.sinks)
    monkeypatch.setattr(sinks, "load_sinks", lambda *_: lanes)
    monkeypatch.setattr(rows, "_content", lambda *_: ({f"column-{n}": NAME for n in range(100)}, None))
    result = {"sinks": [{"name": NAME, "ok": False, "findings": [{"kind": "missing", "said": NAME}] * 5_000}]}
    sample = {"kind": "orphan", "path": f"data/{NAME}.parquet", "table": f"default.{NAME}", "size": 48_211}
    swept = [NewSwept(FindingKind.ORPHAN, NAME, f"data/{NAME}/{n}", f"aside/{n}", 7, None) for n in range(500)]
    lease = reconcile_runs.take_lease(lake.ledger, seconds=60)
    with lake.ledger.write() as connection:
        new = runs.NewRun(lake.dataset("events").id, runs.MaintenanceKind.COMPACT, "node-1")
        begun = runs.begin(connection, new, lease_seconds=60)
        assert lease is not None and begun is not None
        runs.end(connection, begun, runs.MaintenanceOutcome.DONE, reason=None, result=result)
        _, held = tasks.begin(connection, "verify", "partner", "node-1", lease_seconds=60)
        tasks.end(connection, held, tasks.TaskOutcome.DONE, result=result)
        run = reconcile_runs.start(connection, Asked(act=True), StorageKind.LOCAL)
        quarantined_files.begin(connection, run, swept)
        assert reconcile_runs.complete(connection, run, SweepOutcome(samples=(sample,) * 30, failures=(NAME,) * 100))


def test_a_page_of_a_large_lake_weighs_at_most_100_kilobytes(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    found = large()
    monkeypatch.setattr(Lake, "status", lambda self: found)
    secret = lake.receiver.create_token("admin", role=Role.ADMIN)[1]
    for n in range(TOKENS + 1):
        lake.receiver.create_token(f"{NAME}-{n}", role=Role.READ)
    fill(lake, found, monkeypatch)
    app = create_app(lake)
    history, start = app.state.pages.history, utc_now() - timedelta(days=1)
    keys = [SinkKey("default.events", "partner"), *{SinkKey(s.dataset, s.name): None for s in found.sinks}]
    for n in range(SAMPLES_MAX):
        at = start + timedelta(seconds=n * APART_SECONDS_MIN)
        lag = dict.fromkeys(keys, 10**6 * (n * n % 977))
        history.add(HistorySample(at, n**3, lag, lag, dict.fromkeys(keys, n * n)))

    async def weigh() -> dict[str, int]:
        transport, headers = httpx.ASGITransport(app), {"Authorization": f"Bearer {secret}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://lake", headers=headers) as client:
            answers = {path: await client.get(path) for path in PATHS}
        assert {path: a.status_code for path, a in answers.items()} == dict.fromkeys(PATHS, 200)
        shown = {path: a.text for path, a in answers.items()}
        assert {path for path in PATHS if 'class="spark"' in shown[path]} == {*WITH_SPARKS}
        assert shown["/sinks"].count('class="spark"') == PAGE
        assert {path for path in PATHS if 'class="chart"' in shown[path]} == {*WITH_CHARTS}
        assert shown["/"].count('class="line"') == 2 + SINKS_MAX, "rows in, rows out, a spark for each sink"
        return {path: len(a.content) for path, a in answers.items()}

    files = sum(len(content) for content, _ in _files().values())
    weights = {path: size + files for path, size in asyncio.run(weigh()).items()}
    app.state.context.close()
    assert max(weights.values()) <= PAGE_BYTES_MAX, weights


def test_a_lag_that_is_not_known_is_never_hidden_behind_a_known_one(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = large()
    one, *_, other = known.sinks
    unknown = replace(other, lag_rows=None, sink_lag_rows=None, lag_seconds=None, sink_lag_seconds=None)
    secret = lake.receiver.create_token("reader", role=Role.READ)[1]

    def largest_lag(*sinks: SinkStatus) -> str:
        monkeypatch.setattr(Lake, "status", lambda self: replace(known, sinks=sinks))
        app = create_app(lake)

        async def shown() -> str:
            transport, headers = httpx.ASGITransport(app), {"Authorization": f"Bearer {secret}"}
            async with httpx.AsyncClient(transport=transport, base_url="http://lake", headers=headers) as client:
                return (await client.get("/")).text

        text = asyncio.run(shown())
        app.state.context.close()
        return text.partition("<dt>Largest lag</dt>")[2].partition("</dd>")[0]

    assert "at least" not in largest_lag(one)
    assert largest_lag(one, unknown).count("at least") == 2
    assert "unknown" in largest_lag(unknown) and "at least" not in largest_lag(unknown)
