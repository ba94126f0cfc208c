"""Whether the server lives, and whether it is ready. Both answer without a token: they name no path and no address."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
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
CHECK_AGE_SECONDS_MAX = 1.0  # anybody may ask, and each check locks the witness
CATALOG_CHECK_AGE_SECONDS_MAX = 5.0  # it may be another machine's
CHECK_SECONDS_MAX = 3.0  # monitoring needs an answer, also while the lake gives none


@dataclass(frozen=True, slots=True)
class HealthCheck:
    name: str
    ready: bool
    reason: str | None  # why not


class LakeChecks:
    """One check of each part of the lake for all requests of about the same time. Used from one event loop only."""

    def __init__(self, context: ServeContext, clock: Callable[[], float] = time.monotonic) -> None:
        def cached(name: str, check: Callable[[Lake], list[HealthCheck]]) -> _CachedCheck:
            return _CachedCheck(name, lambda: context.in_check_thread(lambda: check(context.lake)), clock)

        self._ledger = cached("ledger", check_ledger)
        self._witness = cached("witness", check_witness)
        self._catalog = cached("catalog", check_catalog)

    async def newest(self) -> list[HealthCheck]:
        """Within CHECK_SECONDS_MAX, whatever hangs."""
        of_catalog = CHECK_AGE_SECONDS_MAX if self._catalog.has_failed else CATALOG_CHECK_AGE_SECONDS_MAX
        ledger, witness, catalog = await asyncio.gather(
            self._ledger.newest(CHECK_AGE_SECONDS_MAX),
            self._witness.newest(CHECK_AGE_SECONDS_MAX),
            self._catalog.newest(of_catalog),
        )
        # Nobody can say whether the witness is right without the ledger.
        return [*ledger, *(witness if all(check.ready for check in ledger) else ()), *catalog]


class _CachedCheck:
    """Runs a check at most once at a time. Requests that come a little later get the same result."""

    def __init__(
        self, name: str, check: Callable[[], Awaitable[list[HealthCheck]]], clock: Callable[[], float]
    ) -> None:
        self._name, self._check, self._clock = name, check, clock
        self._task: asyncio.Task[list[HealthCheck]] | None = None
        self._began_at = self._ended_at = float("-inf")

    @property
    def has_failed(self) -> bool:
        last = self._task
        if last is None or not last.done():
            return False
        return last.exception() is not None or not all(check.ready for check in last.result())

    async def newest(self, age_seconds_max: float) -> list[HealthCheck]:
        task = self._task
        if task is None or (task.done() and self._clock() - self._ended_at > age_seconds_max):
            self._began_at = self._clock()
            task = self._task = asyncio.create_task(self._timed())
        # A check that hangs continues alone: the next request waits for the same one.
        await asyncio.wait({task}, timeout=max(0.0, CHECK_SECONDS_MAX - (self._clock() - self._began_at)))
        if task.done():
            return task.result()
        silent = f"the {self._name} has not answered for {self._clock() - self._began_at:.0f} s"
        return [HealthCheck(self._name, False, silent)]

    async def _timed(self) -> list[HealthCheck]:
        try:
            return await self._check()
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
        HealthCheck("stopping", not context.work.is_stopping, "the server stops" if context.work.is_stopping else None)
    )
    checks += [HealthCheck(name, problem is None, problem) for name, problem in context.loops.problems().items()]
    ready = all(check.ready for check in checks)
    headers = {} if ready else {"Retry-After": str(context.settings.retry_after_seconds)}
    return answer({"ready": ready, "checks": checks}, status=200 if ready else 503, headers=headers)


def check_ledger(lake: Lake) -> list[HealthCheck]:
    """The reasons are our own words: the message of an error may name a path, an address or a user."""
    try:
        _last(lake)
    except StrandlineError as e:
        return [HealthCheck("ledger", False, f"the ledger cannot be read ({type(e).__name__})")]
    return [HealthCheck("ledger", True, None)]


def check_witness(lake: Lake) -> list[HealthCheck]:
    """Nothing if the ledger cannot be read: that is said already."""
    try:
        last = _last(lake)
    except StrandlineError:
        return []
    try:
        highest = lake.witness.read().highest
        # A reservation under way looks like a witness that is ahead for a moment.
        ahead = highest > last and highest != _last(lake)
    except StrandlineError as e:
        failed = f"the witness in the warehouse cannot be read ({type(e).__name__}): nothing can be ingested"
        return [HealthCheck("witness", False, failed)]
    why = "the ledger was restored from an older copy, and is resynced before the next work" if ahead else None
    return [HealthCheck("witness", True, why)]


def check_catalog(lake: Lake) -> list[HealthCheck]:
    try:
        lake.check_catalog()
    except StrandlineError as e:
        failed = f"the catalog cannot be read ({type(e).__name__}): rows can neither come in nor be delivered"
        return [HealthCheck("catalog", False, failed)]
    return [HealthCheck("catalog", True, None)]


def _last(lake: Lake) -> int:
    return lake.ledger.query(sequence.read).last
