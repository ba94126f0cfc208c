"""Clients that are slow, cut off, repeat themselves or send bombs; and two receivers over one ledger."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import zstandard

from strandline.core import forward_protocol
from tests.conftest import MakeHome
from tests.receive.conftest import Client, ReceivingLake, lines, new_lake, numbered, running, some, span
from tests.waiting import eventually

MIB = 1 << 20


def _head(client: Client, key: str, *more: str) -> bytes:
    own = [f"{name}: {value}" for name, value in client.headers(key).items()]
    return "\r\n".join(["POST /v1/datasets/events/rows HTTP/1.1", "Host: x", *own, *more, "", ""]).encode()


def test_a_client_that_drips_is_served_and_holds_up_nobody(lake: ReceivingLake, client: Client) -> None:
    body = lines(some(3))
    with client.raw() as slow:
        slow.sendall(_head(client, "slow", f"Content-Length: {len(body)}", "Connection: close"))
        for byte in body[:20]:
            slow.sendall(bytes([byte]))
            time.sleep(0.005)
        assert client.send(some(1, 100), "fast").status_code == 202
        for byte in body[20:]:
            slow.sendall(bytes([byte]))
        assert b" 202 " in slow.recv(65_536).partition(b"\r\n")[0]
    assert {row["id"] for row in lake.rows()} == {1, 2, 3, 100}


@pytest.mark.parametrize("settings", [{"receive": {"body_seconds_max": 0.3, "requests_at_once_max": 1}}])
def test_a_client_that_is_too_slow_gives_its_place_back(lake: ReceivingLake) -> None:
    client = lake.serve()
    with client.raw() as slow:
        slow.sendall(_head(client, "slow", "Content-Length: 1000"))
        assert b" 408 " in slow.recv(65_536).partition(b"\r\n")[0]
        eventually(lambda: client.send(some(1), "k").status_code == 202)
    assert len(lake.recorded()) == 1


@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_a_body_that_is_cut_leaves_nothing_behind(lake: ReceivingLake, client: Client, framing: str) -> None:
    body = lines(some(3))
    with client.raw() as cut:
        if framing == "length":
            cut.sendall(_head(client, "k", f"Content-Length: {len(body) * 2}") + body)
        else:
            cut.sendall(_head(client, "k", "Transfer-Encoding: chunked") + b"%x\r\n%s\r\n" % (len(body), body))
        time.sleep(0.1)
    # Its key is free again as soon as the receiver has seen the end, and only the whole body is taken.
    eventually(lambda: client.send(some(3), "k").status_code == 202)
    [only] = lake.recorded()
    assert only.rows == 3 and len(lake.files()) == 1


@pytest.mark.parametrize("settings", [{"receive": {"body_bytes_max": 100_000}}])
def test_a_body_is_counted_whatever_its_length_claims(lake: ReceivingLake) -> None:
    client = lake.serve()
    body = lines(some(10_000))
    assert len(body) > 200_000
    said = client.send(body, "k")
    assert (said.status_code, said.json()["limit"]) == (413, 100_000)

    def endless() -> Any:
        for at in range(0, len(body), 1000):
            yield body[at : at + 1000]

    told = client.http.post(client.url, content=endless(), headers=client.headers("k"))
    assert (told.status_code, told.json()["outcome"]) == (413, "too_large")
    assert lake.recorded() == [] and client.send(some(1), "k").status_code == 202


@pytest.mark.parametrize("settings", [{"receive": {"rows_bytes_max": 8 * MIB}}])
def test_a_bomb_is_refused_and_the_receiver_stays_small(lake: ReceivingLake) -> None:
    client = lake.serve()
    client.send(some(1), "warm")
    packer = zstandard.ZstdCompressor().compressobj()
    bomb = b"".join([*(packer.compress(bytes(8 * MIB)) for _ in range(512)), packer.flush()])
    process, highest = psutil.Process(), 0
    before = process.memory_info().rss
    with ThreadPoolExecutor(4) as pool:
        sent = [pool.submit(client.send, bomb, f"k{n}", Content_Encoding="zstd") for n in range(8)]
        while not all(s.done() for s in sent):
            highest = max(highest, process.memory_info().rss)
            time.sleep(0.005)
    # It is one line, and no line is so long: that is seen before all of it is unpacked.
    assert {(s.result().status_code, s.result().json()["limit"]) for s in sent} == {(413, 8 * MIB // 3)}
    assert highest - before < 256 * MIB
    assert len(lake.recorded()) == 1


def test_requests_that_come_twice_and_in_any_order_leave_each_row_once(lake: ReceivingLake, client: Client) -> None:
    chunks = [(n, n + 9) for n in range(1, 301, 10)]
    sent = chunks * 3 + [(lo, lo + 4) for lo, _ in chunks] + [(1, 300)]
    late = sent.pop()
    random.Random(5).shuffle(sent)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda r: client.send(some(r[1] - r[0] + 1, r[0]), rows=span(*r)).status_code, sent))
    assert set(answers) <= {202, 409}
    for lo, hi in chunks:  # a part that came before its whole made that one a conflict: the sender sends the rest
        if client.send(some(hi - lo + 1, lo), rows=span(lo, hi)).status_code == 409:
            assert client.send(some(5, lo + 5), rows=span(lo + 5, hi)).status_code == 202
    assert client.send(some(300), rows=span(*late)).json()["repeat"]
    assert sorted(row["id"] for row in lake.rows()) == list(range(1, 301))
    assert len(lake.files()) == len(lake.recorded())


def test_the_receiver_ends_only_when_what_it_took_is_recorded(lake: ReceivingLake) -> None:
    parts = lake.parts()
    reading = threading.Event()

    def slowly(*arguments: Any) -> Any:
        reading.set()
        time.sleep(0.5)
        return parts.read_lines(*arguments)

    answers: list[httpx.Response] = []
    with running(lake.parts(read_lines=slowly)) as base:
        client = Client(base, lake.token)
        sending = threading.Thread(target=lambda: answers.append(client.send(some(2), "k")))
        sending.start()
        assert reading.wait(60)
    sending.join()
    assert answers[0].status_code == 202 and lake.rows() == some(2)


@pytest.fixture(params=["sqlite", "postgres"])
def shared(request: pytest.FixtureRequest, tmp_path: Path, make_home: MakeHome) -> Any:
    settings = {"receive": {"requests_at_once_max": 64}}
    if request.param == "postgres":
        settings["ledger"] = {"url": request.getfixturevalue("postgres_database")}  # type: ignore[dict-item]
    made = new_lake(make_home(tmp_path, settings))
    with made.stack:
        yield made
    made.ledger.close()


@pytest.mark.parametrize("identity", ["key", "range", "overlapping ranges"])
def test_two_receivers_with_the_same_identity_at_the_same_moment_take_it_once(
    shared: ReceivingLake, identity: str
) -> None:
    receivers = [shared.serve(), shared.serve()]
    rounds, at_once = 12, 4
    together = threading.Barrier(at_once)

    def send(n: int, which: int) -> tuple[int, bool]:
        client = receivers[which % 2]
        body = some(10, 1 + n * 100)
        together.wait()
        if identity == "key":
            answer = client.send(body, f"k{n}")
        else:
            shift = 5 * (which % 2) if identity == "overlapping ranges" else 0
            answer = client.send(some(10, 1 + n * 100 + shift), rows=span(1 + n * 100 + shift, 10 + n * 100 + shift))
        return answer.status_code, bool(answer.json().get("repeat"))

    with ThreadPoolExecutor(at_once) as pool:
        for n in range(rounds):
            found = list(pool.map(lambda which, n=n: send(n, which), range(at_once)))
            # None, if a receiver that has just started found the body in the spool and recorded it first.
            assert sum(f == (202, False) for f in found) <= 1 and any(status == 202 for status, _ in found)
            assert all(f in ((202, False), (202, True), (409, False)) for f in found)
    assert len(shared.recorded()) == rounds
    assert len(shared.rows()) == rounds * 10
    eventually(lambda: len(shared.files()) == rounds)


def test_no_header_of_a_client_can_break_a_group(shared: ReceivingLake) -> None:
    client = shared.serve()
    for key in ("ü", "'; DROP TABLE received; --", "a b", "%00", "k" * 255):
        raw: list[tuple[bytes, bytes]] = [(n.encode(), v.encode()) for n, v in client.headers().items()]
        answer = client.http.post(
            client.url, content=lines(some(1)), headers=[*raw, (forward_protocol.KEY.encode(), key.encode())]
        )
        assert answer.status_code == 202, answer.text


@pytest.mark.parametrize(
    "header, value",
    [
        (forward_protocol.DATASET, "a%00b"),
        (forward_protocol.DATASET, "%FF"),
        (forward_protocol.DATASET, "x" * 513),
        (forward_protocol.LAKE, "x" * 513),
        (forward_protocol.INSTANCE, "%C3%BC" * 300),
        (forward_protocol.PARTITION, "x" * 16_385),
    ],
)
def test_a_name_that_no_ledger_keeps_is_refused_at_the_door(client: Client, header: str, value: str) -> None:
    headers = client.headers(rows=span(1, 1)) | {header: value}
    answer = client.http.post(client.url, content=lines(some(1)), headers=headers)
    assert answer.status_code == 400 and header in answer.json()["why"]


def test_no_question_and_no_path_carries_what_a_ledger_cannot_keep(client: Client, lake: ReceivingLake) -> None:
    sender = {"lake": "l", "instance": "i", "generation": 1, "dataset": "d"}
    for name in ("a\0b", "x" * 513, "ü" * 257):
        assert client.ask("claimed", lake=name, dataset="d").status_code == 400
        assert client.ask("held", **(sender | {"dataset": name}), lanes=[]).status_code == 400
    for partition in ("a\0b", "x" * 16_385):
        assert client.ask("held", **sender, lanes=[{"partition": partition}]).status_code == 400
        assert client.ask("inspect", **sender, partition=partition, lo=1, hi=2).status_code == 400
    for name in ("a%00b", "x" * 600):
        answer = client.send(some(1), "key", url=f"{client.base}/v1/datasets/{name}/rows")
        assert answer.status_code == 400, answer.text
    long = client.headers(rows=span(1, 1)) | {forward_protocol.PARTITION: "k=" + "x" * 8_000}
    body = lines(numbered(some(1), span(1, 1)))
    assert client.http.post(client.url, content=body, headers=long).status_code == 202, "long, and allowed"
