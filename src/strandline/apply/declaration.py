"""The values of a declaration: datasets, sinks, retention rules and schedules. What a lake has takes the same form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from strandline.core.settings.maintain import RetainSettings
from strandline.core.types import History
from strandline.iceberg.schema.columns import Column


@dataclass(frozen=True, slots=True)
class DatasetSpec:
    name: str  # with its namespace
    columns: tuple[Column, ...]  # the user's, without Strandline's own
    partition_by: tuple[str, ...] = ()  # `day(at)`, `bucket(16, id)`, `who`, in one spelling
    deliver_by: tuple[str, ...] = ()
    adopted: History | None = None  # of a table that was there before: what becomes of the rows that it had
    shards: int = 1


@dataclass(frozen=True, slots=True)
class SinkSpec:
    name: str
    dataset: str  # with its namespace
    kind: str
    options: Mapping[str, str] = field(default_factory=dict)  # as given: `env:NAME` is not resolved
    from_now: bool = False  # where it begins when it is added; says nothing about a sink that is there


@dataclass(frozen=True, slots=True)
class Declaration:
    """Everything by name. A schedule is a cron text; `reconcile_act` is `true` or `false`."""

    datasets: Mapping[str, DatasetSpec] = field(default_factory=dict)
    sinks: Mapping[str, SinkSpec] = field(default_factory=dict)
    rules: Mapping[str, RetainSettings] = field(default_factory=dict)  # by the dataset's full name
    schedules: Mapping[str, str] = field(default_factory=dict)
