"""Terms: which sequence numbers and shards a leader assigns, and which terms a site may take. Pure.

Each leader leads in a term of its own, and assigns only sequence numbers of that term. So rows of two leaders never
have the same sequence number, even if the leaders do not know of each other. The same is true of the shards of the
datasets that they create. A term belongs to one site: two sites that are promoted at the same time never lead in the
same term.
"""

from __future__ import annotations

from strandline.core.errors import RefusedError
from strandline.core.sites.replication import FIRST_TERM
from strandline.core.types import Seq, SeqRange, ShardId

SITES_MAX = 16
FIRST_SITE = 0  # the site that made the lake; it also has the first term, whatever that term's number is
TERM_BITS = 40
SHARD_BITS = 20  # a thousand datasets with as many shards as one can have
# JSON's numbers are exact up to 2**53 in many programs, among them browsers and whatever reads our metrics.
NUMBER_BITS = 53
LAST_TERM = 2 ** (NUMBER_BITS - TERM_BITS) - 1


def numbers_of(term: int) -> SeqRange:
    """The sequence numbers that the leader of the term may assign. The first term begins at 1, so that a lake without a
    take-over has small numbers."""
    _check(term)
    first = 1 if term == FIRST_TERM else term << TERM_BITS
    return SeqRange(Seq(first), Seq(((term + 1) << TERM_BITS) - 1))


def term_of(number: Seq) -> int:
    """The term in which the sequence number was assigned."""
    return max(FIRST_TERM, number >> TERM_BITS)


def first_shard_of(term: int) -> ShardId:
    """The lowest shard that the leader of the term assigns to a dataset. Lower ones may belong to a dataset that only
    an earlier leader has. The first term begins at 0, so that a lake without a take-over has small numbers."""
    _check(term)
    return ShardId(0 if term == FIRST_TERM else term << SHARD_BITS)


def next_term(after: int, site: int) -> int:
    """The lowest term above `after` that the site may take. Raises RefusedError if there is none left."""
    if not 0 <= site < SITES_MAX:
        raise ValueError(f"not the number of a site: {site}")
    found = after + 1 + (site - after - 1) % SITES_MAX
    if found > LAST_TERM:
        raise RefusedError(
            f"this lake has been taken over so often that no term is left (the last one is {LAST_TERM})",
            hint="Make a new lake, and copy the tables into it.",
        )
    return found


def _check(term: int) -> None:
    if not FIRST_TERM <= term <= LAST_TERM:
        raise ValueError(f"not a term: {term}")
