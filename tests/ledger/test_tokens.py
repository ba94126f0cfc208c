"""Tokens: known by their secret until they are revoked, and only a hash of it is kept."""

from __future__ import annotations

from datetime import timedelta

import pytest
import sqlalchemy as sa

from strandline.core.errors import RefusedError, UsageError
from strandline.core.roles import Role
from strandline.ledger.engine import Ledger
from strandline.ledger.receive import tokens
from tests.ledger.conftest import LakeState
from tests.ledger.receiving import at_once


def test_a_token_is_found_by_its_secret_and_by_nothing_else(shared: LakeState) -> None:
    with shared.ledger.write() as connection:
        first, secret = tokens.create(connection, "first", ["default.events", "default.events", "default.a"])
        other, other_secret = tokens.create(connection, "other", None)
        assert tokens.find(connection, secret) == first
        assert tokens.find(connection, other_secret) == other
        for wrong in ("", secret[:-1], secret + "x", secret.upper(), "sl_", "first", "\udcff", first.name):
            assert tokens.find(connection, wrong) is None
    assert secret.startswith("sl_") and len(secret) == 46 and secret != other_secret
    assert first.datasets == ("default.a", "default.events")
    assert [first.allows(d) for d in ("default.events", "default.a", "default.other")] == [True, True, False]
    assert other.allows("default.anything")


def test_no_secret_is_in_the_ledger(shared: LakeState) -> None:
    with shared.ledger.write() as connection:
        _, secret = tokens.create(connection, "quiet", None)
        rows = connection.execute(sa.text("SELECT * FROM api_token")).all()
    assert secret.removeprefix("sl_") not in str(rows)


def test_a_revoked_token_is_not_found_and_its_name_is_free_again(shared: LakeState) -> None:
    with shared.ledger.write() as connection:
        old, secret = tokens.create(connection, "turns", None)
        with pytest.raises(RefusedError, match="turns"):
            tokens.create(connection, "turns", None)
        assert tokens.revoke(connection, "turns")
        assert not tokens.revoke(connection, "turns")
        assert tokens.find(connection, secret) is None
        new, new_secret = tokens.create(connection, "turns", ["default.events"])
        assert tokens.find(connection, new_secret) == new and tokens.find(connection, secret) is None
        listed = [t for t in tokens.list_tokens(connection) if t.name == "turns"]
    assert [(t.id, t.revoked_at is None) for t in listed] == [(old.id, False), (new.id, True)]
    assert not listed[0].allows("default.events")


def test_a_token_has_a_role_and_keeps_that_of_the_one_that_it_replaces(shared: LakeState) -> None:
    with shared.ledger.write() as connection:
        plain, _ = tokens.create(connection, "plain", None)
        admin, secret = tokens.create(connection, "boss", None, role=Role.ADMIN)
        next_admin, _ = tokens.create(connection, "boss 2", None, replaces="boss")
        reader, _ = tokens.create(connection, "boss 3", None, replaces="boss", role=Role.READ)
        assert tokens.find(connection, secret) == admin
    assert [t.role for t in (plain, admin, next_admin, reader)] == [Role.WRITE, Role.ADMIN, Role.ADMIN, Role.READ]


def test_an_expired_token_is_not_found_and_says_so(shared: LakeState, monkeypatch: pytest.MonkeyPatch) -> None:
    with shared.ledger.write() as connection:
        made, secret = tokens.create(connection, "short", None, expires_in=timedelta(hours=1))
        assert made.expires_at == made.created_at + timedelta(hours=1)
        for minutes, is_valid in ((59, True), (60, False), (10_000, False)):
            now = made.created_at + timedelta(minutes=minutes)
            monkeypatch.setattr(tokens, "utc_now", lambda now=now: now)
            assert (tokens.find(connection, secret) is not None) == is_valid
            assert made.is_expired(now) != is_valid
        with pytest.raises(RefusedError, match="short"):
            tokens.create(connection, "short", None)  # its name is free only when it is revoked
        with pytest.raises(UsageError, match="in the past"):
            tokens.create(connection, "never", None, expires_in=timedelta(0))


def test_a_token_for_nothing_and_one_without_a_name_are_refused(shared: LakeState) -> None:
    with shared.ledger.write() as connection:
        for name, datasets in (("nothing", []), ("  ", None)):
            with pytest.raises(UsageError):
                tokens.create(connection, name, datasets)


def test_of_two_that_make_a_token_of_one_name_at_once_one_does(shared: LakeState) -> None:
    def create(ledger: Ledger) -> bool:
        try:
            with ledger.write() as connection:
                tokens.create(connection, "same", None)
        except RefusedError:
            return False
        return True

    assert sorted(at_once(shared, [create] * 4)) == [False, False, False, True]


@pytest.mark.parametrize(
    "change", ["hash = 'x'", "name = 'x'", "revoked_at = NULL", "role = 'admin'", "expires_at = 1", "datasets = '[]'"]
)
def test_the_store_itself_refuses_to_change_a_token(shared: LakeState, change: str) -> None:
    with shared.ledger.write() as connection:
        made, _ = tokens.create(connection, f"fixed {change}", None)
        tokens.revoke(connection, made.name)
    with pytest.raises(sa.exc.IntegrityError), shared.ledger.write() as connection:
        connection.execute(sa.text(f"UPDATE api_token SET {change} WHERE id = :id"), {"id": made.id})
