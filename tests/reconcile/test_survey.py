"""Real Iceberg tables on a real disk, without a JVM: what is reached, what is not, and what is gone."""

from __future__ import annotations

import gc
import json
import os
import shutil
import sqlite3
import time
from pathlib import Path

import pytest
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table.snapshots import ancestors_of
from pyiceberg.table.statistics import StatisticsFile
from pyiceberg.typedef import Record

from strandline.core.errors import ReferencesTooMany, StorageError
from strandline.core.types import Seq, SeqRange
from strandline.reconcile.model import FileContent, FindingKind, Protection, TableSeal
from tests.reconcile.conftest import DAY_NS, SomeLake, Watching, acted_on, by_path, data_files


def test_a_lake_in_order_has_no_findings(some_lake: SomeLake) -> None:
    some_lake.create()
    some_lake.create("ns.empty")
    some_lake.append()
    some_lake.append()
    survey = some_lake.survey()
    assert not list(survey.drift.orphans()) and not list(survey.drift.missing()) and not survey.failures
    assert survey.drift.listed == len(some_lake.live())
    assert {facts.head.name for facts in survey.drift.tables} == {"ns.t", "ns.empty"}


def test_an_aged_file_that_nothing_references_is_found_with_size_age_and_table(some_lake: SomeLake) -> None:
    some_lake.create()
    some_lake.append()
    orphan = some_lake.put("ns/t/data/p=1/stray.parquet", content=b"12345")
    (finding,) = some_lake.survey().drift.orphans()
    assert (finding.kind, finding.path, finding.table, finding.size) == (FindingKind.ORPHAN, orphan, "ns.t", 5)
    assert finding.protected is None and finding.modified_ns == Path(orphan).stat().st_mtime_ns


def test_files_of_branches_tags_staged_snapshots_old_snapshots_and_statistics_are_live(some_lake: SomeLake) -> None:
    some_lake.create()
    table = some_lake.append()
    first = table.current_snapshot()
    assert first is not None
    with table.manage_snapshots() as manage:
        manage.create_tag(first.snapshot_id, "v1")
        manage.create_branch(first.snapshot_id, "side")
    some_lake.append(branch="side")
    staged = _stage(some_lake)
    table = some_lake.catalog.load("ns.t")
    table.delete("v = 'x'")
    some_lake.append()
    table = some_lake.catalog.load("ns.t")
    statistics = some_lake.put("ns/t/metadata/numbers.stats")
    with table.update_statistics() as update:
        update.set_statistics(
            StatisticsFile(
                snapshot_id=table.current_snapshot().snapshot_id,  # type: ignore[union-attr]
                statistics_path=f"file://{statistics}",
                file_size_in_bytes=1,
                file_footer_size_in_bytes=1,
                blob_metadata=[],
            )
        )
    for folder, _, names in os.walk(some_lake.warehouse):
        for name in names:
            os.utime(Path(folder, name), (1e9, 1e9))
    survey = some_lake.survey()
    assert not list(survey.drift.orphans()) and not list(survey.drift.missing())
    assert survey.references.referenced(some_lake.live()) == some_lake.live()
    assert statistics in some_lake.live() and staged in some_lake.live()


def _stage(lake: SomeLake) -> str:
    """A file of a snapshot that no branch and no tag leads to."""
    before = lake.catalog.load("ns.t")
    with before.manage_snapshots() as manage:
        manage.create_branch(before.metadata.current_snapshot_id or 0, "for a moment")
    table = lake.append(branch="for a moment")
    (snapshot,) = {s.snapshot_id for s in table.snapshots()} - {s.snapshot_id for s in before.snapshots()}
    (path,) = {task.file.file_path for task in table.scan(snapshot_id=snapshot).plan_files()} - {
        task.file.file_path for task in before.scan().plan_files()
    }
    with table.manage_snapshots() as manage:
        manage.remove_branch("for a moment")
    table = lake.catalog.load("ns.t")
    led_to = {
        s.snapshot_id
        for ref in table.metadata.refs.values()
        for s in ancestors_of(table.snapshot_by_id(ref.snapshot_id), table.metadata)
    }
    assert table.snapshot_by_id(snapshot) is not None and snapshot not in led_to
    return path.removeprefix("file://")


def test_the_files_of_an_expired_snapshot_are_orphans(some_lake: SomeLake) -> None:
    some_lake.create()
    table = some_lake.append()
    gone = set(data_files(table))
    table.delete("v = 'x'")
    some_lake.append()
    table = some_lake.catalog.load("ns.t")
    old = [s.snapshot_id for s in table.snapshots() if s.snapshot_id != table.metadata.current_snapshot_id]
    table.maintenance.expire_snapshots().by_ids(old).commit()
    for path in gone:
        os.utime(path, (1e9, 1e9))
    survey = some_lake.survey()
    found = set(acted_on(survey.drift.orphans()))
    assert gone <= found and not found & some_lake.live()


def test_a_missing_data_file_is_told_with_size_partition_range_and_sinks(some_lake: SomeLake) -> None:
    some_lake.create(partition_by="p")
    some_lake.append(rows=5, p=7)
    table = some_lake.append(rows=4, p=8)
    path = next(p for p in data_files(table) if "p=8" in p)
    size = Path(path).stat().st_size
    Path(path).unlink()
    seal = TableSeal("ns.t", Seq(9), {"fast": Seq(9), "slow": Seq(8), "new": None})
    context = some_lake.context(seals={"ns.t": seal}, now_ns=time.time_ns() + 3 * DAY_NS)
    (finding,) = some_lake.survey(context).drift.missing()
    assert (finding.kind, finding.path, finding.table) == (FindingKind.MISSING, path, "ns.t")
    assert (finding.size, finding.partition, finding.row_count) == (size, "p=8", 4)
    assert finding.rows == SeqRange(Seq(6), Seq(9)) and finding.content is FileContent.DATA
    assert finding.delivered_to == ("fast",) and finding.undelivered_to == ("new", "slow")
    assert finding.protected is Protection.UNDELIVERED
    accepting = some_lake.context(seals={"ns.t": seal}, now_ns=context.now_ns, accept_loss=True)
    assert acted_on(some_lake.survey(accepting).drift.missing()) == [path]
    unsealed = some_lake.context(seals={"ns.t": TableSeal("ns.t", Seq(8))}, now_ns=context.now_ns, accept_loss=True)
    assert next(some_lake.survey(unsealed).drift.missing()).protected is Protection.UNSEALED
    assert next(some_lake.survey(some_lake.context(accept_loss=True)).drift.missing()).protected is Protection.YOUNG


def test_a_file_that_came_after_the_listing_is_not_missing(some_lake: SomeLake) -> None:
    some_lake.create()
    some_lake.append()
    surveyor = some_lake.surveyor()
    listed = surveyor._list

    def list_then_append(*args: object) -> object:
        listing = listed(*args)  # type: ignore[arg-type]
        some_lake.append()
        return listing

    surveyor._list = list_then_append  # type: ignore[method-assign, assignment]
    survey = surveyor.survey(some_lake.context(), Watching())
    assert not list(survey.drift.missing()) and not list(survey.drift.orphans())


def test_a_file_that_was_committed_after_the_listing_is_live(some_lake: SomeLake) -> None:
    some_lake.create()
    some_lake.append()
    stray = some_lake.put("ns/t/data/late.parquet", content=Path(data_files(some_lake.append())[0]).read_bytes())
    surveyor = some_lake.surveyor()
    listed = surveyor._list

    def list_then_register(*args: object) -> object:
        listing = listed(*args)  # type: ignore[arg-type]
        some_lake.catalog.load("ns.t").add_files([f"file://{stray}"], check_duplicate_files=False)
        return listing

    surveyor._list = list_then_register  # type: ignore[method-assign, assignment]
    assert not list(surveyor.survey(some_lake.context(), Watching()).drift.orphans())


def test_a_missing_manifest_is_told_and_stops_acting_on_its_table_only(some_lake: SomeLake) -> None:
    some_lake.create()
    some_lake.create("ns.other")
    table = some_lake.append()
    some_lake.append("ns.other")
    manifest = table.current_snapshot().manifests(table.io)[0].manifest_path.removeprefix("file://")  # type: ignore[union-attr]
    Path(manifest).unlink()
    stray, other = some_lake.put("ns/t/data/stray.parquet"), some_lake.put("ns/other/data/stray.parquet")
    survey = some_lake.survey()
    missing = by_path(survey.drift.missing())
    assert missing[manifest].content is FileContent.MANIFEST and missing[manifest].protected is Protection.TABLE_UNREAD
    assert acted_on(survey.drift.orphans()) == [other]
    assert by_path(survey.drift.orphans())[stray].protected is Protection.TABLE_UNREAD
    assert "ns.t" in survey.references.unread


@pytest.mark.parametrize("how", ["cut", "noise", "empty", "text"])
def test_a_damaged_manifest_stops_acting_on_its_table(some_lake: SomeLake, how: str) -> None:
    some_lake.create()
    table = some_lake.append()
    path = Path(table.current_snapshot().manifests(table.io)[0].manifest_path.removeprefix("file://"))  # type: ignore[union-attr]
    whole = path.read_bytes()
    at = len(whole) // 2
    damaged = {
        "cut": whole[:-20],
        "noise": whole[:at] + os.urandom(200) + whole[at + 200 :],
        "empty": b"",
        "text": b"{}" * 90,
    }
    path.write_bytes(damaged[how])
    some_lake.put("ns/t/data/stray.parquet")
    for file in data_files_on_disk(some_lake):
        os.utime(file, (1e9, 1e9))
    survey = some_lake.survey()
    assert acted_on(survey.drift.orphans()) == [] and "ns.t" in survey.references.unread


@pytest.mark.parametrize("scheme", ["hdfs", "gs", "abfss"])
def test_a_table_that_references_what_is_neither_a_folder_nor_a_bucket_is_left_alone(
    some_lake: SomeLake, scheme: str
) -> None:
    """Such a path may mean a file of ours in a way that comparing does not see."""
    some_lake.create()
    some_lake.create("ns.other")
    table = some_lake.append()
    some_lake.append("ns.other")
    file = next(iter(table.scan().plan_files())).file
    gone = file.file_path.removeprefix("file://")
    odd = f"{scheme}://store{gone}"
    with table.transaction() as transaction, transaction.update_snapshot().overwrite() as overwrite:
        overwrite.delete_data_file(file)
        overwrite.append_data_file(
            DataFile.from_args(
                content=DataFileContent.DATA,
                file_path=odd,
                file_format=FileFormat.PARQUET,
                partition=Record(),
                record_count=file.record_count,
                file_size_in_bytes=file.file_size_in_bytes,
                spec_id=file.spec_id,
            )
        )
    table = some_lake.catalog.load("ns.t")
    old = [s.snapshot_id for s in table.snapshots() if s.snapshot_id != table.metadata.current_snapshot_id]
    table.maintenance.expire_snapshots().by_ids(old).commit()
    os.utime(gone, (1e9, 1e9))  # the very file that the odd path may mean: nothing else names it any more
    other = some_lake.put("ns/other/data/stray.parquet")
    survey = some_lake.survey()
    assert odd in survey.references.unread["ns.t"]
    assert by_path(survey.drift.orphans())[gone].protected is Protection.TABLE_UNREAD
    assert acted_on(survey.drift.orphans()) == [other]
    assert acted_on(survey.drift.missing()) == []


def data_files_on_disk(lake: SomeLake) -> list[Path]:
    return [path for path in lake.path("ns/t/data").rglob("*") if path.is_file()]


def test_a_table_whose_metadata_is_damaged_protects_itself_and_every_unknown_folder(some_lake: SomeLake) -> None:
    some_lake.create()
    some_lake.create("ns.other")
    table = some_lake.append()
    some_lake.append("ns.other")
    Path(table.metadata_location.removeprefix("file://")).write_text("{")
    for file in data_files_on_disk(some_lake):
        os.utime(file, (1e9, 1e9))
    unknown = some_lake.put("ns/nobody/data/stray.parquet")
    other = some_lake.put("ns/other/data/stray.parquet")
    survey = some_lake.survey(some_lake.context(delete_foreign=True))
    assert acted_on(survey.drift.orphans()) == [other]
    assert by_path(survey.drift.orphans())[unknown].protected is Protection.TABLE_UNREAD
    assert set(survey.references.unread) == {"ns.t"}


def test_a_catalog_that_cannot_be_read_is_an_error_and_not_an_empty_one(some_lake: SomeLake) -> None:
    some_lake.create()
    some_lake.append()
    some_lake.catalog.close()
    some_lake.config.path("catalog.db").write_bytes(b"not a database" * 100)
    with pytest.raises(StorageError):
        some_lake.survey()


def test_tables_that_overlap_protect_each_other(some_lake: SomeLake) -> None:
    some_lake.create("ns.t")
    inner = some_lake.create("ns.inner")
    some_lake.append("ns.t")
    inner.catalog.drop_table("ns.inner")
    inner.catalog.create_table("ns.inner", inner.schema(), location=f"file://{some_lake.warehouse}/ns/t/data/inner")
    stray = some_lake.put("ns/t/data/stray.parquet")
    survey = some_lake.survey()
    assert by_path(survey.drift.orphans())[stray].protected is Protection.OVERLAP


def test_storage_that_is_away_is_not_a_table_without_files(some_lake: SomeLake) -> None:
    some_lake.create()
    table = some_lake.append()
    some_lake.warehouse.rename(some_lake.warehouse.with_name("unmounted"))
    some_lake.path("ns/t").mkdir(parents=True)
    # The metadata is all that is left, as where a catalog keeps it apart.
    metadata = Path(table.metadata_location.removeprefix("file://"))
    (some_lake.warehouse.with_name("unmounted") / "ns/t/metadata").rename(some_lake.path("metadata_elsewhere"))
    with sqlite3.connect(some_lake.config.path("catalog.db")) as connection:
        connection.execute(
            "UPDATE iceberg_tables SET metadata_location = ?",
            (f"file://{some_lake.path('metadata_elsewhere')}/{metadata.name}",),
        )
    survey = some_lake.survey(some_lake.context(now_ns=time.time_ns() + 9 * DAY_NS))
    assert acted_on(survey.drift.missing()) == []
    (facts,) = survey.drift.tables
    assert facts.stopped in (Protection.NOTHING_LISTED, Protection.TABLE_UNREAD)


def test_data_of_which_nothing_is_listed_is_not_missing_file_by_file(some_lake: SomeLake) -> None:
    some_lake.create()
    some_lake.append()
    some_lake.append()
    data = some_lake.path("ns/t/data")
    data.rename(some_lake.warehouse.with_name("unmounted"))
    late = some_lake.context(now_ns=time.time_ns() + 9 * DAY_NS)
    survey = some_lake.survey(late)
    assert [f.protected for f in survey.drift.missing()] == [Protection.NOTHING_LISTED] * 2
    assert all(finding.rows is not None for finding in survey.drift.missing()), "they are described all the same"
    some_lake.put("ns/t/data/another.parquet")
    assert len(acted_on(some_lake.survey(late).drift.missing())) == 2


def test_metadata_that_lies_apart_does_not_count_as_data_that_was_listed(some_lake: SomeLake) -> None:
    some_lake.create()
    with some_lake.catalog.load("ns.t").transaction() as change:
        change.set_properties({"write.metadata.path": f"file://{some_lake.path('ns/apart')}"})
    some_lake.append()
    table = some_lake.append()
    assert "/ns/apart/" in table.metadata_location
    for path in data_files(table):
        Path(path).unlink()
    survey = some_lake.survey(some_lake.context(now_ns=time.time_ns() + 9 * DAY_NS))
    assert {f.protected for f in survey.drift.missing()} == {Protection.NOTHING_LISTED}


def test_files_on_other_storage_are_missing_only_if_some_of_them_are_there(some_lake: SomeLake, tmp_path: Path) -> None:
    some_lake.create()
    table = some_lake.append()
    (live,) = data_files(table)
    other = tmp_path / "another disk"
    other.mkdir()
    for n in range(2):
        (other / f"{n}.parquet").write_bytes(Path(live).read_bytes())
    table.add_files([f"file://{other}/{n}.parquet" for n in range(2)], check_duplicate_files=False)
    late = some_lake.context(now_ns=time.time_ns() + 9 * DAY_NS)
    assert not list(some_lake.survey(late).drift.missing())
    (other / "0.parquet").unlink()
    assert acted_on(some_lake.survey(late).drift.missing()) == [str(other / "0.parquet")]
    other.rename(tmp_path / "unmounted")
    survey = some_lake.survey(late)
    assert [f.protected for f in survey.drift.missing()] == [Protection.NOTHING_LISTED] * 2


def test_a_reference_set_that_shrank_while_the_files_are_there_stops_the_table(some_lake: SomeLake) -> None:
    some_lake.create()
    some_lake.append()
    stray = some_lake.put("ns/t/data/stray.parquet")
    uuid = str(some_lake.catalog.load("ns.t").metadata.table_uuid)
    (before,) = some_lake.survey().drift.tables
    again = some_lake.survey(some_lake.context(contents_before={uuid: before.contents}))
    assert acted_on(again.drift.orphans()) == [stray]
    for n in range(30):
        some_lake.put(f"ns/t/data/was-live-{n}.parquet")
    shrunk = some_lake.survey(some_lake.context(contents_before={uuid: before.contents + 30}))
    assert acted_on(shrunk.drift.orphans()) == []
    assert set(shrunk.drift.protected) == {Protection.REFERENCES_SHRUNK}


def test_a_table_that_was_compacted_did_not_shrink_though_its_old_metadata_stays(some_lake: SomeLake) -> None:
    some_lake.create()
    some_lake.append()
    for n in range(50):
        some_lake.put(f"ns/t/metadata/{n:05}-old.metadata.json", days_old=0)
    stray = some_lake.put("ns/t/data/stray.parquet")
    uuid = str(some_lake.catalog.load("ns.t").metadata.table_uuid)
    survey = some_lake.survey(some_lake.context(contents_before={uuid: 40}))
    assert acted_on(survey.drift.orphans()) == [stray]


def test_a_table_that_references_nothing_while_it_has_files_is_left_alone(some_lake: SomeLake) -> None:
    some_lake.create()
    some_lake.put("ns/t/data/f.parquet")
    assert by_path(some_lake.survey().drift.orphans()).popitem()[1].protected is Protection.REFERENCES_EMPTY


def test_what_lies_outside_the_layout_is_foreign_and_never_touched(some_lake: SomeLake) -> None:
    some_lake.create()
    some_lake.append()
    names = ["ns/t/notes.txt", "ns/t/data/readme.md", "ns/t/metadata/version-hint.text", "ns/loose.parquet",
             "top.parquet", "ns/t/datax/f.parquet", "ns/t/data/.hidden.parquet", "_strandline_x/f.parquet"]  # fmt: skip
    paths = {some_lake.put(name) for name in names}
    found = by_path(some_lake.survey(some_lake.context(delete_foreign=True)).drift.orphans())
    assert set(found) == paths
    assert {f.kind for f in found.values()} == {FindingKind.FOREIGN}
    assert {f.protected for f in found.values()} == {Protection.LAYOUT}


def test_unknown_folders_and_namespaces_are_looked_into_and_touched_only_if_that_was_asked_for(
    some_lake: SomeLake,
) -> None:
    some_lake.create()
    some_lake.append()
    unknown = sorted(some_lake.put(name) for name in ("ns/nobody/data/f.parquet", "other/deep/t/metadata/s.avro"))
    survey = some_lake.survey()
    assert [(f.kind, f.path, f.table) for f in survey.drift.orphans()] == [
        (FindingKind.ORPHAN, path, None) for path in unknown
    ]
    assert survey.drift.protected == {Protection.UNKNOWN_ROOT: 2} and survey.drift.planned.orphans == 0
    assert acted_on(some_lake.survey(some_lake.context(delete_foreign=True)).drift.orphans()) == unknown


def test_everything_in_the_folder_of_a_dropped_table_is_told(some_lake: SomeLake) -> None:
    some_lake.create()
    table = some_lake.append()
    files = some_lake.live()
    table.catalog.drop_table("ns.t")
    found = by_path(some_lake.survey(some_lake.context(seals={})).drift.orphans())
    assert set(found) == files and {f.protected for f in found.values()} == {Protection.VANISHED_TABLE}


def test_views_and_tables_of_another_catalog_in_the_same_file_are_left_alone(some_lake: SomeLake) -> None:
    some_lake.create()
    some_lake.append()
    for n, (catalog, kind) in enumerate([("lake", "VIEW"), ("hive", "TABLE")]):
        location = some_lake.put(f"ns/thing{n}/metadata/00000-x.metadata.json")
        with sqlite3.connect(some_lake.config.path("catalog.db")) as connection:
            connection.execute(
                "INSERT INTO iceberg_tables"
                " (catalog_name, table_namespace, table_name, metadata_location, iceberg_type)"
                " VALUES (?, 'ns', ?, ?, ?)",
                (catalog, f"thing{n}", f"file://{location}", kind),
            )
    assert not list(some_lake.survey(some_lake.context(delete_foreign=True)).drift.orphans())


def test_the_lakes_own_folders_are_never_candidates_but_for_spool_files_without_a_record(some_lake: SomeLake) -> None:
    some_lake.create()
    some_lake.append()
    for name in ("witness", "quarantine/1/2/f.arrow", "quarantine/reconcile/1/data/f.parquet", "other/data/f.parquet",
                 "received/uuid/20200101T000000000000-b.json", "received/data/f.parquet"):  # fmt: skip
        some_lake.put(f"_strandline/{name}")
    kept, stray = some_lake.put("_strandline/spool/uuid/a.arrow"), some_lake.put("_strandline/spool/uuid/b.arrow")
    young = some_lake.put("_strandline/spool/uuid/c.tmp", days_old=0)
    since = some_lake.put("_strandline/spool/uuid/d.arrow", days_old=0.04)  # less than an hour
    other = some_lake.put("_strandline/spool/another/e.arrow")
    body = some_lake.put("_strandline/spool/uuid/f.body.arrow")
    context = some_lake.context(
        spooled=frozenset([kept]), spool_tables=frozenset(["uuid"]), grace_seconds=0, clock_skew_seconds=0
    )
    found = by_path(some_lake.survey(context).drift.orphans())
    assert set(found) == {stray, young, since, other, body}
    assert found[body].protected is Protection.ACKNOWLEDGED, "the ledger may have forgotten it; its sender was answered"
    assert found[stray].content is FileContent.SPOOL and found[stray].protected is None
    assert found[young].protected is found[since].protected is Protection.YOUNG
    assert found[other].protected is Protection.NOT_A_DATASET


def test_names_with_blanks_percent_signs_newlines_and_other_alphabets(some_lake: SomeLake) -> None:
    some_lake.create()
    content = Path(data_files(some_lake.append())[0]).read_bytes()
    live = [
        some_lake.put(f"ns/t/data/{name}", content=content) for name in ("a b.parquet", "100%.parquet", "%41.parquet")
    ]
    some_lake.catalog.load("ns.t").add_files([f"file://{path}" for path in live], check_duplicate_files=False)
    names = ["c d.parquet", "e\nf.parquet", "ü€.parquet", "50%25.parquet", "q?x#y.parquet"]
    stray = sorted(some_lake.put(f"ns/t/data/{name}") for name in names)
    survey = some_lake.survey()
    assert acted_on(survey.drift.orphans()) == stray and not list(survey.drift.missing())


def test_a_name_that_is_not_text_is_foreign(some_lake: SomeLake) -> None:
    some_lake.create()
    some_lake.append()
    path = os.fsencode(some_lake.path("ns/t/data")) + b"/\xff\xfe.parquet"
    with open(path, "wb"):
        os.utime(path, (1e9, 1e9))
    (finding,) = some_lake.survey().drift.orphans()
    assert finding.protected is Protection.LAYOUT


def test_links_and_loops_are_not_followed_and_what_is_read_through_them_is_live(some_lake: SomeLake) -> None:
    table = some_lake.create()
    some_lake.append()
    # A table that is spelled through a link, beside one whose folder has a loop in it.
    real = some_lake.path("ns/real")
    real.mkdir(parents=True)
    some_lake.path("ns/link").symlink_to(real)
    table.catalog.create_table("ns.linked", table.schema(), location=f"file://{some_lake.path('ns/link')}")
    some_lake.append("ns.linked")
    some_lake.path("ns/t/data/loop").symlink_to(some_lake.path("ns"))
    some_lake.path("ns/t/data/file.parquet").symlink_to(some_lake.put("elsewhere/data/target.parquet"))
    stray = some_lake.put("ns/t/data/stray.parquet")
    for folder, _, names in os.walk(some_lake.warehouse):
        for name in names:
            if not Path(folder, name).is_symlink():
                os.utime(Path(folder, name), (1e9, 1e9))
    survey = some_lake.survey(some_lake.context(delete_foreign=True))
    acted = set(acted_on(survey.drift.orphans()))
    live = {os.path.realpath(path) for path in some_lake.live()}
    assert stray in acted and not acted & live
    assert {str(some_lake.path("ns/t/data/loop")), str(some_lake.path("ns/t/data/file.parquet"))} <= {
        failure.prefix for failure in survey.failures
    }


def test_a_table_that_is_renamed_while_it_is_read_stays_live(
    some_lake: SomeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = some_lake.create()
    some_lake.create("ns.other")
    some_lake.append()
    some_lake.append("ns.other")
    for folder, _, names in os.walk(some_lake.warehouse):
        for name in names:
            os.utime(Path(folder, name), (1e9, 1e9))
    surveyor = some_lake.surveyor()
    listed = surveyor._list
    load = some_lake.catalog.load
    renamed = False

    def list_then_arm(*args: object) -> object:
        listing = listed(*args)  # type: ignore[arg-type]

        def rename_then_load(name: str) -> object:
            nonlocal renamed
            if not renamed:
                renamed = True
                table.catalog.rename_table("ns.t", "ns.moved")
            return load(name)

        monkeypatch.setattr(some_lake.catalog, "load", rename_then_load)
        return listing

    surveyor._list = list_then_arm  # type: ignore[method-assign, assignment]
    survey = surveyor.survey(some_lake.context(delete_foreign=True), Watching())
    assert renamed and acted_on(survey.drift.orphans()) == []


def test_more_references_than_allowed_are_refused_before_they_are_read(tmp_path: Path) -> None:
    lake = SomeLake(tmp_path, references_max=2)
    lake.create()
    for _ in range(3):
        lake.append()
    with pytest.raises(ReferencesTooMany):
        lake.survey()


def test_more_unknown_folders_than_allowed_are_told(tmp_path: Path) -> None:
    lake = SomeLake(tmp_path, unknown_roots_max=2)
    lake.create()
    lake.append()
    paths = [lake.put(f"ns/unknown{n}/data/f.parquet") for n in range(4)]
    survey = lake.survey()
    assert sorted(by_path(survey.drift.orphans())) in (paths[:2], paths[2:])
    assert [failure.prefix for failure in survey.failures] == [f"{lake.warehouse}/*"]
    none = SomeLake(tmp_path, unknown_roots_max=0)
    assert not list(none.survey().drift.orphans()) and not none.survey().failures


def test_references_are_read_again_only_for_tables_that_moved(some_lake: SomeLake) -> None:
    some_lake.create()
    some_lake.create("ns.other")
    some_lake.append()
    some_lake.append("ns.other")
    surveyor = some_lake.surveyor()
    first = surveyor.references(None, Watching())
    table = some_lake.append("ns.other")
    again = surveyor.references(first, Watching())
    assert again.by_name["ns.t"] is first.by_name["ns.t"]
    assert set(data_files(table)) <= again.by_name["ns.other"].keys
    table.catalog.drop_table("ns.t")
    assert set(surveyor.references(again, Watching()).by_name) == {"ns.other"}


def test_the_same_lake_gives_the_same_findings_in_the_same_order(some_lake: SomeLake) -> None:
    some_lake.create()
    some_lake.append()
    for n in range(20):
        some_lake.put(f"ns/t/data/p={n % 3}/stray-{n}.parquet")
    context = some_lake.context()
    one, two = some_lake.survey(context), some_lake.survey(context)
    assert list(one.drift.orphans()) == list(two.drift.orphans())
    orders = [finding.order for finding in one.drift.orphans()]
    assert orders == sorted(orders) and len(orders) == 20


def test_a_table_folder_that_is_gone_is_told_and_its_entries_stay(some_lake: SomeLake) -> None:
    some_lake.create()
    some_lake.append()
    shutil.rmtree(some_lake.path("ns/t/data"))
    survey = some_lake.survey(some_lake.context(now_ns=time.time_ns() + 9 * DAY_NS))
    assert [f.protected for f in survey.drift.missing()] == [Protection.NOTHING_LISTED]


def test_a_table_whose_location_has_a_percent_sign_is_looked_at_where_it_lies(some_lake: SomeLake) -> None:
    """`%41` could be an escaped `A`, and is a name like any other."""
    table = some_lake.create()
    folder = some_lake.path("ns/50%41 %off")
    schema, catalog = table.schema(), some_lake.catalog._catalog
    catalog.drop_table("ns.t")
    catalog.create_table("ns.t", schema, location=f"file://{folder}")
    some_lake.append()
    (path, other) = data_files(some_lake.append())
    stray = some_lake.put("ns/50%41 %off/data/stray.parquet")
    survey = some_lake.survey()
    assert not list(survey.drift.missing()) and acted_on(survey.drift.orphans()) == [stray]
    assert not survey.failures and not survey.references.unread
    Path(path).unlink()
    (finding,) = some_lake.survey(some_lake.context(grace_seconds=0, clock_skew_seconds=0)).drift.missing()
    assert finding.path == path and finding.protected is None and Path(other).exists()


def test_garbage_of_others_in_this_process_is_collected_while_a_survey_is_under_way(some_lake: SomeLake) -> None:
    some_lake.create()
    some_lake.append()
    seen: list[bool] = []

    class Looking(Watching):
        def check(self) -> None:
            seen.append(gc.isenabled())

    some_lake.surveyor().survey(some_lake.context(), Looking())
    assert seen and all(seen) and gc.get_freeze_count() == 0


def test_current_metadata_that_is_gone_is_a_missing_file(some_lake: SomeLake) -> None:
    some_lake.create("ns.other")
    some_lake.create()
    table = some_lake.append()
    path = Path(table.metadata_location.removeprefix("file://"))
    path.unlink()
    survey = some_lake.survey()
    (finding,) = survey.drift.missing()
    assert (finding.path, finding.table, finding.content) == (str(path), "ns.t", FileContent.METADATA)
    assert finding.protected is Protection.TABLE_UNREAD and survey.drift.found.missing == 1


def test_a_folder_with_a_tables_metadata_is_never_garbage(some_lake: SomeLake) -> None:
    """A table that vanished from the catalog is live for whoever finds the catalog again."""
    some_lake.create("ns.other")
    some_lake.create()
    some_lake.append()
    live = {path for path in some_lake.live() if "/ns/t/" in path}
    some_lake.catalog.drop("ns.t")
    stray = some_lake.put("ns/left/data/stray.parquet")
    context = some_lake.context(delete_foreign=True, now_ns=time.time_ns() + 9 * DAY_NS)
    drift = some_lake.survey(context).drift
    assert acted_on(drift.orphans()) == [stray]
    found = by_path(drift.orphans())
    assert live <= found.keys() and {found[path].protected for path in live} == {Protection.VANISHED_TABLE}


def test_the_data_of_a_table_that_vanished_is_never_garbage_wherever_its_metadata_says_they_are(
    some_lake: SomeLake,
) -> None:
    some_lake.create("ns.other")
    apart = some_lake.path("apart/data/of-t")
    apart.mkdir(parents=True)
    link = some_lake.path("ns/link")
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(apart)
    some_lake.create(properties={"write.data.path": f"file://{link}"})
    some_lake.append()
    live = {path for path in some_lake.live() if "/ns/other/" not in path}
    live = {path.replace(str(link), str(apart)) for path in live}
    assert any(path.startswith(f"{apart}/") for path in live)
    # Where a table wrote before is in older metadata alone.
    earlier, stray = some_lake.put("earlier/data/f.parquet"), some_lake.put("apart/data/stray.parquet")
    with some_lake.catalog.load("ns.t").transaction() as change:
        change.set_properties({"write.object-storage.path": str(some_lake.path("earlier/data"))})
    with some_lake.catalog.load("ns.t").transaction() as change:
        change.remove_properties("write.object-storage.path", "write.data.path")
    some_lake.catalog.drop("ns.t")
    context = some_lake.context(delete_foreign=True, now_ns=time.time_ns() + 9 * DAY_NS)
    survey = some_lake.survey(context)
    found = by_path(survey.drift.orphans())
    assert {found[path].protected for path in (*live, earlier)} == {Protection.VANISHED_TABLE}
    assert acted_on(survey.drift.orphans()) == [stray]
    assert [failure.prefix for failure in survey.failures] == [str(link)]


@pytest.mark.parametrize("content", [b"x", b"[]", b"{}", b'{"location": 7}', b'{"location": "/x", "properties": 1}'])
def test_while_metadata_of_a_vanished_table_cannot_be_read_no_folder_without_an_owner_is_touched(
    some_lake: SomeLake, content: bytes
) -> None:
    some_lake.create()
    some_lake.append()
    unread = some_lake.put("ns/gone/metadata/00000-x.metadata.json", content=content)
    mine, stray = some_lake.put("ns/t/data/stray.parquet"), some_lake.put("ns/left/data/stray.parquet")
    survey = some_lake.survey(some_lake.context(delete_foreign=True))
    assert acted_on(survey.drift.orphans()) == [mine]
    assert by_path(survey.drift.orphans())[stray].protected is Protection.TABLE_UNREAD
    assert [failure.prefix for failure in survey.failures] == [unread]
    assert not some_lake.survey().failures  # nothing there is touched anyway


def test_what_a_dropped_view_left_says_where_it_was(some_lake: SomeLake) -> None:
    some_lake.create()
    some_lake.append()
    view = json.dumps({"view-uuid": "x", "format-version": 1, "location": str(some_lake.path("views/v"))})
    left = some_lake.put("views/v/metadata/00000-x.metadata.json", content=view.encode())
    stray = some_lake.put("ns/left/data/stray.parquet")
    survey = some_lake.survey(some_lake.context(delete_foreign=True))
    assert acted_on(survey.drift.orphans()) == [stray] and not survey.failures
    assert by_path(survey.drift.orphans())[left].protected is Protection.VANISHED_TABLE
