"""Who owns a sender's lanes. A lane belongs to the token that claimed its source and to the tokens that replace it
(`tokens`). Nobody else can send rows, or claim a range, in it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from strandline.core.forward_protocol import LaneName
from strandline.ledger.engine import slices
from strandline.ledger.receive.tokens import TokenId
from strandline.ledger.schema.receive import api_token, source

SourceKey = tuple[int, str, str]  # our dataset, the sender's lake, and the sender's dataset
_SOURCE_KEY = (source.c.dataset_id, source.c.lake, source.c.source_dataset)


@dataclass(frozen=True, slots=True)
class NotOwner:
    """Nothing was recorded: the lane belongs to another token."""


@dataclass(frozen=True, slots=True)
class NotClaimed:
    """Nothing was recorded: the lane's generation is not the one that was claimed last."""

    generation: int | None  # the one that was claimed last; None if nothing was claimed


_SOURCES = sa.select(source).where(sa.tuple_(*_SOURCE_KEY).in_(sa.bindparam("keys", expanding=True)))


def find_sources(connection: sa.Connection, keys: Iterable[SourceKey], *, hold: bool = False) -> dict[SourceKey, Any]:
    """The records that exist; `hold` locks them until the transaction ends."""
    query = _SOURCES.order_by(source.c.id).with_for_update(read=True) if hold else _SOURCES
    found: dict[SourceKey, Any] = {}
    for some in slices(sorted(keys), len(_SOURCE_KEY)):
        for row in connection.execute(query, {"keys": some}):
            found[row.dataset_id, row.lake, row.source_dataset] = row
    return found


def judge(record: Any | None, lane: LaneName, owner: TokenId) -> NotOwner | NotClaimed | None:
    """None if a token of this owner may send new rows to the lane, else why not. A record without an owner is from
    before owners were stored: the next token that claims it gets it."""
    if record is None:
        return NotClaimed(None)
    if record.owner_id not in (None, owner) or record.instance != lane.instance:
        return NotOwner()
    return None if record.generation == lane.generation and record.owner_id else NotClaimed(record.generation)


def owner_of(connection: sa.Connection, token: TokenId) -> TokenId:
    found = connection.execute(_OWNER, {"id": token}).scalar()
    return token if found is None else TokenId(found)


_OWNER = sa.select(api_token.c.owner_id).where(api_token.c.id == sa.bindparam("id"))
