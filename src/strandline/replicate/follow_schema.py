"""Gives a follower's table the leader's columns, before rows that need them are staged."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from strandline.core import failpoints
from strandline.core.audit_events import Event
from strandline.core.errors import CommitUnknown, FailedError, SchemaError
from strandline.core.types import Dataset
from strandline.iceberg.metadata.table_metadata import TableView
from strandline.iceberg.schema.alteration import Alteration, DropColumn
from strandline.ledger import audit
from strandline.replicate.context import FollowContext
from strandline.replicate.schema_plan import FIELDS_PROPERTY, match_fields, plan_alterations

_STEPS_MAX = 16  # four lead to any schema; others may change the table meanwhile


def follow_schema(context: FollowContext, dataset: Dataset, fields: Sequence[Mapping[str, Any]], term: int) -> None:
    """`fields` are the columns of the leader of this term, now. What is known of them is stored before any row uses
    it. Raises SchemaError if the table cannot have them."""
    with context.altering:
        for left in reversed(range(_STEPS_MAX)):
            view = context.work.tables.view(dataset.name)
            known = known_fields(view, term)
            steps = plan_alterations(fields, view.schema["fields"], known)
            if not steps:
                remember_fields(context, dataset.name, view, fields, term)
                return
            if not known and view.main is not None:
                _check_drops_nothing(dataset, steps)
            try:
                context.catalog().alter(dataset.name, steps[0])
            except (SchemaError, CommitUnknown):
                if not left:
                    raise
                continue  # another process follows the same change
            failpoints.hit("follow.after_alter")
            changes = [str(change) for change in steps[0]]
            context.ledger.change(audit.record, Event.DATASET_ALTERED, dataset=dataset.name, changes=changes)
    raise FailedError(f"the columns of {dataset.name} change all the time", hint="The follower tries again.")


def _check_drops_nothing(dataset: Dataset, steps: Sequence[Sequence[Alteration]]) -> None:
    """A leader that took over may have renamed a column before this site followed it. By its name alone, the column
    would be dropped with its values and added again without them."""
    dropped = [str(change) for step in steps for change in step if isinstance(change, DropColumn)]
    if dropped:
        raise SchemaError(
            f"{dataset.name}: columns here and at the new leader have other names, and nobody knows which is which "
            f"({', '.join(dropped)})",
            hint="If the leader renamed them, rename them here, too, with Spark: ALTER TABLE … RENAME COLUMN. If it "
            "dropped them, drop them here.",
        )


def known_fields(view: TableView, term: int) -> dict[int, int]:
    """By the id of the leader's field, the id of ours. What is known of the table of another leader says nothing: a
    field has another id there."""
    try:
        stored = json.loads(view.properties.get(FIELDS_PROPERTY, "{}"))
        if stored.get("term") != term:
            return {}
        return {int(theirs): int(ours) for theirs, ours in stored["fields"].items()}
    except (ValueError, AttributeError, TypeError, KeyError):
        return {}


def remember_fields(
    context: FollowContext, name: str, view: TableView, fields: Sequence[Mapping[str, Any]], term: int
) -> None:
    """The table has the leader's columns by name: stores which is which, so that a later rename is known as one."""
    found = match_fields(fields, view.schema["fields"])
    if found != known_fields(view, term):
        stored = {"term": term, "fields": {str(theirs): ours for theirs, ours in sorted(found.items())}}
        context.work.tables.set_properties(name, {FIELDS_PROPERTY: json.dumps(stored)})
