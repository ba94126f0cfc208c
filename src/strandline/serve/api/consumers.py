"""Consumers of a dataset: readers with a name, for which retention keeps rows."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from strandline.core.documents import Document, fields_of
from strandline.core.errors import NoSuchConsumer
from strandline.serve.api.handlers import changes_lake, reads
from strandline.serve.api.inputs import AfterName, DryRun, Limit, Name, NamePath, paged_after
from strandline.serve.auth.needs import Access, AdminAccess, ReadAccess
from strandline.serve.describe import CHANGES, NAMED, documented, page_of
from strandline.serve.schemas import CONSUMER, CONSUMER_REMOVED
from strandline.status.consumers import ConsumerStatus, load_consumers
from strandline.status.documents import change_documents

router = APIRouter(prefix="/datasets/{name}/consumers", tags=["consumers"])

ConsumerPath = Annotated[Name, Path(description="The consumer's name.")]


def load(access: Access, dataset: str) -> list[ConsumerStatus]:
    """By name. Raises NoSuchDataset."""
    known = access.lake.dataset(access.caller.check_sees(dataset))
    return [c for c in load_consumers(access.lake.ledger) if c.dataset == known.name]


def load_one(access: Access, dataset: str, name: str) -> ConsumerStatus:
    found = next((c for c in load(access, dataset) if c.name == name), None)
    if found is None:
        raise NoSuchConsumer(
            f"{dataset} has no consumer {name}", hint=f"`GET /api/v1/datasets/{dataset}/consumers` lists them."
        )
    return found


@router.get(
    "", summary="Its consumers, and how far they are", **documented(page_of("consumers", CONSUMER), problems=NAMED)
)
@reads
def list_consumers(access: ReadAccess, name: NamePath, limit: Limit = 100, after: AfterName = None) -> Document:
    return paged_after("consumers", load(access, name), after, limit, fields_of, lambda c: c.name)


@router.get("/{consumer}", summary="One consumer, and how far it is", **documented(CONSUMER, problems=NAMED))
@reads
def show_consumer(access: ReadAccess, name: NamePath, consumer: ConsumerPath) -> Document:
    return fields_of(load_one(access, name, consumer))


@router.delete(
    "/{consumer}",
    summary="Remove a consumer",
    **documented(CONSUMER_REMOVED, problems=CHANGES),
)
@changes_lake()
def remove_consumer(access: AdminAccess, name: NamePath, consumer: ConsumerPath, dry_run: DryRun = False) -> Document:
    """Retention keeps nothing for it any more. A query that still reads under its name stops with an error."""
    found = load_one(access, name, consumer)
    if not dry_run:
        access.lake.consumers.remove(access.lake.dataset(found.dataset), found.name)
    return change_documents.removed_consumer(found, dry_run=dry_run)
