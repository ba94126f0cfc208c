"""What a follower asks of a leader over HTTP: offers, segments, and how far it is."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import httpx
import pyarrow as pa
import pytest
import sqlalchemy as sa

from strandline.core.errors import SegmentDamaged
from strandline.core.forward_protocol import DIGEST, content_digest
from strandline.core.roles import Role
from strandline.core.types import SEQ_COLUMN, Dataset, Published, Reserved, SnapshotId, Staged
from strandline.http import connections
from strandline.ledger.ingest import blocks
from strandline.ledger.replicate import followers, sites
from strandline.replicate.segment_stream import MEDIA_TYPE, SegmentReader, request_name
from strandline.serve.api import replication
from tests.serve.conftest import API, COLUMNS, Served
from tests.waiting import eventually

TOLD = {"term": 1, "instance": "its site"}


@pytest.fixture
def follower(served: Served) -> Iterator[httpx.Client]:
    _, secret = served.lake.followers.add("east")  # takes number 1
    with served.client(secret) as client:
        yield client


def made(served: Served, name: str = "events") -> Dataset:
    with served.as_role() as admin:
        assert admin.post(f"{API}/datasets", json={"name": name, "columns": COLUMNS}).status_code == 201
    return served.lake.dataset(name)


def add_rows(served: Served, dataset: Dataset, batch: str, count: int, *, publish: bool = True) -> Reserved:
    """A batch with its rows in the table, settled in the ledger; without Spark."""
    lake = served.lake
    wanted = blocks.NewBlock(dataset.id, count, batch, f"digest of {batch}")
    reserved, _ = blocks.reserve(lake.ledger, lake.witness, wanted, lease_seconds=60)
    assert isinstance(reserved, Reserved)
    if not publish:
        return reserved
    table = lake.catalog.load(dataset.name)
    numbers = range(reserved.head.rows.lo, reserved.head.rows.hi + 1)
    rows = [{SEQ_COLUMN: n, "id": n, "text": f"row {n}"} for n in numbers]
    table.append(pa.Table.from_pylist(rows, table.schema().as_arrow()))
    newest = lake.catalog.load(dataset.name).current_snapshot()
    assert newest is not None
    at = SnapshotId(newest.snapshot_id)
    assert blocks.mark_staged(lake.ledger, lake.witness, reserved, at)
    staged = blocks.find_block(lake.ledger, reserved.head)
    assert isinstance(staged, Staged)
    assert blocks.mark_published(lake.ledger, staged, row_count=count, snapshot=at)
    assert isinstance(blocks.find_block(lake.ledger, reserved.head), Published)
    return reserved


def ask(client: httpx.Client, after: dict[str, int] | None = None, **more: Any) -> dict[str, Any]:
    answer = client.post(f"{API}/replication/offer", json={"after": after or {}, **more})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def fetch(client: httpx.Client, dataset: Dataset, lo: int, hi: int, **more: Any) -> tuple[list[int], pa.Table]:
    answer = client.get(f"{API}/replication/segment", params={"dataset": dataset.uuid, "lo": lo, "hi": hi, **more})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == MEDIA_TYPE
    behind = more.get("behind", 0)
    asked = request_name(dataset.uuid, lo, hi, behind, more.get("only_numbers", False))
    reader = SegmentReader(io.BytesIO(answer.content), behind=behind, request=asked)
    rows = pa.Table.from_batches(list(reader), reader.schema)
    return rows[SEQ_COLUMN].to_pylist(), rows


def test_a_follower_makes_the_dataset_gets_the_rows_and_says_how_far_it_is(
    served: Served, follower: httpx.Client
) -> None:
    dataset = made(served)
    first = ask(follower)
    assert (first["lake"], first["term"], first["offers"], first["dropped"]) == (served.lake.id, 1, [], [])
    [terms] = first["made"]
    assert (terms["id"], terms["name"], terms["shards"]) == (dataset.uuid, "default.events", 1)
    assert [(c["name"], c["type"]) for c in terms["columns"]] == [("id", "long"), ("text", "string")]
    assert all(isinstance(c["id"], int) for c in terms["columns"])

    for n in range(3):
        add_rows(served, dataset, f"b{n}", 10)
    [offer] = ask(follower, {dataset.uuid: 0}, items_max=2)["offers"]
    assert (offer["after"], offer["upto"], offer["seal"]) == (0, 21, 31)
    assert [(i["kind"], i["lo"], i["hi"], i["rows"], i["batch_id"]) for i in offer["items"]] == [
        ("segment", 2, 11, 10, "b0"),
        ("segment", 12, 21, 10, "b1"),
    ]
    numbers, rows = fetch(follower, dataset, 2, 11)
    assert numbers == list(range(2, 12)) and rows["text"].to_pylist()[0] == "row 2"
    assert fetch(follower, dataset, 2, 21, behind=15)[0] == list(range(16, 22))
    assert fetch(follower, dataset, 12, 21, only_numbers=True)[1].column_names == [SEQ_COLUMN]

    told = {"term": 1, "instance": "its site", "seals": {dataset.uuid: 21}, "marks": {str(dataset.first_shard): 21}}
    answer = follower.post(f"{API}/replication/acknowledge", json=told)
    assert answer.json() == {"follower": "east", "term": 1}
    [progress] = served.lake.ledger.query(followers.list_progress, dataset)
    assert progress.number == 21
    assert ask(follower, {dataset.uuid: 31}) == {**first, "made": [], "seals": {dataset.uuid: 31}, "site_number": None}


def test_an_idle_poll_reads_the_ledger_once_and_no_table(
    served: Served, follower: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = made(served)
    add_rows(served, dataset, "b", 10)
    ask(follower, {dataset.uuid: 11})  # from now on the token is known
    transactions: list[str] = []

    @sa.event.listens_for(served.lake.ledger.engine, "begin")
    def _begun(_connection: object) -> None:
        transactions.append("begun")

    def unexpected(*_args: object) -> object:
        raise AssertionError("a table was read")

    monkeypatch.setattr(type(served.lake.catalog), "load", unexpected)
    for _ in range(5):
        assert ask(follower, {dataset.uuid: 11})["offers"] == []
    assert len(transactions) == 5


def test_offers_and_what_a_follower_says_are_proven_by_a_digest(served: Served, follower: httpx.Client) -> None:
    """A damaged number would be rows that nobody asks for again, or rows that retention deletes too early."""
    dataset = made(served)
    add_rows(served, dataset, "a", 10)
    answer = follower.post(f"{API}/replication/offer", json={"after": {dataset.uuid: 0}})
    assert answer.headers[DIGEST] == content_digest(answer.content)
    said = json.dumps({"term": 1, "instance": "its site", "seals": {dataset.uuid: 3}}).encode()
    headers = {"Content-Type": "application/json", DIGEST: content_digest(said)}
    damaged = said.replace(b": 3", b": 7")
    refused = follower.post(f"{API}/replication/acknowledge", content=damaged, headers=headers)
    assert refused.status_code == 400 and "damaged" in refused.json()["detail"]
    [progress] = served.lake.ledger.query(followers.list_progress, dataset)
    assert progress.number is None
    assert follower.post(f"{API}/replication/acknowledge", content=said, headers=headers).status_code == 200
    [progress] = served.lake.ledger.query(followers.list_progress, dataset)
    assert progress.number == 3


def test_nothing_that_is_open_is_offered_or_sent(served: Served, follower: httpx.Client) -> None:
    dataset = made(served)
    add_rows(served, dataset, "a", 10)
    add_rows(served, dataset, "open", 10, publish=False)
    add_rows(served, dataset, "c", 10)
    [offer] = ask(follower, {dataset.uuid: 0})["offers"]
    assert offer["upto"] == 11
    for lo, hi in ((12, 21), (22, 31), (2, 12)):
        answer = follower.get(f"{API}/replication/segment", params={"dataset": dataset.uuid, "lo": lo, "hi": hi})
        assert answer.status_code == 409 and "not settled" in answer.json()["detail"]


def test_a_limited_token_learns_nothing_of_other_datasets(served: Served) -> None:
    mine, other, gone = made(served, "mine"), made(served, "other"), made(served, "gone")
    for d in (mine, other):
        add_rows(served, d, f"of {d.name}", 10)
    served.lake.drop_dataset("gone")
    _, secret = served.lake.followers.add("limited", ["mine"])
    with served.client(secret) as client:
        found = ask(client, {other.uuid: 0, gone.uuid: 0})
        assert [o["dataset"]["name"] for o in found["offers"]] == ["default.mine"]
        assert [t["name"] for t in found["made"]] == ["default.mine"] and found["dropped"] == []
        for uuid in (other.uuid, gone.uuid, "nobody's"):
            answer = client.get(f"{API}/replication/segment", params={"dataset": uuid, "lo": 1, "hi": 1})
            assert answer.status_code == 404, uuid
        told = {"term": 1, "instance": "its site", "seals": {other.uuid: 10, mine.uuid: 5}, "marks": {}}
        assert client.post(f"{API}/replication/acknowledge", json=told).status_code == 200
    assert served.lake.ledger.query(followers.list_progress, other) == []
    assert [p.number for p in served.lake.ledger.query(followers.list_progress, mine)] == [5]
    _, whole = served.lake.followers.add("whole")
    with served.client(whole) as client:
        assert ask(client, {gone.uuid: 0})["dropped"] == [gone.uuid]


def test_a_token_that_belongs_to_no_follower_may_look_and_not_acknowledge(served: Served) -> None:
    dataset = made(served)
    with served.as_role(Role.REPLICATE) as client:
        assert ask(client)["made"]
        answer = client.post(f"{API}/replication/acknowledge", json=TOLD | {"seals": {dataset.uuid: 1}})
    assert answer.status_code == 409 and "belongs to no follower" in answer.json()["detail"]


def test_another_term_is_refused(served: Served, follower: httpx.Client) -> None:
    made(served)
    answer = follower.post(f"{API}/replication/acknowledge", json=TOLD | {"term": 2})
    assert answer.status_code == 409 and answer.json()["type"].endswith("term-passed")


def test_a_leader_that_was_replaced_sends_no_rows_and_no_bodies(served: Served, follower: httpx.Client) -> None:
    dataset = made(served)
    add_rows(served, dataset, "b", 10)
    place = {"dataset": dataset.uuid, "lo": 2, "hi": 11}
    batch = {"dataset": dataset.uuid, "batch_id": "b"}
    assert fetch(follower, dataset, 2, 11)[0] == list(range(2, 12))
    assert follower.post(f"{API}/replication/bodies", json=batch).status_code == 200
    served.lake.ledger.change(sites.supersede, term=17, by="https://new")
    for answer in (
        follower.get(f"{API}/replication/segment", params=place),
        follower.post(f"{API}/replication/bodies", json=batch),
    ):
        assert answer.status_code == 409 and answer.json()["type"].endswith("not-leader"), answer.text


def test_a_removed_follower_is_refused_with_every_token_of_its_line(served: Served, follower: httpx.Client) -> None:
    newer = served.token("newer", Role.REPLICATE, replaces="follower-east")
    served.lake.followers.remove("east")
    with served.client(newer) as other:
        for client in (follower, other):
            assert client.post(f"{API}/replication/acknowledge", json=TOLD).status_code == 401


@pytest.mark.parametrize(
    ("place", "status"),
    [("lo=1&hi=1", 422), ("lo=0&hi=1", 422), ("lo=5&hi=1&dataset=x", 400), ("lo=1&hi=99999999999999999999", 422)],
)
def test_a_request_that_cannot_be_is_refused_in_words(
    served: Served, follower: httpx.Client, place: str, status: int
) -> None:
    assert follower.get(f"{API}/replication/segment?{place}").status_code == status


def test_a_follower_that_goes_away_before_the_first_part_leaves_its_place(
    served: Served, follower: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = made(served)
    add_rows(served, dataset, "a", 10)
    monkeypatch.setattr(replication, "SEGMENTS_MAX", 1)
    real, opening, let = replication._open, threading.Event(), threading.Event()

    def slow(*arguments: Any) -> Iterator[bytes]:
        opening.set()
        assert let.wait(60)
        return real(*arguments)

    monkeypatch.setattr(replication, "_open", slow)
    query = f"dataset={dataset.uuid}&lo=1&hi=10"
    token = f"Authorization: {follower.headers['authorization']}"
    head = [f"GET {API}/replication/segment?{query} HTTP/1.1", "Host: x", token]
    with closing(served.raw()) as impatient:
        impatient.sendall("\r\n".join([*head, "", ""]).encode())
        assert opening.wait(60)
    with served.client() as anyone:  # the server has seen by then that nobody is there any more
        assert [anyone.get("/healthz").status_code for _ in range(3)] == [200] * 3
    let.set()
    params = {"dataset": dataset.uuid, "lo": 1, "hi": 10}
    eventually(lambda: follower.get(f"{API}/replication/segment", params=params).status_code == 200)


def test_a_follower_that_reads_nothing_of_its_rows_loses_its_place(
    served: Served, follower: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = made(served)
    add_rows(served, dataset, "a", 10)
    monkeypatch.setattr(replication, "SEGMENTS_MAX", 1)
    monkeypatch.setattr(connections, "UNREAD_SECONDS_MAX", 0.2)
    began, query = threading.Event(), {"dataset": dataset.uuid, "lo": 1, "hi": 10}

    def endless(*_given: object) -> Iterator[bytes]:
        while True:
            yield b"x" * (1 << 20)
            began.set()

    token = f"Authorization: {follower.headers['authorization']}"
    with closing(served.raw()) as silent:
        with monkeypatch.context() as patched:
            patched.setattr(replication, "encode", endless)
            place = str(httpx.URL(f"{API}/replication/segment", params=query))
            silent.sendall("\r\n".join([f"GET {place} HTTP/1.1", "Host: x", token, "", ""]).encode())
            assert began.wait(60)
        eventually(lambda: follower.get(f"{API}/replication/segment", params=query).status_code == 200)


def test_a_file_that_vanishes_while_it_is_sent_cuts_the_stream_off(
    served: Served, follower: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The follower sees that something is missing, and the server has a place for the next."""
    dataset = made(served)
    add_rows(served, dataset, "a", 10)
    real = replication.encode

    def breaking(schema: pa.Schema, batches: Iterator[pa.RecordBatch], asked: bytes) -> Iterator[bytes]:
        parts = real(schema, batches, asked)
        yield next(parts)
        raise OSError("the file is gone")

    with monkeypatch.context() as patched:
        patched.setattr(replication, "encode", breaking)
        for _ in range(replication.SEGMENTS_MAX + 1):
            query = {"dataset": dataset.uuid, "lo": 2, "hi": 11}
            with pytest.raises((httpx.RemoteProtocolError, SegmentDamaged)):
                answer = follower.get(f"{API}/replication/segment", params=query)
                list(SegmentReader(io.BytesIO(answer.content), request=request_name(dataset.uuid, 2, 11, 0, False)))
    assert fetch(follower, dataset, 2, 11)[0] == list(range(2, 12))
