"""When the daemon runs the reconciler. Pure, but for what it remembers."""

from __future__ import annotations

from datetime import datetime

from cronsim import CronSim

from strandline.drift import Asked
from strandline.reconcile_settings import ReconcileSettings


class Schedule:
    """The settings' cron expression, parsed once. What was due before the daemon started is left to its next time."""

    def __init__(self, settings: ReconcileSettings, started_at: datetime) -> None:
        self._settings = settings
        self._moments = CronSim(settings.schedule, started_at)
        self._next = next(self._moments)
        self.moment: datetime | None = None
        """The one that was due last."""

    def due(self, now: datetime) -> Asked | None:
        """What to run now, if anything. Moments that passed while nobody asked are one run, not many."""
        if not self._settings.enabled or now < self._next:
            return None
        while self._next <= now:
            self.moment, self._next = self._next, next(self._moments)
        return Asked(act=not self._settings.dry_run)
