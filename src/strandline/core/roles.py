"""What the holder of a token may do."""

from __future__ import annotations

from enum import StrEnum


class Role(StrEnum):
    """A token has one role. A request needs one: `allows` says whether the token's role is enough."""

    READ = "read"  # see status, datasets, sinks and runs
    WRITE = "write"  # read, and send rows to the receiver
    REPLICATE = "replicate"  # read, and fetch what a follower needs
    ADMIN = "admin"  # everything


_ALLOWED: dict[Role, frozenset[Role]] = {
    Role.READ: frozenset((Role.READ,)),
    Role.WRITE: frozenset((Role.READ, Role.WRITE)),
    Role.REPLICATE: frozenset((Role.READ, Role.REPLICATE)),
    Role.ADMIN: frozenset(Role),
}


def allows(have: Role, needed: Role) -> bool:
    """Whether a token with the role `have` may do what needs the role `needed`."""
    return needed in _ALLOWED[have]


def roles_that_allow(needed: Role) -> tuple[Role, ...]:
    return tuple(role for role in Role if allows(role, needed))
