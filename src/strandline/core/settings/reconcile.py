"""Settings of the reconciler: when it runs by itself, what it may touch, and how much at once."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, Field, field_validator

from strandline.core.settings.section import Cron, Section

log = logging.getLogger(__name__)

GRACE_HOURS_MAX = 8_760


@dataclass(frozen=True, slots=True)
class AllowedNumbers:
    """A number outside the bounds counts as the nearest bound; anything but a number is refused as usual."""

    least: float
    most: float

    def __call__(self, value: Any) -> Any:
        return type(value)(min(max(value, self.least), self.most))


def _within(least: float, most: float) -> AfterValidator:
    return AfterValidator(AllowedNumbers(least, most))


class ReconcileSettings(Section):
    """How the reconciler finds and repairs drift between tables and storage. By default it does not run, and only
    reports. A number outside its bounds counts as the nearest bound."""

    enabled: bool = False
    """Whether `strandline run` runs the reconciler by `schedule`."""
    schedule: Cron = "17 4 * * *"
    """When `strandline run` runs the reconciler: a cron expression in UTC."""
    dry_run: bool = True
    """Whether a scheduled run only reports. `strandline reconcile --act` acts regardless of this setting."""
    grace_hours: Annotated[int, _within(1, GRACE_HOURS_MAX)] = 24
    """The reconciler touches nothing younger than this. Choose more than any write, commit or rewrite takes. 1 to
    8,760. A value that is not a number above 0 counts as the default, with a warning."""
    clock_skew_seconds: Annotated[int, _within(0, 86_400)] = 300
    """By how much the clocks of storage and of this machine may differ. It is added to the grace period. 0 to
    86,400."""
    deletes_max_per_run: Annotated[int, _within(0, 1_000_000)] = 10_000
    """A run acts on at most this many files and entries. The next run does the rest. 0 to 1,000,000."""
    deletes_max_share: Annotated[float, _within(0, 1)] = Field(default=0.2, allow_inf_nan=False)
    """A run that would act on a larger share of all files acts on none, because something else must be wrong. 0 to
    1."""
    share_floor_files: Annotated[int, _within(0, 1_000_000)] = 100
    """`deletes_max_share` is ignored below this many files. 0 to 1,000,000."""
    references_max: Annotated[int, _within(1, 100_000_000)] = 2_000_000
    """How many references one process holds in memory to compare them. A lake with more is compared on Spark. 1 to
    100,000,000."""
    references_shrink_max: Annotated[float, _within(0, 1)] = Field(default=0.5, allow_inf_nan=False)
    """If a table references fewer files than in the last run by this share, and the files still exist, the reconciler
    leaves the table alone: it was probably rolled back or replaced. 0 to 1."""
    batch_size: Annotated[int, _within(1, 1_000)] = 1_000
    """How many files or entries are recorded, and then acted on, as one batch. 1 to 1,000."""
    recheck_concurrency: Annotated[int, _within(1, 64)] = 8
    """How many candidates are checked again at the same time before the run acts. 1 to 64."""
    run_seconds_max: Annotated[int, _within(1, 86_400)] = 1_800
    """A run that takes longer stops. 1 to 86,400."""
    prefix_timeout_seconds: Annotated[int, _within(1, 86_400)] = 300
    """How long the listing of one prefix may take. If it takes longer, the run leaves the prefix alone. 1 to 86,400."""
    lease_seconds: Annotated[int, _within(1, 3_600)] = 60
    """A run that has not renewed its lease for this long counts as dead. It renews after a third of this time. 1 to
    3,600."""
    unknown_roots_max: Annotated[int, AfterValidator(lambda n: 1_000 if n < 0 else n), _within(0, 1_000_000)] = 1_000
    """How many folders that no table owns a run searches for orphans. Empty folders do not count; a run stops at four
    times as many folders in all. If there are more, each day's run searches other ones. 0 is off, below 0 is the
    default, at most 1,000,000."""
    delete_foreign: bool = False
    """Whether the reconciler also acts on orphans in folders that no table of this catalog owns. Such a folder may
    belong to a table that was dropped, or to a table of another catalog: leave it off if others have tables in this
    warehouse. The reconciler never touches files outside of any table layout."""
    quarantine_days: Annotated[int, _within(0, 3_650)] = 7
    """How long files stay in quarantine before `purge` deletes them. 0 to 3,650."""
    samples_max: Annotated[int, _within(0, 1_000)] = 10
    """How many findings of each kind the record of a run shows. 0 to 1,000."""
    errors_max: Annotated[int, _within(1, 1_000)] = 32
    """How many failures the record of a run lists. 1 to 1,000."""
    history_runs: Annotated[int, _within(1, 10_000)] = 100
    """How many runs the ledger keeps. A run that still has files in quarantine is always kept. 1 to 10,000."""

    @property
    def grace_seconds(self) -> int:
        return self.grace_hours * 3_600

    @field_validator("grace_hours", mode="before")
    @classmethod
    def _some_grace(cls, value: Any) -> Any:
        """Without a grace period, files that are being written look like orphans: nobody must get that by a typo."""
        try:
            hours = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            hours = math.nan
        if hours > 0:
            return math.ceil(min(hours, GRACE_HOURS_MAX))
        default = cls.model_fields["grace_hours"].default
        log.warning("reconcile.grace_hours is %.40r, not a number above 0: using the default, %d hours", value, default)
        return default
