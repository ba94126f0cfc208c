"""The routers of all pages."""

from __future__ import annotations

from strandline.serve.pages import (
    audit,
    datasets,
    drift,
    live,
    login,
    overview,
    quarantine,
    replication,
    runs,
    sinks,
    static_files,
    tokens,
)

PAGES = (
    overview.router,
    datasets.router,
    sinks.router,
    replication.router,
    quarantine.router,
    drift.router,
    runs.router,
    audit.router,
    tokens.router,
    login.router,
    live.router,
    static_files.router,
)
