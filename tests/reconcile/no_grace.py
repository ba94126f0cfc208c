"""Importing this makes a grace window of one hour one of none: a commit of a moment ago is old enough. The settings
allow no such thing. Other windows are what they say."""

from strandline.core.settings.reconcile import ReconcileSettings

NO_GRACE_HOURS = 1

ReconcileSettings.grace_seconds = property(  # type: ignore[assignment]
    lambda self: 0 if self.grace_hours == NO_GRACE_HOURS else self.grace_hours * 3_600
)
