"""Importing this makes a grace window of one hour one of none: a commit of a moment ago is old enough. The settings
allow no such thing. Other windows are what they say."""

from strandline.core.settings_reconcile import ReconcileSettings
from strandline.reconcile import grace

NO_GRACE_HOURS = 1

_whole = grace.grace_seconds


def grace_seconds(settings: ReconcileSettings) -> int:
    return 0 if settings.grace_hours == NO_GRACE_HOURS else _whole(settings)


grace.grace_seconds = grace_seconds
