"""The transaction in which a superseded leader becomes a follower of the new one.

Open and staged blocks stay as they are: the cut of the new leader abandons them. A site that tried to finish them first
could die in between, and then neither a leader nor a follower would own them (docs/adr/0071, rule 15).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import sqlalchemy as sa

from strandline.core import failpoints
from strandline.core.records.audit_events import Event
from strandline.core.sites.replication import SiteRole
from strandline.core.types import DatasetUuid, Seq
from strandline.ledger import audit
from strandline.ledger.engine import Ledger
from strandline.ledger.ingest import blocks, datasets, sequence
from strandline.ledger.replicate import followers, following, leader_sinks, seen_terms, sites
from strandline.ledger.schema.replicate import followed_dataset
from strandline.ledger.witness import Witness


@dataclass(frozen=True, slots=True)
class NewLeader:
    address: str  # a URL, or the path of its settings file
    token: str | None  # where the token is found
    term: int
    datasets: Collection[DatasetUuid]


@dataclass(frozen=True, slots=True)
class BecameFollower:
    term: int  # in which this site led
    followed: tuple[str, ...]
    not_at_the_leader: tuple[str, ...]  # datasets that only this site has: they stay, and no site follows them
    open_blocks: int


def become_follower(ledger: Ledger, witness: Witness, leader: NewLeader) -> BecameFollower:
    """Changes the role in the witness first and then in the ledger: a ledger that is restored from before no longer
    leads. It also takes a sequence number, so that such a ledger is behind its witness and reads the role again, even
    in a running process. The bound is the counter: this site has everything up to it, and the new leader's cut says
    which of that stays."""
    with ledger.write() as connection:
        counter = sequence.lock(connection)
        here = sites.get(connection)
        failpoints.hit("rejoin.before_witness")
        record = witness.read()
        record.check_lake(counter.lake)
        died_here = record.role is SiteRole.FOLLOWER and record.highest == counter.last + 1
        is_behind = record.highest != counter.last and not died_here
        bound = counter.last if is_behind else counter.last + 1
        # No other process raises it meanwhile: every writer holds the counter's lock.
        witness.replace(replace(record, role=SiteRole.FOLLOWER, highest=max(record.highest, bound)))
        failpoints.hit("rejoin.after_witness")
        sequence.move(connection, last=bound, epoch=counter.epoch)
        followed, others, opened = [], [], 0
        for d in datasets.list_datasets(connection):
            opened += len(blocks.open_blocks(connection, d.id))
            if d.uuid in leader.datasets:
                _follow_from(connection, d.id, Seq(bound), here.term)
                followed.append(d.name)
            else:
                connection.execute(followed_dataset.delete().where(followed_dataset.c.dataset_id == d.id))
                others.append(d.name)
        if here.own_number is not None:  # the first leader has one although none is stored
            sites.take_number(connection, here.own_number)
        highest = max(leader.term, seen_terms.get(connection))
        sites.follow(connection, leader=leader.address, token=leader.token, term=here.term)
        followers.remove_all(connection)
        leader_sinks.forget(connection)
        audit.record(
            connection, Event.REJOINED, leader=leader.address, term=leader.term, heard=highest, led_in_term=here.term,
            bound=bound, open_blocks=opened, not_at_the_leader=others,
        )  # fmt: skip
    failpoints.hit("rejoin.after_commit")
    return BecameFollower(here.term, tuple(followed), tuple(others), opened)


def _follow_from(connection: sa.Connection, id: int, bound: Seq, term: int) -> None:
    """Follows the dataset from the bound on. A site that followed before it led still has a row for it."""
    changed = connection.execute(
        followed_dataset.update()
        .where(followed_dataset.c.dataset_id == id)
        .values(bound=bound, term=term, leader_seal=None, offered_at=None)
    )
    if not changed.rowcount:
        connection.execute(followed_dataset.insert().values(dataset_id=id, bound=bound, term=term))


def check_may_follow(connection: sa.Connection, term: int) -> sites.Site:
    """Checks that this follower may follow the leader of the term. Raises TermPassed if this site has recorded a higher
    term, and RefusedError while a promotion has claimed a term, or at a site that leads."""
    here = sites.check_follows(connection)
    for followed in following.list_followed(connection):
        following.check_term(followed, term)
    return here


def follow_another(ledger: Ledger, leader: NewLeader) -> None:
    """Points this follower to another leader of its lake. Raises what `check_may_follow` raises."""
    with ledger.write() as connection:
        here = check_may_follow(connection, leader.term)
        highest = seen_terms.get(connection)
        if (here.leader, here.leader_token) == (leader.address, leader.token) and highest >= leader.term:
            return
        sites.follow(connection, leader=leader.address, token=leader.token, term=here.term)
        audit.record(
            connection, Event.FOLLOWING_BEGUN, leader=leader.address, term=leader.term, heard=max(leader.term, highest)
        )  # fmt: skip
