"""Pages of a large lake stay small: at most 100 KB with the stylesheet and the script, without compression."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import httpx
import pytest

from strandline.core.roles import Role
from strandline.lake import Lake
from strandline.ledger.engine import utc_now
from strandline.serve.app import create_app
from strandline.serve.pages import tokens
from strandline.serve.pages.history import APART_SECONDS_MIN, SAMPLES_MAX, Sample
from strandline.serve.pages.static_files import _files
from strandline.status.maintenance import DatasetMaintenance, MaintenanceStatus
from strandline.status.reconcile import Compared, ReconcileStatus
from strandline.status.report import DatasetStatus, LakeStatus
from strandline.status.sinks import SinkStatus

PAGE_BYTES_MAX = 100_000
DATASETS, SINKS, LANES = 1_000, 200, 5
PATHS = ("/", "/datasets", "/sinks", "/drift", "/runs", "/audit", "/tokens")
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


def test_a_page_of_a_large_lake_weighs_at_most_100_kilobytes(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    found = large()
    monkeypatch.setattr(Lake, "status", lambda self: found)
    secret = lake.receiver.create_token("admin", role=Role.ADMIN)[1]
    for n in range(tokens.PAGE + 1):
        lake.receiver.create_token(f"{NAME}-{n}", role=Role.READ)
    app = create_app(lake)
    history, start = app.state.pages.history, utc_now() - timedelta(days=1)
    names = [f"{NAME}-{n:03}" for n in range(SINKS)]
    for n in range(SAMPLES_MAX):
        rows = dict.fromkeys(names, 10**6 + n * n % 977)
        history.add(Sample(start + timedelta(seconds=n * APART_SECONDS_MIN), n * (n % 977), rows, {}, rows))

    async def weigh() -> dict[str, int]:
        transport, headers = httpx.ASGITransport(app), {"Authorization": f"Bearer {secret}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://lake", headers=headers) as client:
            answers = {path: await client.get(path) for path in PATHS}
        assert {a.status_code for a in answers.values()} == {200}
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
