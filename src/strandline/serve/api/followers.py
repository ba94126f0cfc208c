"""Replication as a person sees it: how far this site and its followers are; followers are added and removed."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter, Request, Response
from pydantic import Field

from strandline.core.documents import Document, fields_of
from strandline.core.errors import NoSuchFollower, UsageError
from strandline.core.replication import OnLag
from strandline.core.roles import Role
from strandline.ledger.replicate.followers import Follower
from strandline.serve.api.inputs import (
    AfterId,
    AfterName,
    Body,
    DryRun,
    Duration,
    Limit,
    Name,
    NamePath,
    cut,
    length,
    paged,
)
from strandline.serve.auth.caller import Caller
from strandline.serve.auth.needs import needs
from strandline.serve.context import ServeContext, context_of
from strandline.serve.describe import (
    CHANGES,
    COUNT,
    FLAG,
    NAMED,
    NUMBER,
    TEXT,
    also,
    documented,
    fields,
    list_of,
    or_null,
    page_of,
)
from strandline.serve.schemas import FOLLOWED_SHARD, FOLLOWER, FOLLOWER_SHARD, FOLLOWER_WITH_SHARDS, REPLICATION
from strandline.status import replication_documents as documents
from strandline.status.followers import FollowerStatus, load_followers
from strandline.status.leadership import ArbiterStatus, last_of_arbiter
from strandline.status.replication import ReplicationStatus, load_replication, only_of

router = APIRouter(prefix="/replication", tags=["replication"])


class NewFollower(Body):
    name: Name
    datasets: list[Name] | None = Field(
        default=None, min_length=1, description="Only these; left out: every dataset, also those made later."
    )
    on_lag: OnLag = Field(
        default=OnLag.HOLD,
        strict=False,
        description="What retention does about due rows that it does not have: keep them, or delete them in the end.",
    )
    drop_after: Duration | None = Field(default=None, description="With `drop`: how long rows are kept for it.")


def load(context: ServeContext, caller: Caller, arbiter: ArbiterStatus | None = None) -> ReplicationStatus:
    """What the caller may see of it."""
    found = load_replication(context.lake.config, context.lake.ledger, context.lake.id, arbiter)
    return found if caller.token.datasets is None else only_of(found, caller.token.datasets)


def load_follower(context: ServeContext, caller: Caller, name: str) -> tuple[Follower, list[FollowerStatus]]:
    """With the shards that the caller may see. Raises NoSuchFollower, also for one of which it may see none."""
    record = context.lake.followers.get(name)
    shards = [s for s in load_followers(context.lake.ledger) if s.name == record.name and caller.sees(s.dataset)]
    if caller.is_limited and not shards:
        raise NoSuchFollower(f"there is no follower {name}", hint="`GET /api/v1/replication/followers` lists them.")
    return record, shards


def shown(context: ServeContext, caller: Caller, record: Follower, shards: Sequence[FollowerStatus]) -> Document:
    names: dict[str, str] = {d.uuid: d.name for d in context.lake.datasets()}
    found = documents.follower_in_full(record, names, shards)
    if found["datasets"] is not None:
        found["datasets"] = [name for name in found["datasets"] if caller.sees(name)]
    return found


def status_document(context: ServeContext, caller: Caller) -> Document:
    return documents.replication(load(context, caller, last_of_arbiter(context.lake.replication)))


@router.get(
    "/status", summary="Who leads, whom this site follows, who follows it, and how far they are",
    **documented(REPLICATION),
)  # fmt: skip
async def replication_status(request: Request, caller: Caller = needs(Role.READ)) -> Response:
    """What `strandline replication status --json` prints, with what the arbiter said at most a third of a lease ago.
    What is not known is null, never 0: a follower knows its lag only while its leader answers. A token that is limited
    to some datasets does not see what the arbiter says."""
    context = context_of(request)
    return await context.read(caller, lambda: cut(status_document(context, caller), "shards", "followers", "set_aside"))


@router.get(
    "/shards",
    summary="The shards that this site follows, by number",
    **documented(page_of("shards", FOLLOWED_SHARD, NUMBER)),
)
async def list_shards(
    request: Request, caller: Caller = needs(Role.READ), limit: Limit = 100, after: AfterId = None
) -> Response:
    """Empty at a leader."""
    context = context_of(request)

    def page() -> Document:
        known = sorted(load(context, caller).site.shards, key=lambda s: s.shard)
        return paged(
            "shards", [s for s in known if after is None or s.shard > after], limit, fields_of, lambda s: s.shard
        )

    return await context.read(caller, page)


@router.get(
    "/followers",
    summary="The followers of this site, each with its first shards",
    **documented(page_of("followers", FOLLOWER_WITH_SHARDS)),
)
async def list_followers(
    request: Request, caller: Caller = needs(Role.READ), limit: Limit = 100, after: AfterName = None
) -> Response:
    context = context_of(request)

    def page() -> Document:
        by_name: dict[str, list[FollowerStatus]] = {}
        for shard in load_followers(context.lake.ledger):
            if caller.sees(shard.dataset):
                by_name.setdefault(shard.name, []).append(shard)
        known = [
            f
            for f in context.lake.followers.list()
            if (after is None or f.name > after) and (f.name in by_name or not caller.is_limited)
        ]

        def show(f: Follower) -> Document:
            return cut(shown(context, caller, f, by_name.get(f.name, ())), "shards")

        return paged("followers", known, limit, show, lambda f: f.name)

    return await context.read(caller, page)


@router.post(
    "/followers",
    summary="Let a site follow this lake",
    **documented(also(FOLLOWER, secret=TEXT), status=201, problems=CHANGES, said="Added."),
)
async def add_follower(
    request: Request, wanted: NewFollower, caller: Caller = needs(Role.ADMIN, whole_lake=True)
) -> Response:
    """The answer has the secret of its token, which nobody can read again. From now on retention keeps what the
    follower does not have, from the very first row, until it has caught up."""
    context = context_of(request)

    def add() -> Document:
        if (wanted.on_lag is OnLag.DROP) != (wanted.drop_after is not None):
            raise UsageError("`drop` and drop_after belong together", hint="Give both, or neither.")
        made, secret = context.lake.followers.add(
            wanted.name, wanted.datasets, on_lag=wanted.on_lag, drop_after=length(wanted.drop_after)
        )
        return documents.follower(made, {d.uuid: d.name for d in context.lake.datasets()}) | {"secret": secret}

    return await context.change(caller, add, status=201)


@router.get(
    "/followers/{name}", summary="One follower, and how far it is", **documented(FOLLOWER_WITH_SHARDS, problems=NAMED)
)
async def show_follower(request: Request, name: NamePath, caller: Caller = needs(Role.READ)) -> Response:
    context = context_of(request)

    def one() -> Document:
        record, shards = load_follower(context, caller, name)
        return cut(shown(context, caller, record, shards), "shards")

    return await context.read(caller, one)


@router.get(
    "/followers/{name}/shards",
    summary="How far it is in each shard, by number",
    **documented(page_of("shards", FOLLOWER_SHARD, NUMBER), problems=NAMED),
)
async def list_follower_shards(
    request: Request, name: NamePath, caller: Caller = needs(Role.READ), limit: Limit = 100, after: AfterId = None
) -> Response:
    context = context_of(request)

    def page() -> Document:
        known = sorted(load_follower(context, caller, name)[1], key=lambda s: s.shard)
        return paged(
            "shards", [s for s in known if after is None or s.shard > after], limit, fields_of, lambda s: s.shard
        )

    return await context.read(caller, page)


@router.delete(
    "/followers/{name}",
    summary="Remove a follower",
    **documented(
        fields(removed=TEXT, dry_run=FLAG, lag_rows=or_null(COUNT), holds_retention_of=list_of(TEXT)), problems=CHANGES
    ),
)
async def remove_follower(
    request: Request, name: NamePath, caller: Caller = needs(Role.ADMIN, whole_lake=True), dry_run: DryRun = False
) -> Response:
    """Its token is refused from now on, and retention keeps nothing for it any more. What it has stays where it is."""
    context = context_of(request)

    def remove() -> Document:
        record, shards = load_follower(context, caller, name)
        if not dry_run:
            context.lake.followers.remove(record.name)
        lags = [s.lag_rows for s in shards]
        return {
            "removed": record.name,
            "dry_run": dry_run,
            "lag_rows": None if None in lags else sum(lag or 0 for lag in lags),
            "holds_retention_of": sorted({s.dataset for s in shards if s.held_since is not None}),
        }

    return await context.change(caller, remove)
