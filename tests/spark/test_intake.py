"""From the spool into the table: each row once, in the order of the bodies, under numbers that are known beforehand."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row

import strandline
from strandline.core import failpoints, forward_protocol
from strandline.core.errors import RefusedError
from strandline.core.forward_protocol import KeyIdentity, RangeIdentity
from strandline.core.types import Seq, SeqRange
from strandline.iceberg.schema.alteration import AddColumn, DropColumn, RenameColumn
from strandline.iceberg.schema.columns import Primitive
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.ingest.sources.body import read_json_lines
from strandline.jobs.loop import LoopControl
from strandline.lake import Lake, open_lake
from strandline.ledger.engine import utc_now
from strandline.ledger.receive import received, senders
from strandline.ledger.receive.received import OtherBody, Repeat
from strandline.receive.body.parse import Packed, read_body
from strandline.receive.intake import Intake
from tests.conftest import MakeHome
from tests.servers import S3, Postgres
from tests.spark.bodies import LANE, Sender, be_due, files, ingest, outlive_lease
from tests.spark.deliveries import keys_of
from tests.spark.lakes import create, in_main
from tests.spark.protocol import copy_ledger, restore_ledger
from tests.spark.test_deliver_crash import elsewhere


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, make_home: MakeHome) -> Iterator[Lake]:
    """Rows do not wait for others here; a body is due when it is there."""
    folder = tmp_path_factory.mktemp("receiving")
    make_home(folder, {"receive": {"batch_wait_seconds_max": 0}})
    with strandline.init_lake(folder) as made:
        yield made


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What failed is tried again when a test says so, however long it takes."""
    monkeypatch.setattr("strandline.receive.intake.backoff_seconds", lambda failures, chance, longest: 600.0)


@pytest.fixture
def sender(lake: Lake, request: pytest.FixtureRequest) -> Sender:
    """Of a dataset of the test's own."""
    name = f"d{abs(hash(request.node.name)) % 10**12}"
    create(lake, name, {"n": "long"})
    return Sender(lake, name)


def table(sender: Sender) -> list[tuple[int, Any]]:
    return in_main(sender.lake, sender.dataset.name.removeprefix("default."))


def values(sender: Sender) -> list[Any]:
    return [n for _, n in table(sender)]


def test_row_k_of_a_body_has_the_number_of_its_body_plus_k(sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over several tasks, and bodies of several batches of Arrow."""
    monkeypatch.setattr("strandline.receive.batch_frame.ROWS_PER_TASK_MIN", 10)
    monkeypatch.setattr("strandline.receive.batch_frame._SLICE_ROWS", 7)
    sizes = [1, 40, 3, 0, 25, 13, 1, 60]
    sent: list[list[int]] = []
    for body, size in enumerate(sizes):
        rows = [body * 1000 + k for k in reversed(range(size))]
        sent.append(rows)
        pieces = [pa.table({"n": pa.array(rows[at : at + 11], pa.int64())}) for at in range(0, size, 11)]
        sender.bring(pa.concat_tables(pieces) if pieces else rows)
    [report] = sender.ingest()
    assert (report.did, report.rows, report.bodies) == ("ingested", sum(sizes), 7)
    assert report.numbers is not None and len(report.numbers) == sum(sizes)
    expected = [n for rows in sent for n in rows]
    assert table(sender) == list(zip(range(report.numbers.lo, report.numbers.hi + 1), expected, strict=True))


def test_the_ledger_tells_which_numbers_a_body_got(sender: Sender) -> None:
    sender.bring([7])
    sender.bring_range(11, [1, 2, 3])
    sender.bring_range(14, [4, 5], hi=20)
    [report] = sender.ingest()
    assert report.numbers is not None
    with sender.lake.ledger.read() as connection:
        found = senders.list_placed(connection, sender.dataset.id, LANE, Seq(1), Seq(100), 10)
    assert [(b.rows.lo, b.count, b.first) for b in found] == [
        (11, 3, report.numbers.lo + 1),
        (14, 2, report.numbers.lo + 4),
    ]


def test_a_batch_under_way_is_called_off_when_its_process_stops_and_the_next_ingests_it_at_once(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender.bring([1, 2, 3])
    stopping, write_receipt = threading.Event(), Intake._write_receipt

    def write_and_stop(self: Intake, *batch: Any) -> None:
        write_receipt(self, *batch)
        stopping.set()

    with monkeypatch.context() as patched:
        patched.setattr(Intake, "_write_receipt", write_and_stop)
        control = LoopControl(stopping, lambda error: pytest.fail(error.message))
        sender.lake.receiver.intake(lambda report: pytest.fail(report.did)).run(control)
    assert values(sender) == []
    [report] = sender.ingest()
    assert (report.did, report.rows, values(sender)) == ("ingested", 3, [1, 2, 3])


def test_files_are_removed_when_their_rows_are_published_and_not_before(sender: Sender) -> None:
    sender.bring([1, 2])
    sender.bring([3])
    mine = set(files(sender.lake))
    assert len(mine) == 2
    sender.ingest()
    assert not mine & set(files(sender.lake))
    assert values(sender) == [1, 2, 3]


def test_rows_wait_for_others_until_there_are_enough_or_it_takes_too_long(
    tmp_path: Path, make_home: MakeHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_home(tmp_path, {"receive": {"batch_wait_seconds_max": 600, "batch_rows_max": 10}})
    with strandline.init_lake(tmp_path) as lake:
        create(lake, "waits", {"n": "long"})
        sender = Sender(lake, "waits")
        sender.bring(range(9))
        assert sender.ingest() == [] and lake.ingestion._started is None, "no JVM is asked for before a batch is due"
        sender.bring([9])
        assert [r.rows for r in sender.ingest()] == [10]
        sender.bring([10])
        assert sender.ingest() == []
        monkeypatch.setattr("strandline.receive.intake.utc_now", lambda: utc_now() + timedelta(seconds=601))
        assert [r.rows for r in sender.ingest()] == [1]
        assert values(sender) == list(range(11))


def test_two_intakes_over_one_ledger_ingest_each_row_once(sender: Sender) -> None:
    expected: list[int] = []
    names: list[str | None] = []
    with open_lake(sender.lake.config.home) as other:
        stopping = threading.Event()
        trouble: list[str] = []
        both = [Intake(lake.receiver.context) for lake in (sender.lake, other)]
        control = LoopControl(stopping, lambda e: trouble.append(e.message))
        threads = [threading.Thread(target=intake.run, args=(control,)) for intake in both]
        for thread in threads:
            thread.start()
        for body in range(30):
            rows = list(range(body * 10, body * 10 + 10))
            expected += rows
            names.append(sender.bring(rows))
            time.sleep(0.05)
        deadline = time.monotonic() + 200
        while any(sender.spool.exists(n) for n in names if n) and time.monotonic() < deadline:
            time.sleep(0.1)
        stopping.set()
        for thread in threads:
            thread.join()
    assert trouble == []
    assert sorted(values(sender)) == expected
    numbers = [seq for seq, _ in table(sender)]
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize(
    "point",
    [
        "receive.after_batch",
        "receive.before_receipt",
        "receive.after_receipt",
        "receive.after_append",
        "receive.after_settle",
        "receive.after_removal",
    ],
)
def test_a_receiver_that_dies_while_it_ingests_loses_and_doubles_nothing(sender: Sender, point: str) -> None:
    """It dies by an error that nothing survives; tests/e2e/test_receive_crash.py kills real processes."""
    first = [sender.bring([1, 2, 3]), sender.bring([4])]
    failpoints.arm(f"{point}=fail")
    try:
        with pytest.raises(failpoints.FailpointError, match=point):
            sender.ingest()
    finally:
        failpoints.arm("")
    sender.bring([5, 6])
    outlive_lease(sender.lake)
    sender.ingest()
    sender.ingest()
    assert values(sender) == [1, 2, 3, 4, 5, 6]
    assert not [name for name in first if name and sender.spool.exists(name)]
    waiting = sender.lake.status().receive
    assert waiting is not None
    assert [d for d in waiting if d.dataset == sender.dataset.name and (d.bodies or d.batches)] == []


def test_a_batch_that_was_published_is_settled_though_its_files_are_gone(sender: Sender) -> None:
    """As when an old copy of the ledger is put back: the door still knows the batch."""
    name = sender.bring([1, 2])
    failpoints.arm("receive.after_append=fail")
    try:
        with pytest.raises(failpoints.FailpointError):
            sender.ingest()
    finally:
        failpoints.arm("")
    assert name is not None
    sender.spool.remove([name])
    outlive_lease(sender.lake)
    assert [r.did for r in sender.ingest()] == ["ingested"]
    assert values(sender) == [1, 2]


def test_a_ledger_that_was_restored_takes_back_what_was_received_since_the_copy(sender: Sender) -> None:
    """Published, and waiting in the spool; by the copy, one of the bodies was not ingested yet."""
    lake = sender.lake
    sender.bring_range(1, [1, 2])
    copy = copy_ledger(lake, "before")
    sender.bring([3], KeyIdentity("k"))
    failpoints.arm("receive.after_settle=fail")  # its files are left in the spool
    with pytest.raises(failpoints.FailpointError):
        sender.ingest()
    failpoints.arm("")
    sender.bring_range(3, [4])
    restore_ledger(lake, copy)
    sender.ingest()
    sender.ingest()
    assert lake.receiver.adopt().rows == 0, "the intake has recorded what lay in the spool"
    assert [n for _, n in table(sender)] == [1, 2, 3, 4]
    again = [KeyIdentity("k"), *(RangeIdentity(LANE, SeqRange(Seq(lo), Seq(hi))) for lo, hi in ((1, 2), (3, 3)))]
    with lake.ledger.read() as connection:
        known = [received.find_decision(connection, sender.dataset.id, name, sender.token.id, "?") for name in again]
    assert [type(k) for k in known] == [OtherBody, Repeat, Repeat], "and so is any of them that is sent again"
    assert not [path for path in files(lake) if path.parent.name == sender.dataset.table_uuid]
    assert [d.problem for d in lake.status().datasets if d.name == sender.dataset.name] == [None]


def test_a_receiver_whose_receipts_are_gone_holds_until_a_person_accepts(sender: Sender) -> None:
    lake = sender.lake
    copy = copy_ledger(lake, "earlier")
    sender.bring([1])
    sender.ingest()
    receipts = lake.receiver.context.receipts
    receipts.remove(sender.dataset.table_uuid, [name for name, _ in receipts.list_batches(sender.dataset.table_uuid)])
    restore_ledger(lake, copy)
    assert sender.ingest() == []
    [told] = [d.problem for d in lake.status().datasets if d.name == sender.dataset.name]
    assert told is not None and "the receiver is on hold" in told and "receipt" in told
    lake.receiver.accept(sender.dataset.name, "the client never repeats")
    sender.bring([2])
    assert [r.did for r in sender.ingest()] == ["ingested"] and values(sender) == [1, 2]


# Tables that change meanwhile.


def test_a_column_that_was_added_before_the_rows_are_ingested_is_null_in_them(sender: Sender) -> None:
    sender.bring([1, 2])
    sender.lake.alter_dataset(sender.dataset.name, [AddColumn("late", Primitive("string"))])
    sender.bring(pa.table({"n": pa.array([3], pa.int64()), "late": ["x"]}))
    assert [r.did for r in sender.ingest()] == ["ingested"]
    found = in_main(sender.lake, sender.dataset.name.removeprefix("default."), "struct(n, late)")
    assert [tuple(r) for _, r in found] == [(1, None), (2, None), (3, "x")]


@pytest.mark.parametrize("change", [RenameColumn("extra", "other"), DropColumn("extra")])
def test_rows_whose_column_is_gone_wait_with_a_reason_and_nothing_is_lost(
    sender: Sender, change: RenameColumn | DropColumn
) -> None:
    lake, name = sender.lake, sender.dataset.name
    lake.alter_dataset(name, [AddColumn("extra", Primitive("string"))])
    sender.bring(pa.table({"n": pa.array([1, 2], pa.int64()), "extra": ["a", "b"]}))
    lake.alter_dataset(name, [change])
    [report] = sender.ingest()
    assert (report.did, report.rows) == ("waiting", 2)
    assert report.reason is not None and "'extra'" in report.reason
    assert report.hint is not None and "dataset alter" in report.hint
    [told] = [d for d in lake.status().receive or () if d.dataset == name]
    assert [b.reason for b in told.batches] == [report.reason]
    assert sender.ingest() == [], "not again at once"
    sender.bring([3])
    assert [r.did for r in sender.ingest()] == ["ingested"], "rows that fit are not held up by those that do not"
    assert values(sender) == [3]
    lake.alter_dataset(name, [AddColumn("extra", Primitive("string"))])
    be_due(lake)
    assert [r.did for r in sender.ingest()] == ["ingested"]
    assert sorted(values(sender)) == [1, 2, 3]


def test_a_body_that_cannot_be_written_is_set_aside_and_the_others_of_its_batch_are_in(lake: Lake) -> None:
    """A value that passes the door and is longer than the name of a folder may be."""
    columns = parse_columns([{"name": "n", "type": "long"}, {"name": "place", "type": "string"}])
    lake.create_dataset("named", columns, partition_by="place")
    sender = Sender(lake, "named")

    def bring(n: int, place: str, identity: forward_protocol.BodyIdentity | None = None) -> str:
        name = sender.bring(pa.table({"n": pa.array([n], pa.int64()), "place": [place]}), identity)
        assert name is not None
        return name

    good = [bring(n, "here") for n in range(2)]
    bad = bring(99, "x" * 260, forward_protocol.RangeIdentity(LANE, SeqRange(Seq(7), Seq(7))))
    assert [(r.did, r.bodies) for r in sender.ingest()] == [("waiting", 3)], "it may be the disk"
    did: list[tuple[str, int]] = []
    while ("set_aside", 1) not in did and len(did) < 20:
        if did in ([], [*did[:-1], ("waiting", 1)]):
            good.append(bring(100 + len(did), "here"))  # what comes in beside it tells that it is not the disk
        be_due(lake)
        did += [(r.did, r.bodies) for r in sender.ingest()]
    assert did[:2] == [("waiting", 3), ("ingested", 1)]
    assert did[2:5] == [("divided", 3), ("ingested", 2), ("waiting", 1)]
    assert sorted(values(sender))[:2] == [0, 1] and len(values(sender)) == len(good) and 99 not in values(sender)
    assert not any(sender.spool.exists(name) for name in good) and sender.spool.exists(bad)
    [told] = [d for d in lake.status().receive or () if d.dataset == sender.dataset.name]
    assert (told.bodies, told.set_aside.bodies, told.set_aside.rows) == (0, 1, 1)
    [body] = lake.receiver.set_aside("named")
    assert "cannot be written" in body.reason and body.spool == bad
    assert inspect(sender) == [(7, 1, None)], "for its sender, it is held"
    with pytest.raises(RefusedError, match="set aside"):
        lake.maintenance.purge("named", where="n = 99")
    lake.receiver.discard([body.id])
    assert not sender.spool.exists(bad)
    [(_, rows, problem)] = inspect(sender)
    assert rows == 0 and problem is not None and "discarded" in problem


def test_one_dataset_that_cannot_be_ingested_does_not_hold_up_another(lake: Lake, sender: Sender) -> None:
    create(lake, "beside", {"n": "long"})
    beside = Sender(lake, "beside")
    name = sender.bring([1])
    assert name is not None
    path = next(p for p in files(lake) if str(p).endswith(name))
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    beside.bring([2])
    did = {r.dataset: r.did for r in ingest(lake)}
    assert (did[sender.dataset.name], did["default.beside"]) == ("waiting", "ingested")
    assert values(beside) == [2] and values(sender) == []
    path.write_bytes(whole)
    be_due(lake)
    assert [r.did for r in sender.ingest()] == ["ingested"]
    assert values(sender) == [1]


def test_a_file_that_has_other_rows_than_were_received_fails_its_batch(lake: Lake, sender: Sender) -> None:
    name = sender.bring([1, 2, 3])
    sender.bring([4])
    assert name is not None
    note = sender.spool.note(name)
    assert note is not None
    other, _ = sender.spool.write(sender.dataset.table_uuid, pa.table({"n": pa.array([1, 2], pa.int64())}), note)
    paths = {str(p).rpartition("/")[2]: p for p in files(lake)}
    paths[other.rpartition("/")[2]].replace(paths[name.rpartition("/")[2]])
    [report] = sender.ingest()
    assert report.did == "waiting" and "has 2 rows, and 3 rows were received" in (report.reason or "")
    assert values(sender) == []


def test_a_dataset_that_rows_wait_for_is_not_dropped(sender: Sender) -> None:
    sender.bring([1])
    with pytest.raises(RefusedError, match="wait"):
        sender.lake.drop_dataset(sender.dataset.name)
    sender.ingest()
    sender.lake.drop_dataset(sender.dataset.name)


def test_every_type_comes_through_the_spool_as_it_was_sent(lake: Lake) -> None:
    kinds = {
        "b": "boolean", "i": "int", "l": "long", "f": "float", "d": "double", "c": "decimal(12,3)", "s": "string",
        "day": "date", "t": "timestamp", "z": "timestamptz", "u": "uuid", "x": "binary", "y": "fixed[2]",
        "many": "list<struct<a:int,b:list<string>>>", "by": "map<string,double>", "deep": "struct<p:long,q:uuid>",
    }  # fmt: skip
    nested = {"type": "struct", "fields": [{"name": "k", "type": "long", "required": True}]}
    schema = [{"name": n, "type": t} for n, t in kinds.items()]
    columns = parse_columns([*schema, {"name": "must", "type": nested, "required": True}])
    sender = Sender(lake, lake.create_dataset("kinds", columns).name.removeprefix("default."))
    line = {
        "b": True, "i": -3, "l": 2**60, "f": 0.5, "d": 0.1, "c": "123456789.125", "s": "é\n", "day": "2024-02-29",
        "t": "2024-02-29T12:00:00.000001", "z": "2024-02-29T12:00:00+02:00",
        "u": "0f8fad5b-d9cb-469f-a165-70867728950e", "x": "AAE=", "y": "AAE=",
        "many": [{"a": 1, "b": ["x", None]}, None], "by": {"k": 0.25},
        "deep": {"p": 1, "q": "0f8fad5b-d9cb-469f-a165-70867728950e"}, "must": {"k": 7},
    }  # fmt: skip
    data = (json.dumps(line) + "\n" + json.dumps({"must": {"k": 8}}) + "\n").encode()
    sender.bring(
        read_body(Packed(data, forward_protocol.JSON_LINES, "identity", None), columns, 10**6, read_json_lines)
    )
    assert [r.did for r in sender.ingest()] == ["ingested"]
    full, empty = (row for row, _ in lake.read_since("kinds"))
    assert {n: v for n, v in empty.asDict().items() if v is not None} == {"must": Row(k=8)}
    assert (full["b"], full["i"], full["l"], full["f"], full["d"], full["s"]) == (True, -3, 2**60, 0.5, 0.1, "é\n")
    assert str(full["c"]) == "123456789.125" and str(full["day"]) == "2024-02-29"
    assert str(full["t"]) == "2024-02-29 12:00:00.000001" and full["z"].isoformat() == "2024-02-29T10:00:00+00:00"
    assert full["u"] == full["deep"]["q"] == line["u"] and full["must"]["k"] == 7
    assert (bytes(full["x"]), bytes(full["y"])) == (b"\0\1", b"\0\1")
    assert full["many"] == [Row(a=1, b=["x", None]), None] and full["by"] == {"k": 0.25}


def test_a_lake_whose_ledger_and_spool_are_elsewhere_ingests_and_inspects_what_it_received(
    tmp_path: Path, make_home: MakeHome, s3: S3, postgres_server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in keys_of(s3).items():
        monkeypatch.setenv(name, value)
    make_home(tmp_path, {**elsewhere(s3, postgres_server), "receive": {"batch_wait_seconds_max": 0}})
    with strandline.init_lake(tmp_path) as lake:
        create(lake, "far", {"n": "long"})
        sender = Sender(lake, "far")
        names = [sender.bring_range(1, [1, 2, 3]), sender.bring_range(4, [4, 5])]
        assert inspect(sender) == [(1, 3, None), (4, 2, None)]
        assert [r.did for r in sender.ingest()] == ["ingested"]
        assert values(sender) == [1, 2, 3, 4, 5]
        assert not any(sender.spool.exists(name) for name in names if name)
        assert inspect(sender) == [(1, 3, None), (4, 2, None)]


# What is really there.


def inspect(sender: Sender, lo: int = 1, hi: int = 10**6) -> list[tuple[int, int, str | None]]:
    found, _ = sender.lake.receiver.inspector().inspect(sender.dataset, LANE, SeqRange(Seq(lo), Seq(hi)))
    return [(r.rows.lo, r.count, r.problem) for r in found]


def test_what_is_really_there_is_counted_in_the_table_and_in_the_spool(sender: Sender) -> None:
    sender.bring_range(1, [1, 2, 3])
    sender.bring_range(4, [], hi=10)
    assert inspect(sender) == [(1, 3, None), (4, 0, None)]
    sender.ingest()
    sender.bring_range(11, [11, 12])
    assert inspect(sender) == [(1, 3, None), (4, 0, None), (11, 2, None)]
    assert inspect(sender, 11, 11) == [(11, 2, None)]


def test_a_row_that_was_dropped_and_one_that_is_there_twice_are_found_and_named(sender: Sender) -> None:
    sender.bring([0])
    sender.bring_range(101, list(range(101, 121)))
    sender.bring_range(121, [121, 122])
    sender.bring_range(201, [201, 205], hi=205)
    [report] = sender.ingest()
    assert report.numbers is not None
    lo, name, sql = report.numbers.lo, f"lake.{sender.dataset.name}", sender.lake.spark.sql
    assert [p for _, _, p in inspect(sender)] == [None] * 3
    sql(f"DELETE FROM {name} WHERE n = 117")
    sql(f"INSERT INTO {name} SELECT * FROM {name} WHERE n = 105")
    sql(f"DELETE FROM {name} WHERE n = 205")
    assert lo in [seq for seq, _ in table(sender)]
    assert inspect(sender) == [
        (
            101,
            20,
            "row 5 (sequence number 105 at the sender) is there twice; "
            "row 17 (sequence number 117 at the sender) is gone",
        ),
        (121, 2, None),
        (201, 1, "row 2 is gone"),
    ]


def test_a_body_whose_file_is_gone_before_it_was_ingested_is_told(sender: Sender) -> None:
    name = sender.bring_range(1, [1, 2])
    assert name is not None
    sender.spool.remove([name])
    [(_, rows, problem)] = inspect(sender)
    assert rows == 0 and problem is not None and "spool" in problem


def test_more_bodies_than_one_answer_has_room_for_are_told_in_parts(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.receive.count_received.BODIES_MAX", 2)
    for at in (1, 11, 21):
        sender.bring_range(at, [at])
    first, after = sender.lake.receiver.inspector().inspect(sender.dataset, LANE, SeqRange(Seq(1), Seq(100)))
    assert ([r.rows.lo for r in first], after) == ([1, 11], 21)
    assert after is not None
    rest, end = sender.lake.receiver.inspector().inspect(sender.dataset, LANE, SeqRange(after, Seq(100)))
    assert ([r.rows.lo for r in rest], end) == ([21], None)
