"""Lists the jobs of maintenance that have a schedule. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from strandline.core.records.maintenance_records import MaintenanceKind
from strandline.core.settings.maintain import MaintainSettings
from strandline.core.types import Dataset


@dataclass(frozen=True, slots=True)
class Job:
    dataset: Dataset
    kind: MaintenanceKind
    cron: str


def crons(settings: MaintainSettings) -> dict[MaintenanceKind, str]:
    """The schedules, in the order of jobs that are due at the same time: rows are numbered before anything is decided
    about them, deleted before files are rewritten, and expiry comes last."""
    by_kind = settings.schedules()
    order = (MaintenanceKind.NUMBER, MaintenanceKind.RETAIN, MaintenanceKind.COMPACT, MaintenanceKind.EXPIRE)
    return {kind: cron for kind in order if (cron := by_kind[kind.value]) is not None}


def jobs(settings: MaintainSettings, datasets: Iterable[Dataset], with_rule: Collection[str]) -> list[Job]:
    """All jobs with a schedule. Retention needs a rule: a dataset without one keeps its rows. Only an adopted table can
    get rows without a sequence number."""
    return [
        Job(d, kind, cron)
        for d in datasets
        for kind, cron in crons(settings).items()
        if (kind is not MaintenanceKind.RETAIN or d.name in with_rule)
        and (kind is not MaintenanceKind.NUMBER or d.adopted)
    ]
