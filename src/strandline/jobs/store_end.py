"""Stores how work ended, also while the ledger does not answer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from strandline.core.errors import StrandlineError
from strandline.core.retry import RetryPolicy

log = logging.getLogger(__name__)

T = TypeVar("T")

_LEDGER_AWAY = RetryPolicy(0.1, 5.0, seconds_max=600.0)
NOBODY_WAITS = threading.Event()  # as `stopping`: one attempt only
NOBODY_WAITS.set()


def store_end(store: Callable[[], T], what: str, stopping: threading.Event) -> T:
    """Retries for a bounded time, or until `stopping` is set; then raises why the end cannot be stored. An attempt
    whose answer was lost may have stored it: `store` must change nothing the second time."""
    for attempt in _LEDGER_AWAY.attempts(stopping.wait):
        try:
            return store()
        except StrandlineError as e:
            if attempt.is_last or stopping.is_set():
                log.error("the end of %s cannot be stored, it will be shown as died: %s", what, e.message)
                raise
            if attempt.number == 1:
                log.warning("the end of %s is stored when the ledger answers: %s", what, e.message)
    raise AssertionError("unreachable")
