"""What the routes of maintenance and of the reconciler share: runs that are begun, looked at and called off."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from fastapi import Response

from strandline.core.documents import Document
from strandline.serve.auth.caller import Caller
from strandline.serve.context import ServeContext
from strandline.serve.describe import CHANGES, NUMBER, TEXT, documented, fields
from strandline.serve.problems import NOT_HERE, Problem
from strandline.serve.work import RunWork

RUN_STARTED = documented(fields(run=NUMBER, place=TEXT), status=202, problems=CHANGES, said="Begun: look at its place.")


async def start_run(context: ServeContext, caller: Caller, kind: str, place: str, work: RunWork) -> Response:
    """Answers 202 when the run is on record; what the work raises before is answered instead."""

    def begin() -> Document:
        run = context.work.start_run(kind, work)
        return {"run": run, "place": f"{place}/{run}"}

    return await context.start(caller, begin)


async def cancel_run(
    context: ServeContext,
    caller: Caller,
    kind: str,
    run: int,
    ended_at: Callable[[], datetime | None],
    show: Callable[[], Document],
) -> Response:
    """Calls a run of this process off. One that has ended stays as it is."""

    def cancel() -> Document:
        if ended_at() is None and not context.work.call_off(kind, run) and ended_at() is None:
            raise Problem(
                NOT_HERE, f"run {run} is not under way in this process", "Stop it where it runs, or wait until it ends."
            )
        return show()

    return await context.change(caller, cancel)
