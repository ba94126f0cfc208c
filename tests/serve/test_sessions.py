"""Sessions of browsers: short, renewed by a person's use of the page and by nothing else, and at an end after a day's
work; and over which connections their cookie is sent."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from strandline.core.roles import Role
from strandline.ledger.receive import tokens
from strandline.ledger.serve import web_sessions
from strandline.serve import context
from strandline.serve.auth import sessions
from strandline.serve.auth.session_key import SessionCookie, load_session_keys
from strandline.serve.auth.sessions import BACKGROUND, COOKIE
from tests.serve.conftest import API, TRUST, Served

PAGE = {"Accept": "text/html,application/xhtml+xml"}
MINUTE = timedelta(minutes=1)
IDLE = 30 * MINUTE  # as the settings have it
LASTS_MAX = timedelta(hours=12)

Later = Callable[[timedelta], None]


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Later:
    """Sets the clock of the server: so long after the test began."""
    began = datetime.now(UTC)

    def move(passed: timedelta) -> None:
        for module in (sessions, web_sessions, tokens, context):
            monkeypatch.setattr(module, "utc_now", lambda: began + passed)

    move(timedelta(0))
    return move


def log_in(served: Served, role: Role = Role.READ) -> tuple[str, str]:
    """The cookie and the token against cross-site requests."""
    answer = httpx.post(f"{served.url}{API}/session", json={"token": served.secrets[role]}, timeout=60, verify=TRUST)
    assert answer.status_code == 201, answer.text
    return answer.cookies[COOKIE], answer.json()["csrf"]


def send(served: Served, cookie: str, method: str = "GET", path: str = "/", **headers: str) -> httpx.Response:
    sent = {"Cookie": f"{COOKIE}={cookie}", **headers}
    return httpx.request(method, f"{served.url}{path}", headers=sent, timeout=60)


def opens(served: Served, cookie: str) -> str | None:
    """A person opens a page. The new cookie; None if there is none."""
    return send(served, cookie, **PAGE).cookies.get(COOKIE)


def is_good(served: Served, cookie: str) -> bool:
    return send(served, cookie, path=f"{API}/session").status_code == 200


def test_a_page_that_a_person_opens_renews_the_session(served: Served, later: Later) -> None:
    first, _ = log_in(served)
    later(20 * MINUTE)
    second = opens(served, first)
    assert second is not None and second != first
    later(45 * MINUTE)
    assert is_good(served, second)
    assert not is_good(served, first), "a copy of the old cookie is not renewed with it"
    later(51 * MINUTE)
    assert not is_good(served, second)
    assert opens(served, second) is None, "what has expired is not renewed"


def test_a_button_renews_the_session_and_a_request_of_another_site_does_not(served: Served, later: Later) -> None:
    cookie, csrf = log_in(served, Role.ADMIN)
    later(20 * MINUTE)
    for headers in ({}, {"X-CSRF-Token": csrf, "Sec-Fetch-Site": "cross-site"}):
        refused = send(served, cookie, "POST", f"{API}/reconciliation/runs/1/cancel", **headers)
        assert refused.status_code == 403 and "set-cookie" not in refused.headers
    pressed = send(served, cookie, "POST", f"{API}/reconciliation/runs/1/cancel", **{"X-CSRF-Token": csrf})
    assert pressed.status_code == 404 and pressed.cookies[COOKIE] != cookie


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/", PAGE | {BACKGROUND: "refresh"}),
        ("/", PAGE | {"Sec-Fetch-Mode": "cors"}),
        (f"{API}/status", {"Accept": "application/json"}),
        ("/metrics", {"Accept": "text/plain"}),
    ],
)
def test_what_a_page_fetches_by_itself_does_not_renew_the_session(
    served: Served, later: Later, path: str, headers: dict[str, str]
) -> None:
    cookie, _ = log_in(served)
    later(20 * MINUTE)
    answer = send(served, cookie, path=path, **headers)
    assert answer.status_code == 200 and "set-cookie" not in answer.headers


@pytest.mark.parametrize("settings", [{"serve": {"refresh_seconds": 0}}])
def test_the_stream_of_events_does_not_renew_the_session_and_ends_with_it(served: Served, later: Later) -> None:
    cookie, _ = log_in(served)
    later(20 * MINUTE)
    headers = {"Cookie": f"{COOKIE}={cookie}", "Accept": "text/event-stream"}
    with httpx.stream("GET", f"{served.url}/live", headers=headers, timeout=60) as stream:
        assert stream.status_code == 200 and "set-cookie" not in stream.headers
        lines = (line for line in stream.iter_lines() if line.startswith("event:"))
        assert next(lines) == "event: changed"
        later(IDLE + MINUTE)
        assert next(line for line in lines if line != "event: changed") == "event: ended"
    assert not is_good(served, cookie)


def test_a_session_ends_at_last_however_much_it_is_used(served: Served, later: Later) -> None:
    cookie: str | None = log_in(served)[0]
    step = 29 * MINUTE
    for n in range(1, int(LASTS_MAX / step) + 1):
        later(n * step)
        assert cookie is not None
        cookie = opens(served, cookie)
    assert cookie is not None
    later(LASTS_MAX - MINUTE)
    cookie = opens(served, cookie)
    assert cookie is not None and is_good(served, cookie)
    later(LASTS_MAX + MINUTE)
    assert not is_good(served, cookie) and opens(served, cookie) is None


def test_the_ledger_knows_the_end_too_whatever_a_cookie_says(served: Served, later: Later) -> None:
    cookie, _ = log_in(served)
    keys = load_session_keys(served.lake.config)
    said = keys.read_cookie(cookie, datetime.now(UTC))
    assert said is not None
    moved = SessionCookie(said.session, said.begun_at + LASTS_MAX, said.expires_at + 2 * LASTS_MAX)
    later(LASTS_MAX + MINUTE)
    assert not is_good(served, keys.cookie(moved))


@pytest.mark.parametrize("settings", [{"serve": {"session_idle_minutes": 600, "session_hours_max": 1}}])
def test_the_shorter_of_both_times_counts(served: Served, later: Later) -> None:
    cookie, _ = log_in(served)
    later(59 * MINUTE)
    assert is_good(served, cookie)
    later(61 * MINUTE)
    assert not is_good(served, cookie)


def test_a_session_that_was_just_renewed_ends_at_once_with_its_token_and_by_log_out(served: Served) -> None:
    reader, csrf = log_in(served)
    other, _ = log_in(served)
    renewed, renewed_other = opens(served, reader), opens(served, other)
    assert renewed is not None and renewed_other is not None
    out = send(served, renewed, "DELETE", f"{API}/session", **{"X-CSRF-Token": csrf})
    assert out.json() == {"ended": True} and COOKIE not in out.cookies
    assert len(out.headers.get_list("set-cookie")) == 1, "it is cleared, and not set anew"
    assert not is_good(served, reader) and not is_good(served, renewed)
    with served.as_role() as admin:
        assert is_good(served, renewed_other)
        assert admin.delete(f"{API}/tokens/the read").status_code == 200
    assert not is_good(served, renewed_other) and opens(served, renewed_other) is None


@pytest.mark.parametrize("settings", [{"serve": {"requests_per_second_max": 1}}])
def test_a_renewed_cookie_is_no_other_caller(served: Served, later: Later) -> None:
    """The description, the log-in and the first page count as requests of the address, which has four at once."""
    cookie: str | None = log_in(served)[0]
    for n in range(4):
        later(n * timedelta(seconds=2))  # each cookie differs from the one before
        assert cookie is not None, n
        cookie = opens(served, cookie)
    assert cookie is not None


@pytest.mark.parametrize(
    ("settings", "is_secure"),
    [({}, False), ({"serve": {"cookie_secure": True}}, True)],
    ids=["plain", "behind a proxy"],
)
def test_a_cookie_is_for_https_only_if_the_setting_says_so(served: Served, is_secure: bool) -> None:
    """A process that speaks TLS itself needs no setting: see test_work.py."""
    token = {"token": served.secrets[Role.READ]}
    by_api = httpx.post(f"{served.url}{API}/session", json=token, timeout=60)
    by_form = httpx.post(f"{served.url}/login", data=token, timeout=60)
    cookie = by_api.headers["set-cookie"].partition(";")[0].partition("=")[2]
    renewed = send(served, cookie, **PAGE)
    cleared = send(served, cookie, "DELETE", f"{API}/session", **{"X-CSRF-Token": by_api.json()["csrf"]})
    for answer in (by_api, by_form, renewed, cleared):
        said = [part.strip().lower() for part in answer.headers["set-cookie"].split(";")]
        assert ("secure" in said) is is_secure, answer.request.url
        assert {"httponly", "samesite=strict", "path=/"} <= set(said)
