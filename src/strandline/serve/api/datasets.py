"""Datasets: create, look at, alter, drop; their blocks and their seal."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from strandline.core.documents import Document
from strandline.core.errors import UsageError
from strandline.core.replication import SHARDS_MAX
from strandline.core.roles import Role
from strandline.ledger.ingest import blocks
from strandline.serve.api.inputs import (
    LONG_BYTES_MAX,
    AfterName,
    BeforeId,
    Body,
    DryRun,
    Limit,
    Name,
    NamePath,
    Text,
    cut,
    paged,
)
from strandline.serve.auth.caller import Caller
from strandline.serve.auth.needs import needs
from strandline.serve.context import ServeContext, context_of
from strandline.serve.describe import (
    CHANGES,
    FLAG,
    NAMED,
    NUMBER,
    READS_A_TABLE,
    TEXT,
    also,
    documented,
    fields,
    or_null,
    page_of,
)
from strandline.serve.schemas import BLOCK, DATASET, DATASET_IN_FULL, SEAL
from strandline.status import documents

router = APIRouter(prefix="/datasets", tags=["datasets"])


TypeName = Annotated[str, Field(max_length=LONG_BYTES_MAX)]


class NewColumn(Body):
    name: Text
    type: TypeName | dict[str, Any]
    required: bool = False
    doc: Text | None = None


class NewDataset(Body):
    name: Name = Field(description="TABLE or NAMESPACE.TABLE.")
    columns: list[NewColumn] = Field(min_length=1, max_length=10_000, description="As in a schema file.")
    deliver_by: list[Text] = Field(default=[], description="Columns whose values sort rows into logical partitions.")
    partition_by: Text | None = Field(default=None, description="How files are laid out: `day(at)`, `bucket(16, id)`.")
    shards: int = Field(default=1, ge=1, le=SHARDS_MAX, description="Followers apply shards side by side.")


class ColumnChange(Body):
    name: Text
    type: TypeName


class Renamed(Body):
    name: Text
    to: Text


class Changes(Body):
    """Dropped first, added last, all in one commit."""

    drop: list[Text] = Field(default=[], description="Their values stay in the files, unread.")
    rename: list[Renamed] = Field(default=[], description="Another name, the same values.")
    widen: list[ColumnChange] = Field(default=[], description="int to long, float to double, a longer decimal.")
    add: list[ColumnChange] = Field(default=[], description="New, optional columns.")
    dry_run: bool = Field(default=False, description="Report which columns it would have, and change nothing.")


@router.get("", summary="All datasets", **documented(page_of("datasets", DATASET)))
async def list_datasets(
    request: Request, caller: Caller = needs(Role.READ), limit: Limit = 100, after: AfterName = None
) -> Response:
    context = context_of(request)

    def load() -> Document:
        known = sorted((d for d in context.lake.datasets() if caller.sees(d.name)), key=lambda d: d.name)
        found = [d for d in known if after is None or d.name > after]
        return paged("datasets", found, limit, documents.dataset, lambda d: d.name)

    return await context.read(caller, load)


@router.post("", summary="Create a dataset", **documented(DATASET, status=201, problems=CHANGES, said="Created."))
async def create_dataset(
    request: Request, wanted: NewDataset, caller: Caller = needs(Role.ADMIN, whole_lake=True)
) -> Response:
    context = context_of(request)

    def create() -> Document:
        from strandline.iceberg.schema.schema_file import parse_columns

        columns = parse_columns([column.model_dump(exclude_none=True) for column in wanted.columns])
        made = context.lake.create_dataset(
            wanted.name, columns, deliver_by=wanted.deliver_by, partition_by=wanted.partition_by, shards=wanted.shards
        )
        return documents.dataset(made)

    return await context.change(caller, create, status=201)


@router.get("/{name}", summary="One dataset with its columns", **documented(DATASET_IN_FULL, problems=READS_A_TABLE))
async def show_dataset(request: Request, name: NamePath, caller: Caller = needs(Role.READ)) -> Response:
    context = context_of(request)
    return await context.read_table(caller, lambda: _in_full(context, caller, name))


def _in_full(context: ServeContext, caller: Caller, name: str) -> Document:
    from strandline.iceberg.pyiceberg.schema import describe

    found = context.lake.dataset(caller.check_sees(name))
    return documents.described_dataset(found, describe(context.lake.catalog.load(found.name)))


@router.patch("/{name}", summary="Change columns", **documented(also(DATASET_IN_FULL, dry_run=FLAG), problems=CHANGES))
async def alter_dataset(
    request: Request, name: NamePath, changes: Changes, caller: Caller = needs(Role.ADMIN)
) -> Response:
    """Without rewriting a file, all changes in one commit. `a.b` is the field b of a."""
    context = context_of(request)

    def alter() -> Document:
        known, wanted = caller.check_sees(name), _alterations(changes)
        if changes.dry_run:
            from strandline.iceberg.schema.columns import to_json

            columns = context.lake.catalog.would_alter(context.lake.dataset(known).name, wanted)
            return _in_full(context, caller, name) | {"columns": to_json(columns), "dry_run": True}
        context.lake.alter_dataset(known, wanted)
        return _in_full(context, caller, name) | {"dry_run": False}

    return await context.change(caller, alter)


def _alterations(changes: Changes) -> list[Any]:
    from strandline.iceberg.schema.alteration import AddColumn, DropColumn, RenameColumn, WidenColumn
    from strandline.iceberg.schema.schema_file import parse_type

    found: list[Any] = [DropColumn(column) for column in changes.drop]
    found += [RenameColumn(r.name, r.to) for r in changes.rename]
    found += [WidenColumn(c.name, parse_type(c.type, where=c.name)) for c in changes.widen]
    found += [AddColumn(c.name, parse_type(c.type, where=c.name)) for c in changes.add]
    if not found:
        raise UsageError("nothing to change", hint="Say drop, rename, widen or add.")
    return found


@router.delete(
    "/{name}",
    summary="Drop a dataset",
    **documented(fields(dropped=TEXT, dry_run=FLAG, allocated=or_null(NUMBER)), problems=CHANGES),
)
async def drop_dataset(
    request: Request, name: NamePath, caller: Caller = needs(Role.ADMIN), dry_run: DryRun = False
) -> Response:
    """Catalog and ledger forget it. Its files stay where they are, and its numbers, up to `allocated`, stay taken. A
    dry run is refused for the same reasons."""
    context = context_of(request)

    def drop() -> Document:
        dataset = context.lake.dataset(caller.check_sees(name))
        with context.lake.ledger.read() as connection:
            allocated = blocks.highest(connection, dataset.id)
        gone = context.lake.drop_dataset(dataset.name, dry_run=dry_run)
        return {"dropped": gone.name, "dry_run": dry_run, "allocated": allocated}

    return await context.change(caller, drop)


@router.get(
    "/{name}/blocks", summary="Its blocks, newest first", **documented(page_of("blocks", BLOCK, NUMBER), problems=NAMED)
)
async def list_blocks(
    request: Request,
    name: NamePath,
    caller: Caller = needs(Role.READ),
    only_open: Annotated[bool, Query(description="Only those that hold back the seal.")] = False,
    limit: Limit = 100,
    before: BeforeId = None,
) -> Response:
    context = context_of(request)

    def load() -> Document:
        dataset = context.lake.dataset(caller.check_sees(name))
        with context.lake.ledger.read() as connection:
            found = blocks.page(connection, dataset.id, only_open=only_open, before=before, blocks_max=limit + 1)
        return paged("blocks", found, limit, documents.block, lambda b: b.head.rows.lo)

    return await context.read(caller, load)


@router.get("/{name}/seal", summary="Up to where everything is settled", **documented(SEAL, problems=NAMED))
async def show_seal(request: Request, name: NamePath, caller: Caller = needs(Role.READ)) -> Response:
    """Readers and sinks get nothing above it. Null while nothing is settled."""
    context = context_of(request)

    def load() -> Document:
        dataset = context.lake.dataset(caller.check_sees(name))
        with context.lake.ledger.read() as connection:
            found: Document = {
                "dataset": dataset.name,
                "sealed": blocks.sealed(connection, dataset.id),
                "allocated": blocks.highest(connection, dataset.id),
                "open_blocks": [documents.block(b) for b in blocks.open_blocks(connection, dataset.id)],
            }
        return cut(found, "open_blocks")

    return await context.read(caller, load)
