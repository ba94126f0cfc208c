"""Counters and histograms of what this process has done since it began to serve."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, ProcessCollector
from prometheus_client.exposition import generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from strandline.core.activity import Activity, ActivityKind, observing

_WORK_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
_REQUEST_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_NO_ANSWER = "none"  # the client went away before
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))


class ProcessMetrics:
    """Counts from when it is made until it is closed. All names are in docs/metrics.md."""

    def __init__(self) -> None:
        own = self.registry = CollectorRegistry()
        ProcessCollector(registry=own)
        self.requests = Counter(
            "strandline_api_requests",
            "Requests that were answered; the status `none`: the client went away before.",
            ("method", "route", "status"),
            registry=own,
        )
        self.request_seconds = Histogram(
            "strandline_api_request_seconds",
            "From a request's head until the end of its answer.",
            ("route",),
            buckets=_REQUEST_SECONDS,
            registry=own,
        )
        self.under_way = Gauge(
            "strandline_api_requests_under_way", "Requests that are being answered now.", registry=own
        )
        self.readings = Histogram(
            "strandline_status_reading_seconds",
            "How long it took to read the status of the lake.",
            buckets=_REQUEST_SECONDS,
            registry=own,
        )
        self._ticks = Counter("strandline_ticks", "Ticks of a sink that ended.", ("sink", "outcome"), registry=own)
        self._tick_seconds = _work_seconds("strandline_tick_seconds", "How long ticks took.", "outcome", own)
        self._delivered = Counter("strandline_delivered_rows", "Rows that a sink took.", ("sink",), registry=own)
        self._batches = Counter(
            "strandline_batches", "Batches that were ingested or not.", ("dataset", "outcome"), registry=own
        )
        self._batch_seconds = _work_seconds("strandline_batch_seconds", "How long batches took.", "outcome", own)
        self._ingested = Counter("strandline_ingested_rows", "Rows that were ingested.", ("dataset",), registry=own)
        self._runs = Counter(
            "strandline_runs",
            "Runs of maintenance and of the reconciler that ended.",
            ("kind", "outcome"),
            registry=own,
        )
        self._run_seconds = _work_seconds("strandline_run_seconds", "How long runs took.", "kind", own)
        self._open = ExitStack()
        self._open.enter_context(observing(self._count))

    def close(self) -> None:
        self._open.close()

    def _count(self, done: Activity) -> None:
        match done.kind:
            case ActivityKind.TICK:
                self._ticks.labels(done.name, done.outcome).inc()
                self._tick_seconds.labels(done.outcome).observe(done.seconds)
                self._delivered.labels(done.name).inc(done.rows)
            case ActivityKind.BATCH:
                self._batches.labels(done.name, done.outcome).inc()
                self._batch_seconds.labels(done.outcome).observe(done.seconds)
                self._ingested.labels(done.name).inc(done.rows)
            case ActivityKind.RUN:
                self._runs.labels(done.name, done.outcome).inc()
                self._run_seconds.labels(done.name).observe(done.seconds)

    def described(self) -> list[tuple[Metric, tuple[str, ...]]]:
        """Each metric of ours, and the names of its labels."""
        ours = [value for value in vars(self).values() if isinstance(value, Counter | Gauge | Histogram)]
        return [(family, tuple(metric._labelnames)) for metric in ours for family in metric.describe()]

    def text(self) -> bytes:
        return generate_latest(self.registry)


def _work_seconds(name: str, what: str, label: str, registry: CollectorRegistry) -> Histogram:
    return Histogram(name, what, (label,), buckets=_WORK_SECONDS, registry=registry)


class RequestMetrics:
    """Counts every request, those that are refused before they reach a route, too."""

    def __init__(
        self, app: ASGIApp, *, counted: ProcessMetrics, list_paths: Callable[[], Mapping[object, str]]
    ) -> None:
        """`list_paths` returns the path of each endpoint; it is called when the first request comes."""
        self._app, self._counted, self._list_paths = app, counted, list_paths
        self._paths: Mapping[object, str] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), _NO_ANSWER

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        self._counted.under_way.inc()
        try:
            await self._app(scope, receive, watched)
        except Exception:
            status = "500" if status == _NO_ANSWER else status
            raise
        finally:
            self._counted.under_way.dec()
            # never the path itself: clients would make up as many time series as they like
            route = self._path_of(scope.get("endpoint"))
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self._counted.requests.labels(method, route, status).inc()
            self._counted.request_seconds.labels(route).observe(time.perf_counter() - began)

    def _path_of(self, endpoint: object) -> str:
        if self._paths is None:
            self._paths = self._list_paths()
        return self._paths.get(endpoint, "none")
