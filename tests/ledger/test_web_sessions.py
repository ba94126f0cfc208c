"""Sessions of browsers: known by their id until they end, expire, or their token does."""

from __future__ import annotations

import secrets
from datetime import datetime, timedelta

import pytest
import sqlalchemy as sa

from strandline.core.actor import Actor, Trigger, acting_as
from strandline.core.records.audit_events import Event
from strandline.core.roles import Role
from strandline.ledger import audit
from strandline.ledger.receive import tokens
from strandline.ledger.serve import web_sessions
from tests.ledger.conftest import LakeState

HOUR = timedelta(hours=1)


def at(monkeypatch: pytest.MonkeyPatch, moment: datetime) -> None:
    for module in (web_sessions, tokens):
        monkeypatch.setattr(module, "utc_now", lambda: moment)


def test_a_session_is_found_by_its_id_with_its_token_and_stored_as_a_hash(shared: LakeState) -> None:
    id = secrets.token_urlsafe(32)
    with shared.ledger.write() as connection:
        token, _ = tokens.create(connection, "found", ["default.events"], role=Role.READ)
        made = web_sessions.add(connection, id, token, lasts=HOUR)
        assert web_sessions.find(connection, id) == made
        assert made.token == token and made.expires_at == made.created_at + HOUR
        for wrong in ("", id[:-1], id + "x", id.swapcase(), "\udcff"):
            assert web_sessions.find(connection, wrong) is None
        rows = connection.execute(sa.text("SELECT * FROM web_session")).all()
        events = connection.execute(sa.text("SELECT detail FROM audit")).all()
    assert id not in str(rows) + str(events)


def test_a_session_ends_by_log_out_once_and_other_sessions_stay(shared: LakeState) -> None:
    with shared.ledger.write() as connection, acting_as(Actor("ann", Trigger.PAGE)):
        token, _ = tokens.create(connection, "ann", None)
        for id in ("first", "second"):
            web_sessions.add(connection, id, token, lasts=HOUR)
        assert web_sessions.end(connection, "first") and not web_sessions.end(connection, "first")
        assert not web_sessions.end(connection, "unknown")
        assert web_sessions.find(connection, "first") is None and web_sessions.find(connection, "second") is not None
        told = audit.latest(connection, actor="ann", events=(Event.SESSION_STARTED, Event.SESSION_ENDED))
    assert [e.event for e in told] == ["session.ended", "session.started", "session.started"]
    assert {e.detail["token"] for e in told} == {"ann"}


def test_a_session_expires_and_is_removed(shared: LakeState, monkeypatch: pytest.MonkeyPatch) -> None:
    with shared.ledger.write() as connection:
        token, _ = tokens.create(connection, "expires", None)
        made = web_sessions.add(connection, "expiring", token, lasts=HOUR)
        at(monkeypatch, made.expires_at - timedelta(microseconds=1))
        web_sessions.remove_expired(connection)  # those of other tests, which share the ledger
        assert web_sessions.remove_expired(connection) == 0 and web_sessions.find(connection, "expiring") == made
        at(monkeypatch, made.expires_at)
        assert web_sessions.find(connection, "expiring") is None
        assert web_sessions.remove_expired(connection) >= 1 and web_sessions.remove_expired(connection) == 0


def test_a_session_never_outlives_its_token(shared: LakeState, monkeypatch: pytest.MonkeyPatch) -> None:
    with shared.ledger.write() as connection:
        revoked, _ = tokens.create(connection, "revoked", None)
        web_sessions.add(connection, "of the revoked", revoked, lasts=HOUR)
        short, _ = tokens.create(connection, "short", None, expires_in=timedelta(minutes=5))
        made = web_sessions.add(connection, "of the short", short, lasts=HOUR)
        assert made.expires_at == short.expires_at
        tokens.revoke(connection, "revoked")
        assert web_sessions.find(connection, "of the revoked") is None
        assert web_sessions.find(connection, "of the short") == made
        at(monkeypatch, made.expires_at)
        assert web_sessions.find(connection, "of the short") is None


def test_a_token_has_so_many_sessions_and_loses_the_oldest(shared: LakeState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_sessions, "SESSIONS_OF_A_TOKEN_MAX", 3)
    with shared.ledger.write() as connection:
        many, _ = tokens.create(connection, "many", None)
        other, _ = tokens.create(connection, "other", None)
        web_sessions.add(connection, "of another", other, lasts=HOUR)
        now = many.created_at
        for n in range(5):
            at(monkeypatch, now + timedelta(seconds=n))
            web_sessions.add(connection, f"many {n}", many, lasts=HOUR)
        left = [n for n in range(5) if web_sessions.find(connection, f"many {n}") is not None]
        assert left == [2, 3, 4] and web_sessions.find(connection, "of another") is not None


def test_the_store_refuses_an_id_that_is_no_hash_and_a_session_that_changes(shared: LakeState) -> None:
    with shared.ledger.write() as connection:
        token, _ = tokens.create(connection, "fixed", None)
        web_sessions.add(connection, "fixed", token, lasts=HOUR)
    for statement in (
        f"INSERT INTO web_session (id_hash, token_id, created_at, expires_at) VALUES ('plain', {token.id}, 0, 1)",
        "UPDATE web_session SET expires_at = expires_at + 1",
    ):
        with pytest.raises(sa.exc.IntegrityError), shared.ledger.write() as connection:
            connection.execute(sa.text(statement))
