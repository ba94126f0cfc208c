"""Whether this site leads or follows, and whom."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from strandline.core.errors import NotLeader, RefusedError, WatermarkMoved
from strandline.core.sites.replication import FIRST_TERM, SiteRole
from strandline.core.sites.terms import FIRST_SITE, SITES_MAX
from strandline.core.types import DatasetId
from strandline.ledger.engine import from_row, utc_now
from strandline.ledger.schema.replicate import followed_dataset, site


@dataclass(frozen=True, slots=True)
class Site:
    role: SiteRole
    term: int
    leader: str | None  # a URL, or the path of the leader's settings file
    leader_token: str | None  # where the token is found, such as `env:NAME`
    superseded_term: int | None = None  # another site leads in this higher term; None: none is known
    superseded_by: str | None = None  # that site's address or name, if it is known
    changed_at: datetime | None = None  # when its role last changed; None: never
    number: int | None = None  # assigned by its leader
    instance: str | None = None  # None: it never followed
    promoting_term: int | None = None  # the term that a promotion replaces; None: none is under way
    claimed_term: int | None = None  # the term that this promotion has taken

    @property
    def follows(self) -> bool:
        return self.role is SiteRole.FOLLOWER

    @property
    def leads(self) -> bool:
        """Whether it may accept rows, according to its ledger."""
        return not self.follows and self.superseded_term is None

    @property
    def own_instance(self) -> str:
        """The instance of a site that follows or has followed."""
        if self.instance is None:
            raise RefusedError("this site has no instance: it never followed")
        return self.instance

    @property
    def own_number(self) -> int | None:
        """The site's number. The term of a leader determines it, even if its ledger was lost. None: the site has none,
        and cannot be promoted."""
        if self.number is None and not self.follows:
            return FIRST_SITE if self.term == FIRST_TERM else self.term % SITES_MAX
        return self.number


def get(connection: sa.Connection) -> Site:
    row = connection.execute(sa.select(site)).one()
    return from_row(Site, row, role=SiteRole(row.role))


def follow(connection: sa.Connection, *, leader: str, token: str | None, term: int) -> None:
    """Makes this site a follower, which accepts no rows and no changes of its own. The first time, it gets its
    instance: a site that is created again has a new ledger, and counts as another site."""
    values: dict[str, object] = {"role": SiteRole.FOLLOWER.value, "leader": leader, "leader_token": token, "term": term}
    values |= {"superseded_term": None, "superseded_by": None}
    values["instance"] = sa.func.coalesce(site.c.instance, uuid.uuid4().hex)
    connection.execute(site.update().values(**values, changed_at=utc_now()))


def supersede(connection: sa.Connection, *, term: int, by: str | None) -> bool:
    """Records that another site leads in a higher term: this one accepts no more rows until it has rejoined. False if
    this site follows, or knows of that term already."""
    known_term = sa.func.coalesce(site.c.superseded_term, site.c.term)
    changed = connection.execute(
        site.update()
        .where(site.c.role == SiteRole.LEADER.value, known_term < term)
        .values(superseded_term=term, superseded_by=by)
    )
    return changed.rowcount == 1


def is_leading() -> sa.ColumnElement[bool]:
    """Whether this site may take rows and deliver, as a condition of a query."""
    leads = site.c.role == SiteRole.LEADER.value
    return sa.exists().where(site.c.id == 1, leads, site.c.superseded_term.is_(None))


def raise_term(connection: sa.Connection, term: int) -> None:
    """Raises the term that this site has reached with all of its datasets. A lower one changes nothing."""
    connection.execute(site.update().where(site.c.term < term).values(term=term))


def check_leads(connection: sa.Connection) -> None:
    """Raises `NotLeader` at a follower, and at a leader that another site has superseded."""
    here = get(connection)
    _check_leads(
        here,
        f"this site follows {here.leader}, so it refuses rows and changes of its own",
        f"Do it at the leader, {here.leader}. It is replicated to this site.",
    )


def check_offers(connection: sa.Connection) -> None:
    """Raises `NotLeader` at a site that other sites cannot follow."""
    here = get(connection)
    hint = f"`strandline rejoin {here.leader}` follows the same leader."
    _check_leads(here, f"the site at this address follows {here.leader} itself", hint)


def _check_leads(here: Site, message: str, hint: str) -> None:
    if here.follows:
        raise NotLeader(message, hint=hint)
    if (successor := describe_successor(here)) is not None:
        leader = here.superseded_by or "LEADER"
        raise NotLeader(successor, hint=f"`strandline rejoin {leader}` makes this site follow it.")


def describe_successor(here: Site) -> str | None:
    """Who leads in place of this site, as text; None if no other leader is known."""
    return successor_text(here.term, here.superseded_term, here.superseded_by)


def successor_text(led_in: int, term: int | None, leader: str | None) -> str | None:
    if term is None:
        return None
    return f"this site led in term {led_in}; {f'site {leader}' if leader else 'another site'} leads in term {term}"


def is_only_here(connection: sa.Connection, id: DatasetId) -> bool:
    """Whether this site follows, and its leader does not have the dataset: it was created while another site led."""
    is_followed = sa.exists().where(followed_dataset.c.dataset_id == id)
    return get(connection).follows and not connection.scalar(sa.select(is_followed))


def take_number(connection: sa.Connection, number: int) -> None:
    """Stores the number that the leader has assigned to this site. It never changes."""
    connection.execute(site.update().where(site.c.number.is_(None)).values(number=number))


def check_follows(connection: sa.Connection) -> Site:
    """Raises RefusedError at a site that leads, or is about to."""
    here = get(connection)
    if not here.follows:
        raise RefusedError(
            "this site follows no other site", hint="`strandline follow init LEADER` makes a site that follows."
        )
    if here.claimed_term is not None:
        raise RefusedError(
            f"this site is being promoted (term {here.claimed_term}), and follows no leader now",
            hint="If `strandline promote` does not run, run it again: it finishes the promotion or gives it up.",
        )
    return here


def check_still_follows(connection: sa.Connection, since: datetime | None) -> Site:
    """As `check_follows`, for a process that has asked the leader. Raises `WatermarkMoved` if this site has become a
    follower anew since then, of that leader or of another one. `since`: the site's `changed_at` of that time."""
    here = check_follows(connection)
    if here.changed_at != since:
        raise WatermarkMoved(
            "this site was promoted, or pointed to another leader, since its leader was asked", hint="Try again."
        )
    return here


def lock(connection: sa.Connection) -> None:
    """Locks the site: until this transaction ends, no process changes whom it follows."""
    connection.execute(sa.select(site.c.id).with_for_update()).one()


def check_may_commit(connection: sa.Connection, *, offered: bool) -> None:
    """The check at the commit point of a block. Raises `NotLeader` for a batch at a site that does not lead, and
    `WatermarkMoved` for an item that a leader offered to a site that is about to lead."""
    if not offered:
        check_leads(connection)
    elif (term := get(connection).claimed_term) is not None:
        raise WatermarkMoved(
            f"this site is about to lead in term {term}: it takes nothing from its old leader any more"
        )
