"""Which jobs of maintenance have a schedule. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from strandline.core.settings_maintain import MaintainSettings
from strandline.core.types import Dataset
from strandline.ledger.maintain.runs import Kind

ORDER = (Kind.NUMBER, Kind.RETAIN, Kind.COMPACT, Kind.EXPIRE)
"""What is due at once runs in this order: rows have a number before anything is decided about them, those that are to
go are not written anew first, and what all of them leave behind is given back last."""


@dataclass(frozen=True, slots=True)
class Job:
    dataset: Dataset
    kind: Kind
    cron: str


def jobs(settings: MaintainSettings, datasets: Iterable[Dataset], with_rule: Collection[str]) -> list[Job]:
    """Everything that has a schedule. Retention only where there is a rule: a dataset without one keeps its rows. Rows
    without a number can only come into an adopted table."""
    crons = {
        Kind.NUMBER: settings.number_schedule,
        Kind.RETAIN: settings.retain_schedule,
        Kind.COMPACT: settings.compact_schedule,
        Kind.EXPIRE: settings.expire_schedule,
    }
    return [
        Job(d, kind, cron)
        for d in datasets
        for kind in ORDER
        if (cron := crons[kind]) is not None
        and (kind is not Kind.RETAIN or d.name in with_rule)
        and (kind is not Kind.NUMBER or d.adopted)
    ]
