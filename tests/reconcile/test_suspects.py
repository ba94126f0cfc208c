"""Orphans that are probably the files of entries whose path is damaged: reported as such, kept, and released by a
person alone. And what tells damage where a file still reads well."""

from __future__ import annotations

import json
import os
import struct
import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strandline.core.records.reconcile_records import Doubt
from strandline.core.types import SEQ_COLUMN, Seq, SeqRange
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.reconcile.compare import guard
from strandline.reconcile.model import Finding, FindingKind, Protection
from strandline.reconcile.references import checksums
from strandline.reconcile.suspects import Footer, MissingEntries, read_footer
from tests.reconcile.conftest import DAY_NS, SomeLake, acted_on, by_path
from tests.reconcile.flipping import SEVERAL_FILES, SEVERAL_ROWS, repeat_an_entry
from tests.reconcile.whole_lakes import ACT, COLUMNS, REPORT, MakeLake, WholeLake, there


def moved_away(path: str, to: str) -> str:
    """As if the entry had a wrong path: its file is there under another name. Old enough for any grace."""
    target = Path(path).with_name(to)
    Path(path).rename(target)
    os.utime(target, (1_000_000_000, 1_000_000_000))
    return str(target)


def test_an_orphan_of_the_size_of_a_missing_entry_is_kept_until_a_person_releases_it(lake: WholeLake) -> None:
    entry = lake.data_files()[0]
    suspect = moved_away(entry, "renamed.parquet")
    stray = lake.put("stray.parquet")
    found: list[Finding] = []
    run = lake.run(ACT, on_finding=found.append)
    told = {f.path: f for f in found}
    assert told[suspect].protected is told[entry].protected is Protection.DAMAGED
    assert told[suspect].probably == entry and told[entry].probably == suspect
    assert told[stray].protected is Protection.ENTRIES_MISSING
    assert run.outcome.suspects == 1 and run.outcome.done.missing == run.outcome.done.orphans == 0
    assert run.outcome.planned.missing == run.outcome.planned.orphans == 0
    assert run.outcome.protected == {"damaged": 2, "entries_missing": 1}
    assert any("the metadata is damaged" in failure for failure in run.outcome.failures)
    assert there([suspect, stray]) == [True, True]

    lake.lake.reconciler.release(suspect)
    run = lake.run(ACT)  # the entry really is missing, then, and is dropped
    assert run.outcome.done.missing == 1 and run.outcome.suspects == 0 and there([suspect, stray]) == [True, True]
    assert "reconcile.file_released" in lake.events()


def test_a_suspicion_outlives_the_entry(lake: WholeLake) -> None:
    entry = lake.data_files()[0]
    suspect = moved_away(entry, "renamed.parquet")
    lake.run(REPORT)
    Path(entry).write_bytes(b"")  # whoever puts something else in its place ends the missing, not the suspicion
    run = lake.run(ACT)
    assert run.outcome.found.missing == 0 and run.outcome.protected == {"damaged": 1}
    assert there([suspect]) == [True] and run.outcome.suspects == 1
    lake.lake.reconciler.release(suspect)
    assert lake.run(ACT).outcome.done.orphans == 1 and there([suspect]) == [False]


def test_a_file_that_a_table_references_again_is_suspected_no_more(lake: WholeLake) -> None:
    entry = lake.data_files()[0]
    suspect = moved_away(entry, "renamed.parquet")
    assert lake.run(REPORT).outcome.suspects == 1
    assert [s.path for s in lake.lake.reconciler.suspects()] == [suspect]
    Path(suspect).rename(entry)
    other = lake.put("renamed.parquet")
    run = lake.run(ACT)
    assert there([other]) == [True] and run.outcome.suspects == 1  # by its name; a person looks


def test_an_orphan_whose_footer_has_the_rows_of_a_missing_entry_is_suspected(lake: WholeLake) -> None:
    entry = lake.data_files()[0]
    rows = pq.read_table(entry).append_column("padding", pa.array(["x" * 500] * 3))
    os.unlink(entry)
    suspect = lake.put("rewritten.parquet")
    pq.write_table(rows, suspect, compression="none")
    os.utime(suspect, (1_000_000_000, 1_000_000_000))
    run = lake.run(ACT)
    assert run.outcome.suspects == 1 and run.outcome.done.missing == 0 and there([suspect]) == [True]


def test_no_orphan_of_a_table_is_touched_while_one_of_its_files_is_missing(make_lake: MakeLake) -> None:
    lake = make_lake(2)
    stray = lake.put("stray.parquet")
    os.unlink(lake.data_files()[0])
    run = lake.run(ACT)
    assert run.outcome.done.missing == 1 and run.outcome.done.orphans == 0 and there([stray]) == [True]
    assert run.outcome.protected["entries_missing"] == 1


# ---- agreeing --------------------------------------------------------------------------------------------------------


def entry(path: str, *, size: int = 1, rows: tuple[int, int] | None = None, count: int | None = None) -> Finding:
    found = None if rows is None else SeqRange(Seq(rows[0]), Seq(rows[1]))
    return Finding(FindingKind.MISSING, path, "t", size, 0, None, rows=found, row_count=count)


@pytest.mark.parametrize(
    ("footer", "agreeing"),
    [
        (Footer(3, SeqRange(Seq(1), Seq(3))), ["a"]),
        (Footer(9, SeqRange(Seq(3), Seq(12))), ["a", "b", "wide"]),
        (Footer(9, SeqRange(Seq(50), Seq(60))), ["wide"]),
        (Footer(5, SeqRange(Seq(200), Seq(204))), ["plain"]),
        (Footer(3, None), ["a"]),
        (Footer(4, None), []),
    ],
)
def test_a_footer_agrees_by_its_numbers_or_else_by_how_many_rows_it_has(footer: Footer, agreeing: list[str]) -> None:
    missing = MissingEntries()
    for one in (
        entry("b", rows=(10, 12), count=2),
        entry("a", rows=(1, 3), count=3),
        entry("wide", rows=(4, 99), count=7),
        entry("plain", count=5),
    ):
        missing.add(one)
    assert sorted(missing.agreeing(footer)) == agreeing


@pytest.mark.parametrize("padding", [10, 200_000])
def test_a_footer_is_read_from_the_end_of_a_file(tmp_path: Path, padding: int) -> None:
    path = tmp_path / "x.parquet"
    table = pa.table({SEQ_COLUMN: [4, 5, 6], "v": ["a", "b", "c"]})
    pq.write_table(table.replace_schema_metadata({"note": "x" * padding}), path, row_group_size=1)
    content = path.read_bytes()
    assert read_footer(lambda count: content[-count:], len(content)) == Footer(3, SeqRange(Seq(4), Seq(6)))
    assert read_footer(lambda count: content[-count:][:-4] + b"PAR2", len(content)) is None
    assert read_footer(lambda count: b"\xff" * (count - 4) + b"PAR1", len(content)) is None
    assert read_footer(lambda count: b"", 0) is None


# ---- what tells damage -----------------------------------------------------------------------------------------------


def crc_of(content: bytes, chunk: int = 512) -> bytes:
    sums = b"".join(struct.pack(">I", zlib.crc32(content[n : n + chunk])) for n in range(0, len(content), chunk))
    return struct.pack(">4sI", b"crc\0", chunk) + sums


@pytest.mark.parametrize("what", ["metadata.json", "list", "manifest"])
def test_a_checksum_of_hadoops_that_does_not_agree_stops_the_table(some_lake: SomeLake, what: str) -> None:
    some_lake.create()
    table = some_lake.append()
    snapshot = table.current_snapshot()
    assert snapshot is not None
    paths = {
        "metadata.json": table.metadata_location,
        "list": snapshot.manifest_list,
        "manifest": snapshot.manifests(table.io)[0].manifest_path,
    }
    path = Path(paths[what].removeprefix("file://"))
    stray = some_lake.put("ns/t/data/stray.parquet")
    beside = path.with_name(f".{path.name}.crc")
    beside.write_bytes(crc_of(path.read_bytes()))
    assert acted_on(some_lake.survey().drift.orphans()) == [stray]
    beside.write_bytes(crc_of(path.read_bytes()[:-1] + b"?"))
    survey = some_lake.survey()
    assert "checksums" in survey.references.unread["ns.t"]
    assert by_path(survey.drift.orphans())[stray].protected is Protection.TABLE_UNREAD


def test_a_manifest_that_names_a_file_twice_stops_the_table(some_lake: SomeLake) -> None:
    some_lake.create(properties=SEVERAL_FILES)
    lost = repeat_an_entry(some_lake.append(rows=SEVERAL_ROWS))
    survey = some_lake.survey(some_lake.context(now_ns=some_lake.context().now_ns + 3 * DAY_NS))
    assert "two of its entries name one file" in survey.references.unread["ns.t"]
    assert by_path(survey.drift.orphans())[lost].protected is Protection.TABLE_UNREAD


@pytest.mark.parametrize("content", [b"", b"crc", b"crc\0\0\0\0\0", b"other bytes"])
def test_checksums_of_an_unknown_kind_say_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".x.crc").write_bytes(content)
    assert checksums.damage(str(tmp_path / "x"), b"anything") is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"metadata-log"', '"metadata-lof"'),
        ('/ns/t"', '/ns/t%00"'),
        ('/ns/t"', '/ns/t%ff"'),
        ('"snapshots"', '"snapshotr"'),
        ('"sequence-number": 1', '"sequence-number": 9'),
        ('"current-snapshot-id": ', '"current-snapshot-id": 1'),
        (".metadata.json\", \"timestamp", "%ed.metadata.json\", \"timestamp"),
    ],
)  # fmt: skip
def test_metadata_that_contradicts_itself_or_is_not_understood_stops_the_table(
    some_lake: SomeLake, old: str, new: str
) -> None:
    some_lake.create()
    some_lake.append()
    table = some_lake.append()
    stray = some_lake.put("ns/t/metadata/stray.avro")
    path = Path(table.metadata_location.removeprefix("file://"))
    text = json.dumps(json.loads(path.read_text()))
    assert old in text
    path.write_text(text)
    assert acted_on(some_lake.survey().drift.orphans()) == [stray]
    path.write_text(text.replace(old, new, 1))
    survey = some_lake.survey()
    assert "ns.t" in survey.references.unread, survey.references
    assert not acted_on(survey.drift.orphans())


@pytest.mark.parametrize(
    ("bit", "is_read"), [pytest.param(0x01, True, id="another id"), pytest.param(0x40, False, id="no id at all")]
)
def test_an_id_that_is_off_by_one_bit_costs_the_table_and_not_the_run(lake: WholeLake, bit: int, is_read: bool) -> None:
    stray = lake.put("stray.parquet")
    path = Path(lake.table().metadata_location.removeprefix("file://"))
    uuid = lake.dataset.table_uuid
    assert uuid[14] == "4"  # the version of a random id: 5, or t, with one bit flipped
    flipped = f"{uuid[:14]}{chr(ord(uuid[14]) ^ bit)}{uuid[15:]}"
    path.write_text(path.read_text().replace(uuid, flipped))
    lake.lake.create_dataset("other", parse_columns(COLUMNS))
    lake.dataset = lake.lake.dataset("other")
    lake.append()
    other = str(Path(lake.put("../../other/data/stray.parquet")).resolve())
    run = lake.run(ACT)
    assert run.aborted is None and there([stray, other]) == [True, False], run
    assert Doubt.SUSPICIOUS in run.doubts if is_read else Doubt.PARTIAL in run.doubts


def test_ids_are_compared_bit_by_bit() -> None:
    assert guard.by_identity("ab", "ac") is Protection.DAMAGED
    assert guard.by_identity("ab", "ab") is guard.by_identity("ab", "abc") is guard.by_identity("ab", "ad") is None
