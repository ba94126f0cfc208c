"""Who sent a request: a token, by itself or through the session of a browser."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.core.actor import Actor, Trigger
from strandline.core.errors import NoSuchDataset
from strandline.iceberg.metadata.identifier import full_name
from strandline.ledger.receive.tokens import Token


@dataclass(frozen=True, slots=True)
class Caller:
    token: Token
    session: str | None = None  # the id of the browser's session; None for a token that was sent by itself

    @property
    def actor(self) -> Actor:
        return Actor(self.token.name, Trigger.API if self.session is None else Trigger.PAGE)

    @property
    def is_limited(self) -> bool:
        """Sees only some datasets."""
        return self.token.datasets is not None

    def sees(self, dataset: str) -> bool:
        """`dataset` is a full name."""
        return self.token.allows(dataset)

    def check_sees(self, dataset: str) -> str:
        """The full name. A dataset that the token is not for is answered like one that does not exist."""
        name = full_name(dataset)
        if not self.sees(name):
            raise NoSuchDataset(f"there is no dataset {name}", hint="`GET /api/v1/datasets` lists them.")
        return name
