"""Calls off what Spark does for somebody who has to stop: a job does not ask by itself."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOKS_SECONDS = 0.5


@contextmanager
def watched(spark: SparkSession, check: Callable[[], None]) -> Iterator[None]:
    """While jobs of this thread run, `check` is called now and then. When it raises, the jobs are cancelled, and its
    error is raised here in place of Spark's. By tags of the context: those of a session are known only to the thread
    that set them."""
    context = spark.sparkContext
    tag = f"strandline-{uuid.uuid4().hex}"
    done = threading.Event()
    ending: list[Exception] = []

    def look() -> None:
        while not done.wait(_LOOKS_SECONDS):
            try:
                check()
            except Exception as e:
                ending.append(e)
                # Every job, also the one that was about to begin.
                context.cancelJobsWithTag(tag)

    looking = threading.Thread(target=look, name="job-watch", daemon=True)
    context.addJobTag(tag)
    context.setInterruptOnCancel(True)  # tasks, too, which else would go on until they are done
    looking.start()
    try:
        yield
    except Exception as e:
        if ending:
            raise ending[0] from e
        raise
    finally:
        done.set()
        looking.join()
        context.setInterruptOnCancel(False)
        context.removeJobTag(tag)
