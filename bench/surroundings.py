"""Where and with what a measurement ran: the date, the machine, the versions. A figure says little without them."""

from __future__ import annotations

import os
import platform
import sqlite3
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

PACKAGES = ("strandline", "pyspark", "pyiceberg", "pyarrow", "sqlalchemy")


def surroundings() -> dict[str, Any]:
    return {"date": datetime.now(UTC).strftime("%Y-%m-%d"), "machine": machine(), "versions": versions()}


def machine() -> dict[str, Any]:
    """Nothing that names this machine: only what speed depends on."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "system": f"{platform.system()} {platform.machine()}",
    }


def versions() -> dict[str, str]:
    from bench.peers import delta, environment
    from strandline.iceberg.session.jars import ICEBERG
    from strandline.iceberg.session.java import find_java

    found = {name: version(name) for name in PACKAGES}
    return {
        "python": platform.python_version(),
        "java": find_java().version,
        "sqlite": sqlite3.sqlite_version,
        ICEBERG.artifact: ICEBERG.version,
        **found,
        "delta-spark": delta.version(),
        **environment.versions("dlt", "duckdb", "polars"),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
