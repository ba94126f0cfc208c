"""Tables without a JVM: made, changed, counted and glanced at, over the real embedded catalog."""

from __future__ import annotations

import gzip
import json
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog, SqlCatalogBaseTable
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, DayTransform
from pyiceberg.types import LongType

from strandline.core.errors import (
    CommitUnknown,
    NoSuchDataset,
    RefusedError,
    SchemaError,
    StorageError,
)
from strandline.core.settings.lake_config import LakeConfig, Settings
from strandline.core.types import PARTITION_COLUMN, Seq, SeqRange
from strandline.iceberg.metadata.metadata_peek import TableGlance, read_glance
from strandline.iceberg.metadata.table_metadata import METRICS_PROPERTY, NUMBERED_SINCE_PROPERTY
from strandline.iceberg.pyiceberg import duplicate_numbers
from strandline.iceberg.pyiceberg.catalog import PyIcebergCatalog, open_catalog
from strandline.iceberg.pyiceberg.foreign_rows import count_foreign_rows
from strandline.iceberg.pyiceberg.schema import columns_of
from strandline.iceberg.schema.alteration import AddColumn, Alteration, DropColumn, RenameColumn, WidenColumn
from strandline.iceberg.schema.columns import Column, Primitive, type_text
from strandline.iceberg.schema.schema_file import parse_columns, parse_type
from strandline.status.table_glances import NoGlance, TableGlances

LAKE = "lake-1"


@pytest.fixture
def config(tmp_path: Path) -> LakeConfig:
    return LakeConfig(Settings(), tmp_path)


@pytest.fixture
def catalog(config: LakeConfig) -> Iterator[PyIcebergCatalog]:
    catalog = open_catalog(config)
    yield catalog
    catalog.close()


def columns(**types: str) -> tuple[Column, ...]:
    return parse_columns([{"name": name, "type": kind} for name, kind in types.items()])


def create(catalog: PyIcebergCatalog, name: str = "events", deliver_by: Sequence[str] = (), **types: str) -> Table:
    return catalog.create_dataset_table(
        name, columns(**(types or {"v": "string"})), lake_id=LAKE, epoch=1, deliver_by=deliver_by
    )


def names_and_types(table: Table) -> dict[str, str]:
    return {c.name: type_text(c.type) for c in columns_of(table.schema())}


def ranges(*bounds: tuple[int, int]) -> list[SeqRange]:
    return [SeqRange(Seq(lo), Seq(hi)) for lo, hi in bounds]


def set_properties(catalog: PyIcebergCatalog, name: str, values: dict[str, str]) -> None:
    with catalog.load(name).transaction() as transaction:
        transaction.set_properties(values)


def append_numbers(table: Table, numbers: Sequence[int | None], *, required: bool = True) -> None:
    schema = pa.schema([pa.field("_ingest_seq", pa.int64(), nullable=not required), pa.field("v", pa.string())])
    table.append(pa.table({"_ingest_seq": list(numbers), "v": ["x"] * len(numbers)}, schema=schema))


# ---- creating ------------------------------------------------------------------------------------------------------


def test_a_new_table_has_our_columns_first_and_required_and_our_properties(catalog: PyIcebergCatalog) -> None:
    user = parse_columns(
        [
            {"name": "id", "type": "long", "required": True, "doc": "who"},
            {"name": "ts", "type": "timestamptz"},
            {"name": "o", "type": {"type": "struct", "fields": [{"name": "a", "type": "int", "required": True}]}},
            {"name": "m", "type": "map<string,list<decimal(10,2)>>"},
        ]
    )
    table = catalog.create_dataset_table(
        "events", user, lake_id=LAKE, epoch=3, deliver_by=["id"], partition_by="day(ts), bucket(8, id)",
        properties={"strandline.adopted": "false"},
    )  # fmt: skip
    assert columns_of(table.schema()) == (
        Column("_ingest_seq", Primitive("long"), required=True),
        Column(PARTITION_COLUMN, Primitive("string"), required=True),
        *user,
    )
    assert table.name() == ("default", "events")
    assert table.metadata.format_version == 2
    properties = dict(table.properties)
    assert properties["strandline.lake"] == LAKE
    assert properties["strandline.epoch"] == "3"
    assert json.loads(properties["strandline.deliver-by"]) == ["id"]
    assert properties["strandline.adopted"] == "false"
    assert properties["write.metadata.metrics.column._ingest_seq"] == "full"
    assert int(properties["write.parquet.row-group-size-bytes"]) <= 32 << 20
    assert properties["write.metadata.delete-after-commit.enabled"] == "true", "else a healthy lake reports drift"
    spec = table.spec()
    assert [(f.name, f.transform) for f in spec.fields] == [
        ("ts_day", DayTransform()), ("id_bucket", BucketTransform(8)),
    ]  # fmt: skip
    assert [table.schema().find_column_name(f.source_id) for f in spec.fields] == ["ts", "id"]


def test_without_deliver_by_there_is_no_partition_column(catalog: PyIcebergCatalog) -> None:
    assert list(names_and_types(create(catalog, "ns.sub.events", v="string"))) == ["_ingest_seq", "v"]
    assert catalog.exists("ns.sub.events")
    assert not catalog.exists("events")


@pytest.mark.parametrize(
    "kind",
    ["boolean", "int", "long", "float", "double", "decimal(38,10)", "date", "timestamp", "timestamptz", "string",
     "uuid", "fixed[16]", "binary", "list<struct<a:int,b:map<string,double>>>"],
)  # fmt: skip
def test_every_type_that_rows_can_be_written_to_makes_a_table(catalog: PyIcebergCatalog, kind: str) -> None:
    assert names_and_types(create(catalog, "t", v=kind))["v"] == kind


def test_a_writer_that_leaves_the_number_out_is_refused_by_the_schema(catalog: PyIcebergCatalog) -> None:
    table = create(catalog)
    with pytest.raises(ValueError, match="_ingest_seq"):
        table.append(pa.table({"v": ["x"]}))
    assert catalog.load("events").current_snapshot() is None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"deliver_by": ["nope"]}, "--deliver-by names nope"),
        ({"deliver_by": ["o"]}, "which is nested"),
        ({"deliver_by": ["id", "id"]}, "twice"),
        ({"partition_by": "nope"}, "--partition-by names nope"),
        ({"partition_by": "day(id)"}, "day does not work on id"),
        ({"partition_by": "day(ts)", "columns": columns(ts="date", ts_day="int")}, "there is a column with that name"),
        ({"columns": columns(t="time")}, "column t: time cannot be used"),
        ({"columns": ()}, "at least one column"),
        ({"columns": [Column("_ingest_seq", Primitive("long"))]}, "Strandline's own"),
        ({"name": "a b"}, "cannot be the name"),
        ({"name": "a..b"}, "not the name of a table"),
    ],
)
def test_a_table_that_cannot_be_made_is_refused_and_leaves_nothing(
    catalog: PyIcebergCatalog, arguments: dict[str, Any], says: str
) -> None:
    given = {"name": "events", "columns": columns(id="long", o="list<int>"), "lake_id": LAKE, "epoch": 1} | arguments
    with pytest.raises(SchemaError, match=says):
        catalog.create_dataset_table(**given)
    assert catalog.table_names() == []


def test_a_name_that_is_taken_is_refused_and_the_table_stays(catalog: PyIcebergCatalog) -> None:
    uuid = create(catalog).metadata.table_uuid
    with pytest.raises(RefusedError, match="already"):
        create(catalog, other="long")
    assert catalog.load("events").metadata.table_uuid == uuid


def test_a_namespace_that_another_process_makes_at_the_same_moment_is_used(
    catalog: PyIcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(catalog, name="events")
    looks, real = iter([False]), SqlCatalog.namespace_exists
    monkeypatch.setattr(SqlCatalog, "namespace_exists", lambda self, name: next(looks, True) and real(self, name))
    create(catalog, name="others")


def test_a_folder_with_blanks_and_accents_works(tmp_path: Path) -> None:
    config = LakeConfig(Settings(), tmp_path / "my lake é 100%20")
    catalog = open_catalog(config)
    append_numbers(create(catalog), [1])
    glance = read_glance(config, "events")
    assert glance is not None and glance.row_count == 1
    catalog.close()
    assert (config.home / "warehouse" / "default" / "events" / "metadata").is_dir()
    assert [f.name for f in tmp_path.iterdir()] == [config.home.name], "nothing is written beside it"


def test_several_processes_may_open_a_new_catalog_at_once(config: LakeConfig) -> None:
    code = (
        "import sys; from pathlib import Path; from strandline.core.settings.lake_config import *;"
        "from strandline.iceberg.pyiceberg.catalog import open_catalog;"
        "open_catalog(LakeConfig(Settings(), Path(sys.argv[1])))"
    )
    started = [subprocess.Popen([sys.executable, "-c", code, str(config.home)]) for _ in range(3)]
    assert [p.wait(60) for p in started] == [0, 0, 0]


def test_a_new_catalog_whose_tables_another_process_has_just_made_is_opened(
    config: LakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    slower: list[SqlCatalog] = []

    def create_tables(catalog: SqlCatalog) -> None:
        SqlCatalogBaseTable.metadata.create_all(catalog.engine)
        slower.append(catalog)
        SqlCatalogBaseTable.metadata.create_all(catalog.engine, checkfirst=False)

    monkeypatch.setattr(SqlCatalog, "create_tables", create_tables)
    open_catalog(config).close()
    assert len(slower) == 1


# ---- looking and dropping --------------------------------------------------------------------------------------------


def test_all_tables_are_listed_also_those_of_others_and_those_that_cannot_be_opened(
    catalog: PyIcebergCatalog, config: LakeConfig
) -> None:
    create(catalog, "a.mine")
    create(catalog, "a.b.deeper")
    broken = create(catalog, "broken")
    catalog.drop("broken")
    assert catalog.table_names() == ["a.b.deeper", "a.mine"]
    catalog._catalog.create_table("a.theirs", schema=pa.schema({"v": pa.string()}))
    catalog._catalog.register_table("a.broken", broken.metadata_location)
    Path(broken.metadata_location.removeprefix("file://")).unlink()
    assert catalog.table_names() == ["a.b.deeper", "a.broken", "a.mine", "a.theirs"]
    assert catalog.load("a.mine").properties["strandline.lake"] == LAKE
    assert "strandline.lake" not in catalog.load("a.theirs").properties
    with pytest.raises(StorageError):
        catalog.load("a.broken")


def test_dropping_leaves_the_files(catalog: PyIcebergCatalog) -> None:
    table = create(catalog)
    append_numbers(table, [1])
    catalog.drop("events")
    assert not catalog.exists("events")
    assert Path(table.metadata_location.removeprefix("file://")).is_file()
    with pytest.raises(NoSuchDataset):
        catalog.drop("events")
    with pytest.raises(NoSuchDataset):
        catalog.load("nowhere.events")


def test_a_table_that_is_gone_is_told_from_one_whose_metadata_is_elsewhere(
    catalog: PyIcebergCatalog, config: LakeConfig
) -> None:
    names = ["default.here", "default.gone", "default.bucket"]
    for name in names:
        create(catalog, name)
    glances = TableGlances(config)
    assert all(isinstance(found, TableGlance) for found in glances.read(names).values())
    catalog.drop("gone")
    file = config.path(config.settings.catalog.path)
    with closing(sqlite3.connect(file)) as moved, moved:
        moved.execute("UPDATE iceberg_tables SET metadata_location = 's3://b/m.json' WHERE table_name = 'bucket'")
    here, gone, bucket = glances.read(names).values()
    assert isinstance(here, TableGlance) and (gone, bucket) == (NoGlance.GONE, NoGlance.ELSEWHERE)
    catalog.close()
    file.unlink()
    assert {str(found) for found in glances.read(names).values()} == {f"there is no catalog at {file}"}
    assert glances.read([]) == {}


# ---- altering --------------------------------------------------------------------------------------------------------


def test_all_alterations_are_one_commit_and_rewrite_nothing(catalog: PyIcebergCatalog) -> None:
    table = create(catalog, v="string", n="int", d="decimal(5,2)", old="float", gone="date", o="struct<a:int,b:string>")
    snapshots = len(table.metadata.snapshots)
    altered = catalog.alter(
        "events",
        [
            AddColumn("extra", parse_type("list<struct<x:int>>", where="extra"), "why not"),
            AddColumn("o.c", Primitive("uuid")),
            WidenColumn("n", Primitive("long")),
            WidenColumn("d", Primitive("decimal(9,2)")),
            WidenColumn("o.a", Primitive("long")),
            RenameColumn("old", "new"),
            RenameColumn("o.b", "bb"),
            DropColumn("gone"),
        ],
    )
    expected = {
        "_ingest_seq": "long", "v": "string", "n": "long", "d": "decimal(9,2)", "new": "float",
        "o": "struct<a:long,bb:string,c:uuid>", "extra": "list<struct<x:int>>",
    }  # fmt: skip
    assert names_and_types(altered) == expected
    fresh = catalog.load("events")
    assert names_and_types(fresh) == expected
    assert fresh.schema().find_field("_ingest_seq").required
    assert fresh.schema().find_field("extra").doc == "why not"
    assert len(fresh.metadata.metadata_log) == len(table.metadata.metadata_log) + 1
    assert len(fresh.metadata.snapshots) == snapshots


@pytest.mark.parametrize(
    ("alterations", "says"),
    [
        ([], "nothing to change"),
        ([DropColumn("_ingest_seq")], "Strandline's own"),
        ([RenameColumn(PARTITION_COLUMN, "p")], "Strandline's own"),
        ([WidenColumn("_Ingest_Seq", Primitive("long"))], "Strandline's own"),
        ([AddColumn(PARTITION_COLUMN, Primitive("string"))], "Strandline's own"),
        ([RenameColumn("v", "_ingest_seq")], "Strandline's own"),
        ([RenameColumn("v", "_pos")], "Iceberg's own"),
        ([AddColumn("_sl_line", Primitive("long"))], "Strandline's own"),
        ([AddColumn("_row_id", Primitive("long"))], "Iceberg's own"),
        ([DropColumn("region")], "delivered by it"),
        ([RenameColumn("region", "area")], "delivered by it"),
        ([WidenColumn("shard", Primitive("long"))], "delivered by it"),
        ([DropColumn("ts")], "partitioned by it"),
        ([DropColumn("o")], "partitioned by it"),
        ([DropColumn("nope")], "no column nope"),
        ([DropColumn("one.only")], "the only one"),
        ([AddColumn("V", Primitive("int"))], "there is a column v already"),
        ([AddColumn("v", Primitive("int"))], "exists already"),
        ([AddColumn("v.x", Primitive("int"))], "is not a struct"),
        ([AddColumn("t", Primitive("time"))], "time cannot be used"),
        ([AddColumn("x", Primitive("int")), AddColumn("X", Primitive("int"))], "same name"),
        ([RenameColumn("v", "n")], "there is a column n already"),
        ([RenameColumn("v", "a.b")], "dot"),
        ([RenameColumn("v", "")], "empty"),
        ([WidenColumn("n", Primitive("int"))], "long cannot become int"),
        ([WidenColumn("v", Primitive("binary"))], "string cannot become binary"),
        ([WidenColumn("o", Primitive("long"))], "cannot become long"),
        ([RenameColumn("v", "w"), DropColumn("v")], "two changes of one column"),
    ],
)
def test_alterations_that_would_break_something_are_refused(
    catalog: PyIcebergCatalog, alterations: list[Alteration], says: str
) -> None:
    user = columns(v="string", n="long", region="string", shard="int", ts="timestamp", o="struct<k:int>",
                   one="struct<only:int>")  # fmt: skip
    table = catalog.create_dataset_table(
        "events", user, lake_id=LAKE, epoch=1, deliver_by=["region", "shard"], partition_by="day(ts), o.k"
    )
    with pytest.raises(SchemaError, match=says):
        catalog.alter("events", alterations)
    assert catalog.load("events").metadata_location == table.metadata_location


def test_the_last_column_of_the_user_stays(catalog: PyIcebergCatalog) -> None:
    create(catalog, v="string")
    with pytest.raises(SchemaError, match="the only one"):
        catalog.alter("events", [DropColumn("v")])


def test_alterations_that_lose_against_others_are_repeated_and_none_is_lost(
    catalog: PyIcebergCatalog, config: LakeConfig
) -> None:
    create(catalog)
    errors: list[BaseException] = []

    def add(n: int) -> None:
        own = open_catalog(config)
        try:
            for i in range(4):
                own.alter("events", [AddColumn(f"c{n}_{i}", Primitive("int"))])
                own.alter("events", [AddColumn(f"p{n}_{i}", Primitive("int"))])
        except BaseException as e:
            errors.append(e)
        finally:
            own.close()

    threads = [threading.Thread(target=add, args=(n,)) for n in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors
    table = catalog.load("events")
    wanted = [f"{n}_{i}" for n in range(3) for i in range(4)]
    assert {f"c{w}" for w in wanted} <= set(names_and_types(table))
    assert {f"p{w}" for w in wanted} <= set(names_and_types(table))


@pytest.mark.parametrize("landed", [True, False])
def test_a_change_whose_answer_was_lost_is_settled_by_looking(
    catalog: PyIcebergCatalog, monkeypatch: pytest.MonkeyPatch, landed: bool
) -> None:
    create(catalog, v="string", n="int")
    real, answers = catalog._catalog.commit_table, ["lost"]

    def commit(*arguments: Any) -> Any:
        if answers and answers.pop():
            if landed:
                real(*arguments)
            raise CommitStateUnknownException("no answer")
        return real(*arguments)

    monkeypatch.setattr(catalog._catalog, "commit_table", commit)
    changes = [AddColumn("x", Primitive("int")), WidenColumn("n", Primitive("long")), RenameColumn("v", "w")]
    catalog.alter("events", changes)
    table = catalog.load("events")
    assert names_and_types(table) == {"_ingest_seq": "long", "w": "string", "n": "long", "x": "int"}
    assert len(table.metadata.schemas) == 2, "it was made once"


def test_a_change_that_never_gets_through_says_so(catalog: PyIcebergCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    create(catalog)
    tried = []

    def lose(*arguments: Any) -> None:
        tried.append(arguments)
        raise CommitFailedException("someone was faster")

    monkeypatch.setattr(catalog._catalog, "commit_table", lose)
    monkeypatch.setattr("strandline.core.retry.time", SimpleNamespace(monotonic=monotonic, sleep=lambda _: None))
    with pytest.raises(CommitUnknown):
        catalog.alter("events", [AddColumn("x", Primitive("int"))])
    assert 1 < len(tried) <= 20


# ---- counting --------------------------------------------------------------------------------------------------------


def legacy(catalog: PyIcebergCatalog, rows: int = 3) -> Table:
    catalog._catalog.create_namespace_if_not_exists("default")
    table = catalog._catalog.create_table("default.old", schema=pa.schema({"v": pa.string(), "r": pa.string()}))
    if rows:
        table.append(pa.table({"v": ["x"] * rows, "r": ["eu"] * rows}))
    return table


def adopt(catalog: PyIcebergCatalog) -> None:
    """As `iceberg/spark/prepare.py` does."""
    table = catalog.load("old")
    with table.transaction() as transaction:
        with transaction.update_schema() as update:
            update.add_column("_ingest_seq", LongType())
            update.move_first("_ingest_seq")
        since = str(table.metadata.last_sequence_number)
        transaction.set_properties({METRICS_PROPERTY: "full", NUMBERED_SINCE_PROPERTY: since})


def opened_files(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    from strandline.iceberg.pyiceberg import foreign_rows as module

    opened: list[str] = []
    real = module._ForeignRowCounter._read

    def read(self: Any, file: Any, deletes: Any) -> Any:
        opened.append(file.file_path)
        return real(self, file, deletes)

    monkeypatch.setattr(module._ForeignRowCounter, "_read", read)
    return opened


def not_ours(table: Table, owned: Sequence[SeqRange]) -> tuple[int, int]:
    counted = count_foreign_rows(table, owned, lambda snapshot, highest: True, last=0)
    assert counted is not None
    snapshot = table.current_snapshot()
    assert counted.snapshot == (None if snapshot is None else snapshot.snapshot_id)
    return counted.unnumbered, counted.foreign


def test_rows_without_a_number_foreign_and_straddling_ones_are_counted(
    catalog: PyIcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    legacy(catalog, rows=7)
    adopt(catalog)
    table = catalog.load("old")
    append_numbers(table, range(1, 11), required=False)  # wholly ours, over two neighbouring blocks
    append_numbers(table, range(1000, 1005), required=False)  # wholly foreign
    append_numbers(table, [None, 3, None], required=False)  # two without, one ours
    append_numbers(table, [None] * 4, required=False)
    owned = ranges((1, 6), (7, 20), (30, 40))
    opened = opened_files(monkeypatch)
    assert not_ours(table, owned) == (7 + 2 + 4, 5)
    assert opened == [], "manifests suffice for all of these"
    append_numbers(table, [19, 20, 21, 29, 30, 41, None], required=False)  # straddles: 21, 29 and 41 are foreign
    assert not_ours(table, owned) == (14, 8)
    assert len(opened) == 1


def test_a_number_that_stands_twice_is_foreign_once_and_only_files_that_may_hold_one_are_read(
    catalog: PyIcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create(catalog)
    append_numbers(table, range(1, 11))
    append_numbers(table, range(11, 21))
    snapshots = {s.snapshot_id for s in table.snapshots()}
    opened = opened_files(monkeypatch)

    def counted(owned: Sequence[SeqRange]) -> tuple[int, int | None, int | None]:
        found = count_foreign_rows(table, owned, lambda snapshot, highest: snapshot in snapshots, last=30)
        assert found is not None
        return found.foreign, found.twice, found.twice_first

    assert counted(ranges((1, 20))) == (0, 0, None)
    append_numbers(table, range(21, 31))  # not known to be ours, and meets nobody
    assert counted(ranges((1, 30))) == (0, 0, None) and opened == []
    append_numbers(table, [14])
    assert counted(ranges((1, 30))) == (1, 1, 14)
    assert len(opened) == 2, "the file that it is in, and the one that has the number already"
    append_numbers(table, [40, 40])
    assert counted(ranges((1, 30))) == (3, 1, 14), "a number that nobody owns makes its rows foreign, twice or not"
    assert counted(ranges((1, 50))) == (2, 2, 14)
    monkeypatch.setattr(duplicate_numbers, "ROWS_READ_MAX", 5)
    assert counted(ranges((1, 50))) == (0, None, None), "not known, rather than read for ever"


def test_a_count_tells_the_lowest_foreign_number_that_a_later_block_could_get(
    catalog: PyIcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create(catalog)
    opened = opened_files(monkeypatch)

    def foreign_from(last: int) -> int | None:
        found = count_foreign_rows(table, ranges((1, 10)), lambda snapshot, highest: True, last)
        assert found is not None
        return found.foreign_from

    append_numbers(table, range(1, 11))
    assert foreign_from(10) is None
    append_numbers(table, [500, 900])
    append_numbers(table, [15])
    assert (foreign_from(10), foreign_from(15), foreign_from(900)) == (15, 500, None) and opened == []
    assert foreign_from(600) == 900, "the bounds of a file on both sides of the counter do not tell"
    assert len(opened) == 1
    append_numbers(table, [3, -4, 12, 2**62])
    assert foreign_from(10) == 12 and foreign_from(900) == 2**62


def test_files_without_figures_for_the_column_are_read(
    catalog: PyIcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create(catalog)
    set_properties(catalog, "events", {"write.metadata.metrics.column._ingest_seq": "none"})
    table = catalog.load("events")
    append_numbers(table, [1, 2, 3, 99])
    opened = opened_files(monkeypatch)
    assert not_ours(table, ranges((1, 3))) == (0, 1)
    assert len(opened) == 1


def test_a_file_of_an_old_writer_lacks_the_column_and_counts_as_unnumbered(catalog: PyIcebergCatalog) -> None:
    """Written before the column, committed after it: neither figures nor the table's history tell."""
    table = legacy(catalog, rows=2)
    stale = catalog.load("old")
    adopt(catalog)
    stale.append(pa.table({"v": ["late"], "r": ["eu"]}))
    table.refresh()
    assert not_ours(table, ranges((1, 100))) == (3, 0)


def test_a_table_without_the_column_has_only_rows_without_numbers(catalog: PyIcebergCatalog) -> None:
    assert not_ours(legacy(catalog, rows=5), []) == (5, 0)


def test_nothing_owned_makes_every_number_foreign_and_an_empty_table_has_none(catalog: PyIcebergCatalog) -> None:
    table = create(catalog)
    assert not_ours(table, []) == (0, 0)
    append_numbers(table, [5, 9])
    assert not_ours(table, []) == (0, 2)


def test_deleted_rows_do_not_count(catalog: PyIcebergCatalog) -> None:
    table = create(catalog)
    append_numbers(table, [1, 2, 50, 51, 52])
    table.delete("_ingest_seq = 51")
    assert not_ours(table, ranges((1, 10))) == (0, 2)


def test_only_main_is_counted(catalog: PyIcebergCatalog) -> None:
    table = create(catalog)
    append_numbers(table, [1])
    snapshot = table.current_snapshot()
    assert snapshot is not None
    table.manage_snapshots().create_branch(snapshot.snapshot_id, "sl_2").commit()
    schema = pa.schema([pa.field("_ingest_seq", pa.int64(), nullable=False), pa.field("v", pa.string())])
    table.append(pa.table({"_ingest_seq": [2], "v": ["staged"]}, schema=schema), branch="sl_2")
    assert not_ours(catalog.load("events"), []) == (0, 1)


def test_a_hundred_thousand_owned_ranges_cost_little(catalog: PyIcebergCatalog) -> None:
    table = create(catalog)
    append_numbers(table, list(range(1, 300_001)))
    owned = ranges(*((lo, lo + 1) for lo in range(1, 300_001, 3)))
    assert len(owned) == 100_000
    assert not_ours(table, owned) == (0, 100_000)


def test_owned_ranges_out_of_order_are_a_mistake_of_the_caller(catalog: PyIcebergCatalog) -> None:
    table = create(catalog)
    append_numbers(table, [1])
    with pytest.raises(ValueError, match="sorted"):
        not_ours(table, ranges((5, 6), (1, 2)))


# ---- the pointer -----------------------------------------------------------------------------------------------------


def test_the_glance_agrees_with_pyiceberg(catalog: PyIcebergCatalog, config: LakeConfig) -> None:
    table = create(catalog)
    empty = read_glance(config, "events")
    assert empty is not None and empty.row_count == 0 and empty.view.main is None and empty.history == ()
    append_numbers(table, [1, 2])
    schema = pa.schema([pa.field("_ingest_seq", pa.int64(), nullable=False), pa.field("v", pa.string())])
    table.append(pa.table({"_ingest_seq": [3], "v": ["x"]}, schema=schema), snapshot_properties={"wap.id": "w3"})
    head = table.current_snapshot()
    assert head is not None
    table.manage_snapshots().create_branch(head.snapshot_id, "sl_4").create_branch(head.snapshot_id, "mine").commit()
    glance = read_glance(config, "default.events")
    assert glance is not None
    assert glance.metadata_location == table.metadata_location
    assert glance.view.uuid == str(table.metadata.table_uuid)
    assert glance.view.format_version == table.metadata.format_version
    assert glance.view.main == head.snapshot_id
    assert dict(glance.view.properties) == dict(table.properties)
    assert glance.row_count == 3 == table.scan().count()
    assert list(glance.view.branches) == ["sl_4"]
    assert [(s.id, s.parent, s.operation, s.wap) for s in glance.history] == [
        (head.snapshot_id, head.parent_snapshot_id, "append", "w3"),
        (head.parent_snapshot_id, None, "append", None),
    ]
    column = glance.view.column("_ingest_seq")
    assert column is not None and column["required"]


def test_the_row_count_is_unknown_where_delete_files_hide_it(catalog: PyIcebergCatalog, config: LakeConfig) -> None:
    table = create(catalog)
    append_numbers(table, [1, 2])
    location = Path(table.metadata_location.removeprefix("file://"))
    metadata = json.loads(location.read_text())
    metadata["snapshots"][-1]["summary"]["total-delete-files"] = "1"
    location.write_text(json.dumps(metadata))
    glance = read_glance(config, "events")
    assert glance is not None and glance.row_count is None


def test_there_is_no_glance_at_what_is_not_there_or_not_local(catalog: PyIcebergCatalog, config: LakeConfig) -> None:
    assert read_glance(config, "events") is None
    assert read_glance(LakeConfig(Settings(), config.home / "nowhere"), "events") is None
    remote = Settings(catalog={"kind": "rest", "uri": "http://127.0.0.1:1"})
    assert read_glance(LakeConfig(remote, config.home), "events") is None
    assert read_glance(LakeConfig(Settings(warehouse={"url": "s3://b/p"}), config.home), "events") is None


def test_metadata_that_is_gone_or_no_catalog_is_a_storage_error(catalog: PyIcebergCatalog, config: LakeConfig) -> None:
    table = create(catalog)
    Path(table.metadata_location.removeprefix("file://")).unlink()
    with pytest.raises(StorageError, match="does not exist"):
        read_glance(config, "events")
    with pytest.raises(StorageError):
        catalog.load("events")
    config.path("other.db").write_bytes(b"this is not a database" * 100)
    with pytest.raises(StorageError, match="cannot be read"):
        read_glance(LakeConfig(Settings(catalog={"path": "other.db"}), config.home), "events")


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: b"",
        lambda content: b"[]",
        lambda content: b"null",
        lambda content: b"[" * 100_000,
        lambda content: content.replace(b'"table-uuid"', b'"table-uuie"'),
        lambda content: content.replace(b'"location"', b'"locatiom"'),
        lambda content: content.replace(b'"refs":{', b'"refs":7,"rest":{'),
        lambda content: content.replace(b"default", b"def\xffult"),
        lambda content: gzip.compress(content)[:-20],
        lambda content: gzip.compress(content)[:30] + b"x" * 40,
    ],
)
def test_damaged_metadata_is_a_storage_error_at_once(
    catalog: PyIcebergCatalog, config: LakeConfig, damage: Callable[[bytes], bytes]
) -> None:
    table = create(catalog)
    append_numbers(table, [1])
    location = Path(table.metadata_location.removeprefix("file://"))
    location.write_bytes(damage(location.read_bytes()))
    with pytest.raises(StorageError, match=r"default\.events: its metadata .* cannot be read") as told:
        read_glance(config, "events")
    assert told.value.hint


def test_the_glance_pays_for_no_heavy_import() -> None:
    code = (
        "import sys, strandline.iceberg.metadata.metadata_peek, strandline.iceberg.schema.columns;"
        "import strandline.iceberg.schema.alteration;"
        "print([m for m in ('pyiceberg', 'pyarrow', 'pyspark', 'numpy', 'alembic') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
