"""The kind `files`, under the contract of all sinks and in what only it can get wrong."""

from __future__ import annotations

import csv
import errno
import gzip
import io
import json
import os
import pickle
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import zstandard

from strandline.core import failpoints
from strandline.core.errors import RefusedError, StorageError
from strandline.core.types import SEQ_COLUMN, Seq, SeqRange
from strandline.deliver.sink import Address, Conflict, Landed, Sink, SinkContext, TryLater
from strandline.deliver.sink_kinds import find_kind, resolve
from strandline.deliver.sinks.blobs import names
from strandline.deliver.sinks.files import folder as folder_module
from strandline.storage import durable
from tests.sinks.contract import ADDRESS, COLUMNS, DATASET, TOKEN, Made, SinkContract, landed, parcel, ready, seqs

FORMATS = [
    {"format": "parquet"},
    {"format": "jsonl"},
    {"format": "jsonl", "compression": "gz"},
    {"format": "csv", "compression": "zst"},
]


def open_files(home: Path, *, place: str = "one", generation: int = 1, **options: str) -> Sink:
    kind = find_kind("files")
    return kind.open(SinkContext(home, DATASET, generation, resolve(kind, {"path": place, **options})))


def lane_path(sink: Sink, address: Address) -> Path:
    top = Path(sink.destination.removeprefix("file://")).parent
    return top / names.lane_folder(address)


def numbers_in(name: str, body: bytes) -> list[int]:
    """As a consumer would read it, by nothing of ours."""
    if name.endswith(".parquet"):
        return pq.read_table(io.BytesIO(body)).column(SEQ_COLUMN).to_pylist()
    if name.endswith(".gz"):
        body = gzip.decompress(body)
    elif name.endswith(".zst"):
        body = zstandard.ZstdDecompressor().stream_reader(body).read()
    if ".jsonl" in name:
        return [json.loads(line)[SEQ_COLUMN] for line in body.decode().splitlines()]
    return [int(row[SEQ_COLUMN]) for row in csv.DictReader(io.StringIO(body.decode(), newline=""))]


def made_of(home: Path, options: dict[str, str]) -> Made:
    def numbers(sink: Sink, address: Address) -> list[int]:
        path = lane_path(sink, address)
        found = [f for f in path.iterdir() if f.is_file()] if path.is_dir() else []
        return sorted(n for f in found for n in numbers_in(f.name, f.read_bytes()))

    def take_away(sink: Sink, address: Address, rows: SeqRange) -> None:
        for f in lane_path(sink, address).glob(f"{rows.lo:019d}-{rows.hi:019d}.*"):
            f.unlink()

    return Made(lambda **kw: open_files(home, **kw, **options), numbers, take_away)


class TestFiles(SinkContract):
    @pytest.fixture
    def made(self, tmp_path: Path) -> Made:
        return made_of(tmp_path, {"format": "parquet"})


class TestFilesOfLines(SinkContract):
    @pytest.fixture
    def made(self, tmp_path: Path) -> Made:
        return made_of(tmp_path, {"format": "csv", "compression": "zst"})


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return made_of(tmp_path, {})


@pytest.fixture(autouse=True)
def disarmed() -> Any:
    yield
    failpoints.arm("")


def objects(sink: Sink) -> list[Path]:
    return [f for f in lane_path(sink, ADDRESS).glob("*") if f.is_file()]


def test_nothing_partial_has_a_name_when_the_writer_dies_before_the_link(tmp_path: Path) -> None:
    script = (
        "from pathlib import Path; import sys\n"
        "from tests.sinks.test_files import made_of\n"
        "from tests.sinks.contract import ADDRESS, TOKEN, parcel, ready\n"
        "from strandline.core import failpoints\n"
        "sink = ready(made_of(Path(sys.argv[1]), {}))\n"
        "failpoints.arm(sys.argv[2])\n"
        "print(sink.sender(TOKEN).send(parcel(sink.form, ADDRESS, 1, 1000)))\n"
    )
    sink = open_files(tmp_path)
    sink.prepare(COLUMNS)
    for point, expected in (("files.before_link", 0), ("files.after_link", 1)):
        ended = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path), f"{point}=kill"], cwd=Path(__file__).parents[2], check=False,
            capture_output=True,
        )  # fmt: skip
        assert ended.returncode == -9, ended.stderr.decode()
        assert len(objects(sink)) == expected
    sink.fence("b" * 32)
    assert [p.name for p in (lane_path(sink, ADDRESS).parent / "_tmp").iterdir()] == ["b" * 32]
    assert landed(sink.sender("b" * 32), parcel(sink.form, ADDRESS, 1, 1000)).repeat
    assert sink.inspector().inspect(ADDRESS, seqs(1, 1000)).count == 1000


def test_a_fenced_deliverer_cannot_make_visible_what_it_has_written(made: Made, monkeypatch: Any) -> None:
    old = ready(made)
    sender = old.sender(TOKEN)
    real = failpoints.hit

    def overtaken(point: str) -> None:
        if point == "files.before_link":
            ready(made, token="b" * 32)
        real(point)

    monkeypatch.setattr(failpoints, "hit", overtaken)
    outcome = sender.send(parcel(old.form, ADDRESS, 1, 10))
    assert isinstance(outcome, TryLater) and "superseded" in outcome.why
    assert objects(old) == []


def test_a_sender_without_a_fence_sends_nothing(made: Made) -> None:
    sink = made.open()
    sink.prepare(COLUMNS)
    outcome = sink.sender(TOKEN).send(parcel(sink.form, ADDRESS, 1, 10))
    assert isinstance(outcome, TryLater) and "superseded" in outcome.why


def test_fencing_again_with_the_same_token_keeps_what_is_under_way(made: Made) -> None:
    sink = ready(made)
    sender = sink.sender(TOKEN)
    sink.fence(TOKEN)
    assert not landed(sender, parcel(sink.form, ADDRESS, 1, 10)).repeat


@pytest.mark.parametrize("rename_works", [True, False])
def test_without_hard_links_nothing_is_replaced_either(made: Made, monkeypatch: Any, rename_works: bool) -> None:
    sink = ready(made)

    def no_links(*_: Any, **__: Any) -> None:
        raise OSError(errno.EPERM, "not permitted")

    monkeypatch.setattr(os, "link", no_links)
    if not rename_works:
        monkeypatch.setattr(durable, "_renameat2", lambda: None)
        outcome = sink.sender(TOKEN).send(parcel(sink.form, ADDRESS, 1, 10))
        assert isinstance(outcome, TryLater) and "neither hard links" in outcome.why
        with pytest.raises(StorageError, match="neither hard links"):
            sink.set_watermarks([(ADDRESS, Seq(10))])
        assert objects(sink) == []
        return
    first = landed(sink.sender(TOKEN), parcel(sink.form, ADDRESS, 1, 10))
    name = objects(sink)[0]
    taken = folder_module.rename_into_place(_file(name.with_name("other")), name)
    assert not taken
    (name.with_name("other")).unlink()
    again = landed(sink.sender(TOKEN), parcel(sink.form, ADDRESS, 1, 10, word="other"))
    assert (again.repeat, again.digest) == (True, first.digest)


def _file(path: Path) -> Path:
    path.write_bytes(b"other")
    return path


@pytest.mark.parametrize(("number", "words"), [(errno.ENOSPC, "no space left"), (errno.EACCES, "permission denied")])
def test_a_disk_that_refuses_is_tried_later_and_leaves_nothing(
    made: Made, monkeypatch: Any, number: int, words: str
) -> None:
    sink = ready(made)

    def refuses(_: int) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        sender = sink.sender(TOKEN)
        patched.setattr(durable, "sync_data", refuses)
        outcome = sender.send(parcel(sink.form, ADDRESS, 1, 10))
    assert isinstance(outcome, TryLater) and words in outcome.why
    assert objects(sink) == []
    assert list((lane_path(sink, ADDRESS).parent / "_tmp" / TOKEN).iterdir()) == []
    assert not landed(sender, parcel(sink.form, ADDRESS, 1, 10)).repeat


def test_a_record_that_cannot_be_read_is_refused(made: Made) -> None:
    sink = ready(made)
    record = lane_path(sink, ADDRESS).parent / "_strandline.json"
    for body in (
        b"",
        b"{",
        b"[]",
        b'{"version":1}',
        b'{"version":2,"lake":"l","instance":"i","dataset":"d","table_uuid":"t"}',
    ):
        record.write_bytes(body)
        with pytest.raises(RefusedError, match=r"_strandline\.json"):
            sink.claimed()


def test_anything_else_that_lies_in_a_lane_is_ignored(made: Made) -> None:
    sink = ready(made)
    landed(sink.sender(TOKEN), parcel(sink.form, ADDRESS, 1, 10))
    sink.set_watermarks([(ADDRESS, Seq(10))])
    lane = lane_path(sink, ADDRESS)
    for name in ("readme.txt", "1-5.parquet", f"{20:019d}-{10:019d}.parquet", f"{11:019d}-{20:019d}.parquet.tmp",
                 f"{11:019d}-{20:019d}.orc", f"{0:019d}-{20:019d}.parquet", "_marks/99.json", f"_marks/{99:019d}.tmp",
                 f"{9 * 10**18:019d}-{9999999999999999999}.parquet"):  # fmt: skip
        (lane / name).write_bytes(b"x")
    held = sink.held([(ADDRESS, None)])[0]
    assert (held.mark, [h.rows for h in held.ranges]) == (10, [seqs(1, 10)])


def test_a_mark_is_written_before_lower_ones_are_removed(made: Made) -> None:
    sink = ready(made)
    landed(sink.sender(TOKEN), parcel(sink.form, ADDRESS, 1, 10))
    sink.set_watermarks([(ADDRESS, Seq(5))])
    marks = lane_path(sink, ADDRESS) / "_marks"
    for point, expected in (("sink.before_mark", [5]), ("sink.after_mark", [5, 10])):
        failpoints.arm(f"{point}=fail")
        with pytest.raises(failpoints.FailpointError):
            sink.set_watermarks([(ADDRESS, Seq(10))])
        assert sorted(int(m.stem) for m in marks.iterdir()) == expected
    failpoints.arm("")
    sink.set_watermarks([(ADDRESS, Seq(10))])
    assert [m.name for m in marks.iterdir()] == [f"{10:019d}.json"]
    assert json.loads((marks / f"{10:019d}.json").read_text())["mark"] == 10


def test_two_objects_with_the_same_rows_are_refused_by_name(made: Made) -> None:
    sink = ready(made)
    landed(sink.sender(TOKEN), parcel(sink.form, ADDRESS, 1, 10))
    there = objects(sink)[0]
    shutil.copy(there, there.with_name(f"{5:019d}-{12:019d}.csv"))
    with pytest.raises(RefusedError, match=there.name):
        sink.held([(ADDRESS, None)])


def test_a_change_of_format_does_not_deliver_again(tmp_path: Path) -> None:
    before = ready(made_of(tmp_path, {"format": "parquet"}))
    landed(before.sender(TOKEN), parcel(before.form, ADDRESS, 1, 10))
    after = ready(made_of(tmp_path, {"format": "jsonl", "compression": "gz"}))
    again = landed(after.sender(TOKEN), parcel(after.form, ADDRESS, 1, 10))
    assert (again.repeat, again.count) == (True, 10)
    assert [p.suffix for p in objects(after)] == [".parquet"]
    assert after.inspector().inspect(ADDRESS, seqs(1, 10)).count == 10


@pytest.mark.parametrize("options", FORMATS, ids=lambda o: "-".join(o.values()))
def test_an_inspection_finds_a_flipped_byte_and_a_removed_object(tmp_path: Path, options: dict[str, str]) -> None:
    sink = ready(made_of(tmp_path, options))
    told = landed(sink.sender(TOKEN), parcel(sink.form, ADDRESS, 1, 1000))
    inspector = sink.inspector()
    seen = inspector.inspect(ADDRESS, seqs(1, 1000))
    assert (seen.count, seen.digest, seen.problem) == (1000, told.digest, None)
    there = objects(sink)[0]
    body = bytearray(there.read_bytes())
    body[len(body) // 3] ^= 0xFF
    there.write_bytes(body)
    flipped = inspector.inspect(ADDRESS, seqs(1, 1000))
    assert flipped.digest != told.digest
    if options["format"] == "parquet" or "compression" in options:
        assert flipped.problem is not None
    there.write_bytes(bytes(body[: len(body) // 2]))
    assert inspector.inspect(ADDRESS, seqs(1, 1000)).problem is not None
    there.unlink()
    assert inspector.inspect(ADDRESS, seqs(1, 1000)).problem == "the object is gone"


def test_an_inspection_finds_rows_that_are_there_twice_or_belong_elsewhere(made: Made) -> None:
    sink = ready(made)
    inspector = sink.inspector()
    for lo, numbers, words in ((1, [1, 2, 2, 3], "number 2 is in it twice"), (11, [11, 21], "21 in it is outside"),
                               (31, [30, 31], "30 in it is outside")):  # fmt: skip
        landed(sink.sender(TOKEN), parcel(sink.form, ADDRESS, lo, lo + 9, numbers=numbers))
        assert words in (inspector.inspect(ADDRESS, seqs(lo, lo + 9)).problem or "")
    landed(sink.sender(TOKEN), parcel(sink.form, ADDRESS, 51, 60))
    lane = lane_path(sink, ADDRESS)
    shutil.copy(lane / f"{51:019d}-{60:019d}.parquet", lane / f"{61:019d}-{70:019d}.parquet")
    assert "says that its range is 51-60" in (inspector.inspect(ADDRESS, seqs(61, 70)).problem or "")


def test_delivery_into_a_folder_that_went_away_is_tried_later(made: Made, tmp_path: Path) -> None:
    sink = ready(made)
    sender = sink.sender(TOKEN)
    landed(sender, parcel(sink.form, ADDRESS, 1, 10))
    shutil.rmtree(tmp_path / "one")
    outcome = sender.send(parcel(sink.form, ADDRESS, 11, 20))
    assert isinstance(outcome, TryLater)
    assert isinstance(sink.sender(TOKEN).send(parcel(sink.form, ADDRESS, 11, 20)), TryLater)
    assert not (tmp_path / "one").exists()
    assert sink.claimed() is None
    assert sink.held([(replace(ADDRESS), None)])[0].ranges == ()


def test_a_file_system_that_does_not_tell_upper_and_lower_case_apart_is_refused(made: Made) -> None:
    sink = ready(made)
    lane = replace(ADDRESS, partition="k=Abc")
    path = lane_path(sink, lane)
    path.mkdir(parents=True)
    path.with_name("K=aBC").symlink_to(path)
    outcome = sink.sender(TOKEN).send(parcel(sink.form, lane, 1, 10))
    assert isinstance(outcome, TryLater) and "upper and lower case" in outcome.why
    assert not isinstance(outcome, Landed)


def test_a_lane_is_listed_once_whatever_the_number_of_senders_and_only_what_can_be_new_is_looked_at(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = ready(made)
    sender = sink.sender(TOKEN)
    for lo in (1, 11, 21, 31):
        landed(sender, parcel(sink.form, ADDRESS, lo, lo + 9))
    sink.set_watermarks([(ADDRESS, Seq(30))])
    listed: list[str] = []
    parsed: list[str] = []
    listing, parsing = os.listdir, names.object_range
    monkeypatch.setattr(os, "listdir", lambda path: (listed.append(str(path)), listing(path))[1])
    monkeypatch.setattr(names, "object_range", lambda name: (parsed.append(name), parsing(name))[1])
    again = ready(made)
    listed.clear()
    held = again.held([(ADDRESS, Seq(30))])[0]
    assert [h.rows for h in held.ranges] == [seqs(31, 40)] and len(parsed) == 1
    for lo in range(41, 71, 10):
        other = pickle.loads(pickle.dumps(again.sender(TOKEN)))
        assert not landed(other, parcel(sink.form, ADDRESS, lo, lo + 9)).repeat
        assert landed(other, parcel(sink.form, ADDRESS, 31, 40)).repeat
        assert landed(other, parcel(sink.form, ADDRESS, 11, 20)).digest.startswith("sha256:")
        assert isinstance(other.send(parcel(sink.form, ADDRESS, 35, 100)), Conflict)
    assert sum(path.endswith("all") for path in listed) == 1 and len(parsed) == 1
    again.held([(ADDRESS, Seq(30))])
    assert isinstance(again.sender(TOKEN).send(parcel(sink.form, ADDRESS, 65, 100)), Conflict), "looked at again"
    again.fence("b" * 32)
    fenced = again.sender("b" * 32)
    assert isinstance(fenced.send(parcel(sink.form, ADDRESS, 65, 100)), Conflict), "what was seen before is forgotten"
