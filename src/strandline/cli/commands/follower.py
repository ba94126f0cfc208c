"""follower add, list, show, remove."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from strandline.cli.command import Call, OnlyDatasetsOption, command
from strandline.cli.render import followers as render_followers
from strandline.cli.render.elements import done
from strandline.core.errors import UsageError
from strandline.core.sites.replication import OnLag
from strandline.core.text import duration
from strandline.status.documents import change_documents
from strandline.status.documents import replication_documents as documents

if TYPE_CHECKING:
    from strandline.ledger.replicate.followers import RegisteredFollower
    from strandline.status.followers import FollowerStatus

app = typer.Typer(name="follower", help="Manage the sites that follow this lake (run it at the leader).")

FollowerArgument = Annotated[str, typer.Argument(metavar="NAME", help="The follower's name.")]


@command(app)
def add(
    call: Call,
    name: FollowerArgument,
    dataset: OnlyDatasetsOption = None,
    on_lag: OnLag = typer.Option(
        OnLag.HOLD,
        help="Rows that are due for deletion and that the follower does not have: keep them (hold), or delete them "
        "after --drop-after (drop).",
    ),
    drop_after: str | None = typer.Option(
        None, metavar="DURATION", help="With --on-lag drop: how long rows are kept for it, such as 12h or 30d."
    ),
) -> None:
    """Let a site follow this lake. Its token is printed once: only a hash of it is stored.

    From now on retention keeps all rows that the follower does not have yet, beginning with the first.
    """
    if (on_lag is OnLag.DROP) != (drop_after is not None):
        raise UsageError("--on-lag drop and --drop-after belong together")
    bound = None if drop_after is None else duration.parse(drop_after)
    made, secret = call.lake.followers.add(name, dataset or None, on_lag=on_lag, drop_after=bound)
    said = f"Follower {made.name} may follow {_follows(call, made)}"
    call.show(documents.follower(made, _names(call)) | {"secret": secret}, done(said), Text(secret))


@command(app, "list")
def list_(call: Call) -> None:
    """All followers and their progress. Starts no JVM."""
    from strandline.status.followers import load_followers

    found = load_followers(call.lake.ledger)
    known = call.lake.followers.list()
    call.show(documents.follower_list(known, _names(call), found), render_followers.follower_list(known, found))


@command(app)
def show(call: Call, name: FollowerArgument) -> None:
    """One follower: what it follows, and its progress in each shard. Starts no JVM."""
    record = call.lake.followers.get(name)
    found = _shards(call, record)
    document = documents.follower_in_full(record, _names(call), found)
    call.show(document, *render_followers.detail(record, _follows(call, record), found))


@command(app, asks=True)
def remove(call: Call, name: FollowerArgument) -> None:
    """Remove a follower: retention and sinks no longer wait for it, and its token is revoked. Its own data stays."""
    shards = _shards(call, call.lake.followers.get(name))
    call.confirm(
        f"Remove follower {name}? Retention no longer keeps rows for it, and it can fetch no more.",
        refusal=f"{name} stays",
    )
    call.lake.followers.remove(name)
    document = change_documents.removed_follower(name, shards, dry_run=False)
    call.show(document, done(f"Follower {name} is removed"))


def _shards(call: Call, record: RegisteredFollower) -> list[FollowerStatus]:
    from strandline.status.followers import load_followers

    return [s for s in load_followers(call.lake.ledger) if s.name == record.name]


def _names(call: Call) -> dict[str, str]:
    return {d.uuid: d.name for d in call.lake.datasets()}


def _follows(call: Call, record: RegisteredFollower) -> str:
    if record.datasets is None:
        return "every dataset"
    known = _names(call)
    return ", ".join(known.get(uuid, f"{uuid} (dropped)") for uuid in record.datasets)
