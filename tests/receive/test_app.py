"""The contract of the receiver, asked by plain HTTP clients."""

from __future__ import annotations

import gzip
import hashlib
import json
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
import zstandard

from strandline.core import forward_protocol
from strandline.core.errors import BadRow, StorageError
from strandline.core.forward_protocol import Answer, RangeIdentity
from strandline.core.roles import Role
from strandline.http.verified_callers import SharedQuestions
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.ledger.ingest import datasets
from strandline.ledger.receive import received, spool_files, tokens
from strandline.receive.http import caches, questions
from strandline.receive.http.request_handler import RequestHandler
from tests.receive.conftest import LANE, Client, ReceivingLake, arrow, lines, numbered, some, span
from tests.waiting import eventually


def _said(answer: httpx.Response, status: int, outcome: Answer) -> dict[str, Any]:
    told = answer.json()
    assert (answer.status_code, told["outcome"]) == (status, outcome.value), answer.text
    assert answer.headers[forward_protocol.RECEIVER] == forward_protocol.VERSION and "why" in told
    return dict(told)


def test_what_is_held_is_told_in_parts(lake: ReceivingLake, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "HELD_RANGES_AT_ONCE_MAX", 2)
    for n in (1, 2, 3):
        _said(client.send(some(1), rows=span(n, n)), 202, Answer.ACCEPTED)
    own = {"lake": LANE.lake, "instance": LANE.instance, "generation": 1, "dataset": LANE.dataset}
    [first] = client.ask("held", **own, lanes=[{"partition": ""}]).json()["lanes"]
    [last] = client.ask("held", **own, lanes=[{"partition": "", "after": 2}]).json()["lanes"]
    assert [r[0] for r in first["ranges"]] == [1, 2] and first["more"] is True
    assert [r[0] for r in last["ranges"]] == [3] and last["more"] is False


# --- rows that are taken ---


def test_rows_are_durable_in_spool_and_ledger_before_they_are_acknowledged(lake: ReceivingLake, client: Client) -> None:
    body = lines(some(3))
    told = _said(client.send(body, "k1"), 202, Answer.ACCEPTED)
    [recorded] = lake.recorded()
    digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
    assert told == {"outcome": "accepted", "why": None, "rows": 3, "digest": digest, "repeat": False}
    assert (recorded.rows, recorded.digest, recorded.size, recorded.key) == (3, digest, len(body), "k1")
    assert lake.rows() == some(3)
    [file] = lake.files()
    assert f"{file.parent.name}/{file.name}" == recorded.spool and recorded.spool_bytes == file.stat().st_size


@pytest.mark.parametrize("encoding", [None, "identity", "gzip", "zstd"])
def test_every_encoding_is_read(lake: ReceivingLake, client: Client, encoding: str | None) -> None:
    pack = {"gzip": gzip.compress, "zstd": zstandard.compress}.get(encoding or "", bytes)
    other = {} if encoding is None else {"Content_Encoding": encoding}
    _said(client.send(pack(lines(some(5))), "k", **other), 202, Answer.ACCEPTED)
    assert lake.rows() == some(5)


def test_an_arrow_stream_is_taken_as_json_lines_are(lake: ReceivingLake, client: Client) -> None:
    body = zstandard.compress(arrow(pa.Table.from_pylist(some(4))))
    _said(client.send(body, "k", Content_Type=forward_protocol.ARROW, Content_Encoding="zstd"), 202, Answer.ACCEPTED)
    assert lake.rows() == some(4)


def test_a_body_without_rows_is_remembered_and_leaves_no_file(lake: ReceivingLake, client: Client) -> None:
    assert _said(client.send(b"", "k"), 202, Answer.ACCEPTED)["rows"] == 0
    assert lake.files() == [] and [r.spool for r in lake.recorded()] == [None]
    assert _said(client.send(b"", "k"), 202, Answer.ACCEPTED)["repeat"]


def test_the_number_of_a_strandline_sender_is_taken_off_and_refused_from_anyone_else(
    lake: ReceivingLake, client: Client
) -> None:
    why = _said(client.send(numbered(some(1), span(7, 7)), "k"), 400, Answer.BAD_BODY)
    assert why["line"] == 1 and "_ingest_seq" in why["why"]
    _said(client.send(some(1), rows=span(7, 7)), 202, Answer.ACCEPTED)
    table = pa.Table.from_pylist([{"_ingest_seq": 8} | row for row in some(1, 2)])
    _said(client.send(arrow(table), rows=span(8, 8), Content_Type=forward_protocol.ARROW), 202, Answer.ACCEPTED)
    assert lake.rows() == some(2)


def test_curl_is_a_client(lake: ReceivingLake, client: Client, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl.gz"
    file.write_bytes(gzip.compress(lines(some(40_000))))
    command = ["curl", "-sS", "--data-binary", f"@{file}", "-H", f"Authorization: Bearer {client.token}"]
    command += ["-H", "Content-Type: application/x-ndjson", "-H", "Content-Encoding: gzip"]
    command += ["-H", "Idempotency-Key: from curl", "-w", " %{http_code}", client.url]
    for repeat in (False, True):
        said, _, status = subprocess.run(command, capture_output=True, text=True, check=True).stdout.rpartition(" ")
        told = json.loads(said)
        assert (status, told["rows"], told["repeat"]) == ("202", 40_000, repeat)
    assert len(lake.rows()) == 40_000


# --- repeats ---


def test_the_same_key_and_body_get_the_stored_answer_and_no_new_rows(lake: ReceivingLake, client: Client) -> None:
    first = _said(client.send(some(3), "k"), 202, Answer.ACCEPTED)
    again = _said(client.send(some(3), "k"), 202, Answer.ACCEPTED)
    assert again == first | {"repeat": True}
    assert len(lake.files()) == len(lake.recorded()) == 1


def test_a_repeat_that_fits_no_more_is_answered_as_it_was(lake: ReceivingLake) -> None:
    """The table lost a column since: whoever repeats a body because its answer was lost must not be told 400."""

    def unfit(*_: Any) -> Any:
        raise BadRow(1, "there is no such column")

    client = lake.serve()
    first = _said(client.send(some(3), "k"), 202, Answer.ACCEPTED)
    later = lake.serve(read_lines=unfit)
    assert _said(later.send(some(3), "k"), 202, Answer.ACCEPTED) == first | {"repeat": True}
    _said(later.send(some(4), "k"), 422, Answer.OTHER_BODY)
    _said(later.send(some(3), "new"), 400, Answer.BAD_BODY)


def test_the_same_key_with_another_body_is_refused_with_the_stored_digest(lake: ReceivingLake, client: Client) -> None:
    first = _said(client.send(some(3), "k"), 202, Answer.ACCEPTED)
    other = _said(client.send(some(4), "k"), 422, Answer.OTHER_BODY)
    assert other["digest"] == first["digest"] and lake.rows() == some(3)


def test_a_key_is_the_tokens_own(lake: ReceivingLake, client: Client) -> None:
    _said(client.send(some(1), "k"), 202, Answer.ACCEPTED)
    second = replace(client, token=lake.add_token("second"))
    assert _said(second.send(some(1, 2), "k"), 202, Answer.ACCEPTED)["repeat"] is False
    assert lake.rows() == some(2)


def test_a_range_is_new_a_repeat_or_a_conflict(lake: ReceivingLake, client: Client) -> None:
    first = _said(client.send(some(5), rows=span(1, 5)), 202, Answer.ACCEPTED)
    _said(client.send(some(5, 6), rows=span(6, 10)), 202, Answer.ACCEPTED)
    assert _said(client.send(some(5), rows=span(1, 5)), 202, Answer.ACCEPTED) == first | {"repeat": True}
    part = _said(client.send(some(2, 3), rows=span(3, 4)), 202, Answer.ACCEPTED)
    assert (part["repeat"], part["rows"], part["digest"], part["held"]) == (True, None, None, [[1, 5]])
    parent = _said(client.send(some(10), rows=span(1, 10)), 202, Answer.ACCEPTED)
    assert (parent["repeat"], parent["held"]) == (True, [[1, 10]])
    conflict = _said(client.send(some(6, 8), rows=span(8, 13)), 409, Answer.CONFLICT)
    assert conflict["held"] == [[6, 10]]
    assert lake.rows() == some(10) and len(lake.files()) == 2


def test_ranges_of_two_lakes_do_not_meet(lake: ReceivingLake, client: Client) -> None:
    own = {"dataset": LANE.dataset, "instance": LANE.instance, "table_uuid": "u", "generation": 1}
    for sender in ("lake-a", "lake-ü"):
        _said(client.ask("claim", lake=sender, **own), 200, Answer.ACCEPTED)
        headers = forward_protocol.identity_headers(RangeIdentity(replace(LANE, lake=sender), span(1, 2)))
        sent = client.headers() | headers
        raw = [(name.encode(), value.encode()) for name, value in sent.items()]
        answer = client.http.post(client.url, content=lines(numbered(some(2), span(1, 2))), headers=raw)
        assert _said(answer, 202, Answer.ACCEPTED)["repeat"] is False
    held = client.ask("held", lake="lake-ü", instance="sink-1", generation=1, dataset="default.events", lanes=[
        {"partition": "", "after": None}
    ])  # fmt: skip
    assert [r[:3] for r in held.json()["lanes"][0]["ranges"]] == [[1, 2, 2]]


def test_a_key_that_is_being_taken_in_is_told_so(lake: ReceivingLake) -> None:
    reading, go_on = threading.Event(), threading.Event()
    parts = lake.parts()

    def slowly(*arguments: Any) -> Any:
        reading.set()
        assert go_on.wait(60)
        return parts.read_lines(*arguments)

    client = lake.serve(read_lines=slowly)
    found: list[httpx.Response] = []
    first = threading.Thread(target=lambda: found.append(client.send(some(2), "k")))
    first.start()
    assert reading.wait(60)
    second = client.send(some(2), "k")
    _said(second, 409, Answer.IN_FLIGHT)
    assert int(second.headers["Retry-After"]) >= 1
    go_on.set()
    first.join()
    _said(found[0], 202, Answer.ACCEPTED)
    assert _said(client.send(some(2), "k"), 202, Answer.ACCEPTED)["repeat"]
    assert lake.rows() == some(2)


# --- who asks ---


def test_without_a_good_token_nothing_is_told(lake: ReceivingLake, client: Client) -> None:
    answer = client.http.post(client.url, content=lines(some(1)), headers={forward_protocol.KEY: "k"})
    assert _said(answer, 401, Answer.NO_TOKEN) and "Bearer" in answer.headers["WWW-Authenticate"]
    for header in ("Bearer wrong", "Bearer", f"Basic {client.token}", client.token, "Bearer " + "x" * 5000):
        _said(client.send(some(1), "k", Authorization=header), 401, Answer.NO_TOKEN)
    nowhere = client.url.replace("events", "elsewhere")
    _said(client.send(some(1), "k", url=nowhere, Authorization="Bearer wrong"), 401, Answer.NO_TOKEN)
    assert lake.recorded() == [] and lake.files() == []


def test_a_revoked_token_is_refused_from_the_next_request_on(lake: ReceivingLake, client: Client) -> None:
    _said(client.send(some(1), "k"), 202, Answer.ACCEPTED)
    with lake.ledger.write() as connection:
        assert tokens.revoke(connection, "first")
    _said(client.send(some(1), "k"), 401, Answer.NO_TOKEN)
    _said(client.ask("claimed", lake="a", dataset="d"), 401, Answer.NO_TOKEN)


@pytest.mark.parametrize(("role", "status"), [("read", 403), ("replicate", 403), ("write", 202), ("admin", 202)])
def test_only_a_token_that_may_write_sends_rows_and_asks(
    lake: ReceivingLake, client: Client, role: str, status: int
) -> None:
    with lake.ledger.write() as connection:
        _, secret = tokens.create(connection, f"a {role}", None, role=Role(role))
    own = replace(client, token=secret)
    answer = own.send(some(1), "k")
    assert answer.status_code == status
    asked = own.ask("claimed", lake="a", dataset="d").status_code
    assert (asked == 403) == (status == 403)
    if status == 403:
        assert role in _said(answer, 403, Answer.NOT_ALLOWED)["why"] and lake.recorded() == []


def test_an_expired_token_is_refused(lake: ReceivingLake, client: Client) -> None:
    with lake.ledger.write() as connection:
        _, secret = tokens.create(connection, "short", None, expires_in=timedelta(microseconds=1))
    _said(replace(client, token=secret).send(some(1), "k"), 401, Answer.NO_TOKEN)
    assert lake.recorded() == []


def test_a_token_is_for_its_datasets_only(lake: ReceivingLake, client: Client) -> None:
    with lake.ledger.write() as connection:
        datasets.add(connection, name="default.other", table_uuid="uuid-of-other")
    own = replace(client, token=lake.add_token("narrow", ["default.other"]))
    _said(own.send(some(1), "k"), 403, Answer.NOT_ALLOWED)
    _said(own.send(some(1), "k", url=own.url.replace("events", "default.nowhere")), 403, Answer.NOT_ALLOWED)
    lake.columns["default.other"] = lake.columns["default.events"]
    _said(own.send(some(1), "k", url=own.url.replace("events", "default.other")), 202, Answer.ACCEPTED)


def test_a_dataset_that_is_not_there_is_told(lake: ReceivingLake, client: Client) -> None:
    for name in ("nowhere", "a.b.c", "%2e%2e", "..", "ü", "a..b"):
        answer = client.send(some(1), "k", url=f"{client.base}/v1/datasets/{name}/rows")
        assert answer.status_code == 404 and answer.headers[forward_protocol.RECEIVER] == forward_protocol.VERSION
    _said(client.send(some(1), "k", url=client.url.replace("events", "nowhere")), 404, Answer.NO_DATASET)
    with lake.ledger.write() as connection:
        datasets.mark_dropped(connection, lake.dataset.id)
    _said(client.send(some(1), "k"), 404, Answer.NO_DATASET)


# --- what is refused ---


@pytest.mark.parametrize(
    ("body", "line", "why"),
    [
        (b'{"id": 1}\n\n{"id": "x"}\n', 3, "is not a long"),
        (b'{"id": 1}\n{"id": 2, "txt": "a"}\n', 2, "unknown column"),
        (b'{"text": "a"}\n', 1, "missing and required"),
        (b'{"id": 1}\n{"id": null}\n', 2, "null and required"),
        (b'{"id": 1}\n{"id": 2', 2, "not JSON"),
        (b'{"id": 1} {"id": 2}\n', 1, "not JSON"),
        (b"[1, 2]\n", 1, "not an object"),
        (b'{"id": 1, "text": "\xff"}\n', 1, "UTF-8"),
    ],
)
def test_a_bad_body_is_refused_whole_with_its_first_bad_line(
    lake: ReceivingLake, client: Client, body: bytes, line: int, why: str
) -> None:
    told = _said(client.send(body, "k"), 400, Answer.BAD_BODY)
    assert told["line"] == line and why in told["why"]
    assert lake.recorded() == [] and lake.files() == []
    _said(client.send(some(1), "k"), 202, Answer.ACCEPTED)


def test_the_bad_line_of_many_is_found(client: Client) -> None:
    rows = some(20_000)
    rows[13_456]["text"] = 5  # type: ignore[assignment]
    rows[17_000]["id"] = "x"
    assert _said(client.send(rows, "k"), 400, Answer.BAD_BODY)["line"] == 13_457


def test_a_damaged_body_is_told_from_a_bad_one(lake: ReceivingLake, client: Client) -> None:
    body = lines(some(2))
    wrong = forward_protocol.content_digest(body[:-1])
    _said(client.send(body, "k", Content_Digest=wrong), 400, Answer.BAD_DIGEST)
    assert lake.recorded() == []
    _said(client.send(body, "k", Content_Digest=forward_protocol.content_digest(body)), 202, Answer.ACCEPTED)
    _said(client.send(body, "k2", Content_Digest="unixsum=30637"), 202, Answer.ACCEPTED)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {forward_protocol.KEY: ""},
        {forward_protocol.KEY: "k" * 256},
        {forward_protocol.LAKE: "a"},
        forward_protocol.identity_headers(RangeIdentity(LANE, span(1, 2))) | {forward_protocol.RANGE: "2-1"},
        forward_protocol.identity_headers(RangeIdentity(LANE, span(1, 2))) | {forward_protocol.GENERATION: "0"},
    ],
)
def test_headers_that_make_no_sense_are_a_bad_request(
    lake: ReceivingLake, client: Client, headers: dict[str, str]
) -> None:
    answer = client.http.post(client.url, content=lines(some(2)), headers=client.headers() | headers)
    _said(answer, 400, Answer.BAD_REQUEST)
    assert lake.recorded() == []


def test_types_and_encodings_that_are_not_known_are_told(client: Client) -> None:
    for other in (
        {"Content_Type": "text/csv"},
        {"Content_Type": "application/x-www-form-urlencoded"},
        {"Content_Encoding": "br"},
        {"Content_Encoding": "gzip, zstd"},
    ):
        _said(client.send(some(1), "k", **other), 415, Answer.NOT_UNDERSTOOD)
    assert client.send(some(1), "k", Content_Type="Application/X-NDJSON; charset=utf-8").status_code == 202


def test_other_paths_and_methods_are_answered_in_the_same_form(client: Client) -> None:
    for answer in (client.http.get(client.url), client.http.post(f"{client.base}/v1/nowhere")):
        assert (
            answer.json()["outcome"] == Answer.BAD_REQUEST
            and answer.headers[forward_protocol.RECEIVER] == forward_protocol.VERSION
        )


# --- busy ---


@pytest.mark.parametrize("settings", [{"receive": {"requests_at_once_max": 1, "retry_after_seconds": 7}}])
def test_one_body_too_many_is_asked_to_come_again_before_it_is_read(
    lake: ReceivingLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, read = threading.Event(), RequestHandler.read

    async def noticed(self: RequestHandler, request: Any, limit: int) -> bytes:
        inside.set()  # a place is taken before a body is read
        return await read(self, request, limit)

    monkeypatch.setattr(RequestHandler, "read", noticed)
    client = lake.serve()
    with client.raw() as held:
        head = "".join(f"{n}: {v}\r\n" for n, v in client.headers("slow").items())
        held.sendall(f"POST /v1/datasets/events/rows HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n{head}\r\n".encode())
        assert inside.wait(60)
        answer = client.send(some(1), "k")
        assert answer.headers["Retry-After"] == "7"
        _said(answer, 429, Answer.BUSY)
        _said(client.ask("claimed", lake="l", dataset="d"), 429, Answer.BUSY)
    eventually(lambda: client.send(some(1), "k").status_code == 202)


@pytest.mark.parametrize(
    "settings",
    [
        {"receive": {"spool_bytes_max": 1, "spool_reserve_bytes": 10_000}},
        {"receive": {"spool_dataset_bytes_max": 5_000, "spool_reserve_bytes": 0}},
    ],
)
def test_a_dataset_that_is_stuck_does_not_shut_out_the_others(lake: ReceivingLake) -> None:
    with lake.ledger.write() as connection:
        datasets.add(connection, name="default.other", table_uuid="uuid-of-other")
    lake.columns["default.other"] = lake.columns["default.events"]
    client = lake.serve()
    eventually(lambda: client.send(some(2000), f"k{len(lake.recorded())}").status_code == 429)
    with lake.ledger.write() as connection:
        datasets.mark_dropped(connection, lake.dataset.id)
    for receiver in (client, lake.serve()):
        answer = receiver.send(some(1), "k", url=client.url.replace("events", "other"))
        _said(answer, 202, Answer.ACCEPTED)


@pytest.mark.parametrize("settings", [{"receive": {"spool_bytes_max": 1, "spool_reserve_bytes": 0}}])
def test_more_rows_than_may_wait_are_asked_to_come_again(lake: ReceivingLake) -> None:
    client = lake.serve()
    _said(client.send(some(1), "k"), 202, Answer.ACCEPTED)
    answer = client.send(some(1), "k2")
    _said(answer, 429, Answer.BUSY)
    assert answer.headers["Retry-After"]
    _said(lake.serve().send(some(1), "k2"), 429, Answer.BUSY)


# --- things that fail ---


@pytest.mark.parametrize("point", ["receive.before_spool", "receive.after_spool", "receive.before_commit"])
def test_what_fails_before_the_commit_is_never_acknowledged(
    lake: ReceivingLake, client: Client, armed: Callable[[str], None], point: str
) -> None:
    armed(f"{point}=fail")
    answer = client.send(some(2), "k")
    _said(answer, 503, Answer.BUSY)
    assert answer.headers["Retry-After"] and lake.recorded() == []
    assert _said(client.send(some(2), "k"), 202, Answer.ACCEPTED)["repeat"] is False
    assert lake.rows() == some(2)


def test_a_commit_whose_outcome_is_unknown_is_not_acknowledged_and_keeps_its_file(
    lake: ReceivingLake, client: Client, armed: Callable[[str], None]
) -> None:
    armed("receive.after_commit=fail")
    _said(client.send(some(2), "k"), 503, Answer.BUSY)
    again = _said(client.send(some(2), "k"), 202, Answer.ACCEPTED)
    assert again["repeat"] and lake.rows() == some(2)


def test_a_ledger_that_is_away_is_503_for_everyone_in_the_group_and_nothing_is_told_of_it(
    lake: ReceivingLake, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> Any:
        raise StorageError("cannot reach /secret/place with password hunter2")

    monkeypatch.setattr(received, "record", away)
    answers = [client.send(some(1, n), f"k{n}") for n in range(3)]
    for answer in answers:
        _said(answer, 503, Answer.BUSY)
        assert "secret" not in answer.text and "hunter2" not in answer.text
    assert len(lake.files()) == 3
    monkeypatch.undo()
    for n in range(3):
        _said(client.send(some(1, n), f"k{n}"), 202, Answer.ACCEPTED)


def test_a_warehouse_that_is_away_is_503_and_no_folder_is_made_in_its_place(
    lake: ReceivingLake, client: Client
) -> None:
    folder = lake.config.warehouse_folder
    assert folder is not None
    folder.rename(folder.with_name("away"))
    answer = client.send(some(1), "k")
    _said(answer, 503, Answer.BUSY)
    assert str(folder) not in answer.text and not folder.exists()
    folder.with_name("away").rename(folder)
    _said(client.send(some(1), "k"), 202, Answer.ACCEPTED)


def test_what_nobody_foresaw_is_an_answer_without_a_trace(lake: ReceivingLake, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("/secret/place")

    client = lake.serve(read_lines=broken)
    answer = client.send(some(1), "k")
    _said(answer, 503, Answer.BUSY)
    assert "secret" not in answer.text
    monkeypatch.setattr(RequestHandler, "handle", broken)
    answer = client.send(some(1), "k")
    _said(answer, 503, Answer.BUSY)
    assert "secret" not in answer.text and answer.headers["Retry-After"]


# --- the table changes ---


def test_a_column_that_was_just_added_is_not_refused_by_what_was_read_before(
    lake: ReceivingLake, client: Client
) -> None:
    _said(client.send(some(1), "k"), 202, Answer.ACCEPTED)
    more = [{"name": "id", "type": "long", "required": True}, {"name": "text", "type": "string"}]
    lake.columns["default.events"] = parse_columns([*more, {"name": "new", "type": "int"}])
    _said(client.send([{"id": 2, "new": 5}], "k2"), 202, Answer.ACCEPTED)
    assert lake.rows()[1:] == [{"id": 2, "text": None, "new": 5}]


def test_a_column_that_became_required_is_seen_soon(
    lake: ReceivingLake, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caches, "READ_AGAIN_SECONDS", 0.0)
    _said(client.send([{"id": 1}], "k"), 202, Answer.ACCEPTED)
    lake.columns["default.events"] = [replace(c, required=True) for c in lake.columns["default.events"]]
    _said(client.send([{"id": 1}], "k2"), 400, Answer.BAD_BODY)


# --- what senders ask ---


def test_the_record_of_a_sender_is_written_once_and_its_generation_only_raised(client: Client) -> None:
    own = {"lake": "lake-c", "dataset": "default.events"}
    assert client.ask("claimed", **own).json()["claim"] is None
    mine = own | {"instance": "sink-1", "table_uuid": "u", "term": 1}
    for generation, stands in ((2, None), (2**63 - 1, None), (1, 1), (3, 1), (2, 2), (1, 2), (2**63 - 1, 2), (3, 3)):
        answer = client.ask("claim", **mine, generation=generation)
        assert answer.json()["generation"] == stands, generation
        if generation > (stands or 0):
            _said(answer, 409, Answer.NOT_CLAIMED)
        else:
            assert _said(answer, 200, Answer.ACCEPTED)["claim"] == mine
    other = client.ask("claim", **(mine | {"instance": "sink-2"}), generation=9).json()
    assert (other["claim"], other["generation"]) == (mine, 3)
    assert client.ask("claimed", **own).json()["generation"] == 3
    assert client.ask("claimed", **(own | {"lake": "lake-b"})).json()["claim"] is None


def test_an_old_leader_brings_no_new_rows_after_a_later_one_has_claimed(client: Client) -> None:
    client.send(some(2), rows=span(1, 2))
    lane = {"lake": LANE.lake, "dataset": LANE.dataset, "instance": LANE.instance}
    [claimed] = [client.ask("claimed", lake=LANE.lake, dataset=LANE.dataset).json()["claim"]]
    answer = client.ask("claim", **(claimed | lane | {"term": 17}), generation=LANE.generation)
    assert _said(answer, 200, Answer.ACCEPTED)["claim"]["term"] == 17
    late = client.ask("claim", **(claimed | lane), generation=LANE.generation + 1)
    assert (late.json()["claim"]["term"], late.json()["generation"]) == (17, LANE.generation), "it raises nothing"
    old, new = {forward_protocol.TERM: "1"}, {forward_protocol.TERM: "17"}
    assert _said(client.send(some(2), rows=span(3, 4), **old), 409, Answer.TERM_PASSED)["term"] == 17
    assert _said(client.send(some(2), rows=span(1, 2), **old), 202, Answer.ACCEPTED)["repeat"]
    _said(client.send(some(2), rows=span(3, 4), **new), 202, Answer.ACCEPTED)


def test_a_lane_belongs_to_the_token_that_claimed_it(lake: ReceivingLake, client: Client) -> None:
    """One that is allowed for the dataset could make every later body of the real sender a repeat."""
    other = replace(client, token=lake.add_token("other"))
    everything = span(1, 2**63 - 1)
    _said(other.send(some(1), rows=everything), 403, Answer.NOT_ALLOWED)
    own = {"lake": LANE.lake, "dataset": LANE.dataset}
    sender = own | {"instance": LANE.instance, "generation": 1}
    for what, question in (
        ("claimed", own),
        ("claim", own | {"instance": LANE.instance, "table_uuid": "u", "generation": 2}),
        ("held", sender | {"lanes": [{"partition": ""}]}),
        ("inspect", sender | {"partition": "", "lo": 1, "hi": 2}),
    ):
        _said(other.ask(what, **question), 403, Answer.NOT_ALLOWED)
    assert lake.recorded() == [] and lake.files() == []
    assert _said(client.send(some(3), rows=span(1, 3)), 202, Answer.ACCEPTED)["repeat"] is False
    _said(other.send(some(3), rows=span(1, 3)), 403, Answer.NOT_ALLOWED)
    assert client.ask("claimed", **own).json()["generation"] == 1


def test_a_token_that_replaces_another_owns_its_lanes_and_keys(lake: ReceivingLake, client: Client) -> None:
    _said(client.send(some(3), rows=span(1, 3)), 202, Answer.ACCEPTED)
    _said(client.send(some(2, 4), "k"), 202, Answer.ACCEPTED)
    new = replace(client, token=lake.add_token("second", replaces="first"))
    assert _said(new.send(some(3), rows=span(1, 3)), 202, Answer.ACCEPTED)["repeat"]
    assert _said(new.send(some(2, 4), "k"), 202, Answer.ACCEPTED)["repeat"]
    assert _said(client.send(some(1, 6), rows=span(4, 4)), 202, Answer.ACCEPTED)["repeat"] is False
    with lake.ledger.write() as connection:
        assert tokens.revoke(connection, "first")
    _said(client.send(some(1, 7), rows=span(5, 5)), 401, Answer.NO_TOKEN)
    third = replace(client, token=lake.add_token("third", replaces="second"))
    for one in (new, third):
        assert _said(one.send(some(1, 6), rows=span(4, 4)), 202, Answer.ACCEPTED)["repeat"]
    _said(third.send(some(1, 7), rows=span(5, 5)), 202, Answer.ACCEPTED)
    assert lake.rows() == some(7)


def test_a_generation_that_was_not_claimed_last_brings_nothing_new(lake: ReceivingLake, client: Client) -> None:
    _said(client.send(some(2), rows=span(1, 2)), 202, Answer.ACCEPTED)

    def send(generation: int, lo: int) -> httpx.Response:
        headers = forward_protocol.identity_headers(
            RangeIdentity(replace(LANE, generation=generation), span(lo, lo + 1))
        )
        body = lines(numbered(some(2, lo), span(lo, lo)))
        return client.http.post(client.url, content=body, headers=client.headers() | headers)

    assert _said(send(2, 3), 409, Answer.NOT_CLAIMED)["generation"] == 1
    own = {"lake": LANE.lake, "dataset": LANE.dataset, "instance": LANE.instance, "table_uuid": "u"}
    _said(client.ask("claim", **own, generation=2), 200, Answer.ACCEPTED)
    assert _said(send(1, 3), 409, Answer.NOT_CLAIMED)["generation"] == 2
    assert _said(send(1, 1), 202, Answer.ACCEPTED)["repeat"]
    _said(send(2, 3), 202, Answer.ACCEPTED)
    assert lake.rows() == some(4)


@pytest.mark.parametrize("form", [forward_protocol.JSON_LINES, forward_protocol.ARROW])
@pytest.mark.parametrize(
    ("numbers", "row"),
    [([], None), ([4, 5], 1), ([5, 5], 2), ([6, 5], 2), ([5, 9], 2), ([5, 6, 9], 3), ([None, 5], 1), (None, None)],
)
def test_a_range_has_rows_whose_numbers_strictly_increase_inside_it(
    lake: ReceivingLake, client: Client, form: str, numbers: list[int | None] | None, row: int | None
) -> None:
    rows: list[dict[str, Any]] = some(2) if numbers is None else [
        {"_ingest_seq": number} | one for number, one in zip(numbers, some(len(numbers)), strict=True)
    ]  # fmt: skip
    schema = pa.schema({"_ingest_seq": pa.int64(), "id": pa.int64(), "text": pa.string()})
    table = pa.Table.from_pylist(rows, None if numbers is None else schema)
    body = lines(rows) if form == forward_protocol.JSON_LINES else arrow(table)
    told = _said(client.send(body, rows=span(5, 8), Content_Type=form), 400, Answer.BAD_BODY)
    assert told["line"] in (row, 1 if numbers is None else row)
    assert lake.recorded() == [] and lake.files() == []


def test_what_is_held_is_told_by_lane_beyond_a_number(client: Client) -> None:
    sent = {n: client.send(some(5, n), rows=span(n, n + 4)).json() for n in (11, 1, 6)}
    sender = {"lake": LANE.lake, "instance": LANE.instance, "generation": 1, "dataset": LANE.dataset}
    lanes = [{"partition": "", "after": None}, {"partition": "", "after": 5}, {"partition": "day=1", "after": None}]
    told = client.ask("held", **sender, lanes=lanes).json()["lanes"]
    size = {n: len(lines(numbered(some(5, n), span(n, n)))) for n in sent}
    everything = [[n, n + 4, 5, sent[n]["digest"], size[n]] for n in (1, 6, 11)]
    assert [lane["ranges"] for lane in told] == [everything, everything[1:], []]


def test_inspect_asks_for_the_lane_and_its_bounds(lake: ReceivingLake, client: Client) -> None:
    sender = {"lake": LANE.lake, "instance": LANE.instance, "generation": 1, "dataset": LANE.dataset}
    told = client.ask("inspect", **sender, partition="day=1", lo=3, hi=9).json()
    assert told["ranges"][0]["lo"] == 3 and told["outcome"] == "accepted"
    assert lake.inspected == [("default.events", replace(LANE, partition="day=1"), 3, 9)]
    _said(client.ask("inspect", **sender, partition="", lo=9, hi=3), 400, Answer.BAD_REQUEST)


@pytest.mark.parametrize("what", ["claimed", "claim", "held", "inspect"])
def test_questions_that_make_no_sense_are_bad_requests(client: Client, what: str) -> None:
    headers = {"Authorization": f"Bearer {client.token}"}
    for content in (b"", b"{", b"[]", b'{"lake": 5}', b"\xff"):
        answer = client.http.post(f"{client.url}/{what}", content=content, headers=headers)
        _said(answer, 400, Answer.BAD_REQUEST)


@pytest.mark.parametrize("settings", [{"receive": {"body_bytes_max": 2000}}])
def test_a_question_is_no_way_around_the_limit_of_a_body(client: Client) -> None:
    answer = client.ask("claimed", lake="x" * 3000, dataset="d")
    _said(answer, 413, Answer.TOO_LARGE)


def test_questions_are_small_and_what_asks_spark_is_not_queued_without_end(
    lake: ReceivingLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = {"lake": LANE.lake, "instance": LANE.instance, "generation": 1, "dataset": LANE.dataset}
    go_on = threading.Event()
    waiting: list[int] = []

    def slowly(*_: Any) -> dict[str, Any]:
        waiting.append(1)
        assert go_on.wait(60)
        return {"ranges": []}

    monkeypatch.setattr(lake, "inspect", slowly)
    client = lake.serve()
    _said(client.ask("held", **sender, lanes=[{"partition": ""}] * 1001), 400, Answer.BAD_REQUEST)
    many = [{"partition": "x" * 1000}] * 5000
    assert _said(client.ask("held", **sender, lanes=many), 413, Answer.TOO_LARGE)["limit"] == 4 << 20
    with ThreadPoolExecutor(9) as pool:
        asked = [pool.submit(client.ask, "inspect", **sender, partition="", lo=1, hi=2) for _ in range(9)]
        eventually(lambda: any(a.done() for a in asked))
        [turned] = [a.result() for a in asked if a.done()]
        _said(turned, 429, Answer.BUSY)
        _said(client.ask("claimed", lake="l", dataset="d"), 200, Answer.ACCEPTED)
        go_on.set()
        assert sorted(a.result().status_code for a in asked) == [200] * 8 + [429]
    assert len(waiting) == 8


def test_many_bodies_at_once_ask_the_ledger_once_how_much_waits(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.http.verified_callers.VERIFIED_SECONDS", 3600)  # else their callers ask, too
    _said(client.send(some(1), "first"), 202, Answer.ACCEPTED)
    waiting_bytes, ask = spool_files.waiting_bytes, SharedQuestions.ask
    asked: list[int] = []
    measured: list[int] = []

    async def counted(self: Any, key: Any, question: Any) -> Any:
        asked.append(1)
        return await ask(self, key, question)

    def slowly(connection: Any) -> Any:
        measured.append(1)
        eventually(lambda: len(asked) == 8)
        return waiting_bytes(connection)

    monkeypatch.setattr(SharedQuestions, "ask", counted)
    monkeypatch.setattr(spool_files, "waiting_bytes", slowly)
    monkeypatch.setattr("strandline.receive.http.admission.GAUGE_SECONDS", -1)
    with ThreadPoolExecutor(8) as pool:
        for answer in pool.map(lambda n: client.send(some(1), f"k{n}"), range(8)):
            _said(answer, 202, Answer.ACCEPTED)
    assert len(measured) == 1


@pytest.mark.parametrize("what", ["claimed", "claim", "held", "inspect"])
def test_others_are_answered_while_a_question_is_parsed(
    client: Client, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The event loop parses nothing: this parser ends only when another request was answered."""
    parse, parsing, go_on = questions._parsed, threading.Event(), threading.Event()

    def slowly(data: bytes, kind: Any) -> Any:
        if b"slow" in data:
            parsing.set()
            assert go_on.wait(60)
        return parse(data, kind)

    monkeypatch.setattr(questions, "_parsed", slowly)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(client.ask, what, lake="slow" + "x" * (3 << 20))
        try:
            assert parsing.wait(60)
            with httpx.Client(timeout=30) as other:  # less than the parser waits
                assert other.get(f"{client.base}/v1/health").json() == {"ok": True}
                sent = other.post(client.url, content=lines(some(1)), headers=client.headers("beside"))
            _said(sent, 202, Answer.ACCEPTED)
        finally:
            go_on.set()
        _said(asked.result(), 400, Answer.BAD_REQUEST)


def test_health_needs_no_token_and_every_path_is_described(client: Client) -> None:
    health = client.http.get(f"{client.base}/v1/health")
    assert health.json() == {"ok": True} and health.headers[forward_protocol.RECEIVER] == forward_protocol.VERSION
    described = client.http.get(f"{client.base}/v1/openapi.json").json()
    rows = "/v1/datasets/{dataset}/rows"
    paths = {rows, *(f"{rows}/{what}" for what in ("claimed", "claim", "held", "inspect"))}
    assert paths | {"/v1/health"} == set(described["paths"])
    for path in paths:
        post = described["paths"][path]["post"]
        assert post["summary"] and post["requestBody"]["content"] and post["security"] == [{"token": []}]
    assert {"202", "400", "401", "409", "413", "422", "429", "503"} <= set(
        described["paths"][rows]["post"]["responses"]
    )
    assert described["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
