"""A receiver's ledger that is an older copy: what was answered with 202 is in the table once, whatever it forgot."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import strandline
from strandline import failpoints
from strandline.founding import rebuild_ledger
from strandline.lake import Lake, open_lake
from strandline.ledger import received, tokens
from strandline.ledger.received import Body, Decision, New, Repeat
from strandline.receive.intake import Intake
from strandline.types import Seq, SeqRange
from strandline.wire import Identity, KeyIdentity, RangeIdentity
from tests.conftest import MakeHome
from tests.spark.bodies import LANE, Sender, files, ingest, outlive_lease
from tests.spark.lakes import create, in_main
from tests.spark.protocol import audit_events, copy_ledger, expire_everything, restore_ledger

HELD = RangeIdentity(LANE, SeqRange(Seq(1), Seq(3)))
KEY = KeyIdentity("key-2")


@pytest.fixture
def sender(tmp_path: Path, make_home: MakeHome) -> Iterator[Sender]:
    make_home(tmp_path, {"receive": {"batch_wait_seconds_max": 0}})
    with strandline.init_lake(tmp_path) as lake:
        create(lake, "events", {"n": "long"})
        yield Sender(lake, "events")


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    failpoints.arm("")


def bring(sender: Sender) -> None:
    """One body by its range, and one by its key."""
    sender.bring_range(1, [1, 2, 3])
    sender.bring([4, 5])


def values(lake: Lake) -> list[Any]:
    return sorted(n for _, n in in_main(lake, "events"))


def offer(sender: Sender, lake: Lake, identity: Identity, nth: int) -> Decision:
    """As its client would, that does not know whether it got through."""
    digest = hashlib.sha256(f"{nth}".encode()).hexdigest()
    body = Body(lake.dataset("events").id, identity, sender.token.id, 1, digest, 100, "uuid/repeated.arrow", 10)
    [decided] = received.record(lake.ledger, [body])
    return decided


def is_whole(sender: Sender) -> None:
    """Whoever starts next finds everything: each row is in the table once, nothing waits, and all is a repeat."""
    with open_lake(sender.lake.config.home) as lake:
        for _ in range(2):
            outlive_lease(lake)
            for report in ingest(lake):
                assert report.did == "ingested", report
        assert values(lake) == [1, 2, 3, 4, 5]
        assert files(lake) == []
        assert [w for w in lake.status().receive or () if w.bodies or w.batches] == []
        assert isinstance(offer(sender, lake, HELD, 1), Repeat)
        assert isinstance(offer(sender, lake, KEY, 2), Repeat)


@pytest.mark.parametrize("copied", ["before it came", "while it waits"])
@pytest.mark.parametrize(
    "died_at", ["receive.after_batch", "receive.after_list", "receive.after_append", "receive.after_numbers",
                "receive.after_settle", None],
)  # fmt: skip
def test_rows_that_came_in_after_the_copy_are_there_once_however_far_their_batch_had_got(
    sender: Sender, copied: str, died_at: str | None
) -> None:
    copy = copy_ledger(sender.lake, "early.db")
    bring(sender)
    if copied == "while it waits":
        copy = copy_ledger(sender.lake, "late.db")
    if died_at is None:
        sender.ingest()
        assert files(sender.lake) == []
    else:
        failpoints.arm(f"{died_at}=fail")
        with pytest.raises(failpoints.FailpointError, match=died_at):
            sender.ingest()
        failpoints.arm("")
        assert len(files(sender.lake)) == 2
    restore_ledger(sender.lake, copy)
    is_whole(sender)


def test_rows_that_were_never_batched_are_found_in_the_spool_though_no_number_tells_of_them(sender: Sender) -> None:
    copy = copy_ledger(sender.lake, "copy.db")
    bring(sender)
    restore_ledger(sender.lake, copy)
    assert not sender.lake.status().receive, "nothing of it is known"
    is_whole(sender)
    assert "received_bodies_found" in audit_events(sender.lake)


def test_a_batch_is_known_by_its_list_when_the_tables_history_is_gone(sender: Sender) -> None:
    copy = copy_ledger(sender.lake, "copy.db")
    bring(sender)
    sender.ingest()
    sender.lake.append("events", sender.lake.spark.createDataFrame([(99,)], "n long"))
    sender.lake.spark.sql("DELETE FROM lake.default.events WHERE n = 99")
    expire_everything(sender.lake)
    restore_ledger(sender.lake, copy)
    is_whole(sender)
    assert "received_batch_found" in audit_events(sender.lake)


def test_a_ledger_that_is_lost_and_rebuilt_knows_what_was_received(sender: Sender) -> None:
    sender.bring_range(1, [1, 2, 3])
    sender.ingest()
    sender.bring([4, 5])
    assert sender.lake.ledger.path is not None
    sender.lake.ledger.path.unlink()
    rebuild_ledger(sender.lake.config)
    with open_lake(sender.lake.config.home) as lake:
        ingest(lake)
        assert values(lake) == [1, 2, 3, 4, 5]
        assert isinstance(offer_by_anyone(lake, HELD), Repeat)
        with lake.ledger.read() as connection:
            [stand_in] = [t for t in tokens.every(connection) if t.name == sender.token.name]
        assert stand_in.revoked_at is not None, "its secret is lost"


def offer_by_anyone(lake: Lake, identity: Identity) -> Decision:
    with lake.ledger.write() as connection:
        token, _ = tokens.create(connection, "new", None)
    body = Body(lake.dataset("events").id, identity, token.id, 1, "sha256:1", 100, "uuid/repeated.arrow", 10)
    return received.record(lake.ledger, [body])[0]


@pytest.mark.parametrize("moment", ["before the batch is listed", "before it is reserved"])
def test_a_receiver_under_which_the_ledger_is_restored_does_not_bring_in_what_another_has(
    sender: Sender, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has formed a batch that the copy does not know, and goes on with it."""
    copy = copy_ledger(sender.lake, "copy.db")
    bring(sender)
    bench = sender.lake.receiver.bench
    then: list[Callable[[], object]] = []

    def restored() -> None:
        restore_ledger(sender.lake, copy)
        with open_lake(sender.lake.config.home) as other:
            failpoints.arm("receive.after_settle=fail")  # it is all published, and the files are still there
            with pytest.raises(failpoints.FailpointError):
                ingest(other)
            failpoints.arm("")

    def append(*given: Any) -> Any:
        while then:
            then.pop()()
        return bench.append(*given)

    if moment == "before it is reserved":
        then.append(restored)
    else:
        write = bench.settling.lists.write

        def slowly(table_uuid: str, batch: Any) -> None:
            monkeypatch.undo()
            restored()
            write(table_uuid, batch)

        monkeypatch.setattr(type(bench.settling.lists), "write", lambda self, uuid, batch: slowly(uuid, batch))
    Intake(replace(bench, append=append)).step()
    is_whole(sender)


def test_a_file_that_a_dead_receiver_left_is_offered_once_more_and_then_a_repeat(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It died between spool and ledger, and nobody was answered; its client may come again at any moment."""
    with monkeypatch.context() as dead:
        dead.setattr(received, "record", lambda *_: [New(received.ReceivedId(1))])  # it never gets there
        bring(sender)
    assert len(files(sender.lake)) == 2
    is_whole(sender)


def test_a_body_of_a_batch_that_was_broken_up_is_not_forgotten(sender: Sender) -> None:
    """One of its bodies is in the copy, and came in with another batch before anybody looked at the lists."""
    sender.bring_range(1, [1, 2, 3])
    sender.lake.receiver.bench.settling.level()
    copy = copy_ledger(sender.lake, "copy.db")
    sender.bring([4, 5])
    failpoints.arm("receive.after_list=fail")
    with pytest.raises(failpoints.FailpointError):
        sender.ingest()
    failpoints.arm("")
    restore_ledger(sender.lake, copy)
    assert [r.rows for r in sender.ingest()] == [3], "it runs on, and knows of no restore"
    is_whole(sender)
