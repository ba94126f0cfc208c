"""The values of a plan: operations, each of them one durable step, and refusals."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from strandline.apply.declaration import DatasetSpec, Declaration, SinkSpec
from strandline.core.settings.maintain import RetainSettings
from strandline.iceberg.schema.alteration import Alteration


class Permission(StrEnum):
    """What a person has to allow explicitly, because it may lose rows or values."""

    DROP_DATASET = "drop-dataset"
    DROP_COLUMN = "drop-column"
    REMOVE_SINK = "remove-sink"
    CHANGE_DELIVERY = "change-delivery"
    DELETE_ROWS = "delete-rows"
    RECONCILE_ACT = "reconcile-act"


class StepAction(StrEnum):
    CREATE = "create"
    CHANGE = "change"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class CreateDataset:
    spec: DatasetSpec


@dataclass(frozen=True, slots=True)
class AlterDataset:
    name: str
    alterations: tuple[Alteration, ...]


@dataclass(frozen=True, slots=True)
class DropDataset:
    name: str


@dataclass(frozen=True, slots=True)
class AddSink:
    spec: SinkSpec


@dataclass(frozen=True, slots=True)
class UpdateSink:
    name: str
    options: Mapping[str, str]
    unset: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RemoveSink:
    name: str


@dataclass(frozen=True, slots=True)
class ChangeRule:
    dataset: str
    before: RetainSettings | None
    after: RetainSettings | None  # None: forgotten


@dataclass(frozen=True, slots=True)
class ChangeSchedule:
    kind: str
    before: str | None
    after: str | None  # None: forgotten


Operation = CreateDataset | AlterDataset | DropDataset | AddSink | UpdateSink | RemoveSink | ChangeRule | ChangeSchedule


@dataclass(frozen=True, slots=True)
class ApplyStep:
    operation: Operation
    action: StepAction
    what: str  # `dataset`, `sink`, `retain` or `schedule`
    name: str
    details: tuple[str, ...] = ()  # one line each, for people
    needs: Permission | None = None


@dataclass(frozen=True, slots=True)
class StepRefusal:
    what: str
    name: str
    reason: str
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    steps: tuple[ApplyStep, ...] = ()
    refused: tuple[StepRefusal, ...] = ()  # with any of them, nothing is done
    unchanged: int = 0
    not_declared: tuple[str, ...] = ()  # `sink partner`: there, and left alone


@dataclass(frozen=True, slots=True)
class KindOptions:
    """What the plan has to know of a kind of sink."""

    defaults: Mapping[str, str] = field(default_factory=dict)  # stored with a sink when it is added
    harmless: Collection[str] = ()  # options that do not say what is delivered: secrets, sizes of chunks


@dataclass(frozen=True, slots=True)
class LakeFound:
    """What the lake has. `lake` has all sinks, rules and schedules, and the datasets that the plan needs."""

    lake: Declaration
    datasets: Collection[str]  # the names of all
    empty: Collection[str] = ()  # of those that never had a row
    named: Mapping[str, str] = field(default_factory=dict)  # rules and schedules of the settings file, by key
    destinations: Mapping[str, str] = field(default_factory=dict)  # of the sinks that are there
    kinds: Mapping[str, KindOptions] = field(default_factory=dict)
    # Where sinks would deliver to with the declared options, as far as that is known without their secrets.
    wanted_destinations: Mapping[str, str] = field(default_factory=dict)
    settings_act: bool = False  # whether the reconciler acts by the settings, without what is applied


@dataclass(frozen=True, slots=True)
class Wish:
    prune: bool = False  # remove what is there and not declared
    allowed: frozenset[Permission] = frozenset()
