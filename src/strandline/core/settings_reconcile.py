"""Settings of the reconciler: when it runs by itself, what it may touch, and how much at once."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, Field, field_validator

from strandline.core.settings_section import Cron, Section

log = logging.getLogger(__name__)

GRACE_HOURS_MAX = 8_760


@dataclass(frozen=True, slots=True)
class Bounds:
    """A number that is only too large or too small means the bound; what is not a number is refused as usual."""

    least: float
    most: float

    def __call__(self, value: Any) -> Any:
        return type(value)(min(max(value, self.least), self.most))


def _within(least: float, most: float) -> AfterValidator:
    return AfterValidator(Bounds(least, most))


class ReconcileSettings(Section):
    """How drift between tables and storage is found and repaired. Off, and report-only, until someone says otherwise.
    Numbers outside their bounds are taken for the nearest bound."""

    enabled: bool = False
    """Whether the daemon runs it, by `schedule`."""
    schedule: Cron = "17 4 * * *"
    """When the daemon runs it. As cron writes it, in UTC."""
    dry_run: bool = True
    """Whether a scheduled run only reports. `strandline reconcile --act` acts whatever this says."""
    grace_hours: Annotated[int, _within(1, GRACE_HOURS_MAX)] = 24
    """Nothing younger is touched: longer than any write, commit or rewrite takes. 1 to 8,760; what is not a number
    above 0 is taken for the default, with a warning."""
    clock_skew_seconds: Annotated[int, _within(0, 86_400)] = 300
    """By how much the clocks of storage and of this machine may differ; added to the grace window. 0 to 86,400."""
    deletes_max_per_run: Annotated[int, _within(0, 1_000_000)] = 10_000
    """A run acts on so many files and entries and no more; the next one goes on. 0 to 1,000,000."""
    deletes_max_share: Annotated[float, _within(0, 1)] = Field(default=0.2, allow_inf_nan=False)
    """A run that would act on a larger share of all files acts on none: that is not drift. 0 to 1."""
    share_floor_files: Annotated[int, _within(0, 1_000_000)] = 100
    """Below so many files the share says nothing and is not asked. 0 to 1,000,000."""
    references_max: Annotated[int, _within(1, 100_000_000)] = 2_000_000
    """References that this process holds to compare them. A lake with more is compared on Spark. 1 to 100,000,000."""
    references_shrink_max: Annotated[float, _within(0, 1)] = Field(default=0.5, allow_inf_nan=False)
    """A table that references so much less than in the last run, with its files still there, is left alone: a table
    that was rolled back or replaced looks like that. A share, 0 to 1."""
    batch_size: Annotated[int, _within(1, 1_000)] = 1_000
    """Files or entries that are acted on, and recorded, at once. 1 to 1,000."""
    recheck_concurrency: Annotated[int, _within(1, 64)] = 8
    """Candidates that are looked at side by side before acting; 1 is one after another. 1 to 64."""
    run_seconds_max: Annotated[int, _within(1, 86_400)] = 1_800
    """A run that takes longer ends where it is. 1 to 86,400."""
    prefix_timeout_seconds: Annotated[int, _within(1, 86_400)] = 300
    """How long the listing of one prefix may take; then it is left alone. 1 to 86,400."""
    lease_seconds: Annotated[int, _within(1, 3_600)] = 60
    """A run that did not give a sign of life for so long is taken for dead. It renews at a third. 1 to 3,600."""
    unknown_roots_max: Annotated[int, AfterValidator(lambda n: 1_000 if n < 0 else n), _within(0, 1_000_000)] = 1_000
    """Folders that no table owns and that are looked into. Empty ones do not count; scanning stops at four times as
    many. Where there are more, others have their turn each day. 0 is off, below 0 is the default, at most 1,000,000."""
    delete_foreign: bool = False
    """Whether orphans in folders that no table of this catalog owns are acted on, too. Such a folder may be what is
    left of a table that was dropped, or a table that only another catalog knows: leave it off where others keep tables
    in this warehouse. Files outside every layout are never touched."""
    quarantine_days: Annotated[int, _within(0, 3_650)] = 7
    """How long files stay in quarantine before `purge` deletes them. 0 to 3,650."""
    samples_max: Annotated[int, _within(0, 1_000)] = 10
    """Findings that a run's record shows of each kind. 0 to 1,000."""
    errors_max: Annotated[int, _within(1, 1_000)] = 32
    """Failures that a run's record lists. 1 to 1,000."""
    history_runs: Annotated[int, _within(1, 10_000)] = 100
    """Runs that the ledger remembers; one that still holds files in quarantine is kept. 1 to 10,000."""

    @property
    def grace_seconds(self) -> int:
        return self.grace_hours * 3_600

    @field_validator("grace_hours", mode="before")
    @classmethod
    def _some_grace(cls, value: Any) -> Any:
        """Without a window, files that are being written are orphans: nobody gets that by a slip."""
        try:
            hours = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            hours = math.nan
        if hours > 0:
            return math.ceil(min(hours, GRACE_HOURS_MAX))
        default = cls.model_fields["grace_hours"].default
        log.warning("reconcile.grace_hours is %.40r, which is no number above 0: %d hours are taken", value, default)
        return default
