"""Statistics files are referenced, those of partitions, too."""

from __future__ import annotations

import os
from pathlib import Path

from pyiceberg.table.statistics import PartitionStatisticsFile
from pyiceberg.table.update import SetPartitionStatisticsUpdate

from tests.reconcile.conftest import SomeLake, acted_on, by_path


def test_statistics_of_partitions_are_referenced_and_missed_when_they_are_gone(some_lake: SomeLake) -> None:
    some_lake.create()
    table = some_lake.append()
    path = some_lake.put("ns/t/metadata/partitions.parquet")
    beside = some_lake.put("ns/t/metadata/nobody's.parquet")
    current = table.current_snapshot()
    assert current is not None
    file = PartitionStatisticsFile(
        snapshot_id=current.snapshot_id, statistics_path=f"file://{path}", file_size_in_bytes=1
    )
    with table.transaction() as transaction:
        transaction._apply((SetPartitionStatisticsUpdate(partition_statistics=file),), ())
    for name in (some_lake.warehouse / "ns").rglob("*.*"):
        os.utime(name, (1e9, 1e9))
    drift = some_lake.survey().drift
    assert acted_on(drift.orphans()) == [beside] and not list(drift.missing())
    Path(path).unlink()
    assert list(by_path(some_lake.survey().drift.missing())) == [path]
