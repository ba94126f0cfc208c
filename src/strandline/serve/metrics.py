"""`/metrics` for Prometheus: what the ledger knows of the lake, and what this process has done."""

from __future__ import annotations

from fastapi import APIRouter, Response
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from strandline.serve.auth.needs import LakeReadAccess
from strandline.serve.describe import TEXT, documented

router = APIRouter(tags=["metrics"])


@router.get("/metrics", summary="Metrics in the text format of Prometheus", **documented(TEXT, kind="text/plain"))
async def metrics(access: LakeReadAccess) -> Response:
    """How sinks, the receiver, maintenance and the reconciler fare, from the ledger; and counters of this process."""
    context = access.context
    found = await context.gauges.newest()
    body = await context.in_thread(lambda: found.text + context.metrics.text())
    headers = {"Age": str(int(context.gauges.age_seconds(found)))}
    return Response(body, 200, headers, CONTENT_TYPE_PLAIN_0_0_4)
