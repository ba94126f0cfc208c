"""What the routes of maintenance and of the reconciler share: how runs are begun, shown and called off."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import Response

from strandline.core.documents import Document
from strandline.serve.auth.needs import Access
from strandline.serve.describe import CHANGES, NUMBER, TEXT, documented, fields
from strandline.serve.work import RunWork

STARTED_SAID = "Started: `place` shows it."
RUN_STARTED = documented(fields(run=NUMBER, place=TEXT), status=202, problems=CHANGES, said=STARTED_SAID)


async def start_run(access: Access, kind: str, place: str, work: RunWork) -> Response:
    """Answers 202 when the run is on record; what the work raises before is answered instead."""

    def begin() -> Document:
        run = access.context.work.start_run(kind, work)
        return {"run": run, "place": f"{place}/{run}"}

    return await access.context.start(access.caller, begin)


async def cancel_run(access: Access, kind: str, run: int, cancel: Callable[[], Document]) -> Response:
    """Calls a run off, also one of another process, which sees it when it renews its lease. A run of this process sees
    it at once. `cancel` stores it, and raises if the caller must not know of the run."""

    def call_off() -> Document:
        document = cancel()
        access.context.work.call_off(kind, run)
        return document

    return await access.context.change(access.caller, call_off, is_short=True)
