"""Reads what a lake has, in the form of a declaration. Starts no JVM, and asks no destination."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from strandline.apply.declaration import DatasetSpec, Declaration, SinkSpec
from strandline.apply.steps import KindOptions, LakeFound
from strandline.core.delivery_types import SinkRecord
from strandline.core.errors import ConfigError, StrandlineError, UsageError
from strandline.core.settings.lake_config import LakeConfig
from strandline.core.types import Dataset
from strandline.deliver.manage_sinks import check_all_options
from strandline.deliver.sink_kinds import find_kind
from strandline.deliver.sink_options import PACE
from strandline.ledger import applied_settings
from strandline.ledger.applied_settings import Applied, named_in_settings, rule_key, schedule_key
from strandline.ledger.deliver import sinks
from strandline.ledger.engine import Ledger
from strandline.ledger.ingest import blocks, datasets

if TYPE_CHECKING:
    from strandline.deliver.facade import Delivery
    from strandline.iceberg.pyiceberg.catalog import PyIcebergCatalog
    from strandline.iceberg.schema.alteration import Alteration
    from strandline.iceberg.schema.columns import Column


class LakeAccess(Protocol):
    """What `apply` needs of a lake. `lake.Lake` implements it."""

    config: LakeConfig
    ledger: Ledger

    @property
    def catalog(self) -> PyIcebergCatalog: ...

    @property
    def delivery(self) -> Delivery: ...

    def create_dataset(
        self,
        name: str,
        columns: Sequence[Column],
        *,
        deliver_by: Sequence[str] = (),
        partition_by: str | None = None,
        shards: int = 1,
    ) -> Dataset: ...

    def alter_dataset(self, name: str, alterations: Sequence[Alteration]) -> object: ...

    def drop_dataset(self, name: str) -> Dataset: ...


def load_found(lake: LakeAccess, declared: Declaration) -> LakeFound:
    """What a plan for the declaration has to know. Raises ConfigError for sinks that cannot be as declared."""
    known, records, applied = _read_ledger(lake.ledger)
    ruled = {*declared.rules, *applied.rules, *lake.config.settings.maintain.rules()}
    with lake.ledger.read() as connection:
        empty = {
            d.name for d in known if d.name in ruled and not d.adopted and blocks.highest(connection, d.id) is None
        }
    there = {record.name: record for record in records}
    names = {d.name for d in known}
    changed = [(there[s.name], s) for s in declared.sinks.values() if s.name in there and s.kind == there[s.name].kind]
    return LakeFound(
        Declaration(
            _describe(lake, [d for d in known if d.name in declared.datasets]),
            _sink_specs(records, known),
            applied.rules,
            applied.schedules,
        ),
        names,
        empty,
        named_in_settings(lake.config),
        {r.name: r.destination for r in records},
        {kind: _kind_options(kind) for kind in _checked_kinds(declared.sinks.values())},
        _destinations(lake.delivery, changed),
        not lake.config.settings.reconcile.dry_run,
    )


def load_declaration(lake: LakeAccess) -> Declaration:
    """Everything that `apply` could declare. Rules and schedules of the settings file are not among it."""
    known, records, applied = _read_ledger(lake.ledger)
    named = named_in_settings(lake.config)
    return Declaration(
        _describe(lake, known),
        _sink_specs(records, known),
        {n: r for n, r in applied.rules.items() if rule_key(n) not in named},
        {k: c for k, c in applied.schedules.items() if schedule_key(k) not in named},
    )


def _read_ledger(ledger: Ledger) -> tuple[list[Dataset], list[SinkRecord], Applied]:
    with ledger.read() as connection:
        return datasets.list_datasets(connection), sinks.list_sinks(connection), applied_settings.read(connection)


def _describe(lake: LakeAccess, known: Collection[Dataset]) -> dict[str, DatasetSpec]:
    if not known:
        return {}
    from strandline.iceberg.pyiceberg.schema import describe

    found: dict[str, DatasetSpec] = {}
    for dataset in known:
        table = describe(lake.catalog.load(dataset.name))
        if table.table_uuid != dataset.table_uuid:
            raise ConfigError(
                f"the catalog has another table under the name {dataset.name} by now",
                hint=f"`strandline dataset show {dataset.name}` says more.",
            )
        adopted = dataset.history if dataset.adopted else None
        found[dataset.name] = DatasetSpec(
            dataset.name, table.columns, table.partition_by, dataset.deliver_by, adopted, dataset.shards
        )
    return found


def _sink_specs(records: Sequence[SinkRecord], known: Sequence[Dataset]) -> dict[str, SinkSpec]:
    names = {d.id: d.name for d in known}
    return {r.name: SinkSpec(r.name, names[r.dataset], r.kind, dict(r.options), bool(r.from_now)) for r in records}


def _checked_kinds(declared: Collection[SinkSpec]) -> set[str]:
    """The kinds of the declared sinks. Raises ConfigError for options that a kind does not take, and for a secret in
    plain text."""
    for spec in declared:
        try:
            check_all_options(spec.kind, dict(find_kind(spec.kind).defaults) | dict(spec.options))
        except UsageError as e:
            raise ConfigError(f"sink {spec.name}: {e.message}", hint=e.hint) from e
    return {spec.kind for spec in declared}


def _kind_options(name: str) -> KindOptions:
    kind = find_kind(name)
    return KindOptions(dict(kind.defaults), {*PACE, *(o.name for o in kind.options if o.secret or not o.pinned)})


def _destinations(delivery: Delivery, changed: Sequence[tuple[SinkRecord, SinkSpec]]) -> Mapping[str, str]:
    """Where the declared options lead to, of sinks whose options differ. Without those whose secrets cannot be read
    here: `sink update` refuses another destination in any case."""
    found: dict[str, str] = {}
    for record, spec in changed:
        if dict(record.options) != dict(spec.options):
            with suppress(StrandlineError):
                found[spec.name] = delivery.destination(record, spec.options)
    return found
