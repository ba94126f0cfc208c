"""Whether the server lives, and whether it is ready. Both answer without a token: they name no path and no address."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response

from strandline.core.errors import StrandlineError
from strandline.ledger.ingest import sequence
from strandline.serve.auth.needs import anyone
from strandline.serve.context import ServeContext, answer, context_of
from strandline.serve.describe import HEALTH, READY, documented

if TYPE_CHECKING:
    from strandline.lake import Lake

router = APIRouter(tags=["health"])
KEPT_SECONDS = 1.0  # anybody may ask, and each look locks the witness


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    ready: bool
    reason: str | None  # why not


class LakeChecks:
    """One look at the lake for all who ask at about the same time. Used from one event loop only."""

    def __init__(self, context: ServeContext, clock: Callable[[], float] = time.monotonic) -> None:
        self._context, self._clock = context, clock
        self._looking: asyncio.Task[list[Check]] | None = None
        self._ended_at = float("-inf")

    async def newest(self) -> list[Check]:
        looking = self._looking
        if looking is None or (looking.done() and self._clock() - self._ended_at > KEPT_SECONDS):
            looking = self._looking = asyncio.create_task(self._look())
        return list(await asyncio.shield(looking))

    async def _look(self) -> list[Check]:
        try:
            return await self._context.in_thread(lambda: check_lake(self._context.lake))
        finally:
            self._ended_at = self._clock()


@router.get("/healthz", summary="Whether the server answers", **documented(HEALTH, problems=()))
async def healthz(_: None = anyone()) -> Response:
    return answer({"ok": True})


@router.get(
    "/readyz",
    summary="What is not ready, and why",
    **documented(READY, problems=(), also={503: ("Not ready.", READY)}),
)
async def readyz(request: Request, _: None = anyone()) -> Response:
    context = context_of(request)
    checks = await request.app.state.lake_checks.newest()
    checks.append(
        Check("stopping", not context.work.is_stopping, "the server stops" if context.work.is_stopping else None)
    )
    checks += [Check(name, problem is None, problem) for name, problem in context.loops.problems().items()]
    ready = all(check.ready for check in checks)
    headers = {} if ready else {"Retry-After": str(context.settings.retry_after_seconds)}
    return answer({"ready": ready, "checks": checks}, status=200 if ready else 503, headers=headers)


def check_lake(lake: Lake) -> list[Check]:
    """The reasons are our own words: the message of an error may name a path, an address or a user."""
    try:
        with lake.ledger.read() as connection:
            last = sequence.read(connection).last
    except StrandlineError as e:
        return [Check("ledger", False, f"the ledger cannot be read ({type(e).__name__})")]
    checks = [Check("ledger", True, None)]
    try:
        highest = lake.witness.read().highest
        # A reservation under way looks like a witness that is ahead for a moment.
        ahead = highest > last and highest != _last(lake)
    except StrandlineError as e:
        failed = f"the witness in the warehouse cannot be read ({type(e).__name__}): nothing can be ingested"
        return [*checks, Check("witness", False, failed)]
    why = "the ledger was restored from an older copy, and is resynced before the next work" if ahead else None
    return [*checks, Check("witness", True, why)]


def _last(lake: Lake) -> int:
    with lake.ledger.read() as connection:
        return sequence.read(connection).last
