"""How a task ends."""

from __future__ import annotations

from enum import StrEnum


class TaskOutcome(StrEnum):
    DONE = "done"
    REFUSED = "refused"  # a guard refused it, or the request was wrong
    FAILED = "failed"
    CANCELLED = "cancelled"  # somebody called it off, and it stopped
    DIED = "died"  # its process has stopped renewing its lease
