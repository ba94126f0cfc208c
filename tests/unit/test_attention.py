"""What a task that is done leaves to be looked at, by the documents that tasks really store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from strandline.core.actor import Actor, Trigger
from strandline.core.documents import fields_of, json_text
from strandline.core.errors import RefusedError
from strandline.core.types import Seq
from strandline.deliver.plan.preview import SinkPreview
from strandline.deliver.quarantine.replay import Replay, ReplayedRow, ReplayReport
from strandline.deliver.tick import SinkReport, TickReport
from strandline.ledger.tasks import Task, TaskId, TaskOutcome
from strandline.reconcile.quarantine import PurgedFiles, ReconcileRunId, Restored
from strandline.status.documents import lake_documents

AT = datetime(2026, 3, 1, tzinfo=UTC)
VERIFIED = {"name": "partner", "ok": True, "findings": []}
LACKS = {"name": "partner", "ok": False, "findings": [{"kind": "missing"}]}


def task(kind: str, result: Mapping[str, Any] | None) -> Task:
    stored = None if result is None else json.loads(json_text(dict(result)))
    who = Actor("ada", Trigger.API)
    return Task(TaskId(1), kind, "partner", "here", who, AT, None, None, AT, TaskOutcome.DONE, stored, None)


def ticked(**report: Any) -> Mapping[str, Any]:
    return lake_documents.tick(TickReport((SinkReport("partner", **report),)), 1.0)


def replayed(*outcomes: Replay) -> Mapping[str, Any]:
    rows = tuple(
        ReplayedRow(Seq(n), one, None if one is Replay.REPLAYED else "422: no") for n, one in enumerate(outcomes)
    )
    return lake_documents.replayed_rows(ReplayReport("partner", rows))


def previewed(error: RefusedError | None) -> Mapping[str, Any]:
    return lake_documents.tick_preview([SinkPreview("partner", "active", [], error)])


@pytest.mark.parametrize(
    ("kind", "result", "said"),
    [
        ("verify", {"ok": True, "sinks": [VERIFIED]}, None),
        ("verify", {"ok": False, "sinks": [LACKS]}, "partner failed the check: 1 finding"),
        ("tick", ticked(did="delivered", rows=3), None),
        ("tick", ticked(did="idle"), None),
        ("tick", ticked(did="waiting"), None),
        ("tick", ticked(did="waiting", reason="it is away"), "partner is waiting: it is away"),
        ("tick", ticked(did="stopped", reason="no such bucket"), "partner is stopped: no such bucket"),
        ("tick", ticked(did="paused"), "partner is paused, and got nothing"),
        ("tick", ticked(did="delivered", quarantined=2), "partner refused 2 rows, which went to quarantine"),
        ("tick", ticked(did="busy"), "partner got nothing: another process delivers to it just now"),
        (
            "tick",
            ticked(did="busy", rows=3, reason="partner: another deliverer has taken over"),
            "partner: another deliverer has taken over",
        ),
        ("tick_dry_run", previewed(None), None),
        ("tick_dry_run", previewed(RefusedError("it is stopped")), "partner: it is stopped"),
        ("replay", replayed(Replay.REPLAYED, Replay.REPLAYED), None),
        ("replay", replayed(Replay.REPLAYED, Replay.REFUSED), "1 of 2 rows not delivered: 422: no"),
        ("restore", fields_of(Restored(ReconcileRunId(1), restored=2)), None),
        ("restore", fields_of(Restored(ReconcileRunId(1), lost=["a"])), "1 file not restored: not found"),
        ("purge_files", fields_of(PurgedFiles(purged=2)), None),
        ("purge_files", fields_of(PurgedFiles(failed=["a: no"])), "1 file not purged: a: no"),
        ("reset", {"name": "partner"}, None),
        ("verify", None, None),
    ],
)
def test_a_result_that_is_bad_is_told(kind: str, result: Mapping[str, Any] | None, said: str | None) -> None:
    assert lake_documents.task(task(kind, result))["attention"] == said
