"""How long a file is left alone after it was written."""

from __future__ import annotations

from strandline.core.settings_reconcile import ReconcileSettings


def grace_seconds(settings: ReconcileSettings) -> int:
    return settings.grace_hours * 3_600
