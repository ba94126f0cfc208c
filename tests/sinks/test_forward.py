"""The kind `forward` against real servers on loopback: one that misbehaves as it is told, and a real receiver."""

from __future__ import annotations

import hashlib
import json
import logging
import pickle
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import zstandard

from strandline.core import failpoints, forward_protocol
from strandline.core.delivery_types import PeerKind
from strandline.core.errors import RefusedError, StorageError
from strandline.core.settings.lake_config import ForwardSettings
from strandline.core.types import Seq, SeqRange
from strandline.deliver.send.digests import same_bytes
from strandline.deliver.sink import (
    Address,
    ChunkRows,
    Claim,
    Claimed,
    Conflict,
    Held,
    HeldRange,
    Inspected,
    Landed,
    Outcome,
    Provable,
    Refused,
    SinkContext,
    TryLater,
    Unknown,
)
from strandline.deliver.sink_kinds import resolve
from strandline.deliver.sinks.forward import connections
from strandline.deliver.sinks.forward.send import ForwardSender
from strandline.deliver.sinks.forward.sink import KIND, ForwardSink
from tests import tls
from tests.sinks.misbehaving import Act, Misbehaving, Seen, misbehaving

ADDRESS = Address("lake-1", "instance-1", 1, "shop.orders", "")
LOOPBACK = ["127.0.0.0/8", "::1"]
OURS = ((forward_protocol.RECEIVER, forward_protocol.VERSION),)


@pytest.fixture
def server() -> Iterator[Misbehaving]:
    with misbehaving() as made:
        yield made
    failpoints.arm("")


@pytest.fixture
def receiver() -> Iterator[Misbehaving]:
    with misbehaving(receiver=True) as made:
        yield made


def opened(
    url: str,
    *,
    allow: Sequence[str] = LOOPBACK,
    answer_seconds_max: float = 60,
    connect_seconds_max: float = 60,
    home: Path | None = None,
    peer: PeerKind | None = None,
    **options: str | None,
) -> ForwardSink:
    settings = ForwardSettings(
        allow=list(allow), answer_seconds_max=answer_seconds_max, connect_seconds_max=connect_seconds_max
    )
    wanted = {"url": url, "success_status": "2xx", **options}
    given = {name: value for name, value in wanted.items() if value is not None}
    resolved = resolve(KIND, given)
    sink = KIND.open(
        SinkContext(home or Path(), "shop.orders", 1, resolved, "lake-1", settings, given=given, peer=peer)
    )
    assert isinstance(sink, ForwardSink)
    return sink


def sender(url: str, **options: Any) -> ForwardSender:
    """As it arrives on an executor."""
    sink = opened(url, **options)
    made = pickle.loads(pickle.dumps(sink.sender("token")))
    sink.close()
    assert isinstance(made, ForwardSender)
    return made


def rng(lo: int, hi: int) -> SeqRange:
    return SeqRange(Seq(lo), Seq(hi))


def parcel(lo: int = 1, hi: int = 5, *, address: Address = ADDRESS, width: int = 0) -> ChunkRows:
    numbers = list(range(lo, hi + 1))
    lines = [f'{{"_ingest_seq":{n},"name":"row {n}{"x" * width}"}}' for n in numbers]
    return ChunkRows(address, rng(lo, hi), pa.table({"_ingest_seq": pa.array(numbers, pa.int64()), "line": lines}))


def same(requests: Sequence[Seen]) -> bool:
    """The same id and the same bytes, however often."""
    return (
        len(
            {
                (
                    r.body,
                    *(
                        r.headers.get(h.lower())
                        for h in (forward_protocol.KEY, forward_protocol.DIGEST, forward_protocol.RANGE)
                    ),
                )
                for r in requests
            }
        )
        == 1
    )


# --- what is sent ----------------------------------------------------------------------------------------------------


def test_a_chunk_is_one_request_that_says_what_it_is(server: Misbehaving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORWARD_TOKEN", "sl_secret")
    lane = replace(ADDRESS, partition="day=2026-11-15/k=%C3%A9")
    landed = sender(server.url(), token="env:FORWARD_TOKEN").send(parcel(address=lane))
    (seen,) = server.posts()
    text = b"".join(b'{"_ingest_seq":%d,"name":"row %d"}\n' % (n, n) for n in range(1, 6))
    assert zstandard.ZstdDecompressor().decompress(seen.body) == text
    digest = hashlib.sha256(seen.body)
    assert isinstance(landed, Landed) and same_bytes(landed.digest, f"sha256:{digest.hexdigest()}")
    assert landed == Landed(5, landed.digest, len(seen.body)) and "jsonl" in landed.digest and "zstd" in landed.digest
    assert forward_protocol.digest_fits(seen.headers["content-digest"], seen.body)
    identity = forward_protocol.parse_identity(seen.headers)
    assert identity == forward_protocol.RangeIdentity(
        forward_protocol.LaneName("lake-1", "instance-1", 1, "shop.orders", lane.partition), rng(1, 5), 1
    )
    assert seen.key == forward_protocol.chunk_key(identity)
    assert seen.headers["authorization"] == "Bearer sl_secret"
    assert (seen.headers["content-type"], seen.headers["content-encoding"]) == (forward_protocol.JSON_LINES, "zstd")
    assert (seen.headers["host"], seen.path) == (f"127.0.0.1:{server.port}", "/v1/datasets/shop.orders/rows")


def test_arrow_and_other_compressions_are_declared(server: Misbehaving) -> None:
    rows = ChunkRows(ADDRESS, rng(1, 2), pa.table({"_ingest_seq": [1, 2], "name": ["a", None]}))
    assert isinstance(sender(server.url(), format="arrow", compression="none").send(rows), Landed)
    assert isinstance(sender(server.url(), compression="gzip").send(parcel(3, 4)), Landed)
    arrow, gzipped = server.posts()
    assert arrow.headers["content-type"] == forward_protocol.ARROW and "content-encoding" not in arrow.headers
    assert pa.ipc.open_stream(arrow.body).read_all().equals(rows.rows)
    assert gzipped.headers["content-encoding"] == "gzip"


def test_a_rehearsal_gives_the_digest_that_landed(server: Misbehaving) -> None:
    sink = opened(server.url())
    assert isinstance(sink, Provable) and sink.comparison(["_ingest_seq"]) is None
    assert sink.rehearsal(["_ingest_seq", "name"]).send(parcel()) == sink.sender("t").send(parcel())
    assert sink.name_of(ADDRESS, rng(1, 5)) == f"http://127.0.0.1:{server.port}/v1/datasets/shop.orders/rows 1..5"


def test_a_large_body_arrives_whole(server: Misbehaving) -> None:
    assert isinstance(sender(server.url(), compression="none").send(parcel(1, 200, width=50_000)), Landed)
    assert len(server.posts()[0].body) > 10_000_000


# --- again, with the same id and the same bytes ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "act",
    [
        Act(500), Act(502, body=b"<html>bad gateway</html>"), Act(503), Act(504), Act(429), Act(408),
        Act(500, commit=True), Act(end="silent", commit=True), Act(end="reset", commit=True),
        Act(202, end="cut", commit=True),
        Act(end="silent"), Act(end="reset"), Act(202, body=b"x", end="cut"),
    ],
    ids=str,
)  # fmt: skip
def test_whatever_happened_to_the_first_attempt_the_next_one_is_the_same(server: Misbehaving, act: Act) -> None:
    server.will(act)
    first = sender(server.url()).send(parcel())
    again = sender(server.url()).send(parcel())
    assert isinstance(again, Landed) and isinstance(first, Landed | TryLater)
    assert len(server.posts()) >= 2 and same(server.posts())
    assert len(server.stored) == 1


def test_an_answer_that_was_lost_is_asked_for_once_more_at_once(server: Misbehaving) -> None:
    for end in ("silent", "reset", "cut"):
        server.will(Act(202, body=b"y", end=end, commit=True))  # type: ignore[arg-type]
        assert isinstance(sender(server.url()).send(parcel()), Landed)
    assert len(server.posts()) == 6 and same(server.posts()) and len(server.stored) == 1


def test_an_answer_that_is_lost_twice_is_not_known(server: Misbehaving) -> None:
    server.will(Act(end="silent", commit=True), Act(end="reset"))
    outcome = sender(server.url()).send(parcel())
    assert isinstance(outcome, Unknown) and server.url() in outcome.why
    assert len(server.posts()) == 2 and same(server.posts())


def test_a_server_that_is_gone_after_it_took_the_body_leaves_the_outcome_open(server: Misbehaving) -> None:
    made = sender(server.url())
    made._conversation.place = replace(made._conversation.place, port=_OneRequestThenGone().port)
    outcome = made.send(parcel())
    assert isinstance(outcome, Unknown) and "then:" in outcome.why


class _OneRequestThenGone:
    """Takes one connection, reads, hangs up and is no more."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        connection, _ = self._listening.accept()
        self._listening.close()
        connection.recv(1 << 16)
        connection.close()


def _hurried(made: ForwardSender, seconds: float) -> ForwardSender:
    made._conversation.rules = replace(made._conversation.rules, answer_seconds_max=seconds)
    return made


def test_a_slow_answer_ends_in_time_and_is_not_known(server: Misbehaving) -> None:
    server.will(Act(202, delay_seconds=60), Act(202, delay_seconds=60))
    began = time.monotonic()
    outcome = _hurried(sender(server.url()), 0.3).send(parcel())
    assert isinstance(outcome, Unknown) and "0.3 s" in outcome.why
    assert time.monotonic() - began < 20
    while not server.posts():  # what was sent is read, however late
        time.sleep(0.01)
    assert same(server.posts())


def test_an_answer_that_comes_byte_by_byte_does_not_hold_the_sender(server: Misbehaving) -> None:
    slow = Act(202, body=b"x" * 1000, trickle_seconds=0.1)
    server.will(slow, slow)
    began = time.monotonic()
    assert isinstance(_hurried(sender(server.url()), 0.5).send(parcel()), Unknown)
    assert time.monotonic() - began < 20


def test_a_server_that_takes_connections_and_nothing_else_does_not_hold_the_sender() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/rows"
        began = time.monotonic()
        with pytest.raises(StorageError, match="within"):
            opened(url, answer_seconds_max=0.3).sender("t")
        assert time.monotonic() - began < 20


def test_a_server_that_is_away_is_waited_for(server: Misbehaving) -> None:
    made = sender(server.url())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    made._conversation.place = replace(made._conversation.place, port=port)
    outcome = made.send(parcel())
    assert isinstance(outcome, TryLater) and "refused" in outcome.why and outcome.wait_seconds is None


@pytest.mark.parametrize(("said", "wait"), [("30", 30.0), ("100000", 300.0), ("0", None), ("-1", None), ("soon", None)])
def test_the_wait_a_server_asks_for_is_passed_on_and_never_slept(
    server: Misbehaving, said: str, wait: float | None
) -> None:
    server.will(Act(429, (("Retry-After", said),)))
    began = time.monotonic()
    outcome = sender(server.url()).send(parcel())
    assert isinstance(outcome, TryLater) and outcome.wait_seconds == wait
    assert time.monotonic() - began < 20 and len(server.posts()) == 1


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_refusal_says_what_the_server_said(server: Misbehaving, status: int) -> None:
    server.will(Act(status, body=b"line 3 is bad"))
    outcome = sender(server.url()).send(parcel())
    assert isinstance(outcome, Refused) and "line 3 is bad" in outcome.why and len(server.posts()) == 1


def test_a_proxy_that_refuses_before_it_has_read_the_body_is_heard(server: Misbehaving) -> None:
    server.will(Act(413, body=b"too large", read=False, delay_seconds=0.1))
    outcome = sender(server.url(), compression="none").send(parcel(1, 2))
    assert isinstance(outcome, Refused) and "413" in outcome.why


def test_a_proxy_that_finds_a_single_row_too_large_quarantines_nothing(receiver: Misbehaving) -> None:
    """Several rows are split, because smaller bodies may pass. Only the receiver itself refuses a row."""
    made = sender(receiver.url(), peer=PeerKind.RECEIVER)
    receiver.will(Act(413, body=b"limit"), Act(413, body=b"limit"), Act(413, OURS, b'{"outcome":"too_large"}'))
    assert isinstance(made.send(parcel(1, 2)), Refused)
    alone = made.send(parcel(1, 1))
    assert isinstance(alone, TryLater) and "limit" in alone.why and "lacks the header" in alone.why
    assert isinstance(made.send(parcel(1, 1)), Refused)


def test_a_refusal_of_a_repeat_says_nothing_of_the_first_attempt_unless_a_receiver_said_it(
    server: Misbehaving, receiver: Misbehaving
) -> None:
    server.will(Act(end="silent", commit=True), Act(413))
    outcome = sender(server.url()).send(parcel())
    assert isinstance(outcome, Unknown) and "413" in outcome.why
    bad = json.dumps({"outcome": "bad_body", "line": 1, "why": "no"}).encode()
    receiver.will(Act(end="silent"), Act(400, OURS, bad))
    assert isinstance(sender(receiver.url()).send(parcel()), Refused)


def test_a_damaged_body_is_sent_again_and_not_refused(receiver: Misbehaving) -> None:
    receiver.will(Act(400, OURS, b'{"outcome":"bad_digest","why":"damaged"}'))
    made = sender(receiver.url())
    assert isinstance(made.send(parcel()), TryLater)
    assert isinstance(made.send(parcel()), Landed) and same(receiver.posts())


def test_a_conflict_says_what_is_held(receiver: Misbehaving) -> None:
    receiver.will(Act(409, OURS, b'{"outcome":"conflict","held":[[3,9]]}'), Act(409, OURS, b'{"outcome":"in_flight"}'))
    made = sender(receiver.url())
    assert made.send(parcel()) == Conflict((rng(3, 9),))
    assert isinstance(made.send(parcel()), TryLater)


def test_a_redirect_is_not_followed(server: Misbehaving) -> None:
    with misbehaving() as elsewhere:
        for status in (301, 302, 303, 307, 308):
            server.will(Act(status, (("Location", elsewhere.url()),)))
            outcome = sender(server.url()).send(parcel())
            assert isinstance(outcome, TryLater) and "redirects are not followed" in outcome.why
        assert elsewhere.seen == [] and elsewhere.connections == 0


def test_a_yes_of_a_proxy_in_front_of_a_receiver_is_no_yes(receiver: Misbehaving) -> None:
    receiver.will(Act(200, body=b"<html>log in</html>"))
    assert isinstance(sender(receiver.url()).send(parcel()), TryLater)


def test_what_was_claimed_as_a_receiver_is_waited_for_whoever_answers_in_its_place(server: Misbehaving) -> None:
    """A proxy's maintenance page that says 200 to everything, say."""
    sink = opened(server.url(), peer=PeerKind.RECEIVER)
    claim = Claim("lake-1", "instance-1", "shop.orders", "table")
    for ask in (
        sink.peer_kind,
        sink.claimed,
        lambda: sink.claim(claim, 1),
        lambda: sink.held([(ADDRESS, None)]),
        lambda: sink.sender("token"),
        lambda: sink.inspector().inspect(ADDRESS, rng(1, 5)),
    ):
        with pytest.raises(StorageError, match="it was a Strandline receiver when the sink was added"):
            ask()
    assert server.posts() == []


def test_what_was_no_receiver_and_is_one_now_is_asked_and_must_prove_what_it_takes(receiver: Misbehaving) -> None:
    sink = opened(receiver.url(), peer=PeerKind.OTHER)
    assert sink.peer_kind() is PeerKind.RECEIVER
    assert sink.held([(ADDRESS, None)]) == [Held(None, ())]
    receiver.will(Act(200, body=b"thanks"))
    assert isinstance(sink.sender("token").send(parcel()), TryLater)


def test_a_server_that_is_no_receiver_is_sent_to_only_where_the_options_say_what_its_answers_mean(
    server: Misbehaving,
) -> None:
    sink = opened(server.url(), success_status=None)
    with pytest.raises(StorageError, match="no Strandline receiver answers there") as refused:
        sink.claimed()
    assert refused.value.hint and "success_status" in refused.value.hint
    made = sender(server.url(), success_status="202", success_json="stored")
    for body, outcome in ((b"{}", Unknown), (b'{"stored":1}', Landed)):
        server.will(Act(202, body=body))
        assert isinstance(made.send(parcel()), outcome)
    assert same(server.posts())


# --- tokens ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_token_that_is_not_taken_is_read_again_once_with_the_same_id_and_bytes(
    server: Misbehaving, tmp_path: Path, status: int
) -> None:
    path = tmp_path / "token"
    path.write_text("sl_old\n")
    made = sender(server.url(), token=f"file:{path}")
    path.write_text("sl_new\n")
    server.will(Act(status))
    assert isinstance(made.send(parcel()), Landed)
    assert [s.headers["authorization"] for s in server.posts()] == ["Bearer sl_old", "Bearer sl_new"]
    assert same(server.posts())
    server.will(Act(status))  # and it stays the new one, which is not read again and again
    outcome = made.send(parcel())
    assert isinstance(outcome, TryLater) and str(status) in outcome.why
    assert [s.headers["authorization"] for s in server.posts()[2:]] == ["Bearer sl_new"]


def test_a_token_that_was_changed_and_is_not_taken_either_waits_and_refuses_nothing(
    server: Misbehaving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORWARD_TOKEN", "sl_old")
    made = sender(server.url(), token="env:FORWARD_TOKEN")
    monkeypatch.setenv("FORWARD_TOKEN", "sl_new")
    server.will(Act(401), Act(401), Act(401))
    assert isinstance(made.send(parcel()), TryLater)
    assert len(server.posts()) == 2 and same(server.posts())


def test_questions_read_the_token_again_too(receiver: Misbehaving, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("sl_old")
    sink = opened(receiver.url(), token=f"file:{path}")
    path.write_text("sl_new")
    receiver.will(Act(401, OURS), on="/claimed")
    assert sink.claimed() is None
    asked = [s.headers["authorization"] for s in receiver.seen if s.path.endswith("/claimed")]
    assert asked == ["Bearer sl_old", "Bearer sl_new"]
    made = pickle.loads(pickle.dumps(sink.sender("t")))
    path.unlink()  # an executor may be on another machine: it has what the driver was taken with
    assert isinstance(made.send(parcel()), Landed)
    assert receiver.posts()[0].headers["authorization"] == "Bearer sl_new"


def test_the_token_stands_in_no_message_and_no_log(
    server: Misbehaving, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FORWARD_TOKEN", "sl_hidden")
    caplog.set_level(logging.DEBUG)
    said = []
    for act in (
        Act(500, body=b"you sent Bearer sl_hidden"),
        Act(401, body=b"sl_hidden"),
        Act(400, body=b"sl_hidden"),
        Act(503, body=b"no such path: /rows?key=hi%64den&more=1, which is key=hidden&more=1"),
    ):
        server.will(act)
        monkeypatch.setenv("FORWARD_URL", server.url() + "?key=hi%64den&more=1")
        made = sender("env:FORWARD_URL", token="env:FORWARD_TOKEN")
        said += [repr(made.send(parcel())), repr(made)]
    server.will(Act(end="silent"), Act(end="silent"))
    said.append(repr(sender(server.url(), token="env:FORWARD_TOKEN").send(parcel())))
    assert "***" in said[0]
    assert not [s for s in [*said, caplog.text] if "hidden" in s or "hi%64den" in s]


# --- connections -----------------------------------------------------------------------------------------------------


def test_a_connection_is_kept_through_refusals_and_from_sender_to_sender(server: Misbehaving) -> None:
    for n, status in enumerate((202, 400, 401, 404, 409, 413, 429, 500, 503, 308, 202)):
        server.will(Act(status, body=b"x" * 100_000))
        made = sender(server.url())
        made.send(parcel(1 + 10 * n, 5 + 10 * n))
        made.close()
    assert len(server.posts()) == 11
    assert len({s.connection for s in server.posts()}) == 1


def test_an_answer_without_end_is_not_read_to_its_end(server: Misbehaving) -> None:
    server.will(Act(500, body=b"x" * 20_000_000))
    made = sender(server.url())
    outcome = made.send(parcel())
    assert isinstance(outcome, TryLater) and len(outcome.why) < 500
    assert isinstance(made.send(parcel()), Landed)


def test_a_connection_that_the_server_closed_meanwhile_costs_nothing(server: Misbehaving) -> None:
    made = sender(server.url())
    for n in range(3):
        server.will(Act(202, end="close"))
        assert isinstance(made.send(parcel(1 + 10 * n, 5 + 10 * n)), Landed)
        time.sleep(0.05)
    assert len(server.posts()) == 3


def test_no_more_connections_are_kept_than_are_needed() -> None:
    with misbehaving() as one:
        made = [sender(one.url()) for _ in range(connections.KEPT_MAX + 5)]
        for n, each in enumerate(made):
            each.send(parcel(1 + 10 * n, 5 + 10 * n))
        for each in made:
            each.close()
        assert len(connections._kept) <= connections.KEPT_MAX


def test_proxies_and_passwords_of_the_environment_are_not_used(
    server: Misbehaving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1/")
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password mine\n")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    assert isinstance(sender(server.url()).send(parcel()), Landed)
    assert "authorization" not in server.posts()[0].headers


# --- addresses -------------------------------------------------------------------------------------------------------


def test_a_name_that_leads_to_a_private_address_is_refused_where_the_connection_is_made(server: Misbehaving) -> None:
    for allow in ([], ["localhost"], ["10.0.0.0/8"]):
        with pytest.raises(RefusedError, match="localhost") as refused:
            opened(server.url("localhost"), allow=allow).claimed()
        assert "forward.allow" in (refused.value.hint or "")
    assert server.connections == 0
    outcome = _with(sender(server.url("localhost")), allow=["10.0.0.0/8"]).send(parcel())
    assert isinstance(outcome, TryLater) and "forward.allow" in outcome.why
    assert server.posts() == []


def test_a_name_is_fine_where_its_address_is_allowed(server: Misbehaving) -> None:
    made = sender(server.url("localhost"), allow=["127.0.0.1"])
    assert isinstance(made.send(parcel()), Landed)
    assert server.posts()[0].headers["host"] == f"localhost:{server.port}"


@pytest.mark.parametrize("host", ["127.1", "2130706433", "0x7f000001"])
def test_odd_spellings_of_loopback_are_seen_through(server: Misbehaving, host: str) -> None:
    with pytest.raises((RefusedError, StorageError)):
        opened(server.url(host), allow=[]).claimed()
    assert server.connections == 0


def test_ipv6_is_spoken_and_checked_alike() -> None:
    try:
        with misbehaving("::1") as server:
            assert isinstance(sender(server.url("[::1]"), allow=["::1"]).send(parcel()), Landed)
            assert server.posts()[0].headers["host"] == f"[::1]:{server.port}"
            with pytest.raises(RefusedError):
                opened(server.url("localhost"), allow=["8.8.8.8"]).claimed()
    except OSError as e:
        pytest.skip(f"no IPv6 here: {e}")


def test_an_ipv4_address_in_the_clothes_of_ipv6_is_the_ipv4_address(server: Misbehaving) -> None:
    url = server.url("[::ffff:127.0.0.1]")
    try:
        assert isinstance(sender(url, allow=["127.0.0.0/8"]).send(parcel()), Landed)
    except StorageError as e:
        pytest.skip(f"no IPv6 here: {e}")


class Dns:
    """Answers for one name, another address each time it is asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, *answers: str) -> None:
        self.asked = 0
        real = socket.getaddrinfo

        def resolve(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
            if host != name:
                return real(host, port, *args, **kwargs)
            self.asked += 1
            return real(answers[min(self.asked, len(answers)) - 1], port, *args, **kwargs)

        monkeypatch.setattr(socket, "getaddrinfo", resolve)


def test_what_was_checked_is_what_is_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is asked twice could be good when it is checked and bad when it is used."""
    with misbehaving("0.0.0.0") as server:
        dns = Dns(monkeypatch, "collector.example", "127.0.0.1", "127.0.0.2", "127.0.0.1")
        sink = opened(server.url("collector.example"), allow=["127.0.0.1"])
        made = sink.sender("t")
        assert isinstance(made.send(parcel()), TryLater) and dns.asked == 2
        assert isinstance(made.send(parcel()), Landed) and dns.asked == 3
        assert {s.local for s in server.seen} == {"127.0.0.1"} and server.connections == 2


def test_of_several_addresses_only_those_are_tried_that_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    with misbehaving("0.0.0.0") as server:
        real = socket.getaddrinfo
        both = [real(a, server.port, type=socket.SOCK_STREAM)[0] for a in ("127.0.0.2", "127.0.0.1")]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
        assert isinstance(sender(server.url("collector.example"), allow=["127.0.0.1"]).send(parcel()), Landed)
        assert {s.local for s in server.seen} == {"127.0.0.1"}


def _with(made: ForwardSender, *, allow: Sequence[str]) -> ForwardSender:
    from strandline.deliver.sinks.forward.address import parse_allow

    conversation = made._conversation
    conversation.rules = replace(conversation.rules, allow=parse_allow(allow))
    return made


# --- TLS -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return tls.certificate(tmp_path_factory.mktemp("tls") / "own", "DNS:collector.example")


@pytest.fixture
def secure(certificate: tuple[Path, Path]) -> Iterator[Misbehaving]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    with misbehaving(tls=context) as server:
        yield server


def test_tls_is_made_with_the_name_of_the_url_and_the_address_that_was_checked(
    secure: Misbehaving, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    Dns(monkeypatch, "collector.example", "127.0.0.1")
    made = sender(secure.url("collector.example"), home=certificate[0].parent, ca="certificate.pem")
    assert isinstance(made.send(parcel()), Landed)
    assert secure.posts()[0].sni == "collector.example"
    assert secure.posts()[0].headers["host"] == f"collector.example:{secure.port}"


def test_a_certificate_of_another_name_or_of_nobody_is_not_trusted(
    secure: Misbehaving, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    Dns(monkeypatch, "other.example", "127.0.0.1")
    with pytest.raises(StorageError, match="not trusted"):
        opened(secure.url("other.example"), home=certificate[0].parent, ca="certificate.pem").claimed()
    Dns(monkeypatch, "collector.example", "127.0.0.1")
    with pytest.raises(StorageError, match="not trusted"):
        opened(secure.url("collector.example")).claimed()
    assert secure.seen == []


# --- the record ------------------------------------------------------------------------------------------------------


def test_a_server_of_another_make_is_asked_nothing_and_nothing_follows_from_it(server: Misbehaving) -> None:
    sink = opened(server.url())
    claim = Claim("lake-1", "instance-1", "shop.orders", "table")
    assert sink.claimed() is None
    assert sink.claim(claim, 3) == Claimed(claim, 3)
    assert sink.held([(ADDRESS, None)] * 2) == [Held(None, (), known=False)] * 2
    assert sink.inspector().inspect(ADDRESS, rng(1, 5)) == Inspected(None, None)
    assert {s.method for s in server.seen} == {"HEAD"}, "a question could be taken for rows"


@pytest.mark.parametrize("status", [301, 401, 429, 500, 503])
def test_a_gateway_in_trouble_is_not_taken_for_a_server_of_another_make(status: int) -> None:
    class Gateway(Misbehaving):
        def decent(self, seen: Seen) -> Act:
            return Act(status)

    with misbehaving() as server:
        server.decent = Gateway().decent  # type: ignore[method-assign]
        with pytest.raises(StorageError, match=str(status)):
            opened(server.url()).claimed()


def test_a_receiver_of_another_version_is_told_and_not_sent_to(receiver: Misbehaving) -> None:
    receiver.will(Act(200, ((forward_protocol.RECEIVER, "2"),), b"{}"), on="/claimed")
    with pytest.raises(StorageError, match="version '2'"):
        opened(receiver.url()).claimed()


def test_what_many_lanes_hold_is_one_question(receiver: Misbehaving) -> None:
    receiver.ranges = [[1, 10, 10, "sha256:a", 7], [11, 20, 9, "sha256:b", 8]]
    lanes: list[tuple[Address, Seq | None]] = [(replace(ADDRESS, partition=f"k={n}"), Seq(10)) for n in range(999)]
    found = opened(receiver.url()).held([(ADDRESS, None), *lanes])
    assert len(found) == 1000 and sum(s.path.endswith("/held") for s in receiver.seen) == 1
    assert found[0].ranges == (
        HeldRange(rng(1, 10), 10, "sha256:a", 7),
        HeldRange(rng(11, 20), 9, "sha256:b", 8),
    )
    assert all(h.ranges == (HeldRange(rng(11, 20), 9, "sha256:b", 8),) and h.known for h in found[1:])


def test_a_receiver_that_tells_so_many_ranges_at_once_is_asked_for_the_rest(receiver: Misbehaving) -> None:
    def told(*lanes: tuple[list[Any], bool]) -> Act:
        document = {"lanes": [{"ranges": ranges, "more": more} for ranges, more in lanes]}
        return Act(200, OURS, json.dumps(document).encode())

    one, two, three = ([lo, lo + 9, 10, "d", 1] for lo in (1, 11, 21))
    receiver.will(told(([one], True), ([], True)), told(([two], False), ([one, three], False)), on="/held")
    other = replace(ADDRESS, partition="k=1")
    found = opened(receiver.url()).held([(ADDRESS, None), (other, Seq(0))])
    assert [[r.rows for r in h.ranges] for h in found] == [[rng(1, 10), rng(11, 20)], [rng(1, 10), rng(21, 30)]]
    [_, second] = [json.loads(s.body)["lanes"] for s in receiver.seen if s.path.endswith("/held")]
    assert [lane["after"] for lane in second] == [10, 0]
    receiver.will(told(([], True)), on="/held")
    with pytest.raises(StorageError, match="returned none"):
        opened(receiver.url()).held([(ADDRESS, None)])


@pytest.mark.parametrize(
    "ranges", [[[1, 10, 10, "d", 1], [10, 12, 3, "d", 1]], [[5, 4, 1, "d", 1]], [[0, 4, 1, "d", 1]], [["x"]], [7]]
)
def test_a_record_that_makes_no_sense_is_not_believed(receiver: Misbehaving, ranges: list[Any]) -> None:
    receiver.will(Act(200, OURS, json.dumps({"lanes": [{"ranges": ranges}]}).encode()), on="/held")
    with pytest.raises(StorageError):
        opened(receiver.url()).held([(ADDRESS, None)])


def test_a_question_whose_answer_was_lost_is_asked_again(receiver: Misbehaving) -> None:
    receiver.will(Act(end="reset"), on="/held")
    assert opened(receiver.url()).held([(ADDRESS, None)]) == [Held(None, ())]
    receiver.will(Act(end="silent"), Act(end="silent"), on="/held")
    with pytest.raises(StorageError):
        opened(receiver.url()).held([(ADDRESS, None)])


def test_ranges_are_read_back_by_the_hundred(receiver: Misbehaving) -> None:
    receiver.ranges = [[1 + 10 * n, 10 + 10 * n, 10, f"sha256:{n}", 7] for n in range(3000) if n != 77]
    inspector = pickle.loads(pickle.dumps(opened(receiver.url()).inspector()))
    for n in range(3000):
        found = inspector.inspect(ADDRESS, rng(1 + 10 * n, 10 + 10 * n))
        if n == 77:
            assert found.count is None and "does not know" in found.problem
        else:
            assert found == Inspected(10, f"sha256:{n}")
    assert sum(s.path.endswith("/inspect") for s in receiver.seen) <= 8
    other = replace(ADDRESS, partition="k=1")
    assert inspector.inspect(other, rng(1, 10)) == Inspected(10, "sha256:0")


# --- crash points ----------------------------------------------------------------------------------------------------


def test_crash_points_stand_before_and_after_the_request(server: Misbehaving) -> None:
    for point, stored in (("forward.before_post", 0), ("forward.after_post", 1)):
        failpoints.arm(f"{point}=fail")
        with pytest.raises(failpoints.FailpointError):
            sender(server.url()).send(parcel())
        assert len(server.stored) == stored
    failpoints.arm("")
    assert isinstance(sender(server.url()).send(parcel()), Landed)
    assert len(server.stored) == 1 and same(server.posts())


def test_of_many_senders_of_one_chunk_all_send_the_same(server: Misbehaving) -> None:
    outcomes: list[Outcome] = []
    run: Callable[[], None] = lambda: outcomes.append(sender(server.url()).send(parcel()))  # noqa: E731
    threads = [threading.Thread(target=run) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(outcomes) == 6 and all(isinstance(o, Landed) for o in outcomes)
    assert len(server.stored) == 1 and same(server.posts())
