"""The properties that a table needs to become a dataset, and the checks before it becomes one. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from strandline.core.errors import SchemaError, Superseded, TableUnfit, WrongLake
from strandline.core.types import INTERNAL_COLUMNS, RESERVED_PREFIX, is_reserved
from strandline.iceberg.metadata.table_metadata import (
    DELIVER_BY_PROPERTY,
    EPOCH_PROPERTY,
    FORMAT_PROPERTY,
    LAKE_PROPERTY,
    MAX_REF_AGE_PROPERTY,
    METRICS_PROPERTY,
)


def own_properties(lake_id: str, epoch: int, deliver_by: Sequence[str]) -> dict[str, str]:
    """The properties by which a table belongs to this lake."""
    return {LAKE_PROPERTY: lake_id, EPOCH_PROPERTY: str(epoch), DELIVER_BY_PROPERTY: json.dumps(list(deliver_by))}


def adopting_properties(
    current: Mapping[str, str], lake_id: str, epoch: int, deliver_by: Sequence[str]
) -> dict[str, str]:
    """The properties to set on a table that is adopted. `current` are those that it has."""
    wanted = own_properties(lake_id, epoch, deliver_by) | {METRICS_PROPERTY: "full"}
    if current.get(FORMAT_PROPERTY, "").lower() == "avro":
        wanted[FORMAT_PROPERTY] = "parquet"
    return wanted


def check_adoptable(
    name: str,
    properties: Mapping[str, str],
    columns: Sequence[str],
    lake_id: str,
    epoch: int,
    deliver_by: Sequence[str],
) -> None:
    """Raises WrongLake, Superseded, TableUnfit or SchemaError if the table cannot become a dataset of this lake."""
    owner = properties.get(LAKE_PROPERTY)
    if owner is not None and owner != lake_id:
        raise WrongLake(
            f"{name} is a dataset of another lake ({owner})",
            hint="Rows cannot have sequence numbers of two lakes. Copy the table, or open that lake.",
        )
    if int(properties.get(EPOCH_PROPERTY, "0")) > epoch:
        raise Superseded(
            f"{name} was taken over by a newer ledger of this lake", hint="Find out which ledger is the one in use."
        )
    if MAX_REF_AGE_PROPERTY in properties:
        raise TableUnfit(
            f"{name} has {MAX_REF_AGE_PROPERTY} set, which would expire staged branches",
            hint="Unset the property, then adopt the table.",
        )
    if taken := [c for c in columns if is_reserved(c) and c not in INTERNAL_COLUMNS]:
        raise SchemaError(
            f"{name} has a column {taken[0]}, a name that is reserved for Strandline",
            hint=f"Rename it, then adopt the table. Names that begin with {RESERVED_PREFIX} are reserved, as are "
            f"{' and '.join(INTERNAL_COLUMNS)}, in upper or lower case.",
        )
    if missing := [c for c in deliver_by if c not in columns]:
        raise SchemaError(f"--deliver-by names {missing[0]}, and {name} has no such column")
