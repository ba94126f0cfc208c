"""What a promotion does next, as a pure function over the site, the arbiter's record and the clock. Rules have the
numbers of docs/adr/0071.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from strandline.core.sites.arbiter import LeaderRecord
from strandline.core.sites.terms import next_term


@dataclass(frozen=True, slots=True)
class Candidate:
    """The site that is to be promoted."""

    number: int | None
    name: str
    address: str | None
    term: int
    promoting: int | None  # the term that its promotion replaces; None: none has begun
    claimed: int | None  # the term that it has taken
    terms: Mapping[str, int]  # by dataset
    behind: tuple[str, ...]  # datasets that have no seal
    instance: str | None = None  # a record names it with the number
    claim: str | None = None  # by which a record names this promotion; None: none has begun
    by_force: bool = False  # a person accepts the loss of what the site lacks (docs/adr/0076)
    heard: int = 0  # the highest term that the site knows of; another site has led in it
    with_arbiter: bool = False  # the promotion that has begun asked an arbiter


@dataclass(frozen=True, slots=True)
class Begin:
    """Store the term that the person saw (rule 3)."""

    replaces: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until the record was unchanged for a lease (rule 1)."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Put:
    """Take the term, or record at the arbiter that the site leads (rule 5)."""

    record: LeaderRecord


@dataclass(frozen=True, slots=True)
class ClaimTerm:
    """The arbiter's record has our term: store that, and stop following."""

    term: int


@dataclass(frozen=True, slots=True)
class Lead:
    """Become the leader."""

    term: int


@dataclass(frozen=True, slots=True)
class End:
    """End the promotion: another site leads or takes over, and this site follows as before (rules 3 and 6)."""

    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """The site cannot be promoted now. A promotion that has begun, and has no claim yet, ends."""

    message: str
    hint: str
    keeps_promotion: bool = False  # the arbiter's record may have its claim


_FORCE = "If the leader never comes back and no other site can be promoted, --force gives up what this site lacks."

PromoteStep = Begin | Wait | Put | ClaimTerm | Lead | End | Refuse


def next_step(site: Candidate, record: LeaderRecord | None, unchanged_seconds: float, drift_max: float) -> PromoteStep:
    """With an arbiter. `unchanged_seconds`: for how long this process has read the same record."""
    if site.number is None:
        return _no_number()
    if record is None:
        return Refuse(
            "no leader has ever written to the arbiter",
            "Set the same replication.arbiter at the leader, and let `strandline run` run there.",
        )
    # The number alone is not enough: a leader whose ledger was restored may have given it to another site, too.
    ours = (record.site, record.claim) == (site.number, site.claim)
    if site.promoting is not None and ours and record.term > site.promoting:
        return _with_the_term(site, record)
    if site.promoting is not None and record.term != site.promoting:
        return _end(record)
    if (refused := _behind(site) if site.by_force else _no_member(site, record)) is not None:
        return refused
    if site.promoting is None:
        return Begin(record.term)
    needed = record.lease_seconds * (1 + drift_max)
    if unchanged_seconds < needed:
        return Wait(needed - unchanged_seconds)
    taken = next_term(max(record.term, site.heard), site.number)
    return Put(
        replace(
            record, term=taken, site=site.number, name=site.name, address=site.address, leads=False,
            before=_last_leader(record), claim=site.claim,
        )
    )  # fmt: skip


def next_step_alone(site: Candidate, *, leader_is_stopped: bool) -> PromoteStep:
    """Without an arbiter: a person confirms that the leader is stopped, each time (rule 37)."""
    if site.number is None:
        return _no_number()
    if site.promoting is not None and site.with_arbiter:
        return Refuse(
            "its promotion began with an arbiter, and none is set now",
            "Set replication.arbiter as it was, and repeat the command. If the arbiter is lost for good, --force ends "
            "that promotion and begins another one.",
            keeps_promotion=True,
        )
    if not leader_is_stopped:
        return Refuse(
            "there is no arbiter, so nobody but you can know that the leader is stopped",
            "Stop the leader, and repeat the command with --leader-is-stopped.",
        )
    if site.claimed is not None:
        return Lead(site.claimed)
    last = max(site.term, site.heard)
    if (refused := _behind(site) if site.by_force else _lacks_term(site, last)) is not None:
        return refused
    if site.promoting != last:
        return Begin(last)
    return ClaimTerm(next_term(last, site.number))


def _with_the_term(site: Candidate, record: LeaderRecord) -> PromoteStep:
    if site.claimed != record.term:
        return ClaimTerm(record.term)
    # No members: this site has no followers yet, and its sinks wait for none.
    return Lead(record.term) if record.leads else Put(replace(record, leads=True, members=frozenset()))


def _end(record: LeaderRecord) -> End:
    does = "leads" if record.leads else "takes over"
    where = record.address or "its address"
    return End(
        f"site {record.name} {does} in term {record.term}: this promotion is over, and the site follows as before",
        f"`strandline rejoin {where}` follows that site. To replace it, run `strandline promote` again.",
    )


def _last_leader(record: LeaderRecord) -> int:
    """The term of the last site that led. A site that has only claimed a term has cut nothing."""
    return record.term if record.leads or record.before is None else record.before


def _no_member(site: Candidate, record: LeaderRecord) -> Refuse | None:
    if (last := _last_leader(record)) < site.heard:
        return Refuse(
            f"the arbiter's record is older than this site: it says that the last leader led in term {last}, and this "
            f"site knows of the leader of term {site.heard}, so its members are not those of that leader",
            "That leader writes its record again as soon as it runs and can reach the arbiter. " + _FORCE,
        )
    instances = {m.instance for m in record.members if m.number == site.number}
    if instances and site.instance not in instances:
        return Refuse(
            "this site was made again since the leader named its number as a member, and may lack what that one had",
            "The leader names it again once it has caught up; see `strandline replication status`. " + _FORCE,
        )
    if not instances:
        return Refuse(
            "this site is not a member, so sinks of the leader may have rows that it lacks",
            "The leader names members once they have caught up; see `strandline replication status`. " + _FORCE,
        )
    return _lacks_term(site, last)


def _lacks_term(site: Candidate, last: int) -> Refuse | None:
    """Rule 4, and rule 21."""
    if other := sorted(name for name, term in site.terms.items() if term != last):
        return Refuse(
            f"this site has not recorded the take-over of term {last} for {', '.join(other[:5])}",
            "Rows would be missing that the leader of that term has. Promote a site that has followed it. " + _FORCE,
        )
    if not site.terms and site.term != last:
        return Refuse(
            f"this site is in term {site.term}, and the last leader led in term {last}",
            "Promote a site that has followed that leader. " + _FORCE,
        )
    return _behind(site)


def _behind(site: Candidate) -> Refuse | None:
    if not site.behind:
        return None
    return Refuse(
        f"the ledger of this site is behind for {', '.join(site.behind[:5])}: what it had is unknown",
        "`strandline follow` catches up, if the leader answers. If it never will, promote another site.",
    )


def _no_number() -> Refuse:
    return Refuse(
        "this site has no number, and so no term of its own",
        "Its leader gives it one: `strandline follower add NAME` there, then `strandline follow init` with that token.",
    )
