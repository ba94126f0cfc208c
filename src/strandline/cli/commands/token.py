"""token create, list, revoke, claims, release."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from strandline.cli.command import Call, OnlyDatasetsOption, command
from strandline.cli.render.elements import done, grid
from strandline.core.roles import Role
from strandline.core.text import duration
from strandline.core.text.wording import age, moment
from strandline.status.documents import change_documents, lake_documents

if TYPE_CHECKING:
    from collections.abc import Sequence

    from strandline.ledger.receive.senders import ClaimOf
    from strandline.ledger.receive.tokens import Token

app = typer.Typer(
    name="token",
    help="Who may use the receiver and the API: create, list and revoke tokens; free lanes they claimed.",
)

TokenArgument = Annotated[str, typer.Argument(metavar="NAME", help="The token's name.")]


@command(app)
def create(
    call: Call,
    name: TokenArgument,
    dataset: OnlyDatasetsOption = None,
    role: Role | None = typer.Option(
        None,
        help="read: only read; write: read and send rows; replicate: read and follow this lake; admin: everything.",
        show_default="write",
    ),
    expires: str | None = typer.Option(
        None, metavar="DURATION", help="How long it is valid, such as 12h or 30d.", show_default="forever"
    ),
    replaces: str | None = typer.Option(
        None,
        metavar="OLD",
        help="Take over what the token OLD has claimed and sent, and its role and datasets unless others are named. "
        "Both are valid until OLD is revoked.",
    ),
) -> None:
    """Create a token. Its secret is printed once: only a hash of it is stored.

    A sender's lanes and a client's keys belong to the token that they came with. To change a secret, create a token
    that replaces the old one, give it to the sender, and then revoke the old one.
    """
    expires_in = None if expires is None else duration.parse(expires)
    made, secret = call.lake.receiver.create_token(
        name, dataset or None, role=role, expires_in=expires_in, replaces=replaces
    )
    document = lake_documents.token(made) | {"secret": secret}
    until = "" if made.expires_at is None else f", until {moment(made.expires_at)}"
    call.show(document, done(f"Token {made.name} ({made.role}), for {_for(made)}{until}"), Text(secret))


@command(app, "list")
def list_(call: Call) -> None:
    """All tokens, also revoked and expired ones, without their secrets."""
    found = call.lake.receiver.list_tokens()
    call.show({"tokens": [lake_documents.token(t) for t in found]}, tokens(found))


@command(app)
def revoke(call: Call, name: TokenArgument) -> None:
    """Revoke a token: it is refused from now on. Rows that were sent with it stay."""
    call.lake.receiver.revoke_token(name)
    call.show(change_documents.revoked_token(name), done(f"Token {name} is revoked"))


@command(app)
def claims(call: Call) -> None:
    """Which sinks of which lakes feed the datasets here, and the tokens that their lanes belong to."""
    found = call.lake.receiver.list_claims()
    call.show({"claims": [lake_documents.claim(c) for c in found]}, claims_table(found))


@command(app, asks=True)
def release(
    call: Call,
    dataset: str = typer.Argument(metavar="DATASET", help="The dataset here."),
    lake: str = typer.Argument(metavar="LAKE", help="The sender's lake."),
    source: str = typer.Argument(metavar="SOURCE", help="The sender's dataset."),
) -> None:
    """Take a sender's lanes away from the token that claimed them. The next token that claims them gets them.

    For lanes that the wrong token has claimed. To change the secret of the right one, use `token create --replaces`.
    If rows have arrived under the claim, only the same sink in the same generation can claim the lanes again. If none
    have, the claim is deleted, and any sink may claim the dataset. Revoke the wrong token first: otherwise it may
    claim them again.
    """
    receiver = call.lake.receiver
    question = f"Let the next token have the lanes of {source} of lake {lake} in {dataset}?"
    call.confirm(question, refusal="the lanes stay with their token")
    released = receiver.release_claim(dataset, lake, source)
    document = lake_documents.released_claim(dataset, lake, source, forgotten=released.forgotten)
    rest = "no rows had come: any sink may claim it" if released.forgotten else "its sink and generation stay"
    call.show(document, done(f"The lanes of {source} of lake {lake} are free; {rest}"))


def claims_table(found: Sequence[ClaimOf]) -> RenderableType:
    if not found:
        return Text("No sender has claimed a dataset here.", "dim")
    table = grid("dataset", "lake", "source", "sink", "generation", "token")
    for c in found:
        token = Text("none: free to claim", "dim") if c.token is None else Text(c.token)
        record = c.record
        names = (c.dataset, record.lake, record.dataset, record.instance, str(record.generation))
        table.add_row(*map(Text, names), token)
    return Group(table)


def tokens(found: Sequence[Token]) -> RenderableType:
    if not found:
        return Text("No tokens yet. `strandline token create NAME` creates one.", "dim")
    table = grid("token", "role", "for", "created", "state")
    now = datetime.now(UTC)
    for t in found:
        table.add_row(
            Text(t.name, "bold"), Text(t.role), Text(_for(t)), Text(f"{age(t.created_at)} ago"), _state(t, now)
        )
    return Group(table)


def _state(t: Token, now: datetime) -> Text:
    if t.revoked_at is not None:
        return Text(f"revoked {age(t.revoked_at)} ago", "dim")
    if t.expires_at is None:
        return Text("in use", "green")
    if t.is_expired(now):
        return Text(f"expired {age(t.expires_at)} ago", "dim")
    return Text(f"in use until {moment(t.expires_at)}", "green")


def _for(t: Token) -> str:
    return "every dataset" if t.datasets is None else ", ".join(t.datasets)
