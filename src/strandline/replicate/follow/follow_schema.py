"""Gives a follower's table the leader's columns, before rows that need them are staged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from strandline.core import failpoints
from strandline.core.errors import CommitUnknown, FailedError, SchemaError
from strandline.core.records.audit_events import Event
from strandline.core.types import Dataset
from strandline.iceberg.metadata.table_metadata import TableView
from strandline.iceberg.schema.alteration import Alteration, DropColumn
from strandline.ledger import audit
from strandline.ledger.replicate import promotions
from strandline.replicate.follow.context import FollowContext
from strandline.replicate.follow.schema_plan import (
    FIELDS_PROPERTY,
    KnownFields,
    dropped_by_both,
    field_ids,
    match_across_leaders,
    match_fields,
    plan_alterations,
    reused_names,
)

_STEPS_MAX = 16  # four lead to any schema; others may change the table meanwhile


def follow_schema(
    context: FollowContext,
    dataset: Dataset,
    fields: Sequence[Mapping[str, Any]],
    term: int,
    former: KnownFields | None = None,
) -> int:
    """Gives the table the leader's columns, and returns the id of that schema. `fields`: the columns of the leader of
    this term; `former`: the field ids that it stored when it followed a leader itself. Stores which column is which
    before rows use it. Raises SchemaError if the table cannot have the columns."""
    with context.altering:
        for left in reversed(range(_STEPS_MAX)):
            view = context.work.tables.view(dataset.name)
            known, others = known_fields(view, term), frozenset[int]()
            own_fields = None if known else _own_fields(context, dataset, view, former)
            if former is not None and own_fields is not None:
                _check_dropped_nothing(dataset, fields, former, own_fields)
                known, others = match_across_leaders(former.fields, own_fields), frozenset(own_fields.values())
            steps = plan_alterations(fields, view.schema["fields"], known, others)
            if not known and view.main is not None:
                _check_meaning(dataset, fields, view)
            if not steps:
                store_fields(context, dataset.name, view, fields, term)
                return view.schema_id
            if not known and view.main is not None:
                _check_drops_nothing(dataset, steps)
            try:
                context.parts.catalog.alter(dataset.name, steps[0])
            except (SchemaError, CommitUnknown):
                if not left:
                    raise
                continue  # another process makes the same change
            failpoints.hit("follow.after_alter")
            changes = [str(change) for change in steps[0]]
            context.ledger.change(audit.record, Event.DATASET_ALTERED, dataset=dataset.name, changes=changes)
    raise FailedError(f"the columns of {dataset.name} keep changing", hint="The follower tries again.")


def _own_fields(
    context: FollowContext, dataset: Dataset, view: TableView, former: KnownFields | None
) -> Mapping[int, int] | None:
    """Our fields by the ids of the leader that the current one followed before. None if this site neither followed that
    leader nor was that leader."""
    if former is None:
        return None
    stored = KnownFields.parse(view.properties.get(FIELDS_PROPERTY))
    if stored is not None and stored.term == former.term:
        return stored.fields
    if context.ledger.query(promotions.led_in, dataset.id, former.term):
        return {id: id for id in field_ids(view.schema["fields"])}
    return None


def _check_dropped_nothing(
    dataset: Dataset, fields: Sequence[Mapping[str, Any]], former: KnownFields, own: Mapping[int, int]
) -> None:
    """Raises SchemaError if the former leader and this site dropped a column that the current leader still has: it took
    over before it had followed that."""
    if found := dropped_by_both(fields, former.fields, own):
        raise SchemaError(
            f"{dataset.name}: the leader has {', '.join(found[:5])}, and this site dropped it when the former leader "
            "did: its values are gone here",
            hint="Drop it at the leader, too (`strandline dataset alter`), or create this site again, in another "
            "folder and another warehouse: `strandline follow init LEADER`.",
        )


def _check_meaning(dataset: Dataset, fields: Sequence[Mapping[str, Any]], view: TableView) -> None:
    """Raises SchemaError if a name of the leader belonged to another column here before. A leader that took over may
    not have followed all changes that this site has followed: a dropped column would come back without its values, and
    two columns that swapped names would swap values."""
    former = [schema["fields"] for schema in view.former_schemas]
    if found := reused_names(fields, view.schema["fields"], former):
        raise SchemaError(
            f"{dataset.name}: another column was called {', '.join(found[:5])} here before it was renamed or dropped, "
            "and it is unclear which one the new leader means",
            hint="Create this site again, in another folder and another warehouse: `strandline follow init LEADER`.",
        )


def _check_drops_nothing(dataset: Dataset, steps: Sequence[Sequence[Alteration]]) -> None:
    """Raises SchemaError for a drop. A leader that took over may have renamed a column before this site followed it:
    matched by name, the column would be dropped with its values and added again without them."""
    dropped = [str(change) for step in steps for change in step if isinstance(change, DropColumn)]
    if dropped:
        raise SchemaError(
            f"{dataset.name}: columns here and at the new leader have different names, and it is unclear which is "
            f"which ({', '.join(dropped)})",
            hint="If the leader renamed them, rename them here, too, with Spark: ALTER TABLE … RENAME COLUMN. If it "
            "dropped them, drop them here.",
        )


def known_fields(view: TableView, term: int) -> dict[int, int]:
    """The ids of our fields by the ids of the leader's. Empty if the stored ones are of another leader: fields have
    other ids there."""
    stored = KnownFields.parse(view.properties.get(FIELDS_PROPERTY))
    return {} if stored is None or stored.term != term else dict(stored.fields)


def store_fields(
    context: FollowContext, name: str, view: TableView, fields: Sequence[Mapping[str, Any]], term: int
) -> None:
    """Stores which column is which, matched by name, so that a later rename is recognized."""
    found = match_fields(fields, view.schema["fields"])
    if found != known_fields(view, term):
        context.work.tables.set_properties(name, {FIELDS_PROPERTY: KnownFields(term, found).to_json()})
