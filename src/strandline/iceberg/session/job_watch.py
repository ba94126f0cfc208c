"""Watches Spark jobs: cancels them when their owner must stop, and tells their progress."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from strandline.iceberg.session.spark_internals import status_tracker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL_SECONDS = 0.5


@contextmanager
def watched(spark: SparkSession, check: Callable[[], None]) -> Iterator[None]:
    """While jobs of this thread run, calls `check` now and then. When `check` raises, cancels the jobs, and raises that
    error here instead of Spark's. Uses tags of the context: tags of a session are known only to the thread that set
    them."""
    context = spark.sparkContext
    tag = f"strandline-{uuid.uuid4().hex}"
    done = threading.Event()
    ending: list[Exception] = []

    def poll() -> None:
        while not done.wait(_POLL_SECONDS):
            try:
                check()
            except Exception as e:
                ending.append(e)
                # Every job, also one that was about to begin.
                context.cancelJobsWithTag(tag)

    poller = threading.Thread(target=poll, name="job-watch", daemon=True)
    context.addJobTag(tag)
    context.setInterruptOnCancel(True)  # also interrupts tasks, which would otherwise run to their end
    poller.start()
    try:
        yield
    except Exception as e:
        if ending:
            raise ending[0] from e
        raise
    finally:
        done.set()
        poller.join()
        context.setInterruptOnCancel(False)
        context.removeJobTag(tag)


@contextmanager
def counted_tasks(spark: SparkSession) -> Iterator[Callable[[], float]]:
    """The progress of this thread's running jobs: the share of their tasks that is done, from 0 to 1."""
    context = spark.sparkContext
    tag = f"strandline-{uuid.uuid4().hex}"
    tracker = status_tracker(context)

    def share() -> float:
        done = total = 0
        for job in tracker.getJobIdsForTag(tag):
            info = context.statusTracker().getJobInfo(job)
            if info is None or info.status != "RUNNING":
                continue
            for stage in (context.statusTracker().getStageInfo(s) for s in info.stageIds):
                done += 0 if stage is None else stage.numCompletedTasks
                total += 0 if stage is None else stage.numTasks
        return done / total if total else 0.0

    context.addJobTag(tag)
    try:
        yield share
    finally:
        context.removeJobTag(tag)
