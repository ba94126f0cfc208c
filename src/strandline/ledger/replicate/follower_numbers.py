"""The numbers of sites: a leader assigns them to new followers, and sites that have one report it."""

from __future__ import annotations

import sqlalchemy as sa

from strandline.core.errors import RefusedError
from strandline.core.sites.terms import FIRST_SITE, SITES_MAX
from strandline.ledger.replicate import sites
from strandline.ledger.schema.replicate import follower


def take_free_number(connection: sa.Connection) -> int | None:
    """A number that no other site has, because a term belongs to one site. Only the site that created the lake knows
    all sites, so only it assigns numbers (None elsewhere); after a take-over, sites report the numbers that they have.
    The number of a removed follower is used again only if no other is left: that site may still be alive. Raises
    RefusedError while the number of a follower is unknown."""
    here = sites.get(connection)
    if here.own_number != FIRST_SITE:
        return None
    rows = connection.execute(sa.select(follower.c.site_number, follower.c.removed_at)).all()
    live = {r.site_number for r in rows if r.removed_at is None}
    removed = {r.site_number: r.removed_at for r in rows if r.site_number is not None and r.site_number not in live}
    numbers = set(range(SITES_MAX)) - {FIRST_SITE} - live
    if not numbers:
        return None
    _check_numbers_known(connection)
    if new := sorted(numbers - removed.keys()):
        return new[0]
    return min(numbers, key=removed.__getitem__)


def _check_numbers_known(connection: sa.Connection) -> None:
    """Raises RefusedError if the number of a follower is unknown. After the ledger was lost, the tables name the
    followers, but not their numbers: each follower reports its own."""
    silent = sa.or_(follower.c.token_id.is_(None), follower.c.told_at.is_(None))
    unknown = (follower.c.site_number.is_(None), follower.c.datasets.is_(None), silent)
    name = connection.execute(sa.select(follower.c.name).where(follower.c.removed_at.is_(None), *unknown)).scalar()
    if name is not None:
        raise RefusedError(
            f"the number of follower {name} is unknown, so no new site can get one",
            hint=f"`strandline follower add {name}` gives it a token, with which it reports its number; or remove it.",
        )


def set_own_number(connection: sa.Connection, id: int, number: int) -> None:
    """Stores the number that the follower has reported. No change if another live follower or the leader has it."""
    live = connection.execute(
        sa.select(follower.c.id).where(follower.c.removed_at.is_(None), follower.c.site_number == number)
    ).scalar()
    if live is None and number != sites.get(connection).own_number:
        connection.execute(follower.update().where(follower.c.id == id).values(site_number=number))
