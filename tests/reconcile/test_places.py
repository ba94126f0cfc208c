"""Folders of those that cannot be asked, folders with two names, and files that storage calls something else."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table

from strandline.core.errors import StorageError, TableUnfit
from strandline.reconcile.compare.places import Places, Unclaimed
from strandline.reconcile.model import Protection, Stat
from strandline.reconcile.references.real_paths import other_spellings
from strandline.reconcile.storage.local_store import LocalStore
from strandline.reconcile.survey import LakeSurveyor
from tests.reconcile.conftest import SomeLake, Watching, acted_on, by_path, data_files


def local(location: str) -> Path:
    return Path(location.removeprefix("file://"))


def nested(lake: SomeLake, name: str = "ns.inner", within: str = "ns/t/data/inner") -> Table:
    """A table whose location lies in that of `ns.t`."""
    table = lake.create(name)
    table.catalog.drop_table(name)
    table.catalog.create_table(name, table.schema(), location=f"file://{lake.warehouse}/{within}")
    return lake.append(name)


def inventory(lake: SomeLake, to: Path) -> Path:
    rows: dict[str, list[object]] = {"key": [], "size": [], "last_modified": []}
    for folder, _, names in os.walk(lake.warehouse):
        for name in names:
            stat = Path(folder, name).stat()
            rows["key"].append(f"{folder}/{name}")
            rows["size"].append(stat.st_size)
            rows["last_modified"].append(int(stat.st_mtime * 1_000_000))
    times = pa.array(rows["last_modified"], pa.timestamp("us", tz="UTC"))
    pq.write_table(pa.table({"key": rows["key"], "size": rows["size"], "last_modified": times}), to)
    return to


@pytest.mark.parametrize("damage", ["unopenable", "before", "another catalog"])
def test_a_table_that_cannot_be_opened_protects_the_table_that_it_lies_in(
    some_lake: SomeLake, tmp_path: Path, damage: str
) -> None:
    some_lake.create()
    some_lake.append()
    inner = nested(some_lake)
    catalog = some_lake.config.path("catalog.db")
    with sqlite3.connect(catalog) as connection:
        if damage == "another catalog":
            connection.execute("UPDATE iceberg_tables SET catalog_name = 'hive' WHERE table_name = 'inner'")
        elif damage == "before":
            # Where its newest metadata lies says nothing; the one before tells.
            connection.execute(
                "UPDATE iceberg_tables SET metadata_location = ? WHERE table_name = 'inner'",
                (f"file://{some_lake.put('elsewhere/v9.metadata.json')}",),
            )
        else:
            local(inner.metadata_location).write_text("{")
    for path in (p for p in some_lake.path("ns/t").rglob("*") if p.is_file()):
        os.utime(path, (1e9, 1e9))
    stray = some_lake.put("ns/t/data/stray.parquet")
    for options in ({}, {"inventory_file": inventory(some_lake, tmp_path / "inventory.parquet")}):
        survey = some_lake.survey(**options)
        assert acted_on(survey.drift.orphans()) == []
        assert by_path(survey.drift.orphans())[stray].protected is Protection.OVERLAP


def test_a_table_of_which_nobody_knows_where_it_lies_stops_all_tables(some_lake: SomeLake) -> None:
    some_lake.create()
    some_lake.append()
    some_lake.create("ns.lost")
    with sqlite3.connect(some_lake.config.path("catalog.db")) as connection:
        connection.execute(
            "UPDATE iceberg_tables SET metadata_location = 'file:///nowhere/v1.metadata.json' WHERE table_name = 'lost'"
        )
    stray = some_lake.put("ns/t/data/stray.parquet")
    survey = some_lake.survey()
    assert by_path(survey.drift.orphans())[stray].protected is Protection.OVERLAP
    assert set(survey.references.unread) == {"ns.lost"}


def test_where_somebody_lies_of_whom_nobody_knows_it_unknown_folders_are_his(some_lake: SomeLake) -> None:
    some_lake.create()
    some_lake.append()
    with sqlite3.connect(some_lake.config.path("catalog.db")) as connection:
        connection.execute(
            "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name) VALUES ('hive','a','b')"
        )
    stray, his = some_lake.put("ns/t/data/stray.parquet"), some_lake.put("ns/x/data/his.parquet")
    survey = some_lake.survey(some_lake.context(delete_foreign=True))
    found = by_path(survey.drift.orphans())
    assert found[stray].protected is Protection.OVERLAP and found[his].protected is not None


def test_where_entries_cannot_be_described_or_looked_for_their_table_is_left_alone(
    some_lake: SomeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The missing files of a table are looked for before its orphans: they may be the same ones, under other names."""
    some_lake.create()
    some_lake.create("ns.other")
    for _ in range(2):
        table = some_lake.append()
    some_lake.append("ns.other")
    Path(data_files(table)[0]).unlink()
    stray, other = some_lake.put("ns/t/data/stray.parquet"), some_lake.put("ns/other/data/stray.parquet")

    def look(asked: str) -> Stat | None:
        if asked.endswith("stray.parquet"):
            return LocalStore().find_file(asked)
        raise StorageError("permission denied")

    for surveyor in (LakeSurveyor(some_lake.config, some_lake, look), some_lake.surveyor()):
        survey = surveyor.survey(some_lake.context(), Watching())
        found = by_path(survey.drift.orphans())
        assert found[stray].protected is Protection.PREFIX_FAILED and found[other].protected is None
        assert len(survey.failures) == 1
        monkeypatch.setattr("strandline.reconcile.survey.describe", _undescribed)


def _undescribed(*_: object) -> None:
    raise StorageError("the manifest cannot be read any more")


def test_a_table_that_fails_to_open_between_two_looks_is_remembered_by_where_it_lay(
    some_lake: SomeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    some_lake.create()
    some_lake.append()
    some_lake.create("ns.other")
    nested(some_lake)
    stray, other = some_lake.put("ns/t/data/stray.parquet"), some_lake.put("ns/other/data/stray.parquet")
    load, loads = some_lake.catalog.load, {"ns.inner": 0}

    def failing(name: str) -> Table:
        if name in loads:
            loads[name] += 1
            if loads[name] > 1:
                raise TableUnfit(f"{name} cannot be opened")
        return load(name)

    some_lake.append("ns.other")
    monkeypatch.setattr(some_lake.catalog, "load", failing)
    survey = some_lake.survey(some_lake.context(seals={}))
    assert by_path(survey.drift.orphans())[stray].protected is Protection.OVERLAP
    assert acted_on(survey.drift.orphans()) == [other]


def test_an_inventory_shows_nothing_of_strangers_and_no_more_unknown_folders_than_allowed(tmp_path: Path) -> None:
    lake = SomeLake(tmp_path / "lake", unknown_roots_max=2)
    lake.create()
    lake.append()
    view = lake.put("ns/view/metadata/00000-x.metadata.json")
    with sqlite3.connect(lake.config.path("catalog.db")) as connection:
        connection.execute(
            "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, iceberg_type)"
            " VALUES ('lake', 'ns', 'view', ?, 'VIEW')",
            (f"file://{view}",),
        )
    strays = [lake.put(f"ns/{name}/data/x.parquet") for name in ("a", "b", "c")]
    top = lake.put("readme.txt")
    listed = inventory(lake, tmp_path / "inventory.parquet")
    context = lake.context(delete_foreign=True)
    survey = lake.survey(context, inventory_file=listed)
    assert acted_on(survey.drift.orphans()) == strays[:2]
    assert set(by_path(survey.drift.orphans())) == {*strays[:2], top}
    assert any("more than 2 folders" in failure.why for failure in survey.failures)
    # A listing looks into as many; which of them, is another one's turn each day.
    assert len(by_path(lake.survey(context).drift.orphans())) == len(by_path(survey.drift.orphans()))
    lake.catalog.close()


def test_unclaimed_folders_are_told_by_name() -> None:
    unclaimed = Unclaimed("/wh", ["/wh/ns/t", "/wh/deep/er/t"])
    for folder in ("/wh", "/wh/ns", "/wh/ns/t", "/wh/ns/t/data", "/wh/_strandline/spool", "/wh/deep/er", "/other"):
        assert unclaimed.root_of(folder) is None
    assert unclaimed.root_of("/wh/ns/u/data") == "/wh/ns/u"
    assert unclaimed.root_of("/wh/more/x/data") == "/wh/more"
    assert unclaimed.root_of("/wh/deep/x/y") == "/wh/deep/x"


def test_a_folder_with_two_names_is_one(tmp_path: Path) -> None:
    real = tmp_path / "real"
    (real / "t").mkdir(parents=True)
    (tmp_path / "other").symlink_to(real)
    one, other, inside = str(real), str(tmp_path / "other"), str(tmp_path / "other" / "t")
    assert Places(spellings=other_spellings([one, other])).overlapping({"a": [one], "b": [other]}) == {"a", "b"}
    assert Places(spellings=other_spellings([one, inside])).overlapping({"a": [one], "b": [inside]}) == {"a", "b"}
    apart = str(tmp_path / "third")
    assert Places(spellings=other_spellings([one, apart])).overlapping({"a": [one], "b": [apart]}) == set()
    assert Places(other_tables={"x": [other]}, spellings=other_spellings([one, other])).overlapping({"a": [one]}) == {
        "a"
    }


def test_files_that_storage_shows_under_another_name_stop_their_table_and_no_other(some_lake: SomeLake) -> None:
    """As on a disk where `EU` and `eu` are one folder."""
    some_lake.create(partition_by="p")
    some_lake.create("ns.other")
    (path,) = data_files(some_lake.append(p=1))
    some_lake.append(p=2)
    some_lake.append("ns.other")
    shown = path.replace("/p=1/", "/P=1/")
    Path(shown).parent.mkdir()
    shutil.move(path, shown)
    os.utime(shown, (1e9, 1e9))
    other = some_lake.put("ns/other/data/stray.parquet")

    def look(asked: str) -> Stat | None:
        return LocalStore().find_file(asked.replace("/p=1/", "/P=1/"))

    survey = LakeSurveyor(some_lake.config, some_lake, look).survey(some_lake.context(), Watching())
    assert not list(survey.drift.missing())
    assert by_path(survey.drift.orphans())[shown].protected is Protection.SPELLING
    assert acted_on(survey.drift.orphans()) == [other]
    stopped = {facts.head.name: facts.stopped for facts in survey.drift.tables}
    assert stopped == {"ns.t": Protection.SPELLING, "ns.other": None}
