"""Walks all routes with all roles. A route that declares nothing fails."""

from __future__ import annotations

import re
from typing import Any

import pytest

from strandline.core.roles import Role, allows
from strandline.lake import Lake
from strandline.serve.app import create_app, declared_routes
from strandline.serve.auth.needs import Anyone, Needs
from tests.serve.conftest import API, Served

OPEN_TO_ALL = {
    ("GET", "/healthz"),
    ("GET", "/readyz"),
    ("GET", f"{API}/openapi.json"),
    ("POST", f"{API}/session"),
    ("GET", "/login"),
    ("POST", "/login"),
    ("POST", "/logout"),
    ("GET", "/static/{name}"),
}


def routes(lake: Lake) -> list[tuple[str, str, Any]]:
    app = create_app(lake)
    app.state.context.close()
    return list(declared_routes(app))


def test_every_route_declares_what_it_needs(lake: Lake) -> None:
    found = routes(lake)
    assert len(found) > 40
    assert [(method, path) for path, method, declared in found if declared is None] == []
    assert {(method, path) for path, method, declared in found if isinstance(declared, Anyone)} == OPEN_TO_ALL


def test_only_reading_is_open_to_readers(lake: Lake) -> None:
    """Whatever changes something needs an admin; logging out does not, nor does a follower that says how far it is."""
    for path, method, declared in routes(lake):
        if isinstance(declared, Needs) and method != "GET" and not path.endswith("/session"):
            is_said_by_followers = path.startswith(f"{API}/replication/") and "/followers" not in path
            wanted = Role.REPLICATE if is_said_by_followers else Role.ADMIN
            assert declared.role is wanted, f"{method} {path}"


def test_every_route_refuses_who_has_no_token_and_every_role_that_is_not_enough(served: Served) -> None:
    limited = served.token("limited", Role.ADMIN, only=[_dataset(served)])
    refused = 0
    for path, method, declared in routes(served.lake):
        if not isinstance(declared, Needs):
            continue
        at = re.sub(r"\{[^}]+\}", "1", path)
        with served.client() as nobody:
            answer = nobody.request(method, at)
            assert answer.status_code == 401, f"{method} {path}"
            assert answer.headers["www-authenticate"].startswith("Bearer")
        for role in Role:
            if not allows(role, declared.role):
                with served.as_role(role) as client:
                    assert client.request(method, at, json={}).status_code == 403, f"{method} {path} as {role}"
                refused += 1
        if declared.whole_lake:
            with served.client(limited) as client:
                answer = client.request(method, at, json={})
                assert answer.status_code == 403, f"{method} {path} with a limited token"
                if not answer.headers["content-type"].startswith("text/html"):  # a page says it in words
                    assert answer.json()["type"] == "urn:strandline:problem:wrong-scope", f"{method} {path}"
    assert refused > 60


def _dataset(served: Served) -> str:
    from tests.serve.conftest import COLUMNS

    with served.as_role() as admin:
        made: str = admin.post(f"{API}/datasets", json={"name": "own", "columns": COLUMNS}).json()["name"]
    return made


@pytest.mark.parametrize("role", list(Role))
def test_every_role_may_read(served: Served, role: Role) -> None:
    with served.as_role(role) as client:
        assert client.get(f"{API}/status").status_code == 200
