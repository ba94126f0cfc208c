"""Which measurements there are. A group that comes later gets a line here."""

from __future__ import annotations

from bench.deliver import few_rows, many_rows, memory
from bench.forward import alone
from bench.forward import rows as forwarded
from bench.growth import history, old_folder
from bench.ingest import dirty_files, driver_memory, reserve, rows, start
from bench.maintain import compaction
from bench.measure import Measurement
from bench.read import new_rows
from bench.reconcile import orphans
from bench.replicate import catch_up, idle, lag
from bench.serve import open_dashboard, requests
from bench.stream import source

GROUPS: dict[str, tuple[Measurement, ...]] = {
    "ingest": (
        rows.MEASUREMENT,
        dirty_files.MEASUREMENT,
        reserve.SQLITE,
        reserve.POSTGRES,
        driver_memory.MEASUREMENT,
        start.MEASUREMENT,
    ),
    "read": (new_rows.MEASUREMENT,),
    "deliver": (few_rows.MEASUREMENT, many_rows.FILES, many_rows.TO_S3, *memory.MEASUREMENTS),
    "forward": (forwarded.MEASUREMENT, alone.MEASUREMENT),
    "maintain": compaction.MEASUREMENTS,
    "reconcile": (orphans.FEWER, orphans.MANY),
    "replicate": (catch_up.MEASUREMENT, idle.MEASUREMENT, lag.MEASUREMENT),
    "stream": (source.MEASUREMENT,),
    "growth": (history.MEASUREMENT, old_folder.MEASUREMENT),
    "serve": (*requests.MEASUREMENTS, open_dashboard.MEASUREMENT),
}
