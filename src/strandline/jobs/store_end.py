"""Stores how work ended, also where the ledger is away at that moment."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from time import monotonic
from typing import TypeVar

from strandline.core.errors import StrandlineError
from strandline.jobs.backoff import backoff_seconds

log = logging.getLogger(__name__)

T = TypeVar("T")

_SECONDS_MAX = 600.0
_RETRY_SECONDS_MAX = 5.0
NOBODY_WAITS = threading.Event()  # as `stopping`: one try only
NOBODY_WAITS.set()


def store_end(store: Callable[[], T], what: str, stopping: threading.Event) -> T:
    """Tries again for a bounded time, or until `stopping` is set; then raises why it cannot be stored. A try whose
    answer was lost may have stored it: `store` must change nothing the second time."""
    deadline, failures = monotonic() + _SECONDS_MAX, 0
    while True:
        try:
            return store()
        except StrandlineError as e:
            failures += 1
            if monotonic() > deadline or stopping.is_set():
                log.error("the end of %s cannot be stored, it will be shown as died: %s", what, e.message)
                raise
            if failures == 1:
                log.warning("the end of %s is stored when the ledger answers: %s", what, e.message)
            stopping.wait(backoff_seconds(failures - 1, random.random(), first=0.1, longest=_RETRY_SECONDS_MAX))
