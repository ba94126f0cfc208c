"""The read model of maintenance: the last runs, and what retention holds back.

It reads only the ledger. What is unknown is None, never 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from strandline.core.settings.lake_config import LakeConfig
from strandline.core.types import Dataset
from strandline.ledger import applied_settings
from strandline.ledger.engine import Connection, utc_now
from strandline.ledger.ingest import datasets
from strandline.ledger.maintain import floors, retention_holds, runs
from strandline.ledger.maintain.retention_holds import Hold
from strandline.ledger.maintain.runs import MaintenanceRun
from strandline.ledger.replicate import leader_sinks


@dataclass(frozen=True, slots=True)
class DatasetMaintenance:
    dataset: str
    floor: int | None  # retention may have deleted rows at or below it; None: it never deleted any
    held_by: tuple[Hold, ...]  # sinks, also those of the leader, that lack rows which are due, so that those rows stay
    last: tuple[MaintenanceRun, ...]  # the newest run of each kind, without dry runs


@dataclass(frozen=True, slots=True)
class MaintenanceStatus:
    schedules: dict[str, str | None]
    rules_without_dataset: tuple[str, ...]  # rules of retention whose dataset does not exist
    overridden: tuple[str, ...]  # rules and schedules that were applied and that the settings file has, too
    datasets: tuple[DatasetMaintenance, ...]


def read_maintenance(
    config: LakeConfig, connection: Connection, given: Sequence[Dataset] | None = None
) -> MaintenanceStatus:
    """In a fixed number of queries. `given` are all datasets, if the caller has read them."""
    known = datasets.list_datasets(connection) if given is None else given
    floor_of, held_by = floors.by_dataset(connection), retention_holds.by_dataset(connection)
    ids = {d.uuid: d.id for d in known}
    for one in leader_sinks.list_all(connection):
        if one.dataset in ids and one.held_since is not None and one.held_upto is not None:
            hold = Hold(None, one.title, one.held_rows, one.held_since, one.held_upto)
            held_by.setdefault(ids[one.dataset], []).append(hold)
    last = runs.last_of_each_kind(connection)
    effective = applied_settings.effective(connection, config)
    settings = effective.maintain
    unknown = sorted(set(settings.rules()) - {d.name for d in known})
    now, lease_seconds = utc_now(), config.settings.ingest.lease_seconds
    shown = {id: tuple(run.as_of(now, lease_seconds=lease_seconds) for run in some) for id, some in last.items()}
    found = tuple(
        DatasetMaintenance(d.name, floor_of.get(d.id), tuple(held_by.get(d.id, ())), shown.get(d.id, ())) for d in known
    )
    return MaintenanceStatus(settings.schedules(), tuple(unknown), effective.overridden, found)
