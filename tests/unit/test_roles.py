"""What each role may do."""

from __future__ import annotations

import pytest

from strandline.core.roles import Role, allows, roles_that_allow

ALLOWED = {
    Role.READ: {Role.READ},
    Role.WRITE: {Role.READ, Role.WRITE},
    Role.REPLICATE: {Role.READ, Role.REPLICATE},
    Role.ADMIN: {Role.READ, Role.WRITE, Role.REPLICATE, Role.ADMIN},
}


@pytest.mark.parametrize("have", Role)
@pytest.mark.parametrize("needed", Role)
def test_a_role_allows_exactly_what_it_is_for(have: Role, needed: Role) -> None:
    assert allows(have, needed) == (needed in ALLOWED[have])


def test_only_write_and_admin_may_send_rows() -> None:
    assert roles_that_allow(Role.WRITE) == (Role.WRITE, Role.ADMIN)
