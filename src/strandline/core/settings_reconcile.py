"""Settings of the reconciler: when it runs by itself, what it may touch, and how much at once."""

from __future__ import annotations

import logging
import math
from typing import Any

from pydantic import Field, ValidationInfo, field_validator

from strandline.core.schedule import Cron
from strandline.core.settings_section import Section

log = logging.getLogger(__name__)


class ReconcileSettings(Section):
    """How drift between tables and storage is found and repaired. Off, and report-only, until someone says otherwise.
    Numbers outside their bounds are taken for the nearest bound."""

    enabled: bool = Field(default=False, description="Whether the daemon runs it, by `schedule`.")
    schedule: Cron = Field(default="17 4 * * *", description="When the daemon runs it. As cron writes it, in UTC.")
    dry_run: bool = Field(
        default=True,
        description="Whether a scheduled run only reports. `strandline reconcile --act` acts whatever this says.",
    )
    grace_hours: int = Field(
        default=24,
        description="Nothing younger is touched: longer than any write, commit or rewrite takes. 1 to 8,760; what is "
        "not a number above 0 is taken for the default, with a warning.",
    )
    clock_skew_seconds: int = Field(
        default=300,
        description="By how much the clocks of storage and of this machine may differ; added to the grace window. "
        "0 to 86,400.",
    )
    deletes_max_per_run: int = Field(
        default=10_000,
        description="A run acts on so many files and entries and no more; the next one goes on. 0 to 1,000,000.",
    )
    deletes_max_share: float = Field(
        default=0.2,
        allow_inf_nan=False,
        description="A run that would act on a larger share of all files acts on none: that is not drift. 0 to 1.",
    )
    share_floor_files: int = Field(
        default=100, description="Below so many files the share says nothing and is not asked. 0 to 1,000,000."
    )
    references_max: int = Field(
        default=2_000_000,
        description="References that this process holds to compare them. A lake with more is compared on Spark. "
        "1 to 100,000,000.",
    )
    references_shrink_max: float = Field(
        default=0.5,
        allow_inf_nan=False,
        description="A table that references so much less than in the last run, with its files still there, is left "
        "alone: a table that was rolled back or replaced looks like that. A share, 0 to 1.",
    )
    batch_size: int = Field(
        default=1_000, description="Files or entries that are acted on, and recorded, at once. 1 to 1,000."
    )
    recheck_concurrency: int = Field(
        default=8,
        description="Candidates that are looked at side by side before acting; 1 is one after another. 1 to 64.",
    )
    run_seconds_max: int = Field(default=1_800, description="A run that takes longer ends where it is. 1 to 86,400.")
    prefix_timeout_seconds: int = Field(
        default=300, description="How long the listing of one prefix may take; then it is left alone. 1 to 86,400."
    )
    lease_seconds: int = Field(
        default=60,
        description="A run that did not give a sign of life for so long is taken for dead. It renews at a third. "
        "1 to 3,600.",
    )
    unknown_roots_max: int = Field(
        default=1_000,
        description="Folders that no table owns and that are looked into. Empty ones do not count; scanning stops at "
        "four times as many. Where there are more, others have their turn each day. 0 is off, below 0 is the default, "
        "at most 1,000,000.",
    )
    delete_foreign: bool = Field(
        default=False,
        description="Whether orphans in folders that no table of this catalog owns are acted on, too. Such a folder "
        "may be what is left of a table that was dropped, or a table that only another catalog knows: leave it off "
        "where others keep tables in this warehouse. Files outside every layout are never touched.",
    )
    quarantine_days: int = Field(
        default=7, description="How long files that were set aside are kept before `purge` deletes them. 0 to 3,650."
    )
    samples_max: int = Field(default=10, description="Findings that a run's record shows of each kind. 0 to 1,000.")
    errors_max: int = Field(default=32, description="Failures that a run's record lists. 1 to 1,000.")
    history_runs: int = Field(
        default=100,
        description="Runs that the ledger remembers; one that still holds files in quarantine is kept. 1 to 10,000.",
    )

    @field_validator("grace_hours", mode="before")
    @classmethod
    def _some_grace(cls, value: Any) -> Any:
        """Without a window, files that are being written are orphans: nobody gets that by a slip."""
        try:
            hours = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            hours = math.nan
        if hours > 0:
            return BOUNDS["grace_hours"][1] if math.isinf(hours) else math.ceil(hours)
        default = cls.model_fields["grace_hours"].default
        log.warning("reconcile.grace_hours is %.40r, which is no number above 0: %d hours are taken", value, default)
        return default

    @field_validator("*")
    @classmethod
    def _within_bounds(cls, value: Any, info: ValidationInfo) -> Any:
        """A number that is only too large or too small means the bound; what is not a number is refused as usual."""
        name = info.field_name or ""
        if name not in BOUNDS:
            return value
        if name == "unknown_roots_max" and value < 0:
            return cls.model_fields[name].default
        least, most = BOUNDS[name]
        return type(value)(min(max(value, least), most))


BOUNDS: dict[str, tuple[float, float]] = {
    "grace_hours": (1, 8_760),
    "clock_skew_seconds": (0, 86_400),
    "deletes_max_per_run": (0, 1_000_000),
    "deletes_max_share": (0, 1),
    "share_floor_files": (0, 1_000_000),
    "references_max": (1, 100_000_000),
    "references_shrink_max": (0, 1),
    "batch_size": (1, 1_000),
    "recheck_concurrency": (1, 64),
    "run_seconds_max": (1, 86_400),
    "prefix_timeout_seconds": (1, 86_400),
    "lease_seconds": (1, 3_600),
    "unknown_roots_max": (0, 1_000_000),
    "quarantine_days": (0, 3_650),
    "samples_max": (0, 1_000),
    "errors_max": (1, 1_000),
    "history_runs": (1, 10_000),
}
