"""Datasets: create, show, alter, drop; their blocks and their seal."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field

from strandline.core.documents import Document
from strandline.core.errors import UsageError
from strandline.core.sites.replication import SHARDS_MAX
from strandline.ledger.ingest import blocks, dataset_report
from strandline.serve.api.handlers import changes_lake, reads, reads_table
from strandline.serve.api.inputs import (
    LONG_BYTES_MAX,
    AfterName,
    BeforeId,
    DryRun,
    Limit,
    Name,
    NamePath,
    RequestInput,
    Text,
    cut,
    paged,
    paged_after,
)
from strandline.serve.auth.needs import AdminAccess, LakeAdminAccess, ReadAccess
from strandline.serve.describe import (
    CHANGES,
    NAMED,
    NUMBER,
    READS_A_TABLE,
    documented,
    page_of,
)
from strandline.serve.schemas import BLOCK, DATASET, DATASET_ALTERED, DATASET_DROPPED, DATASET_IN_FULL, SEAL
from strandline.status.documents import change_documents, lake_documents

router = APIRouter(prefix="/datasets", tags=["datasets"])


TypeName = Annotated[str, Field(max_length=LONG_BYTES_MAX)]


class NewColumn(RequestInput):
    name: Text
    type: TypeName | dict[str, Any]
    required: bool = False
    doc: Text | None = None


class NewDataset(RequestInput):
    name: Name = Field(description="TABLE or NAMESPACE.TABLE.")
    columns: list[NewColumn] = Field(min_length=1, max_length=10_000, description="As in a schema file.")
    deliver_by: list[Text] = Field(default=[], description="Columns whose values sort rows into logical partitions.")
    partition_by: Text | None = Field(default=None, description="How files are laid out: `day(at)`, `bucket(16, id)`.")
    shards: int = Field(default=1, ge=1, le=SHARDS_MAX, description="Followers apply shards in parallel.")


class ColumnChange(RequestInput):
    name: Text
    type: TypeName


class Renamed(RequestInput):
    name: Text
    to: Text


class Changes(RequestInput):
    """Dropped first, added last, all in one commit."""

    drop: list[Text] = Field(default=[], description="Their values stay in the files, unread.")
    rename: list[Renamed] = Field(default=[], description="Another name, the same values.")
    widen: list[ColumnChange] = Field(default=[], description="int to long, float to double, a longer decimal.")
    add: list[ColumnChange] = Field(default=[], description="New, optional columns.")
    dry_run: bool = Field(default=False, description="Report which columns it would have, and change nothing.")


@router.get("", summary="All datasets", **documented(page_of("datasets", DATASET)))
@reads
def list_datasets(access: ReadAccess, limit: Limit = 100, after: AfterName = None) -> Document:
    seen = (d for d in access.lake.datasets() if access.caller.sees(d.name))
    return paged_after("datasets", seen, after, limit, lake_documents.dataset, lambda d: d.name)


@router.post("", summary="Create a dataset", **documented(DATASET, status=201, problems=CHANGES, said="Created."))
@changes_lake(status=201)
def create_dataset(access: LakeAdminAccess, wanted: NewDataset) -> Document:
    from strandline.iceberg.schema.schema_file import parse_columns

    columns = parse_columns([column.model_dump(exclude_none=True) for column in wanted.columns])
    made = access.lake.create_dataset(
        wanted.name, columns, deliver_by=wanted.deliver_by, partition_by=wanted.partition_by, shards=wanted.shards
    )
    return lake_documents.dataset(made)


@router.get("/{name}", summary="One dataset with its columns", **documented(DATASET_IN_FULL, problems=READS_A_TABLE))
@reads_table
def show_dataset(access: ReadAccess, name: NamePath) -> Document:
    from strandline.iceberg.pyiceberg.schema import describe

    found = access.lake.dataset(access.caller.check_sees(name))
    return lake_documents.described_dataset(found, describe(access.lake.catalog.load(found.name)))


@router.patch("/{name}", summary="Change columns", **documented(DATASET_ALTERED, problems=CHANGES))
@changes_lake()
def alter_dataset(access: AdminAccess, name: NamePath, changes: Changes) -> Document:
    """Without rewriting a file, all changes in one commit. `a.b` is the field b of a."""
    dataset, wanted = access.lake.dataset(access.caller.check_sees(name)), _alterations(changes)
    table = access.lake.alter_dataset(dataset.name, wanted, dry_run=changes.dry_run)
    return change_documents.altered_dataset(dataset, table, wanted, dry_run=changes.dry_run)


def _alterations(changes: Changes) -> list[Any]:
    from strandline.iceberg.schema.alteration import AddColumn, DropColumn, RenameColumn, WidenColumn
    from strandline.iceberg.schema.schema_file import parse_type

    found: list[Any] = [DropColumn(column) for column in changes.drop]
    found += [RenameColumn(r.name, r.to) for r in changes.rename]
    found += [WidenColumn(c.name, parse_type(c.type, where=c.name)) for c in changes.widen]
    found += [AddColumn(c.name, parse_type(c.type, where=c.name)) for c in changes.add]
    if not found:
        raise UsageError("nothing to change", hint="Give drop, rename, widen or add.")
    return found


@router.delete(
    "/{name}",
    summary="Drop a dataset",
    **documented(DATASET_DROPPED, problems=CHANGES),
)
@changes_lake()
def drop_dataset(access: AdminAccess, name: NamePath, dry_run: DryRun = False) -> Document:
    """Catalog and ledger forget it. Its files stay where they are, and its numbers, up to `allocated`, stay taken. A
    dry run is refused for the same reasons."""
    dataset = access.lake.dataset(access.caller.check_sees(name))
    allocated = access.lake.allocated(dataset)
    gone = access.lake.drop_dataset(dataset.name, dry_run=dry_run)
    return change_documents.dropped_dataset(gone, allocated, dry_run=dry_run)


@router.get(
    "/{name}/blocks", summary="Its blocks, newest first", **documented(page_of("blocks", BLOCK, NUMBER), problems=NAMED)
)
@reads
def list_blocks(
    access: ReadAccess,
    name: NamePath,
    only_open: Annotated[bool, Query(description="Only those that hold back the seal.")] = False,
    limit: Limit = 100,
    before: BeforeId = None,
) -> Document:
    dataset = access.lake.dataset(access.caller.check_sees(name))
    ledger = access.lake.ledger
    found = ledger.query(dataset_report.page, dataset.id, only_open=only_open, before=before, blocks_max=limit + 1)
    return paged("blocks", found, limit, lake_documents.block, lambda b: b.head.rows.lo)


@router.get("/{name}/seal", summary="Up to where everything is settled", **documented(SEAL, problems=NAMED))
@reads
def show_seal(access: ReadAccess, name: NamePath) -> Document:
    """Readers and sinks get nothing above it. Null while nothing is settled."""
    dataset = access.lake.dataset(access.caller.check_sees(name))
    with access.lake.ledger.read() as connection:
        found: Document = {
            "dataset": dataset.name,
            "sealed": blocks.sealed(connection, dataset.id),
            "allocated": blocks.highest(connection, dataset.id),
            "open_blocks": [lake_documents.block(b) for b in blocks.open_blocks(connection, dataset.id)],
        }
    return cut(found, "open_blocks")
