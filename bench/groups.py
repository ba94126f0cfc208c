"""Which measurements there are. A group that comes later gets a line here."""

from __future__ import annotations

from bench.deliver import few_rows, many_rows, memory, other_tools
from bench.faults import expired, killed, late
from bench.forward import alone
from bench.forward import rows as forwarded
from bench.growth import history, old_folder
from bench.ingest import dirty_files, driver_memory, json_lines, reserve, rows, start
from bench.maintain import compaction
from bench.measure import Measurement
from bench.read import new_rows, single_machine
from bench.reconcile import orphans, vacuum
from bench.replicate import catch_up, idle, lag
from bench.scale import cluster, costs, idle_sinks, inventory
from bench.serve import open_dashboard, requests
from bench.stream import change_feed, source

GROUPS: dict[str, tuple[Measurement, ...]] = {
    "ingest": (
        rows.MEASUREMENT,
        dirty_files.MEASUREMENT,
        reserve.SQLITE,
        reserve.POSTGRES,
        driver_memory.MEASUREMENT,
        start.MEASUREMENT,
        json_lines.MEASUREMENT,
    ),
    "read": (new_rows.MEASUREMENT, single_machine.MEASUREMENT),
    "deliver": (few_rows.MEASUREMENT, many_rows.FILES, many_rows.TO_S3, *memory.MEASUREMENTS, other_tools.MEASUREMENT),
    "forward": (forwarded.MEASUREMENT, alone.MEASUREMENT),
    "maintain": compaction.MEASUREMENTS,
    "reconcile": (orphans.FEWER, orphans.MANY, vacuum.MEASUREMENT),
    "replicate": (catch_up.MEASUREMENT, idle.MEASUREMENT, lag.MEASUREMENT),
    "stream": (source.MEASUREMENT, change_feed.MEASUREMENT),
    "growth": (history.MEASUREMENT, old_folder.MEASUREMENT),
    "scale": (costs.MEASUREMENT, idle_sinks.MEASUREMENT, inventory.MEASUREMENT, cluster.MEASUREMENT),
    "faults": (expired.MEASUREMENT, late.MEASUREMENT, killed.FILES, killed.POSTGRES),
    "serve": (*requests.MEASUREMENTS, open_dashboard.MEASUREMENT),
}
