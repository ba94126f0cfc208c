"""A promotion that is under way: the term that it replaces, the term that it has taken, and its claim, a random id that
identifies it in the ledger and in the arbiter's record. A process ends, claims and replaces only the promotion that it
has read (docs/adr/0085).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from strandline.core import failpoints
from strandline.core.errors import WatermarkMoved
from strandline.core.records.audit_events import Event
from strandline.core.sites.replication import SiteRole
from strandline.ledger import audit
from strandline.ledger.engine import Ledger
from strandline.ledger.ingest import sequence
from strandline.ledger.replicate import sites
from strandline.ledger.schema.replicate import site
from strandline.ledger.witness import Witness


def begun(connection: sa.Connection) -> Mapping[str, Any]:
    """The audit record of the promotion that began last; empty if none ever did."""
    event = audit.newest(connection, Event.PROMOTION_BEGUN)
    return {} if event is None else event.detail


def begin(
    ledger: Ledger, seen_term: int, *, by_force: bool = False, with_arbiter: bool = False, instead_of: str | None = None
) -> str | None:
    """Stores the term that the promotion replaces, and returns the new claim. The claim distinguishes it from a
    promotion of a site that got the same number by mistake. None, and no change, if another promotion is under way than
    the one with the claim `instead_of`."""
    with ledger.write() as connection:
        sequence.lock(connection)
        if not _is_under_way(connection, instead_of):
            return None
        _set(connection, promoting_term=seen_term)
        new_claim = uuid.uuid4().hex
        audit.record(
            connection, Event.PROMOTION_BEGUN, replaces=seen_term, claim=new_claim, by_force=by_force,
            arbiter=with_arbiter,
        )  # fmt: skip
    failpoints.hit("promote.after_begin")
    return new_claim


def _is_under_way(connection: sa.Connection, claim: str | None) -> bool:
    """Whether the promotion with this claim is under way. None: whether none is, or one of a version without claims."""
    under_way = sites.get(connection).promoting_term is not None
    return (begun(connection).get("claim") if under_way else None) == claim


def claim(ledger: Ledger, term: int, *, of: str | None) -> None:
    """Stores the term that this promotion has taken. From now on the site records and stages nothing of its old leader.
    Raises `WatermarkMoved` if the site has followed another leader meanwhile, or if the promotion with the claim `of`
    was ended."""
    with ledger.write() as connection:
        sequence.lock(connection)
        here = sites.get(connection)
        if here.promoting_term is None or here.term >= term or not _is_under_way(connection, of):
            raise WatermarkMoved(
                "this site has followed another leader meanwhile", hint="See `strandline replication status`."
            )
        _set(connection, claimed_term=term)
        audit.record(connection, Event.TERM_TAKEN, term=term, replaces=here.promoting_term)
    failpoints.hit("promote.after_claim")


def check_claimed(connection: sa.Connection, term: int, *, of: str | None) -> None:
    """Raises `WatermarkMoved` if the promotion of the claim `of` does not claim the term any more: another process has
    ended it, or has finished it."""
    if sites.get(connection).claimed_term != term or not _is_under_way(connection, of):
        raise WatermarkMoved(
            f"another process has ended or finished the promotion to term {term} meanwhile",
            hint="See `strandline replication status`.",
        )


def end(ledger: Ledger, witness: Witness, why: str, *, of: str | None) -> None:
    """Ends the promotion: the site follows as before. A promotion that died before its last transaction may have
    changed the witness, which is undone, and has changed nothing else. No change if the promotion with the claim `of`
    was ended before: a person may have begun another one since."""
    with ledger.write() as connection:
        sequence.lock(connection)
        here = sites.get(connection)
        if here.promoting_term is None or not _is_under_way(connection, of):
            return
        record = witness.read()
        if record.role is SiteRole.LEADER and record.term == here.claimed_term:
            # Otherwise this ledger would count as one from before the promotion.
            witness.replace(replace(record, role=SiteRole.FOLLOWER, term=here.term))
        _set(connection, promoting_term=None, claimed_term=None)
        audit.record(connection, Event.PROMOTION_ENDED, replaces=here.promoting_term, reason=why)


def _set(connection: sa.Connection, **values: int | str | None) -> None:
    changed = connection.execute(site.update().where(site.c.role == SiteRole.FOLLOWER.value).values(**values))
    if changed.rowcount != 1:
        raise WatermarkMoved("this site leads by now", hint="See `strandline replication status`.")
