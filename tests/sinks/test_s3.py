"""The kind `s3` on a real server, under the contract of all sinks, and with what a store and a network can do."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import obstore
import pyarrow as pa
import pytest

from strandline.core import failpoints
from strandline.core.errors import RefusedError, StorageError
from strandline.core.types import SEQ_COLUMN, Seq, SeqRange
from strandline.deliver.sink import Address, ChunkRows, Conflict, Landed, Pinning, Sink, SinkContext, TryLater, Unknown
from strandline.deliver.sink import Cut as PinnedCut
from strandline.deliver.sink_kinds import find_kind, resolve
from strandline.deliver.sinks.blobs import names
from strandline.storage.s3_settings import RequestLimits
from tests.servers import S3, Toxiproxy
from tests.sinks.contract import ADDRESS, DATASET, TOKEN, Made, SinkContract, landed, parcel, ready, seqs
from tests.sinks.http_faults import Answer, Cut, FaultyStore, faulty_store
from tests.sinks.test_files import numbers_in

PATIENT = RequestLimits(
    attempts_max=3, total_seconds_max=300, first_pause_seconds=0.01, connect_timeout_seconds=60, read_timeout_seconds=60
)
HURRIED = replace(PATIENT, total_seconds_max=9, connect_timeout_seconds=3, read_timeout_seconds=3)
MIB = 1 << 20


@pytest.fixture(autouse=True)
def keys(s3: S3, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TEST_S3_KEY", s3.access_key)
    monkeypatch.setenv("TEST_S3_SECRET", s3.secret_key)
    yield
    failpoints.arm("")


class Store:
    """A bucket of the test's own, the sinks in it, and a look at it that uses nothing of ours."""

    def __init__(self, s3: S3, endpoint: str | None = None, **options: str) -> None:
        self.s3 = s3
        self.bucket = s3.make_bucket()
        self.endpoint = endpoint or s3.endpoint
        self.options = options
        self.store = s3.objects(self.bucket)
        self.made = Made(self.open, self.numbers, self.take_away)

    def open(self, *, place: str = "one", generation: int = 1, **options: str) -> Sink:
        kind = find_kind("s3")
        given = {
            "url": f"s3://{self.bucket}/to/{place}", "endpoint": self.endpoint, "access_key": "env:TEST_S3_KEY",
            "secret_key": "env:TEST_S3_SECRET",
        }  # fmt: skip
        resolved = resolve(kind, {**given, **self.options, **options})
        sink = kind.open(SinkContext(None, DATASET, generation, resolved))  # type: ignore[arg-type]
        sink._place = replace(sink._place, limits=PATIENT)  # type: ignore[attr-defined]
        return sink

    def keys(self, prefix: str = "") -> list[str]:
        return sorted(o["path"] for page in obstore.list(self.store, prefix or None) for o in page)

    def lane(self, sink: Sink, address: Address) -> str:
        prefix = sink.destination.removeprefix(f"s3://{self.bucket}/").rpartition("@")[0].rpartition("/")[0]
        return f"{prefix}/{names.lane_folder(address)}"

    def objects(self, sink: Sink, address: Address = ADDRESS) -> list[str]:
        folder = self.lane(sink, address)
        return [k for k in self.keys(folder) if k.rpartition("/")[0] == folder]

    def numbers(self, sink: Sink, address: Address) -> list[int]:
        found = [(k, bytes(obstore.get(self.store, k).bytes())) for k in self.objects(sink, address)]
        return sorted(n for k, body in found for n in numbers_in(k, body))

    def take_away(self, sink: Sink, address: Address, rows: SeqRange) -> None:
        for key in self.objects(sink, address):
            if f"{rows.lo:019d}-{rows.hi:019d}." in key:
                obstore.delete(self.store, key)


def test_a_cut_is_kept_by_whoever_plans_from_the_same_mark(s3: S3) -> None:
    """A ledger that was restored cuts differently than a deliverer whose put is still under way: one cut counts."""
    store = Store(s3)
    first, second = store.open(), store.open()
    ours = PinnedCut(Seq(50), (SeqRange(Seq(1), Seq(50)),))
    theirs = PinnedCut(Seq(60), (SeqRange(Seq(1), Seq(60)),))
    assert isinstance(first, Pinning) and isinstance(second, Pinning)
    assert first.pin([(ADDRESS, None, ours)]) == [ours]
    assert second.pin([(ADDRESS, None, theirs)]) == [ours]
    second.set_watermarks([(ADDRESS, Seq(50))])
    assert not [k for k in store.keys("") if "_cuts" in k]  # below a mark nobody plans any more
    with pytest.raises(StorageError, match="moved the watermark"):
        first.pin([(ADDRESS, None, ours)])
    assert second.pin([(ADDRESS, Seq(50), PinnedCut(Seq(60), (SeqRange(Seq(51), Seq(60)),)))])


def test_a_cut_for_another_format_is_refused(s3: S3) -> None:
    store = Store(s3)
    cut = PinnedCut(Seq(50), (SeqRange(Seq(1), Seq(50)),))
    parquet, lines = store.open(), store.open(format="jsonl")
    assert isinstance(parquet, Pinning) and isinstance(lines, Pinning)
    parquet.pin([(ADDRESS, None, cut)])
    with pytest.raises(RefusedError, match=r"promised as \.parquet"):
        lines.pin([(ADDRESS, None, cut)])


class TestS3(SinkContract):
    @pytest.fixture
    def made(self, s3: S3) -> Made:
        return Store(s3).made


@pytest.fixture
def store(s3: S3) -> Store:
    return Store(s3)


@pytest.fixture(scope="module")
def faulty_server(s3: S3) -> Iterator[FaultyStore]:
    with faulty_store(s3.port) as faulty:
        yield faulty


@pytest.fixture
def faulty(faulty_server: FaultyStore) -> Iterator[FaultyStore]:
    faulty_server.heal()
    yield faulty_server
    faulty_server.heal()


@pytest.fixture
def behind(s3: S3, faulty: FaultyStore) -> Store:
    """A store that is reached through the proxy."""
    return Store(s3, faulty.endpoint)


def large(address: Address, lo: int, hi: int) -> ChunkRows:
    """More than 11 MiB that do not compress."""
    count = hi - lo + 1
    blobs = pa.array([os.urandom(12 * MIB // count) for _ in range(count)])
    return ChunkRows(
        address, seqs(lo, hi), pa.table({SEQ_COLUMN: pa.array(range(lo, hi + 1), pa.int64()), "blob": blobs})
    )


SMALL_PARTS = {"multipart_bytes": str(5 * MIB), "compression": "none"}


def test_an_object_says_which_chunk_it_is(store: Store) -> None:
    sink = ready(store.made)
    lane = replace(ADDRESS, partition="k=%C3%A9")
    told = landed(sink.sender(TOKEN), parcel(sink.form, lane, 1, 10))
    said = obstore.get(store.store, store.objects(sink, lane)[0]).attributes
    assert {k: v for k, v in said.items() if k.startswith("strandline-")} == {
        "strandline-lake": ADDRESS.lake, "strandline-sink": ADDRESS.instance, "strandline-generation": "1",
        "strandline-dataset": DATASET, "strandline-partition": "k=%C3%A9", "strandline-range": "1-10",
        "strandline-rows": "10", "strandline-digest": told.digest,
    }  # fmt: skip


def test_a_large_chunk_goes_in_parts_and_only_once(s3: S3) -> None:
    store = Store(s3, **SMALL_PARTS)
    sink = ready(store.made)
    offered = large(ADDRESS, 1, 50)
    told = landed(sink.sender(TOKEN), offered)
    assert told.size > 11 * MIB
    [key] = store.objects(sink)
    assert str(obstore.head(store.store, key)["e_tag"]).strip('"').endswith("-3")
    seen = sink.inspector().inspect(ADDRESS, seqs(1, 50))
    assert (seen.count, seen.digest, seen.problem) == (50, told.digest, None)
    again = landed(sink.sender(TOKEN), offered)
    assert (again.count, again.digest, again.size, again.repeat) == (50, told.digest, told.size, True)


def test_of_two_uploads_in_parts_one_delivers(s3: S3, faulty: FaultyStore) -> None:
    store = Store(s3, faulty.endpoint, **SMALL_PARTS)
    sink = ready(store.made)
    overtaken: list[Landed] = []

    def overtake(method: str, path: str) -> None:
        if method == "POST" and "uploadId=" in path and not overtaken:
            overtaken.append(Landed(0, "", 0))
            overtaken[0] = landed(sink.sender(TOKEN), parcel(sink.form, ADDRESS, 1, 50))

    faulty.before = overtake
    outcome = landed(sink.sender(TOKEN), large(ADDRESS, 1, 50))
    assert (outcome.repeat, outcome.digest) == (True, overtaken[0].digest)
    assert store.numbers(sink, ADDRESS) == list(range(1, 51))
    assert not _uploads(sink)


def _uploads(sink: Any) -> list[str]:
    return [u["Key"] for u in sink._place.retry("list_multipart_uploads").get("Uploads", ())]


def test_a_fence_calls_off_uploads_in_parts(s3: S3, faulty: FaultyStore) -> None:
    store = Store(s3, faulty.endpoint, **SMALL_PARTS)
    sink = ready(store.made)

    def overtake(method: str, path: str) -> None:
        if method == "PUT" and "partNumber=3" in path:
            faulty.before = None
            ready(store.made, token="b" * 32)

    faulty.before = overtake
    outcome = sink.sender(TOKEN).send(large(ADDRESS, 1, 50))
    assert isinstance(outcome, TryLater) and "superseded" in outcome.why
    assert store.objects(sink) == [] and not _uploads(sink)


def test_an_upload_in_parts_survives_a_store_that_asks_to_slow_down(s3: S3, faulty: FaultyStore) -> None:
    store = Store(s3, faulty.endpoint, **SMALL_PARTS)
    sink = ready(store.made)
    faulty.fail(Answer(503, "SlowDown"), "PUT", "partNumber=2")
    faulty.fail(Cut(after=True), "POST", "uploadId=")
    outcome = landed(sink.sender(TOKEN), large(ADDRESS, 1, 50))
    assert faulty.fired == 2 and outcome.count == 50
    assert len(store.objects(sink)) == 1


def test_an_object_that_is_not_ours_is_a_conflict(store: Store) -> None:
    sink = ready(store.made)
    key = f"{store.lane(sink, ADDRESS)}/{names.object_name(seqs(1, 10), 'parquet')}"
    obstore.put(store.store, key, b"something else")
    assert sink.sender(TOKEN).send(parcel(sink.form, ADDRESS, 1, 10)) == Conflict((seqs(1, 10),))
    assert bytes(obstore.get(store.store, key).bytes()) == b"something else"
    assert sink.inspector().inspect(ADDRESS, seqs(1, 10)).problem is not None


def test_one_that_lands_between_the_look_and_the_put_is_a_repeat(behind: Store, faulty: FaultyStore) -> None:
    sink = ready(behind.made)

    def overtake(method: str, path: str) -> None:
        if method == "PUT" and ".parquet" in path:
            faulty.before = None
            landed(sink.sender(TOKEN), parcel(sink.form, ADDRESS, 1, 10))

    faulty.before = overtake
    assert landed(sink.sender(TOKEN), parcel(sink.form, ADDRESS, 1, 10, word="other")).repeat
    assert behind.numbers(sink, ADDRESS) == list(range(1, 11))


def test_slow_down_is_waited_for_and_the_rows_land_once(behind: Store, faulty: FaultyStore) -> None:
    sink = ready(behind.made)
    faulty.fail(Answer(503, "SlowDown"), "PUT", ".parquet", times=2)
    assert not landed(sink.sender(TOKEN), parcel(sink.form, ADDRESS, 1, 10)).repeat
    assert faulty.fired == 2


def test_a_store_that_stays_slow_is_tried_later_as_it_asked(behind: Store, faulty: FaultyStore) -> None:
    sink = ready(behind.made)
    faulty.fail(Answer(503, "SlowDown", (("Retry-After", "7"),)), "PUT", ".parquet", times=9)
    outcome = sink.sender(TOKEN).send(parcel(sink.form, ADDRESS, 1, 10))
    assert isinstance(outcome, TryLater) and "503 SlowDown" in outcome.why
    assert outcome.wait_seconds == 7
    assert faulty.fired == PATIENT.attempts_max
    assert behind.objects(sink) == []


def test_a_conditional_conflict_is_tried_later(behind: Store, faulty: FaultyStore) -> None:
    sink = ready(behind.made)
    faulty.fail(Answer(409, "ConditionalRequestConflict"), "PUT", ".parquet")
    outcome = sink.sender(TOKEN).send(parcel(sink.form, ADDRESS, 1, 10))
    assert isinstance(outcome, TryLater) and "409" in outcome.why
    assert faulty.fired == 1
    assert not landed(sink.sender(TOKEN), parcel(sink.form, ADDRESS, 1, 10)).repeat


@pytest.mark.parametrize("after", [False, True])
def test_a_cut_connection_is_settled_by_asking(behind: Store, faulty: FaultyStore, after: bool) -> None:
    sink = ready(behind.made)
    faulty.fail(Cut(after), "PUT", ".parquet")
    outcome = landed(sink.sender(TOKEN), parcel(sink.form, ADDRESS, 1, 10))
    assert faulty.fired == 1
    assert (outcome.count, outcome.repeat) == (10, after)
    puts = [r for r in faulty.seen if r.startswith("PUT") and ".parquet" in r]
    assert len(puts) == (1 if after else 2)
    assert behind.numbers(sink, ADDRESS) == list(range(1, 11))


def test_a_put_that_may_be_under_way_is_unknown(behind: Store, faulty: FaultyStore) -> None:
    sink = ready(behind.made)
    faulty.fail(Cut(after=True), "PUT", ".parquet", times=1)
    real = faulty.take

    def blind_afterwards(method: str, path: str) -> Any:
        return Cut(after=False) if faulty.fired else real(method, path)

    faulty.take = blind_afterwards  # type: ignore[method-assign]
    try:
        outcome = sink.sender(TOKEN).send(parcel(sink.form, ADDRESS, 1, 10))
    finally:
        faulty.take = real  # type: ignore[method-assign]
    assert isinstance(outcome, Unknown)
    assert landed(sink.sender(TOKEN), parcel(sink.form, ADDRESS, 1, 10)).repeat


def test_a_landed_put_whose_lane_cannot_be_asked_afterwards_is_unknown(behind: Store, faulty: FaultyStore) -> None:
    sink = ready(behind.made)
    real = faulty.take

    def silent_after_the_put(method: str, path: str) -> Any:
        if method == "GET" and any(r.startswith("PUT") and ".parquet" in r for r in faulty.seen):
            return Answer(500, "InternalError")
        return real(method, path)

    faulty.take = silent_after_the_put  # type: ignore[method-assign]
    try:
        outcome = sink.sender(TOKEN).send(parcel(sink.form, ADDRESS, 1, 10))
    finally:
        faulty.take = real  # type: ignore[method-assign]
    assert isinstance(outcome, Unknown) and "it landed" in outcome.why
    assert landed(sink.sender(TOKEN), parcel(sink.form, ADDRESS, 1, 10)).repeat


def zombie_put(store: Store, faulty: FaultyStore, meanwhile: Callable[[Sink], None]) -> tuple[Sink, Any]:
    """A deliverer that looked, was stopped for a while, and puts its object when another had gone past it."""
    sink = ready(store.made)

    def stopped(method: str, path: str) -> None:
        if method == "PUT" and ".parquet" in path:
            faulty.before = None
            meanwhile(ready(store.made, token="b" * 32))

    faulty.before = stopped
    return sink, sink.sender(TOKEN).send(parcel(sink.form, ADDRESS, 1, 10))


def test_a_stopped_put_that_comes_after_the_consumer_is_removed(behind: Store, faulty: FaultyStore) -> None:
    def delivered_and_consumed(other: Sink) -> None:
        landed(other.sender("b" * 32), parcel(other.form, ADDRESS, 1, 10))
        other.set_watermarks([(ADDRESS, Seq(10))])
        behind.take_away(other, ADDRESS, seqs(1, 10))
        mark = f"{behind.lane(other, ADDRESS)}/_marks/{names.watermark_name(Seq(10))}"
        path = behind.s3.server.folder / "data" / behind.bucket / mark
        os.utime(path, (time.time() - 60, time.time() - 60))

    sink, outcome = zombie_put(behind, faulty, delivered_and_consumed)
    assert isinstance(outcome, TryLater) and "superseded" in outcome.why
    assert behind.objects(sink) == []


def test_a_put_that_another_deliverer_found_and_marked_stays(behind: Store, faulty: FaultyStore) -> None:
    sink = ready(behind.made)
    marking: list[bool] = []

    def marked_just_after_the_put(method: str, path: str) -> None:
        landed_already = any(r.startswith("PUT") and ".parquet" in r for r in faulty.seen)
        if method == "GET" and landed_already and not marking:
            marking.append(True)
            other = ready(behind.made, token="b" * 32)
            assert [h.rows for h in other.held([(ADDRESS, None)])[0].ranges] == [seqs(1, 10)]
            other.set_watermarks([(ADDRESS, Seq(10))])

    faulty.before = marked_just_after_the_put
    landed(sink.sender(TOKEN), parcel(sink.form, ADDRESS, 1, 10))
    assert marking
    assert behind.numbers(sink, ADDRESS) == list(range(1, 11))


def secrets_in(text: str, s3: S3) -> list[str]:
    return [part for part in (s3.secret_key, "wrong-secret", "Signature=", "Credential=", "X-Amz") if part in text]


def test_wrong_credentials_are_said_and_never_shown(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    good = ready(store.made)
    monkeypatch.setenv("TEST_S3_SECRET", "wrong-secret")
    sink = store.open()
    sink.prepare([])
    outcome = sink.sender(TOKEN).send(parcel(sink.form, ADDRESS, 1, 10))
    assert isinstance(outcome, TryLater) and "the credentials were refused" in outcome.why
    with pytest.raises(StorageError, match="the credentials were refused") as told:
        sink.held([(ADDRESS, None)])
    shown = "".join(traceback.format_exception(told.value)) + f"{outcome}{sink}{sink.sender(TOKEN)}{sink.inspector()}"
    assert not secrets_in(shown, store.s3)
    assert store.objects(good) == []


def test_a_bucket_that_is_gone_is_said(store: Store) -> None:
    sink = store.open(url="s3://no-such-bucket/to")
    sink.prepare([])
    outcome = sink.sender(TOKEN).send(parcel(sink.form, ADDRESS, 1, 10))
    assert isinstance(outcome, TryLater) and "there is no bucket no-such-bucket" in outcome.why
    with pytest.raises(StorageError, match="there is no bucket no-such-bucket"):
        sink.claimed()


def test_a_store_that_does_not_answer_is_tried_later_within_bounds(s3: S3, toxiproxy: Toxiproxy) -> None:
    proxy = toxiproxy.proxy_to(s3.port)
    store = Store(s3, f"http://127.0.0.1:{proxy.port}")
    sink = ready(store.made)
    sender = sink.sender(TOKEN)
    sender.bucket = replace(sender.bucket, limits=HURRIED)  # type: ignore[attr-defined]
    proxy.enable(False)
    outcome = sender.send(parcel(sink.form, ADDRESS, 1, 10))
    assert isinstance(outcome, TryLater), outcome
    proxy.heal()
    proxy.toxic("timeout", timeout=0)
    began = time.monotonic()
    outcome = sender.send(parcel(sink.form, ADDRESS, 1, 10))
    assert isinstance(outcome, TryLater | Unknown)
    assert time.monotonic() - began < 45  # 9 s; a request of its own could take 60
    proxy.heal()
    proxy.toxic("reset_peer", timeout=0)
    assert isinstance(sender.send(parcel(sink.form, ADDRESS, 1, 10)), TryLater | Unknown)
    proxy.heal()
    sender.bucket = replace(sender.bucket, limits=PATIENT)  # type: ignore[attr-defined]
    assert landed(sender, parcel(sink.form, ADDRESS, 1, 10)).count == 10
    assert store.numbers(sink, ADDRESS) == list(range(1, 11))


def test_a_listing_begins_at_the_mark(behind: Store, faulty: FaultyStore) -> None:
    sink = ready(behind.made)
    for lo in (1, 11):
        landed(sink.sender(TOKEN), parcel(sink.form, ADDRESS, lo, lo + 9))
    sink.set_watermarks([(ADDRESS, Seq(20))])
    faulty.seen.clear()
    held = sink.held([(ADDRESS, Seq(20))])[0]
    assert (held.mark, held.ranges) == (20, ())
    [asked] = faulty.seen
    assert f"start-after=to%2Fone%2F{DATASET}%2Fall%2F{20:019d}" in asked


@pytest.mark.parametrize("point", ["s3.before_put", "s3.after_put"])
def test_a_sender_that_dies_around_the_put_leaves_a_whole_object_or_none(store: Store, point: str) -> None:
    sink = ready(store.made)
    failpoints.arm(f"{point}=fail")
    with pytest.raises(failpoints.FailpointError):
        sink.sender(TOKEN).send(parcel(sink.form, ADDRESS, 1, 10))
    failpoints.arm("")
    expected = [] if point == "s3.before_put" else list(range(1, 11))
    assert store.numbers(sink, ADDRESS) == expected
    assert landed(sink.sender(TOKEN), parcel(sink.form, ADDRESS, 1, 10)).repeat is bool(expected)
