"""What Spark itself says about its last query."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OPENED = "number of result data files"
_WAIT_SECONDS_MAX = 10


def data_files_opened(spark: SparkSession) -> int:
    """From the scan metrics of the newest query that has them."""
    store: Any = spark._jsparkSession.sharedState().statusStore()
    deadline = time.monotonic() + _WAIT_SECONDS_MAX
    while time.monotonic() < deadline:  # the listener that fills the store runs behind
        executions = store.executionsList()
        newest = executions.apply(executions.size() - 1)
        if newest.completionTime().isDefined() and (found := _metric(store, newest)) is not None:
            return found
        time.sleep(0.05)
    raise RuntimeError(f"Spark has no metric {_OPENED!r} of its last query")


def _metric(store: Any, execution: Any) -> int | None:
    values = store.executionMetrics(execution.executionId())
    for n in range(execution.metrics().size()):
        metric = execution.metrics().apply(n)
        if metric.name() == _OPENED and values.contains(metric.accumulatorId()):
            return int(values.apply(metric.accumulatorId()).replace(",", ""))
    return None
