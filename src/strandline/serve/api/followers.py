"""Replication as a person sees it: how far this site and its followers are; followers are added and removed."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter
from pydantic import Field

from strandline.core.documents import Document, fields_of
from strandline.core.errors import NoSuchFollower, UsageError
from strandline.core.sites.replication import OnLag
from strandline.ledger.replicate.followers import RegisteredFollower
from strandline.serve.api.handlers import changes_lake, reads
from strandline.serve.api.inputs import (
    AfterId,
    AfterName,
    DryRun,
    DurationInput,
    Limit,
    Name,
    NamePath,
    RequestInput,
    cut,
    paged_after,
)
from strandline.serve.auth.needs import Access, LakeAdminAccess, ReadAccess
from strandline.serve.describe import (
    CHANGES,
    NAMED,
    NUMBER,
    TEXT,
    also,
    documented,
    page_of,
)
from strandline.serve.schemas import (
    FOLLOWED_SHARD,
    FOLLOWER,
    FOLLOWER_REMOVED,
    FOLLOWER_SHARD,
    FOLLOWER_WITH_SHARDS,
    REPLICATION,
)
from strandline.status.documents import change_documents
from strandline.status.documents import replication_documents as documents
from strandline.status.followers import FollowerStatus, load_followers
from strandline.status.leadership import ArbiterStatus, last_of_arbiter
from strandline.status.replication import ReplicationStatus, load_replication, only_of

router = APIRouter(prefix="/replication", tags=["replication"])


class FollowerInput(RequestInput):
    name: Name
    datasets: list[Name] | None = Field(
        default=None, min_length=1, description="Only these; left out: every dataset, also those made later."
    )
    on_lag: OnLag = Field(
        default=OnLag.HOLD,
        strict=False,
        description="What retention does about due rows that it does not have: keep them, or delete them after a time.",
    )
    drop_after: DurationInput | None = Field(default=None, description="With `drop`: how long rows are kept for it.")


def load(access: Access, arbiter: ArbiterStatus | None = None) -> ReplicationStatus:
    """What the caller may see of it."""
    found = load_replication(access.lake.config, access.lake.ledger, access.lake.id, arbiter)
    return found if access.caller.token.datasets is None else only_of(found, access.caller.token.datasets)


def load_follower(access: Access, name: str) -> tuple[RegisteredFollower, list[FollowerStatus]]:
    """With the shards that the caller may see. Raises NoSuchFollower, also for one of which it may see none."""
    record = access.lake.followers.get(name)
    shards = [s for s in load_followers(access.lake.ledger) if s.name == record.name and access.caller.sees(s.dataset)]
    if access.caller.is_limited and not shards:
        raise NoSuchFollower(f"there is no follower {name}", hint="`GET /api/v1/replication/followers` lists them.")
    return record, shards


def shown(access: Access, record: RegisteredFollower, shards: Sequence[FollowerStatus]) -> Document:
    names: dict[str, str] = {d.uuid: d.name for d in access.lake.datasets()}
    found = documents.follower_in_full(record, names, shards)
    if found["datasets"] is not None:
        found["datasets"] = [name for name in found["datasets"] if access.caller.sees(name)]
    return found


def status_document(access: Access) -> Document:
    return documents.replication(load(access, last_of_arbiter(access.lake.replication)))


@router.get(
    "/status", summary="Who leads, whom this site follows, who follows it, and how far they are",
    **documented(REPLICATION),
)  # fmt: skip
@reads
def replication_status(access: ReadAccess) -> Document:
    """What `strandline replication status --json` prints, with what the arbiter said at most a third of a lease ago.
    What is not known is null, never 0: a follower knows its lag only while its leader answers. A token that is limited
    to some datasets does not see what the arbiter says."""
    return cut(status_document(access), "shards", "followers", "set_aside")


@router.get(
    "/shards",
    summary="The shards that this site follows, by number",
    **documented(page_of("shards", FOLLOWED_SHARD, NUMBER)),
)
@reads
def list_shards(access: ReadAccess, limit: Limit = 100, after: AfterId = None) -> Document:
    """Empty at a leader."""
    return paged_after("shards", load(access).site.shards, after, limit, fields_of, lambda s: s.shard)


@router.get(
    "/followers",
    summary="The followers of this site, each with its first shards",
    **documented(page_of("followers", FOLLOWER_WITH_SHARDS)),
)
@reads
def list_followers(access: ReadAccess, limit: Limit = 100, after: AfterName = None) -> Document:
    by_name: dict[str, list[FollowerStatus]] = {}
    for shard in load_followers(access.lake.ledger):
        if access.caller.sees(shard.dataset):
            by_name.setdefault(shard.name, []).append(shard)
    seen = [f for f in access.lake.followers.list() if f.name in by_name or not access.caller.is_limited]

    def show(f: RegisteredFollower) -> Document:
        return cut(shown(access, f, by_name.get(f.name, ())), "shards")

    return paged_after("followers", seen, after, limit, show, lambda f: f.name)


@router.post(
    "/followers",
    summary="Let a site follow this lake",
    **documented(also(FOLLOWER, secret=TEXT), status=201, problems=CHANGES, said="Added."),
)
@changes_lake(status=201)
def add_follower(access: LakeAdminAccess, wanted: FollowerInput) -> Document:
    """The answer has the secret of its token, which nobody can read again. From now on retention keeps what the
    follower does not have, from the very first row, until it has caught up."""
    if (wanted.on_lag is OnLag.DROP) != (wanted.drop_after is not None):
        raise UsageError("`drop` and drop_after belong together", hint="Give both, or neither.")
    made, secret = access.lake.followers.add(
        wanted.name, wanted.datasets, on_lag=wanted.on_lag, drop_after=wanted.drop_after
    )
    return documents.follower(made, {d.uuid: d.name for d in access.lake.datasets()}) | {"secret": secret}


@router.get(
    "/followers/{name}", summary="One follower, and how far it is", **documented(FOLLOWER_WITH_SHARDS, problems=NAMED)
)
@reads
def show_follower(access: ReadAccess, name: NamePath) -> Document:
    record, shards = load_follower(access, name)
    return cut(shown(access, record, shards), "shards")


@router.get(
    "/followers/{name}/shards",
    summary="How far it is in each shard, by number",
    **documented(page_of("shards", FOLLOWER_SHARD, NUMBER), problems=NAMED),
)
@reads
def list_follower_shards(access: ReadAccess, name: NamePath, limit: Limit = 100, after: AfterId = None) -> Document:
    _, shards = load_follower(access, name)
    return paged_after("shards", shards, after, limit, fields_of, lambda s: s.shard)


@router.delete(
    "/followers/{name}",
    summary="Remove a follower",
    **documented(FOLLOWER_REMOVED, problems=CHANGES),
)
@changes_lake()
def remove_follower(access: LakeAdminAccess, name: NamePath, dry_run: DryRun = False) -> Document:
    """Its token is refused from now on, and retention keeps nothing for it any more. What it has stays where it is."""
    record, shards = load_follower(access, name)
    if not dry_run:
        access.lake.followers.remove(record.name)
    return change_documents.removed_follower(record.name, shards, dry_run=dry_run)
