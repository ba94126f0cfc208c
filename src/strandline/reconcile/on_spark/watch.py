"""Ends what Spark does for a run when the run is to end: a job does not ask by itself."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from strandline.reconcile.model import Watch

_LOOKS_SECONDS = 0.5


@contextmanager
def watched(spark: SparkSession, watch: Watch) -> Iterator[None]:
    """What is raised is what the watch says, not that a job was called off. By tags of the context: those of a session
    are known only to the thread that set them."""
    context = spark.sparkContext
    tag = f"strandline-{uuid.uuid4().hex}"
    done = threading.Event()
    ending: list[Exception] = []

    def look() -> None:
        while not done.wait(_LOOKS_SECONDS):
            try:
                watch.check()
            except Exception as e:
                ending.append(e)
                # Every job, also the one that was about to begin.
                context.cancelJobsWithTag(tag)

    looking = threading.Thread(target=look, name="reconcile-watch", daemon=True)
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
