"""A warehouse that is silent, slow or full of large rows: who looks at quarantined rows keeps nobody else waiting."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from strandline.core.roles import Role
from strandline.deliver.quarantine import rows
from strandline.deliver.quarantine.content import QuarantineObjects
from strandline.serve import context
from tests.serve.conftest import API, Served
from tests.serve.test_api import add_sink
from tests.serve.test_dry_runs import refuse_rows

READS = 2
ROWS = 5


@pytest.fixture
def refused(served: Served, admin: httpx.Client, dataset: str, tmp_path: Path) -> None:
    add_sink(admin, tmp_path / "out")
    refuse_rows(served.lake, *range(1, ROWS + 1))


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The warehouse answers nothing; the names of the objects that it was asked for."""
    over, asked = threading.Event(), list[str]()

    def get(self: QuarantineObjects, name: str) -> None:
        asked.append(name)
        over.wait()

    monkeypatch.setattr(QuarantineObjects, "get", get)
    monkeypatch.setattr(context, "STORAGE_SECONDS_MAX", 0.2)
    yield asked
    over.set()


@pytest.mark.parametrize("settings", [{"serve": {"reads_at_once_max": READS}}])
@pytest.mark.usefixtures("refused")
def test_whoever_asks_a_silent_warehouse_keeps_nobody_from_the_status(
    served: Served, admin: httpx.Client, silent: list[str]
) -> None:
    with ThreadPoolExecutor(4 * READS) as pool, served.as_role(Role.READ) as reader:
        for asked in [pool.submit(reader.get, f"{API}/quarantined-rows") for _ in range(4 * READS)]:
            found = asked.result(60).json()
            assert [row["number"] for row in found["rows"]] == list(range(1, ROWS + 1)), "the ledger knows them"
            assert found["contents_omitted"] == ROWS
            assert {row["row"] for row in found["rows"]} == {None}
            assert {row["problem"] for row in found["rows"]} == {rows._NOT_READ}
        # What they asked for is still under way.
        for path in (f"{API}/status", "/metrics", "/", f"{API}/datasets/events/seal"):
            assert reader.get(path).status_code == 200
        page = reader.get("/quarantine/rows")
        assert page.status_code == 200 and "the warehouse is slow" in page.text


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads the warehouse: who comes next waits until the one before has ended."""
    monkeypatch.setattr(context, "_STORAGE_AT_ONCE", 1)


@pytest.mark.usefixtures("one_thread", "refused")
def test_an_answer_has_what_was_read_in_time_and_what_is_late_ends(
    admin: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, asked, real = threading.Event(), list[str](), QuarantineObjects.get

    def get(self: QuarantineObjects, name: str) -> bytes | None:
        asked.append(name)
        if len(asked) == 3:
            late.wait()
        return real(self, name)

    monkeypatch.setattr(QuarantineObjects, "get", get)
    monkeypatch.setattr(context, "STORAGE_SECONDS_MAX", 1.0)
    found = admin.get(f"{API}/quarantined-rows").json()
    assert [row["problem"] for row in found["rows"]] == ["its object is gone"] * 2 + [rows._NOT_READ] * 3
    assert found["contents_omitted"] == 3
    late.set()
    monkeypatch.setattr(context, "STORAGE_SECONDS_MAX", 60.0)
    assert admin.get(f"{API}/quarantined-rows").json()["contents_omitted"] == 0
    assert len(asked) == 3 + ROWS


@pytest.mark.usefixtures("refused")
def test_the_contents_of_an_answer_have_a_bound(admin: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "_PAGE_BYTES_MAX", 9 * 3)  # each has nine bytes
    found = admin.get(f"{API}/quarantined-rows").json()
    assert [row["problem"] for row in found["rows"]] == ["its object is gone"] * 3 + [rows._NO_ROOM] * 2
    assert (found["contents_omitted"], found["next"]) == (2, None)
    assert admin.get(f"{API}/quarantined-rows", params={"limit": 3}).json()["contents_omitted"] == 0
