"""Lists inside an answer: the first entries, how many there are, and a path of their own that pages them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from strandline.core.delivery_types import ChunkPlan, LanePlan
from strandline.core.records.reconcile_records import Asked, FindingKind, StorageKind
from strandline.core.roles import Role
from strandline.core.types import BlockKind, Seq, SeqRange
from strandline.lake import Lake
from strandline.ledger.ingest import restored_blocks
from strandline.ledger.reconcile import quarantined_files, reconcile_runs
from strandline.ledger.reconcile.quarantined_files import NewSwept
from strandline.serve.describe import INNER_MAX
from strandline.serve.schemas import LANES_IN_LIST_MAX
from tests.serve.conftest import API, COLUMNS, Served
from tests.serve.test_dry_runs import add_sink, one_by_one, planned

MANY = INNER_MAX + 3


def all_pages(admin: httpx.Client, path: str, name: str, cursor: str, **more: str) -> list[dict[str, Any]]:
    found, at = list[dict[str, Any]](), dict[str, Any]()
    while True:
        page = admin.get(f"{API}/{path}", params={"limit": 40, **more, **at}).json()
        assert len(page[name]) <= 40
        found += page[name]
        if page["next"] is None:
            return found
        at = {cursor: page["next"]}


def test_files_of_a_run(served: Served, admin: httpx.Client) -> None:
    new = [NewSwept(FindingKind.ORPHAN, None, f"data/{n}", f"aside/{n}", n, None) for n in range(MANY)]
    with served.lake.ledger.write() as connection:
        run = reconcile_runs.start(connection, Asked(act=True), StorageKind.LOCAL)
        quarantined_files.begin(connection, run, new)
    shown = admin.get(f"{API}/reconciliation/runs/{run}").json()
    assert (len(shown["files"]), shown["files_total"]) == (INNER_MAX, MANY)
    files = all_pages(admin, f"reconciliation/runs/{run}/files", "files", "after")
    assert [f["path"] for f in files] == [f"data/{n}" for n in range(MANY)]
    assert files[:INNER_MAX] == shown["files"]
    assert admin.get(f"{API}/reconciliation/runs/{run + 1}/files").status_code == 404


def test_open_blocks_of_a_dataset(served: Served, admin: httpx.Client, dataset: str) -> None:
    known = served.lake.dataset(dataset).id
    with served.lake.ledger.write() as connection:
        first = SeqRange(Seq(1), Seq(5))
        restored_blocks.insert_published(connection, known, first, kind=BlockKind.RECOVERED, batch_id="published")
        for n in range(MANY):
            restored_blocks.postpone(connection, known, SeqRange(Seq(10 * n + 10), Seq(10 * n + 19)), f"open {n}")
    seal = admin.get(f"{API}/datasets/events/seal").json()
    assert (len(seal["open_blocks"]), seal["open_blocks_total"]) == (INNER_MAX, MANY)
    assert seal["open_blocks"][0]["lo"] == 10, "those that hold the seal back the most"
    found = all_pages(admin, "datasets/events/blocks", "blocks", "before", only_open="true")
    assert [b["lo"] for b in found] == [10 * n + 10 for n in reversed(range(MANY))]
    assert len(all_pages(admin, "datasets/events/blocks", "blocks", "before")) == MANY + 1


def partition(n: int) -> str:
    """Longer than a name may be, and sorted the other way round than it was made."""
    return f"k={9999 - n:04}{'x' * 600}"


def promise_rows(lake: Lake, lanes_count: int, chunks_count: int) -> None:
    """The sink has an open intent in each of so many lanes."""
    until = Seq(chunks_count)
    whole, chunks = (ChunkPlan(SeqRange(Seq(1), until), 1),), one_by_one(until)
    lanes = [LanePlan(partition(n), None, until, whole if n else chunks) for n in range(lanes_count)]
    with planned(lake, until, lanes):
        pass


def test_lanes_and_open_intents_of_a_sink(served: Served, admin: httpx.Client, dataset: str, tmp_path: Path) -> None:
    add_sink(admin, tmp_path / "out")
    promise_rows(served.lake, MANY, chunks_count=MANY)
    names = list(map(partition, range(MANY)))
    lanes = {None, *names}  # it has one for the whole dataset
    shown = admin.get(f"{API}/sinks/partner").json()
    assert (len(shown["lanes"]), shown["lanes_total"]) == (INNER_MAX, len(lanes))
    assert (len(shown["open_intents"]), shown["open_intents_total"]) == (INNER_MAX, MANY)
    [longest] = [i for i in shown["open_intents"] if i["partition"] == names[0]]
    assert (len(longest["chunks"]), longest["chunks_total"]) == (INNER_MAX, MANY)
    paged = [lane["partition"] for lane in all_pages(admin, "sinks/partner/lanes", "lanes", "after")]
    assert set(paged) == lanes and len(paged) == len(lanes), "each once"
    found = all_pages(admin, "sinks/partner/intents", "intents", "after")
    assert sorted(i["partition"] for i in found) == sorted(names)
    [listed] = admin.get(f"{API}/sinks").json()["sinks"]
    assert (len(listed["lanes"]), listed["lanes_total"]) == (LANES_IN_LIST_MAX, len(lanes))
    would = admin.delete(f"{API}/sinks/partner", params={"dry_run": "true"}).json()
    assert would["open_intents"] == MANY, "what is counted is not cut"


@pytest.mark.parametrize("path", ["lanes", "intents"])
def test_the_lists_of_a_sink_are_for_those_who_see_it(
    served: Served, admin: httpx.Client, dataset: str, tmp_path: Path, path: str
) -> None:
    add_sink(admin, tmp_path / "out")
    assert admin.post(f"{API}/datasets", json={"name": "other", "columns": COLUMNS}).status_code == 201
    with served.client(served.token("limited", Role.READ, only=["default.other"])) as limited:
        assert limited.get(f"{API}/sinks/partner/{path}").status_code == 404
    assert admin.get(f"{API}/sinks/partner/{path}").status_code == 200
