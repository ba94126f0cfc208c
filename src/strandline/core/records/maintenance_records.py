"""What runs of maintenance are recorded as: their kinds and how they end."""

from __future__ import annotations

from enum import StrEnum


class MaintenanceKind(StrEnum):
    COMPACT = "compact"
    RETAIN = "retain"
    EXPIRE = "expire"
    PURGE = "purge"
    NUMBER = "number"  # gives sequence numbers to rows that others appended to an adopted table


class MaintenanceOutcome(StrEnum):
    DONE = "done"
    SKIPPED = "skipped"
    REFUSED = "refused"
    FAILED = "failed"
    DIED = "died"
