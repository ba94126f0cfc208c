"""A REST catalog that takes connections and never answers: only what asks it waits for it, and not for ever."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import httpx
import pytest

from strandline.core.errors import StorageError
from strandline.core.roles import Role
from strandline.iceberg.pyiceberg import internals
from strandline.iceberg.pyiceberg.catalog import open_catalog
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.lake import open_lake
from strandline.lake_admin import init_lake
from strandline.serve import context, health
from strandline.status import table_glances
from tests.conftest import MakeHome
from tests.serve.conftest import API, COLUMNS, Served, serving
from tests.serve.test_api import catalog_of

READS = 2


@pytest.fixture
def over_silent_catalog(tmp_path: Path, make_home: MakeHome, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A lake with a dataset, whose catalog is silent from now on."""
    monkeypatch.setattr(health, "CHECK_SECONDS_MAX", 0.2)
    monkeypatch.setattr(context, "TABLE_SECONDS_MAX", 0.2)
    monkeypatch.setattr(table_glances, "CATALOG_SECONDS_MAX", 0.2)
    with init_lake(tmp_path) as made:
        made.create_dataset("events", parse_columns(COLUMNS))
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        make_home(tmp_path, {"catalog": {"kind": "rest", "uri": uri}, "serve": {"reads_at_once_max": READS}})
        with open_lake(tmp_path) as lake:
            secrets = {role: lake.receiver.create_token(f"the {role}", role=role)[1] for role in Role}
            # The catalog's end is closed first: what still waits for it ends then.
            with serving(lake) as url, closing(silent):
                yield Served(lake, url, secrets)


def test_whoever_asks_for_tables_keeps_nobody_from_the_status(over_silent_catalog: Served) -> None:
    served = over_silent_catalog
    token = f"Authorization: Bearer {served.secrets[Role.REPLICATE]}"
    head = (f"POST {API}/replication/offer HTTP/1.1", "Host: x", token, "Content-Type: application/json")
    offer = "\r\n".join([*head, "Content-Length: 2", "", "{}"]).encode()
    with (
        ExitStack() as stack,
        ThreadPoolExecutor(4 * READS) as pool,
        served.as_role(Role.READ) as reader,
        served.client() as anyone,
    ):
        for _ in range(2 * READS):  # followers wait as long as the catalog takes, and only other followers with them
            stack.enter_context(closing(served.raw())).sendall(offer)
        tables = [pool.submit(reader.get, f"{API}/datasets/events") for _ in range(4 * READS)]
        for asked in tables:
            answer = asked.result(60)
            assert (answer.status_code, answer.json()["retryable"]) == (503, True), answer.text
            assert "has not answered" in answer.json()["detail"]
        # What they asked for is still under way.
        is_ready, reason = catalog_of(anyone.get("/readyz"))
        assert not is_ready and "has not answered" in str(reason)
        [dataset] = reader.get(f"{API}/status").json()["datasets"]
        assert "cannot be reached" in dataset["problem"] and dataset["rows"] is None
        assert reader.get("/metrics").status_code == 200
        assert reader.get(f"{API}/datasets/events/seal").status_code == 200
        assert reader.get("/").status_code == 200
        page = reader.get("/datasets/events")
        assert page.status_code == 200 and "cannot be reached" in page.text


def test_a_run_of_the_reconciler_is_on_record_before_it_opens_the_catalog(over_silent_catalog: Served) -> None:
    with over_silent_catalog.as_role() as admin:
        admin.timeout = httpx.Timeout(30)  # the catalog is silent for longer
        begun = admin.post(f"{API}/reconciliation/trigger")
        assert begun.status_code == 202, begun.text
        assert admin.get(f"{API}/reconciliation/status").json()["running"] == begun.json()["run"]


def test_a_catalog_that_hangs_is_asked_for_one_table_only(
    over_silent_catalog: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[float] = []
    real = internals.rest_catalog

    def counted(*given: object, **options: object) -> object:
        opened.append(1)
        return real(*given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("strandline.iceberg.pyiceberg.catalog.rest_catalog", counted)
    lake = over_silent_catalog.lake
    for _ in range(3):
        [found] = lake.status().datasets
        assert "cannot be reached" in str(found.problem)
    assert len(opened) == 1


def test_a_request_to_the_lakes_own_catalog_has_a_time_limit(over_silent_catalog: Served) -> None:
    """PyIceberg's own requests have none."""
    with pytest.raises(StorageError, match="cannot be reached"):
        open_catalog(over_silent_catalog.lake.config, answer_seconds_max=0.1)
