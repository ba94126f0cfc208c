"""A Spark job that does not end by itself: work that has one ends only if somebody cancels the job."""

from __future__ import annotations

import uuid
from typing import Any

from strandline.iceberg.session.spark_internals import status_tracker
from strandline.lake import Lake
from tests.waiting import eventually

_JOB_SECONDS = 3600


class StuckJob:
    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._context = lake.spark.sparkContext
        self._tag = f"stuck-{uuid.uuid4().hex}"

    def run(self) -> None:
        """In the thread that calls it, with the lake's Spark as that thread gets it."""
        rows = self._lake.tables().spark.range(0, 1, 1, 1)
        self._context.addJobTag(self._tag)
        try:
            rows.selectExpr(f"java_method('java.lang.Thread', 'sleep', {1000 * _JOB_SECONDS}L)").collect()
        finally:
            self._context.removeJobTag(self._tag)
        raise AssertionError("nobody has cancelled the job")

    def instead_of(self, *_: Any, **__: Any) -> Any:
        """For `monkeypatch.setattr`."""
        self.run()

    def is_running(self) -> bool:
        found = map(self._context.statusTracker().getJobInfo, status_tracker(self._context).getJobIdsForTag(self._tag))
        return any(job is not None and job.status == "RUNNING" for job in found)

    def wait_until_it_runs(self) -> None:
        eventually(self.is_running)

    def wait_until_it_is_cancelled(self) -> None:
        eventually(lambda: not self.is_running())

    def end(self) -> None:
        self._context.cancelJobsWithTag(self._tag)
