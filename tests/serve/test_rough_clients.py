"""Clients that send too much, too slowly, or nonsense: never a 5xx, never a leak, and others are served meanwhile."""

from __future__ import annotations

import json
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing

import httpx
import pytest

from strandline.core.roles import Role
from strandline.serve.limits import RateLimit
from tests.serve.conftest import API, Served
from tests.serve.test_metrics import families
from tests.waiting import eventually

QUICK = {"serve": {"head_seconds_max": 0.5, "body_seconds_max": 0.5, "body_bytes_max": 2048, "connections_max": 50}}


def answer_to(served: Served, request: bytes) -> bytes:
    """Everything that comes back until the server closes the connection."""
    with closing(served.raw()) as connection:
        connection.sendall(request)
        return everything(connection)


def everything(connection: socket.socket) -> bytes:
    found = b""
    while piece := connection.recv(65536):
        found += piece
    return found


def head(served: Served, line: str, *headers: str) -> bytes:
    token = f"Authorization: Bearer {served.secrets[Role.ADMIN]}"
    return "\r\n".join([line, "Host: x", "Connection: close", token, *headers, "", ""]).encode("latin-1")


@pytest.mark.parametrize("settings", [QUICK])
def test_a_body_that_is_too_large_is_refused_however_it_comes(served: Served, admin: httpx.Client) -> None:
    def pieces() -> Iterator[bytes]:
        yield from [b"x" * 1024] * 4

    large = admin.post(f"{API}/tokens", content=b"x" * 4096)
    assert large.status_code == 413 and "2,048 bytes" in large.json()["detail"] and large.json()["hint"]
    assert admin.post(f"{API}/tokens", content=pieces()).status_code == 413
    huge = answer_to(served, head(served, f"POST {API}/tokens HTTP/1.1", "Content-Length: 99999999999999999999"))
    assert b" 413 " in huge.partition(b"\r\n")[0] or b" 400 " in huge.partition(b"\r\n")[0]


@pytest.mark.parametrize("settings", [QUICK])
def test_a_slow_head_is_closed_and_a_slow_body_is_told(served: Served, admin: httpx.Client) -> None:
    assert answer_to(served, b"GET /api/v1/status HT") == b""
    slow = answer_to(served, head(served, f"POST {API}/tokens HTTP/1.1", "Content-Length: 10") + b"{")
    assert b" 408 " in slow.partition(b"\r\n")[0]
    assert admin.get(f"{API}/status").status_code == 200


@pytest.fixture
def files() -> Iterator[None]:
    """Room for more than a thousand connections, both ends of which are open in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, marks=pytest.mark.torture, id="as it is by default"),
        pytest.param(QUICK, id="with few connections"),
    ],
)
def test_silent_connections_shut_nobody_out(served: Served, admin: httpx.Client) -> None:
    with ExitStack() as stack:
        for _ in range(1000):
            stack.enter_context(closing(served.raw()))
        assert admin.get(f"{API}/status").status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b'"text"',
        b"\xff\xfe",
        b'{"name": "x", "columns": "no"}',
        b'{"name": 7}',
        b'{"name": "\\ud800", "columns": []}',
        b'{"name": "a\\u0000b", "columns": [{"name": "id", "type": "long"}]}',
        b'{"name": "x", "columns": [{"name": "id", "type": "long"}], "more": 1}',
        b'{"a":' * 2000 + b"1" + b"}" * 2000,
        b"[" * 100_000,
        b'{"name": ' + b"9" * 5000 + b"}",
        b"NaN",
    ],
)
def test_a_malformed_body_is_the_clients_fault(admin: httpx.Client, body: bytes) -> None:
    answer = admin.post(f"{API}/datasets", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422), answer.text


def nested(levels: int, kind: str) -> object:
    found: object = "long"
    for _ in range(levels):
        found = {"type": kind, "element": found}
    return found


UNMEASURED: list[dict[str, object]] = [
    {"partition_by": "bucket(²,id)"},
    {"partition_by": "bucket(٣,id)"},
    {"partition_by": f"truncate({'9' * 5000},id)"},
    {"type": f"decimal({'9' * 5000},2)"},
    {"type": f"decimal(2,{'9' * 5000})"},
    {"type": f"fixed[{'9' * 5000}]"},
    {"type": "fixed[9999999999]"},
    {"type": "list<" * 3000 + "long" + ">" * 3000},
    {"type": nested(33, "list")},
    {"type": nested(300, "list")},
    {"type": nested(700, "list")},
    {"type": nested(700, "no type")},
]


def test_numbers_and_types_without_measure_are_the_clients_fault(admin: httpx.Client, dataset: str) -> None:
    for change in UNMEASURED:
        given = {"type": "long"} | change
        column = {"name": "id", "type": given.pop("type")}
        made = admin.post(f"{API}/datasets", json={"name": "x", "columns": [column], **given})
        assert made.status_code in (400, 422), made.text
        for how in ("add", "widen") if isinstance(change.get("type"), str) else ():
            altered = admin.patch(f"{API}/datasets/{dataset}", json={how: [column]})
            assert altered.status_code in (400, 409, 422), altered.text


def test_a_length_without_measure_is_too_large(served: Served) -> None:
    said = answer_to(served, head(served, f"POST {API}/tokens HTTP/1.1", f"Content-Length: {'9' * 5000}"))
    assert said.split(b" ", 2)[1] in (b"400", b"413")


def test_a_body_of_another_type_is_not_read_as_json(admin: httpx.Client) -> None:
    text = json.dumps({"name": "x", "role": "admin"})
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        assert admin.post(f"{API}/tokens", content=text, headers={"Content-Type": kind}).status_code == 422


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd",
        "/api/v1/../../../etc/passwd",
        "/api/v1/datasets/..%2f..%2f..%2fetc%2fpasswd",
        "/api/v1/sinks/%2e%2e/%2e%2e/etc/passwd",
        "/api/v1/datasets/%00",
        "/api/v1/sinks/%ff%fe",
        "/static/..%5c..%5cetc/passwd",
        "//etc/passwd",
        "/api/v1/maintenance/runs/-1",
        "/api/v1/maintenance/runs/99999999999999999999999",
        "/api/v1/tasks/0x10",
        "/api/v1/status/",
    ],
)
def test_no_path_leads_out_of_the_api(served: Served, path: str) -> None:
    found = answer_to(served, head(served, f"GET {path} HTTP/1.1"))
    status = int(found.split(b" ", 2)[1])
    assert status in (400, 404, 422) and b"root:" not in found, found


@pytest.mark.parametrize("name", ["a%0d%0aSet-Cookie:%20x=1", "a%0aX-Injected:%201", "%0d%0a%0d%0a<html>"])
def test_a_name_cannot_add_headers_to_an_answer(served: Served, name: str) -> None:
    for method, place in (("GET", f"sinks/{name}"), ("GET", f"datasets/{name}"), ("DELETE", f"tokens/{name}")):
        found = answer_to(served, head(served, f"{method} {API}/{place} HTTP/1.1"))
        headers = found.partition(b"\r\n\r\n")[0].lower()
        assert b"set-cookie" not in headers and b"x-injected" not in headers
        assert b"application/problem+json" in headers


def test_methods_and_paths_that_are_not_there_are_problems_too(admin: httpx.Client) -> None:
    assert admin.put(f"{API}/status").status_code == 405
    assert "GET" in admin.put(f"{API}/status").headers["allow"]
    assert admin.get("/nosuch").json()["type"] == "urn:strandline:problem:not-found"


@pytest.mark.parametrize("settings", [{"serve": {"requests_per_second_max": 1}}])
def test_a_caller_that_asks_too_often_is_turned_away_and_others_are_not(served: Served) -> None:
    with served.as_role(Role.READ) as greedy, served.as_role() as other:
        statuses = [greedy.get(f"{API}/session").status_code for _ in range(12)]
        assert set(statuses) == {200, 429}
        assert other.get(f"{API}/session").status_code == 200


@pytest.mark.parametrize("settings", [{"serve": {"requests_at_once_max": 4}}])
def test_bodies_that_do_not_arrive_shut_nobody_out(served: Served, admin: httpx.Client) -> None:
    start = head(served, f"POST {API}/tokens HTTP/1.1", "Content-Length: 10")
    with ExitStack() as stack:
        slow = [stack.enter_context(closing(served.raw())) for _ in range(8)]
        for connection in slow:
            connection.sendall(start + b"{")
        # one waits for its body; whoever else has the same address is told to come again
        assert all(b" 429 " in everything(connection).partition(b"\r\n")[0] for connection in slow[1:])
        with served.client() as anyone:
            assert anyone.get("/healthz").status_code == anyone.get("/readyz").status_code == 200
        assert admin.get(f"{API}/status").status_code == 200


@pytest.mark.parametrize("settings", [{"serve": {"requests_per_second_max": 1}}])
def test_tokens_that_are_made_up_give_nobody_more_requests(served: Served) -> None:
    with served.as_role() as known, served.client() as plain:
        assert known.get(f"{API}/session").status_code == 200
        made_up = [{"Authorization": f"Bearer sl_{n}"} for n in range(8)]
        found = [plain.get(f"{API}/session", headers=header).status_code for header in made_up]
        assert set(found) == {401, 429}
        assert known.get(f"{API}/session").status_code == 200, "one that was verified has its own"
        assert plain.get("/healthz").status_code == 200


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"serve": {"requests_at_once_max": 4}}, id="4"),
        pytest.param({"serve": {"requests_at_once_max": 256}}, marks=pytest.mark.torture, id="256"),
    ],
)
def test_many_at_once_are_answered_or_asked_to_come_again(served: Served) -> None:
    """A thousand connections: each is answered, and nobody who is turned away does not know when to come again."""
    request = head(served, f"GET {API}/status HTTP/1.1")
    with ExitStack() as stack:
        connections = [stack.enter_context(closing(served.raw())) for _ in range(1000)]
        for connection in connections:
            connection.sendall(request)
        answers = [everything(connection) for connection in connections]
    statuses = [int(answer.split(b" ", 2)[1]) for answer in answers]
    assert len(statuses) == 1000 and set(statuses) <= {200, 429} and 200 in statuses
    for status, answer in zip(statuses, answers, strict=True):
        assert (b"retry-after" in answer.partition(b"\r\n\r\n")[0].lower()) == (status == 429)


def test_requests_come_back_to_a_caller_with_time() -> None:
    now = [0.0]
    limit = RateLimit(2, lambda: now[0])
    assert [limit.takes(b"a") for _ in range(9)] == [True] * 8 + [False]
    assert limit.takes(b"b")
    now[0] = 0.5
    assert [limit.takes(b"a") for _ in range(2)] == [True, False]


# One address may have one body on its way, so one that is counted on keeps the next client from sending its own.
@pytest.mark.parametrize("settings", [{"serve": {"requests_at_once_max": 4}}])
def test_a_client_that_goes_away_leaves_nothing_behind(served: Served, admin: httpx.Client) -> None:
    for gone in range(1, 9):
        with closing(served.raw()) as connection:
            connection.sendall(head(served, f"POST {API}/tokens HTTP/1.1", "Content-Length: 100") + b"{")
            connection.shutdown(socket.SHUT_RDWR)
        eventually(lambda: requests_without_answer(admin) == gone)  # noqa: B023
    assert admin.get(f"{API}/status").status_code == 200
    assert len(admin.get(f"{API}/tokens").json()["tokens"]) == len(Role)
    made = admin.post(f"{API}/tokens", json={"name": "after", "role": "read"})
    assert made.status_code == 201, made.text


def requests_without_answer(admin: httpx.Client) -> float:
    found = families(admin.get("/metrics").text)["strandline_api_requests"].samples
    counted = [s for s in found if s.name.endswith("_total")]
    assert not [s for s in counted if s.labels["status"].startswith("5")], "nobody got one"
    return sum(s.value for s in counted if s.labels["status"] == "none")
