"""Consumers over the API and on the pages."""

from __future__ import annotations

import httpx

from strandline.core.roles import Role
from strandline.core.types import Dataset, Seq
from strandline.ledger.engine import utc_now
from strandline.ledger.read import consumers
from strandline.ledger.read.consumers import Consumer, ConsumerTerms
from tests.serve.conftest import API, Served
from tests.serve.test_pages import browser
from tests.serve.test_replication import add_rows, made

__all__ = ["browser"]


def begin(served: Served, dataset: Dataset, name: str, at: int | None = None) -> Consumer:
    with served.lake.ledger.write() as connection:
        return consumers.begin(connection, dataset, name, None if at is None else Seq(at), ConsumerTerms())


def test_a_consumer_is_looked_at_and_removed(served: Served, admin: httpx.Client) -> None:
    dataset = made(served)
    add_rows(served, dataset, "a", 10)
    begin(served, dataset, "report", 4)
    begin(served, dataset, "audit")
    at = f"{API}/datasets/events/consumers"
    first = admin.get(at, params={"limit": 1}).json()
    assert [c["name"] for c in first["consumers"]] == ["audit"] and first["next"] == "audit"
    [report] = admin.get(at, params={"after": "audit"}).json()["consumers"]
    assert (report["watermark"], report["lag_rows"], report["reported_at"]) == (4, 6, None)
    assert report["lag_seconds"] >= 0
    assert admin.get(f"{at}/audit").json()["watermark"] is None, "and not 0"
    whole = admin.get(f"{API}/status").json()["consumers"]
    assert [(c["name"], c["lag_rows"]) for c in whole] == [("audit", 10), ("report", 6)]
    dry = admin.delete(f"{at}/report", params={"dry_run": True}).json()
    assert dry == {"removed": "report", "dataset": "default.events", "dry_run": True, "lag_rows": 6}
    assert admin.delete(f"{at}/report").json()["dry_run"] is False
    assert admin.get(f"{at}/report").status_code == 404 and admin.delete(f"{at}/report").status_code == 404
    assert admin.get(f"{API}/datasets/nosuch/consumers").status_code == 404


def test_a_token_of_another_dataset_sees_no_consumer(served: Served, admin: httpx.Client) -> None:
    dataset = made(served)
    made(served, "other")
    begin(served, dataset, "report")
    with served.client(served.token("limited", Role.READ, ["other"])) as limited:
        assert limited.get(f"{API}/datasets/events/consumers").status_code == 404
        assert limited.get(f"{API}/status").json()["consumers"] == []


def test_the_pages_show_consumers_and_what_is_held_for_them(served: Served, browser: httpx.Client) -> None:
    dataset = made(served)
    add_rows(served, dataset, "a", 10)
    found = begin(served, dataset, "nightly <b>")
    served.lake.ledger.change(consumers.keep_holds, dataset.id, [found.id], utc_now())
    for page in ("/", "/datasets/events"):
        text = browser.get(page).text
        assert "nightly &lt;b&gt;" in text and "holds rows" in text
    assert "consumer nightly" in browser.get("/").text
