"""A PostgreSQL ledger that goes away under the API, and comes back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.core.roles import Role
from strandline.lake_admin import init_lake
from tests.serve.conftest import API, COLUMNS, Served, eventually, serving
from tests.servers import Postgres, Proxy, Toxiproxy


@pytest.fixture
def proxy(postgres_server: Postgres, toxiproxy: Toxiproxy) -> Proxy:
    return toxiproxy.proxy_to(postgres_server.port)


@pytest.fixture
def over_postgres(tmp_path: Path, postgres_server: Postgres, proxy: Proxy) -> Iterator[Served]:
    url = postgres_server.create_database().replace(f":{postgres_server.port}/", f":{proxy.port}/")
    with init_lake(tmp_path, ledger=url) as lake:
        secrets = {role: lake.receiver.create_token(f"the {role}", role=role)[1] for role in Role}
        with serving(lake) as at:
            yield Served(lake, at, secrets)


def test_while_the_ledger_is_away_clients_are_told_to_come_again_and_then_it_works_by_itself(
    over_postgres: Served, proxy: Proxy
) -> None:
    with over_postgres.as_role() as admin, over_postgres.client() as nobody:
        assert admin.post(f"{API}/datasets", json={"name": "events", "columns": COLUMNS}).status_code == 201
        assert admin.get(f"{API}/status").status_code == nobody.get("/readyz").status_code == 200
        proxy.enable(False)
        for method, path in (
            ("GET", f"{API}/datasets"),
            ("GET", f"{API}/datasets/events/seal"),
            ("GET", f"{API}/audit"),
            ("POST", f"{API}/sinks/nosuch/pause"),
            ("DELETE", f"{API}/datasets/events"),
            ("POST", f"{API}/reconciliation/trigger"),
        ):
            answer = admin.request(method, path)
            problem = answer.json()
            assert (answer.status_code, problem["retryable"]) == (503, True), f"{method} {path}: {answer.text}"
            assert int(answer.headers["retry-after"]) > 0
        assert nobody.get("/healthz").status_code == 200
        eventually(lambda: nobody.get("/readyz").status_code == 503)  # one look is shown for a second
        away = nobody.get("/readyz")
        assert away.status_code == 503 and "retry-after" in away.headers and "127.0.0.1" not in away.text
        log_in = nobody.post(f"{API}/session", json={"token": over_postgres.secrets[Role.READ]})
        assert (log_in.status_code, log_in.json()["type"]) == (503, "urn:strandline:problem:ledger-away")
        assert "127.0.0.1" not in log_in.text, "whom nobody knows is told no address"
        eventually(lambda: admin.get(f"{API}/status").status_code == 503)  # the last reading is shown for a while
        proxy.enable(True)
        assert admin.get(f"{API}/datasets/events/seal").status_code == 200
        assert admin.delete(f"{API}/datasets/events").status_code == 200
        eventually(lambda: nobody.get("/readyz").status_code == 200)
        assert admin.get(f"{API}/status").json()["datasets"] == []
