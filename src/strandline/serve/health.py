"""Whether the server lives, and whether it is ready. Both answer without a token: they name no path and no address."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response

from strandline.core.errors import StrandlineError, WitnessUnreadable
from strandline.ledger.ingest import sequence
from strandline.serve.auth.needs import anyone
from strandline.serve.context import answer, context_of
from strandline.serve.describe import HEALTH, READY, documented

if TYPE_CHECKING:
    from strandline.lake import Lake

router = APIRouter(tags=["health"])


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    ready: bool
    reason: str | None  # why not


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
    checks = await context.in_thread(lambda: check_lake(context.lake))
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
    except WitnessUnreadable:
        return [
            *checks,
            Check("witness", False, "the witness in the warehouse cannot be read: nothing can be ingested"),
        ]
    # A reservation under way looks like a witness that is ahead for a moment.
    ahead = highest > last and highest != _last(lake)
    why = "the ledger was restored from an older copy, and is resynced before the next work" if ahead else None
    return [*checks, Check("witness", True, why)]


def _last(lake: Lake) -> int:
    with lake.ledger.read() as connection:
        return sequence.read(connection).last
