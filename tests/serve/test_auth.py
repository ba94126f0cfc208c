"""Tokens and cookies that are forged, revoked or expired; sessions; cross-site requests; attempts to log in."""

from __future__ import annotations

import stat
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.errors import ConfigError, StorageError
from strandline.core.roles import Role
from strandline.http import verified_callers
from strandline.lake import Lake
from strandline.ledger.receive import tokens
from strandline.serve import context
from strandline.serve.auth.login_limit import LoginLimit
from strandline.serve.auth.session_key import KEY_FILE, SessionCookie, SessionKeys, load_session_keys
from strandline.serve.auth.sessions import COOKIE, Sessions
from tests.serve.conftest import API, Served

KEYS = SessionKeys(b"k" * 32)
NOW = datetime(2026, 3, 1, tzinfo=UTC)


def logged_in(served: Served, role: Role = Role.ADMIN) -> tuple[httpx.Client, str]:
    client = served.client()
    answer = client.post(f"{API}/session", json={"token": served.secrets[role]})
    assert answer.status_code == 201, answer.text
    csrf: str = answer.json()["csrf"]
    return client, csrf


@pytest.mark.parametrize(
    "header",
    [
        "Bearer",
        "Basic abc",
        "Bearer sl_wrong",
        "sl_wrong",
        "Bearer " + "x" * 5000,
        "Bearer \xff\xfe",
    ],
)
def test_a_token_that_is_none_is_refused(served: Served, header: str) -> None:
    with served.client() as client:
        answer = client.get(f"{API}/status", headers={"Authorization": header.encode("latin-1")})
        assert (answer.status_code, answer.json()["type"]) == (401, "urn:strandline:problem:no-token")


def test_a_token_that_expires_is_refused_at_once(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    short = served.token("short", Role.ADMIN, expires_in=timedelta(minutes=5))
    with served.client(short) as client:
        assert client.get(f"{API}/session").status_code == 200
        later = datetime.now(UTC) + timedelta(minutes=6)
        monkeypatch.setattr(tokens, "utc_now", lambda: later)
        monkeypatch.setattr(context, "utc_now", lambda: later)
        assert client.get(f"{API}/session").status_code == 401


def test_a_token_that_this_process_revokes_is_refused_at_once(served: Served, admin: httpx.Client) -> None:
    with served.client(served.token("gone", Role.READ)) as client:
        assert client.get(f"{API}/session").status_code == 200
        assert admin.delete(f"{API}/tokens/gone").status_code == 200
        assert client.get(f"{API}/session").status_code == 401


def test_a_token_that_another_process_revokes_changes_nothing_more_and_reads_for_a_moment_at_most(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(verified_callers, "monotonic", lambda: now[0])
    with served.client(served.token("gone", Role.ADMIN)) as client:
        assert client.get(f"{API}/session").status_code == 200
        served.lake.receiver.revoke_token("gone")
        assert client.get(f"{API}/session").status_code == 200, "so that not every request has to ask the ledger"
        assert client.post(f"{API}/tokens", json={"name": "another"}).status_code == 401
        now[0] += verified_callers.VERIFIED_SECONDS + 0.001
        assert client.get(f"{API}/session").status_code == 401


@pytest.mark.parametrize("settings", [{"serve": {"requests_per_second_max": 1}}])
def test_a_caller_does_not_become_another_one_by_what_else_it_sends(served: Served) -> None:
    client, _ = logged_in(served)
    secret = served.secrets[Role.READ]
    with closing(client):
        cookie = f"{COOKIE}={client.cookies[COOKIE]}"
    with served.client() as plain:
        found = [plain.get(f"{API}/session", headers={"Cookie": f"{cookie}; x={n}"}).status_code for n in range(8)]
        assert set(found) == {200, 429}
        found = [
            plain.get(f"{API}/session", headers={"Authorization": f"bearer{' ' * (n + 1)}{secret}"}).status_code
            for n in range(8)
        ]
        assert set(found) == {200, 429}


def test_the_token_of_a_session_may_be_the_hidden_field_of_a_form(served: Served) -> None:
    """Not for the API, whose bodies are JSON; for pages that have plain forms."""
    client, csrf = logged_in(served, Role.READ)
    with closing(client):
        refused = client.request("DELETE", f"{API}/session", data={"csrf": "wrong"})
        assert (refused.status_code, refused.json()["type"]) == (403, "urn:strandline:problem:cross-site")
        as_text = client.request(
            "DELETE", f"{API}/session", content=f"csrf={csrf}", headers={"Content-Type": "text/plain"}
        )
        assert as_text.status_code == 403, "a form of another site can send plain text"
        assert client.request("DELETE", f"{API}/session", data={"csrf": csrf}).json() == {"ended": True}


def test_a_wrong_token_in_the_header_is_not_made_good_by_a_cookie(served: Served) -> None:
    client, _ = logged_in(served)
    with closing(client):
        assert client.get(f"{API}/status").status_code == 200
        assert client.get(f"{API}/status", headers={"Authorization": "Bearer sl_wrong"}).status_code == 401


def test_the_cookie_is_kept_from_scripts_and_other_sites_and_holds_no_secret(served: Served) -> None:
    with served.client() as client:
        answer = client.post(f"{API}/session", json={"token": served.secrets[Role.READ]})
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie and "samesite=strict" in cookie and "path=/" in cookie and "max-age=" in cookie
        assert served.secrets[Role.READ].lower() not in cookie
        assert "secure" not in cookie, "there is no TLS here"
    ledger = served.lake.config.ledger_file
    assert ledger is not None
    value = client.cookies[COOKIE]
    session = value.split(".")[1]
    assert session.encode() not in ledger.read_bytes() and value.encode() not in ledger.read_bytes()


def test_a_session_may_what_its_token_may_and_ends_with_it_or_by_log_out(served: Served) -> None:
    reader, csrf = logged_in(served, Role.READ)
    other, other_csrf = logged_in(served, Role.READ)
    with closing(reader), closing(other):
        assert reader.get(f"{API}/session").json()["csrf"] == csrf != other_csrf
        assert reader.delete(f"{API}/tokens/x", headers={"X-CSRF-Token": csrf}).status_code == 403
        kept = dict(reader.cookies)
        assert reader.delete(f"{API}/session", headers={"X-CSRF-Token": csrf}).json() == {"ended": True}
        assert COOKIE not in reader.cookies, "the browser is told to forget it"
        with served.client(cookies=kept) as stolen:
            assert stolen.get(f"{API}/status").status_code == 401, "a copy of the cookie is worth nothing"
        assert other.get(f"{API}/status").status_code == 200
        with served.as_role() as admin:
            admin.delete(f"{API}/tokens/the read")
        assert other.get(f"{API}/status").status_code == 401


def test_a_session_is_audited_as_the_page(served: Served, dataset: str) -> None:
    client, csrf = logged_in(served)
    with closing(client):
        client.delete(f"{API}/datasets/events", headers={"X-CSRF-Token": csrf})
        events = client.get(f"{API}/audit", params={"trigger": "page"}).json()["events"]
        assert [(e["event"], e["actor"]) for e in events] == [
            ("dataset.dropped", "the admin"),
            ("session.started", "the admin"),
        ]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-CSRF-Token": "wrong"},
        {"X-CSRF-Token": "ours", "Sec-Fetch-Site": "cross-site"},
        {"X-CSRF-Token": "ours", "Sec-Fetch-Site": "same-site"},
        {"X-CSRF-Token": "ours", "Origin": "https://evil.example"},
        {"X-CSRF-Token": "ours", "Origin": "null"},
        {"X-CSRF-Token": "ours", "Origin": "null", "Host": ""},
        {"X-CSRF-Token": "other"},
    ],
)
def test_what_another_site_sends_with_our_cookie_changes_nothing(
    served: Served, dataset: str, headers: dict[str, str]
) -> None:
    client, csrf = logged_in(served)
    _, other = logged_in(served)
    tokens_of = {"ours": csrf, "other": other}
    sent = {k: tokens_of.get(v, v) if k == "X-CSRF-Token" else v for k, v in headers.items()}
    with closing(client):
        answer = client.delete(f"{API}/datasets/events", headers=sent)
        assert (answer.status_code, answer.json()["type"]) == (403, "urn:strandline:problem:cross-site")
        assert client.get(f"{API}/datasets/events").status_code == 200
        own = {"X-CSRF-Token": csrf, "Sec-Fetch-Site": "same-origin", "Origin": served.url}
        behind_proxy = own | {"Host": "upstream.internal"}
        assert client.delete(f"{API}/datasets/events", headers=behind_proxy).status_code == 200


def test_another_site_cannot_log_a_browser_in(served: Served) -> None:
    with served.client() as client:
        answer = client.post(
            f"{API}/session", json={"token": served.secrets[Role.READ]}, headers={"Origin": "https://evil.example"}
        )
        assert answer.status_code == 403 and "set-cookie" not in answer.headers


@pytest.mark.parametrize("settings", [{"serve": {"logins_per_minute_max": 3}}])
def test_attempts_to_log_in_are_limited(served: Served) -> None:
    with served.client() as client:
        wrong = {"token": "sl_wrong"}
        claims = [{"X-Forwarded-For": f"10.0.0.{n}", "Forwarded": f"for=10.0.0.{n}"} for n in range(4)]
        found = [client.post(f"{API}/session", json=wrong, headers=claim).status_code for claim in claims]
        assert found == [401, 401, 401, 429], "an address that a client claims is not believed"
        right = client.post(f"{API}/session", json={"token": served.secrets[Role.READ]})
        assert right.status_code == 429 and int(right.headers["retry-after"]) > 0


@pytest.mark.parametrize("settings", [{"serve": {"logins_per_minute_max": 2}}])
def test_attempts_that_the_ledger_did_not_answer_lock_nobody_out(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise StorageError("the ledger is away")

    secret = {"token": served.secrets[Role.READ]}
    with served.client() as client:
        with monkeypatch.context() as patched:
            patched.setattr(Sessions, "start", away)
            assert {client.post(f"{API}/session", json=secret).status_code for _ in range(5)} == {503}
        assert client.post(f"{API}/session", json=secret).status_code == 201


def test_whoever_nobody_knows_is_not_told_what_is_wrong_with_a_body(served: Served) -> None:
    malformed = {"content": b"{", "headers": {"Content-Type": "application/json"}}
    with served.client() as nobody, served.as_role(Role.READ) as reader, served.as_role() as admin:
        found = [client.post(f"{API}/tokens", **malformed).status_code for client in (nobody, reader, admin)]
        assert found == [401, 403, 422]
        assert nobody.post(f"{API}/session", **malformed).status_code == 422, "anyone may log in"


def test_attempts_are_limited_in_all_and_forgotten_after_a_minute_and_after_success() -> None:
    now = [0.0]
    limit = LoginLimit(2, lambda: now[0])
    assert [limit.wait_seconds("a") for _ in range(3)] == [None, None, 60]
    assert limit.wait_seconds("b") is None
    now[0] = 61
    assert limit.wait_seconds("a") is None
    limit.forget_last("a")
    assert [limit.wait_seconds("a") for _ in range(3)] == [None, None, 60]
    limit.forget_last("a")
    assert [limit.wait_seconds("a") for _ in range(2)] == [None, 60], "the one that failed before counts on"
    now[0] = 200
    found = [limit.wait_seconds(f"address {n}") for n in range(25)]
    assert found.count(None) == 20


def test_a_cookie_is_good_until_it_expires() -> None:
    said = SessionCookie("an-id", NOW - timedelta(hours=1), NOW + timedelta(hours=1))
    value = KEYS.cookie(said)
    assert KEYS.read_cookie(value, NOW) == said
    assert KEYS.read_cookie(value, NOW + timedelta(hours=2)) is None
    assert SessionKeys(b"x" * 32).read_cookie(value, NOW) is None


@given(st.text(max_size=200), st.integers(0, 200), st.characters())
def test_no_forged_cookie_is_read(text: str, at: int, letter: str) -> None:
    assert KEYS.read_cookie(text, NOW) is None
    value = KEYS.cookie(SessionCookie("an-id", NOW, NOW + timedelta(hours=1)))
    at %= len(value)
    forged = value[:at] + letter + value[at + 1 :]
    assert forged == value or KEYS.read_cookie(forged, NOW) is None


def test_the_key_is_made_once_and_for_nobody_else(lake: Lake) -> None:
    first = load_session_keys(lake.config)
    path = lake.config.home / KEY_FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_session_keys(lake.config) == first
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="others can read"):
        load_session_keys(lake.config)
    path.chmod(0o600)
    path.write_bytes(b"short")
    with pytest.raises(ConfigError, match="damaged"):
        load_session_keys(lake.config)


@pytest.mark.parametrize("settings", [{"serve": {"session_key": "env:THE_KEY"}}])
def test_the_key_can_come_from_the_environment(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", "a-short-key")
    with pytest.raises(ConfigError, match="shorter"):
        load_session_keys(lake.config)
    monkeypatch.setenv("THE_KEY", "a" * 40)
    assert load_session_keys(lake.config) == load_session_keys(lake.config)
    assert not Path(lake.config.home / KEY_FILE).exists()


@pytest.mark.parametrize("settings", [{"serve": {"session_key": "in plain text"}}])
def test_a_key_in_the_settings_file_is_refused(lake: Lake) -> None:
    with pytest.raises(ConfigError, match="is a secret"):
        load_session_keys(lake.config)
