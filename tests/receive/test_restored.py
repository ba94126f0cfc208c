"""A receiver whose ledger was restored from an older copy: no body is lost, and none is taken twice."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import httpx
import pyarrow as pa
import pytest

from strandline.core import failpoints
from strandline.core.errors import ReceiverHolds, RefusedError
from strandline.core.forward_protocol import Answer, KeyIdentity, RangeIdentity
from strandline.ledger import audit
from strandline.ledger.engine import utc_now
from strandline.ledger.ingest import datasets, sequence
from strandline.ledger.receive import (
    batch_receipts,
    batches,
    receive_holds,
    receive_report,
    received,
    spool_files,
    tokens,
)
from strandline.ledger.receive.receipts import Note, Receipt, open_receipts
from strandline.ledger.receive.received import UnrecordedBody
from strandline.ledger.witness import open_witness
from strandline.receive import ledger_watch
from strandline.receive.committer import Committer
from strandline.receive.facade import Receiver
from strandline.receive.intake import Intake, IntakeContext
from strandline.receive.record_found import FoundBodies, RecordedBodies
from strandline.receive.spool import open_spool
from strandline.receive.sqlite_lock import LedgerAccess
from tests.ledger.receiving import in_table
from tests.receive.conftest import LANE, Client, ReceivingLake, lines, some, span
from tests.waiting import eventually


def _copied(lake: ReceivingLake) -> Callable[[], None]:
    """A copy of the ledger as it is now; when it is called, the ledger is that copy again."""
    path = lake.ledger.path
    assert path is not None
    copy = path.with_name(f"copy-{len(list(path.parent.iterdir()))}")
    lake.ledger.backup(copy)

    def restore() -> None:
        shutil.copy(copy, path.with_suffix(".restoring"))
        path.with_suffix(".restoring").replace(path)

    return restore


def _adoption(lake: ReceivingLake) -> FoundBodies:
    return FoundBodies(lake.ledger, open_spool(lake.config), open_receipts(lake.config))


def _said(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["outcome"]


def _held(client: Client, **other: Any) -> httpx.Response:
    lane = {"lake": LANE.lake, "instance": LANE.instance, "generation": 1, "dataset": LANE.dataset}
    return client.ask("held", **(lane | {"lanes": [{"partition": ""}]} | other))


ACCEPTED, BUSY = (202, Answer.ACCEPTED.value), (503, Answer.BUSY.value)


def test_bodies_that_were_acknowledged_after_the_copy_are_found_in_the_spool(lake: ReceivingLake) -> None:
    """They were answered with 202: nobody ever sends them again."""
    first = lake.serve()
    restore = _copied(lake)
    assert _said(first.send(some(3), "k1")) == _said(first.send(some(2, 4), rows=span(1, 2))) == ACCEPTED
    restore()
    assert lake.recorded() == []
    second = lake.serve()
    assert _held(second).json()["lanes"][0]["ranges"][0][:3] == [1, 2, 2], "before it says what it holds"
    assert sorted(row["id"] for row in lake.rows()) == [1, 2, 3, 4, 5]
    assert len(lake.files()) == 2
    again = [second.send(some(3), "k1"), second.send(some(2, 4), rows=span(1, 2))]
    assert [answer.json()["repeat"] for answer in again] == [True, True]
    with lake.ledger.read() as connection:
        assert [e.detail for e in audit.latest(connection) if e.event == "receive.bodies_found"] == [
            {"bodies": 2, "rows": 5}
        ]


def test_a_restore_under_a_running_receiver_is_noticed_later_and_a_repeat_meanwhile_is_in_once(
    lake: ReceivingLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = lake.serve()
    restore = _copied(lake)
    assert _said(client.send(some(3), "k1")) == _said(client.send(some(3, 4), "k2")) == ACCEPTED
    restore()
    assert client.send(some(3), "k1").json()["repeat"] is False, "it is not known, and taken: as another file"
    assert _adoption(lake).run() == RecordedBodies(1, 3, 0)
    assert sorted(row["id"] for row in lake.rows()) == [1, 2, 3, 4, 5, 6] and len(lake.files()) == 2


@pytest.mark.parametrize("point", ["adopt_body.after_put_back"])
def test_a_restore_that_is_undone_finds_the_files_that_were_recorded_under_other_names(
    lake: ReceivingLake, armed: Callable[[str], None], point: str
) -> None:
    client = lake.serve()
    without = _copied(lake)
    assert _said(client.send(some(3), "k1")) == _said(client.send(some(2, 4), rows=span(1, 2))) == ACCEPTED
    with_them = _copied(lake)
    without()
    assert _adoption(lake).run() == RecordedBodies(2, 5, 0), "as copies, and the files that they were in are gone"
    with_them()
    armed(f"{point}=fail")
    with pytest.raises(failpoints.FailpointError):
        _adoption(lake).run()
    armed("")
    assert _adoption(lake).run() == RecordedBodies(0, 0, 0)
    assert sorted(row["id"] for row in lake.rows()) == [1, 2, 3, 4, 5] and len(lake.files()) == 2


def test_a_file_that_a_person_set_aside_is_not_put_back(lake: ReceivingLake) -> None:
    """The table may have its rows, whatever other file of them is found."""
    client, spool = lake.serve(), open_spool(lake.config)
    assert _said(client.send(some(3), "k1")) == ACCEPTED
    [(name, _)] = spool.bodies()
    found, _ = spool.copy(name)
    spool.set_aside(name)
    done = _adoption(lake).run()
    assert (done.bodies, [(f.name, f.dataset) for f in done.left]) == (0, [(found, "default.events")])
    assert not spool.exists(name) and spool.exists(found)


def test_bodies_that_cannot_be_recorded_are_told_each_with_its_reason_and_once(
    lake: ReceivingLake, caplog: pytest.LogCaptureFixture
) -> None:
    spool, rows = open_spool(lake.config), pa.table({"id": pa.array([1], pa.int64()), "text": ["a"]})
    client = lake.serve()
    assert _said(client.send(some(1), "k1")) == _said(client.send(some(2, 4), rows=span(1, 2))) == ACCEPTED
    lake.add_token("another")
    with lake.ledger.read() as connection:
        marks = {t.name: tokens.fingerprint_of(connection, t.owner) for t in tokens.list_tokens(connection)}
    mine, other = marks["first"], marks["another"]
    later = RangeIdentity(replace(LANE, generation=2), span(9, 9))
    reasons: dict[str, str] = {}
    for identity, owner, reason in (
        (KeyIdentity("k1"), mine, "used for another body"),
        (RangeIdentity(LANE, span(9, 9)), other, "belong to another token"),
        (RangeIdentity(LANE, span(2, 3)), mine, "some of its sequence numbers"),
        (later, mine, "has not claimed its lanes"),
    ):
        note = Note(identity, owner, 1, "another digest", 1)
        reasons[spool.write(lake.dataset.table_uuid, rows, note)[0]] = reason
    damaged = spool.write(lake.dataset.table_uuid, rows, note)[0]
    reasons[damaged] = "damaged"
    [path] = [p for p in lake.files() if damaged.endswith(p.name)]
    path.write_bytes(b"ARROW1 and then nothing")
    for _ in range(2):
        done = _adoption(lake).run()
        assert (done.bodies, done.unclaimed, len(done.left)) == (0, 1, 5)
    assert all(reasons[file.name] in file.reason for file in done.left), done.left
    assert len([r for r in caplog.records if "5 bodies in the spool cannot be recorded" in r.getMessage()]) == 1
    with lake.ledger.read() as connection:
        left = spool_files.read_left(connection)
        assert len([e for e in audit.latest(connection) if e.event == "receive.spool_files_left"]) == 1
    assert left.by_dataset == {"default.events": 5} and left.first == tuple(sorted(done.left, key=lambda f: f.name))
    young = _adoption(lake).run(older_than=utc_now() - timedelta(hours=1))
    assert young.left == [] and _receiver(lake).unrecorded() == left, "what is passed over is as it was"
    gone = _receiver(lake).move_unrecorded_aside("events")
    assert {f.name for f in gone} == set(reasons) and _receiver(lake).unrecorded().by_dataset == {}
    assert len([p for p in lake.files() if p.suffix == ".unsure"]) == 5


def test_a_hold_that_comes_just_before_the_commit_is_no_failure_of_the_batch(
    lake: ReceivingLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failures divide a batch in the end, and a hold says nothing about the bodies in it."""
    lake.serve().send(some(3), "k")
    assert batches.form(lake.ledger, lake.dataset.id, rows_max=1, older_than=utc_now()) is not None
    monkeypatch.setattr(Intake, "_frame", lambda *_: None)

    def append(name: str, frame: Any, batch_id: str, last_check: Callable[[], None]) -> Any:
        with lake.ledger.write() as connection:
            receive_holds.put(connection, lake.dataset.id, "restored meanwhile")
        last_check()

    receiver = _receiver(lake)
    no_jobs: Any = MagicMock()  # where Spark is; nothing here has a job that could be called off
    intake = Intake(replace(receiver.context, tables=no_jobs, ingestion=_ingestion(append_received=append)))
    with pytest.raises(ReceiverHolds, match="restored meanwhile"):
        intake.next_batch(lake.dataset.id)
    with lake.ledger.write() as connection:
        [waiting] = receive_report.report(connection)
        receive_holds.clear(connection, lake.dataset.id)
    assert [(b.tries, b.reason) for b in waiting.batches] == [(0, None)]
    assert batches.take(lake.ledger, 60), "and nobody has to wait for its lease"


def test_receipts_of_a_dropped_dataset_go_and_others_stay(lake: ReceivingLake) -> None:
    receipts, receiver = open_receipts(lake.config), _receiver(lake)
    lake.serve().send(some(3), "k")
    batch = batches.form(lake.ledger, lake.dataset.id, rows_max=1, older_than=utc_now())
    assert batch is not None
    with lake.ledger.read() as connection:
        receipts.write(lake.dataset.table_uuid, batch_receipts.read_receipt(connection, batch.id, batch.batch_id))
    receipts.write("of a table that the ledger does not know", Receipt(batch.batch_id, ()))
    in_table(lake.ledger, batch, span(1, 3))
    batches.settle(lake.ledger, batch, span(1, 3))
    receiver.intake().tidy()
    assert receipts.tables() == {lake.dataset.table_uuid, "of a table that the ledger does not know"}
    with lake.ledger.write() as connection:
        datasets.mark_dropped(connection, lake.dataset.id)
    receiver.intake().tidy()
    assert receipts.tables() == {"of a table that the ledger does not know"}


@pytest.mark.parametrize("point", ["adopt_body.before_record", "adopt_body.after_record"])
def test_a_receiver_that_dies_while_it_records_what_it_found_is_followed_by_one_that_does(
    lake: ReceivingLake, armed: Callable[[str], None], point: str
) -> None:
    client = lake.serve()
    restore = _copied(lake)
    client.send(some(3), "k1")
    restore()
    armed(f"{point}=fail")
    with pytest.raises(failpoints.FailpointError):
        _adoption(lake).run()
    armed("")
    _adoption(lake).run()
    assert [row["id"] for row in lake.rows()] == [1, 2, 3] and len(lake.files()) == 1


def test_a_file_that_another_receiver_has_in_hand_is_not_taken_from_it(lake: ReceivingLake) -> None:
    """Found first, and recorded after: the other one finds a repeat, and removes its own file alone."""
    spool = open_spool(lake.config)
    with lake.ledger.read() as connection:
        token = tokens.find(connection, lake.token)
        assert token is not None
        note = Note(KeyIdentity("k"), tokens.fingerprint_of(connection, token.owner), 2, "d", 1)
    rows = pa.table({"id": pa.array([1, 2], pa.int64()), "text": ["a", "b"]})
    name, size = spool.write(lake.dataset.table_uuid, rows, note)
    assert _adoption(lake).run() == RecordedBodies(1, 2, 0)
    committer = Committer(LedgerAccess(lake.ledger), spool)
    body = UnrecordedBody(lake.dataset.id, KeyIdentity("k"), token.id, 2, "d", 1, name, size)
    assert isinstance(committer.submit(body).result(60), received.Repeat)
    committer.close()
    assert [row["id"] for row in lake.rows()] == [1, 2]


def test_bodies_of_lanes_whose_claim_was_forgotten_are_recorded_when_the_sender_claims_them(
    lake: ReceivingLake,
) -> None:
    restore_nothing = _copied(lake)
    first = lake.serve()
    mine = {"lake": "later", "instance": "s", "dataset": "d", "table_uuid": "u", "generation": 1}
    assert first.ask("claim", **mine).status_code == 200
    headers = {"Strandline_Lake": "later", "Strandline_Sink": "s", "Strandline_Dataset": "d"}
    rows = lines([{"_ingest_seq": 7, "id": 7, "text": "x"}])
    assert _said(first.send(rows, rows=span(7, 7), **headers)) == ACCEPTED
    restore_nothing()
    second = lake.serve()
    assert second.ask("claimed", lake="later", dataset="d").json()["claim"] is None
    assert len(lake.files()) == 1 and lake.recorded() == []
    assert second.ask("claim", **mine).status_code == 200
    lane = {"lake": "later", "instance": "s", "dataset": "d"}
    assert [r[:2] for r in _held(second, **lane).json()["lanes"][0]["ranges"]] == [[7, 7]]


# --- behind the witness, and on hold ---


def test_a_receiver_takes_and_says_nothing_while_its_ledger_is_behind_the_witness(
    lake: ReceivingLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that does not ingest. It asks for the ledger to be opened."""
    monkeypatch.setattr(ledger_watch, "CHECK_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr("strandline.http.verified_callers.VERIFIED_SECONDS", 0.0)
    asked: list[int] = []
    client = lake.serve(on_behind=lambda: asked.append(1))
    assert _said(client.send(some(1), "before")) == ACCEPTED
    open_witness(lake.config).raise_to(10, expected=0)
    refused = client.send(some(3), "k")
    assert _said(refused) == _said(_held(client)) == BUSY and "ledger resync" in refused.json()["why"]
    assert "Retry-After" in refused.headers and asked and len(lake.files()) == 1
    with lake.ledger.write() as connection:
        sequence.move(connection, last=10, epoch=2)
    assert _said(client.send(some(3), "k")) == ACCEPTED


def _ingestion(**other: Any) -> Any:
    return SimpleNamespace(catch_up=lambda: None, **other)


def _receiver(lake: ReceivingLake) -> Receiver:
    spool, receipts = open_spool(lake.config), open_receipts(lake.config)
    unused = cast("Any", None)
    parts: Any = (lake.config, lake.ledger, spool, unused, _ingestion(), receipts, open_witness(lake.config))
    return Receiver(IntakeContext(*parts), unused)


def test_a_receiver_that_holds_refuses_bodies_and_questions_until_a_person_accepts(lake: ReceivingLake) -> None:
    client, receiver = lake.serve(), _receiver(lake)
    with pytest.raises(RefusedError, match="is not on hold"):
        receiver.accept("events", "why not")
    client.send(some(3), "in doubt")
    batch = batches.form(lake.ledger, lake.dataset.id, rows_max=1, older_than=utc_now())
    assert batch is not None
    with lake.ledger.read() as connection:
        receipt = batch_receipts.read_receipt(connection, batch.id, batch.batch_id)
        open_receipts(lake.config).write(lake.dataset.table_uuid, receipt)
    spool = open_spool(lake.config)
    twin, _ = spool.copy(batch.bodies[0].spool)  # as one who died while it recorded what it found leaves it
    restored = _without_bodies(lake)
    with restored.ledger.write() as connection:
        receive_holds.put(connection, lake.dataset.id, "snapshots have expired")
    held = lake.serve()
    answers = [held.send(some(1, 7), "k"), held.send(some(1, 7), rows=span(1, 1)), _held(held)]
    assert [_said(a) for a in answers] == [BUSY] * 3 and "a person has to check" in answers[0].json()["why"]
    assert lake.recorded() == [] and len(lake.files()) == 2, "what may be in the table is left where it is"
    with pytest.raises(RefusedError, match="nothing that was received is ingested"):
        receiver.intake().next_batch(lake.dataset.id)
    assert receiver.accept("events", "nobody repeats a body") == sorted([batch.bodies[0].spool, twin])
    assert [path.suffix for path in lake.files()] == [".unsure", ".unsure"]
    eventually(lambda: _said(held.send(some(1, 7), "k")) == ACCEPTED)
    assert [row["id"] for row in lake.rows()] == [7]
    with lake.ledger.read() as connection:
        [event] = [e.detail for e in audit.latest(connection) if e.event == "receive.accepted"]
    assert event["reason"] == "nobody repeats a body" and event["hold"] == "snapshots have expired"


def _without_bodies(lake: ReceivingLake) -> ReceivingLake:
    """As after a restore: the records are gone, dataset, token and claims are there."""
    with lake.ledger.write() as connection:
        for table in ("received", "receive_batch"):
            for trigger in ("a_body_that_is_needed_stays", "a_batch_stays"):
                connection.exec_driver_sql(f"DROP TRIGGER IF EXISTS {trigger}")
            connection.exec_driver_sql(f"DELETE FROM {table}")
    return lake
