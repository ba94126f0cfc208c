"""Watches Spark jobs: cancels them when their owner must stop, and reports their progress."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from strandline.core.calling_off import check_for_other_threads, enter_once
from strandline.core.polling import polled
from strandline.iceberg.session.spark_internals import status_tracker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL_SECONDS = 0.5
_INTERRUPTS = "spark.job.interruptOnCancel"


def cancel_when_called_off(spark: SparkSession) -> None:
    """From now to the end of this thread's work, cancels the thread's Spark jobs when the work is called off. All code
    that uses Spark calls this. Does nothing if the work cannot be called off."""
    enter_once(spark.sparkContext, lambda: _cancelling(spark, check_for_other_threads()))


@contextmanager
def watched(spark: SparkSession, check: Callable[[], None]) -> Iterator[None]:
    """While jobs of this thread run, calls `check` now and then. When `check` raises, cancels the jobs, and raises that
    error instead of Spark's. May be nested."""
    with _cancelling(spark, check) as errors:
        try:
            yield
        except Exception as e:
            if not errors:  # an outer watch may have cancelled the jobs first
                _record_error(check, errors)
            if errors:
                raise errors[0] from e
            raise


@contextmanager
def _cancelling(spark: SparkSession, check: Callable[[], None]) -> Iterator[list[Exception]]:
    """Yields the errors that `check` has raised. Uses tags of the context: tags of a session exist only in the thread
    that set them."""
    context = spark.sparkContext
    tag = f"strandline-{uuid.uuid4().hex}"
    errors: list[Exception] = []

    def poll() -> None:
        if _record_error(check, errors):
            # Cancels all jobs with the tag, also one that was about to begin.
            context.cancelJobsWithTag(tag)

    interrupted_before = context.getLocalProperty(_INTERRUPTS)
    context.addJobTag(tag)
    context.setInterruptOnCancel(True)  # also interrupts tasks, which would otherwise run to their end
    try:
        with polled(poll, seconds=_POLL_SECONDS, name="job-watch"):
            yield errors
    finally:
        context.setInterruptOnCancel(interrupted_before == "true")
        context.removeJobTag(tag)


def _record_error(check: Callable[[], None], errors: list[Exception]) -> bool:
    """Calls `check`, and appends the error that it raises. Returns whether it raised one."""
    try:
        check()
    except Exception as e:
        errors.append(e)
        return True
    return False


@contextmanager
def counted_tasks(spark: SparkSession) -> Iterator[Callable[[], float]]:
    """Yields a function that returns the progress of this thread's running jobs: the share of their tasks that is done,
    from 0 to 1."""
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
