"""The readers of the Spark data source against real tables, as Spark calls them, without a JVM."""

from __future__ import annotations

import pickle
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestFile
from pyiceberg.table import Table
from pyiceberg.typedef import Record
from pyspark import cloudpickle
from pyspark.sql import datasource as spark
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from strandline.core.errors import (
    DuplicateNumbers,
    NoSuchConsumer,
    RefusedError,
    SchemaError,
    StorageError,
    TableUnfit,
    TokenError,
    UsageError,
)
from strandline.core.read_token import Continuation
from strandline.core.records.audit_events import Event
from strandline.core.sites.replication import OnLag
from strandline.core.types import SEQ_COLUMN, Published, Reserved, Seq, SnapshotId
from strandline.iceberg.metadata.table_metadata import FLOOR_PREFIX
from strandline.iceberg.pyiceberg.arrow_values import to_iceberg
from strandline.iceberg.pyiceberg.range_files import RangeFiles, fields_of
from strandline.iceberg.range_rows import RangeOfFile, RowReader
from strandline.iceberg.schema.alteration import AddColumn, DropColumn, RenameColumn, WidenColumn
from strandline.iceberg.schema.columns import Column, ListOf, MapOf, Primitive, Struct
from strandline.lake import Lake, open_lake
from strandline.lake_admin import init_lake
from strandline.ledger.ingest import blocks
from strandline.ledger.maintain import floors
from strandline.ledger.read import consumers
from strandline.ledger.read.consumers import ConsumerTerms
from strandline.ledger.replicate import cuts
from strandline.read.source import settled_source
from strandline.read.source.columns import arrow_schema, frame_schema, to_read
from strandline.read.source.spark_source import PushingSource, StrandlineSource
from tests.conftest import MakeHome

if TYPE_CHECKING:
    from tests.rest_catalog import RestCatalogs
    from tests.servers import S3

COLUMNS = [Column("n", Primitive("long")), Column("text", Primitive("string"))]
EVERY = [
    *COLUMNS,
    Column("price", Primitive("decimal(9,2)"), required=True, doc="in euro"),
    Column("at", Primitive("timestamptz")),
    Column("wall", Primitive("timestamp")),
    Column("id", Primitive("uuid")),
    Column("four", Primitive("fixed[4]")),
    Column("tags", ListOf(Primitive("string"))),
    Column("parts", ListOf(Struct((Column("k", Primitive("int")), Column("u", Primitive("uuid")))))),
    Column("by", MapOf(Primitive("string"), ListOf(Primitive("long")))),
]


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    init_lake(tmp_path).close()
    with open_lake(tmp_path) as made:
        made.create_dataset("events", COLUMNS)
        yield made


def table(lake: Lake, name: str = "events") -> Table:
    return lake.catalog.load(f"default.{name}")


def add(lake: Lake, rows: int, name: str = "events", **more: Any) -> list[int]:
    """One published block in one file; returns its sequence numbers."""
    target = lake.dataset(name)
    wanted = blocks.NewBlock(target.id, rows, f"batch-{lake.ledger.query(blocks.highest, target.id)}", None)
    block, _ = blocks.reserve(lake.ledger, lake.witness, wanted, lease_seconds=600)
    assert isinstance(block, Reserved)
    numbers = list(range(block.head.rows.lo, block.head.rows.hi + 1))
    append(lake, numbers, name, **more)
    snapshot = table(lake, name).current_snapshot()
    assert snapshot is not None
    assert blocks.mark_staged(lake.ledger, lake.witness, block, SnapshotId(snapshot.snapshot_id))
    staged = blocks.find_block(lake.ledger, block.head)
    assert isinstance(staged, blocks.Staged)
    found = {"row_count": rows, "snapshot": SnapshotId(snapshot.snapshot_id)}
    assert blocks.mark_published(lake.ledger, staged, **found)
    assert isinstance(blocks.find_block(lake.ledger, block.head), Published)
    return numbers


def append(lake: Lake, numbers: Sequence[int], name: str = "events", **more: Any) -> None:
    target = table(lake, name)
    columns = target.schema().column_names
    rows = [
        {k: v for k, v in ({SEQ_COLUMN: n, "n": n, "text": f"t{n}"} | more).items() if k in columns} for n in numbers
    ]
    as_in_spark = pa.Table.from_pylist(rows, arrow_schema(fields_of(target)))
    kinds = target.schema().as_arrow()
    columns_of = [to_iceberg(as_in_spark[f.name].combine_chunks(), f.type) for f in kinds]
    target.append(pa.Table.from_arrays(columns_of, schema=kinds))


def raise_floor(lake: Lake, to: int) -> None:
    with lake.ledger.write() as connection:
        floors.raise_to(connection, lake.dataset("events").id, Seq(to))


def source(lake: Lake, kind: type[StrandlineSource] = StrandlineSource, **options: Any) -> StrandlineSource:
    given = {"lake": str(lake.config.home), "dataset": "events", **options}
    return kind(spark.CaseInsensitiveDict({k: str(v) for k, v in given.items()}))


def rows_of(reader: Any, parts: Sequence[Any]) -> pa.Table:
    """As tasks read them: the reader goes there pickled, as Spark does it, and so does each part."""
    there = pickle.loads(cloudpickle.dumps(reader))
    batches = [b for part in parts or [None] for b in there.read(pickle.loads(cloudpickle.dumps(part)))]
    return pa.Table.from_batches(batches) if batches else pa.table({"n": pa.array([], pa.int64())})


def read(lake: Lake, schema: T.StructType | None = None, **options: Any) -> pa.Table:
    made = source(lake, **options)
    reader = made.reader(schema or made.schema())
    return rows_of(reader, reader.partitions())


def ns(found: pa.Table) -> list[int]:
    return sorted(found.column(0).to_pylist())


class Query:
    """What Spark does with a stream: it logs where a batch ends, runs it, and asks for the next one. It does not log
    where the first one begins, and runs that one even without rows."""

    def __init__(self, lake: Lake, **options: Any) -> None:
        self.made = source(lake, **options)
        self.schema = self.made.schema()
        self.logged: list[Any] = []
        self.got: list[list[int]] = []
        self.reader: Any = None
        self.start()

    def start(self, *, unfinished: bool = False) -> None:
        """As a new process, from the log. `unfinished`: the last batch that was logged is run again."""
        if self.reader is not None:
            self.reader.stop()
        self.reader = self.made.streamReader(self.schema)
        if self.logged:
            assert list(self.reader.partitions(self.logged[-1], self.logged[-1])) == []
        if unfinished:
            self.got.pop()
            self.run()

    def move(self, lake: Lake, **options: Any) -> None:
        """Stopped, and started from its log at another site."""
        self.made = source(lake, **options)
        self.start()

    def trigger(self) -> bool:
        end = self.reader.latestOffset()
        if self.logged and end == self.logged[-1]:
            return False
        self.logged.append(end)
        self.run()
        return True

    def run(self) -> None:
        start = self.logged[-2] if len(self.logged) > 1 else self.reader.initialOffset()
        self.got.append(ns(rows_of(self.reader, self.reader.partitions(start, self.logged[-1]))))

    def drain(self) -> list[list[int]]:
        while self.trigger():
            pass
        return self.got


def test_a_read_has_the_rows_up_to_the_seal_and_the_columns_that_were_asked_for(lake: Lake) -> None:
    assert ns(read(lake)) == []
    first, second = add(lake, 10), add(lake, 10)
    assert ns(read(lake)) == [*first, *second]
    assert ns(read(lake, until=5)) == first[:5]
    token = Continuation(lake.id, lake.dataset("events").uuid, Seq(first[-1])).encode()
    assert ns(read(lake, since=token)) == second
    found = read(lake, columns="text", with_sequence="true")
    assert found.column_names == [SEQ_COLUMN, "text"] and found["text"].to_pylist()[0] == f"t{first[0]}"
    with pytest.raises(UsageError, match="above what is settled"):
        read(lake, until=999)
    with pytest.raises(SchemaError, match="there is no column 'nobody'"):
        read(lake, columns="nobody")
    chosen = T.StructType([T.StructField("text", T.StringType())])
    assert read(lake, chosen).column_names == ["text"]
    with pytest.raises(SchemaError, match="column n is bigint, and the schema has int"):
        read(lake, T.StructType([T.StructField("n", T.IntegerType())]))


def test_a_condition_reaches_files_and_rows(lake: Lake) -> None:
    numbers = add(lake, 10)
    more = add(lake, 10)
    assert ns(read(lake, where=f"n > {numbers[7]} AND n <= {more[0]}")) == [*numbers[8:], more[0]]
    assert read(lake, where="n = 3", columns="text")["text"].to_pylist() == ["t3"]
    assert len(source(lake, where=f"n >= {more[0]}").reader(T.StructType([])).partitions()[0].files) == 1
    for bad in ("nobody = 1", "n ==== 2", "n = 'x'"):
        with pytest.raises(UsageError, match="the condition"):
            source(lake, where=bad).schema()


def test_what_spark_pushes_down_spares_it_rows_and_files_and_is_checked_by_spark_again(lake: Lake) -> None:
    add(lake, 10)
    add(lake, 10)
    made = source(lake, PushingSource)
    reader: Any = made.reader(made.schema())
    pushed = [
        spark.GreaterThan(("n",), 12),
        spark.Not(spark.In(("n",), (14, 15))),
        spark.StringContains(("text",), "1"),
    ]
    assert list(reader.pushFilters(pushed)) == pushed
    parts = reader.partitions()
    assert [len(p.files) for p in parts] == [1]
    assert ns(rows_of(reader, parts)) == [13, 16, 17, 18, 19, 20]


def test_every_type_arrives_as_spark_has_it(lake: Lake) -> None:
    lake.create_dataset("types", EVERY)
    uuid = "12345678-1234-1234-1234-123456789abc"
    given = {
        "n": 1, "text": "t", "price": Decimal("1.50"), "at": 1, "wall": 2, "id": uuid,
        "four": b"abcd", "tags": ["a", None], "parts": [{"k": 1, "u": None}, None],
        "by": [("x", [1, None]), ("y", None)],
    }  # fmt: skip
    add(lake, 1, "types", **given)
    made = source(lake, dataset="types")
    schema = made.schema()
    assert schema["price"].metadata == {"comment": "in euro"} and not schema["price"].nullable
    assert schema["id"].dataType == T.StringType() and schema["four"].dataType == T.BinaryType()
    found = read(lake, dataset="types")
    assert [f.type for f in found.schema] == [f.type for f in to_arrow_schema(schema)]
    [row] = found.to_pylist()
    assert row["id"] == uuid and row["four"] == b"abcd" and row["price"] == Decimal("1.50")
    assert row["parts"] == [{"k": 1, "u": None}, None] and row["by"] == [("x", [1, None]), ("y", None)]
    assert row["tags"] == ["a", None]


def test_columns_are_found_by_their_ids_whatever_the_schema_was(lake: Lake) -> None:
    lake.create_dataset("altered", [Column("n", Primitive("int")), Column("text", Primitive("string"))])
    add(lake, 2, "altered")
    for change in (
        RenameColumn("text", "label"), WidenColumn("n", Primitive("long")), AddColumn("text", Primitive("int")),
    ):  # fmt: skip
        lake.alter_dataset("altered", [change])
    found = read(lake, dataset="altered")
    assert found["label"].to_pylist() == ["t1", "t2"] and found["text"].to_pylist() == [None, None]
    assert found["n"].type == pa.int64()
    lake.alter_dataset("altered", [DropColumn("label")])
    assert read(lake, dataset="altered").column_names == ["n", "text"]


def test_a_column_that_is_younger_than_a_file_has_its_default_there(lake: Lake) -> None:
    numbers = add(lake, 3)
    [file] = RangeFiles().find(table(lake), 1, 10)
    own = fields_of(table(lake))

    def rows_with(**more: Any) -> pa.Table:
        fields = (*own, {"id": 99, "name": "extra", "required": False, **more})
        reader = RowReader(fields, arrow_schema(fields), ("n", "extra"))
        return pa.Table.from_batches(list(reader.read(RangeOfFile(file.location, 1, numbers[-1]))))

    assert rows_with(type="long").to_pylist() == [{"n": n, "extra": None} for n in numbers]
    for kind, value in {"long": 7, "string": "none", "boolean": False, "double": 0.5}.items():
        assert rows_with(**{"type": kind, "initial-default": value})["extra"].to_pylist() == [value] * 3
    with pytest.raises(TableUnfit, match="column extra of type date has a default"):
        rows_with(**{"type": "date", "initial-default": "2026-01-01"})
    inner = {"id": 98, "name": "in", "required": False, "type": "long", "initial-default": 1}
    nested = {"id": 99, "name": "extra", "required": False, "type": {"type": "struct", "fields": (inner,)}}
    with pytest.raises(TableUnfit, match="a field inside column extra has a default"):
        to_read([*own, nested], frame_schema([nested]), frozenset())
    assert to_read([*own, nested], frame_schema(own), frozenset()).names == (SEQ_COLUMN, "n", "text")


def test_rows_that_others_wrote_and_deleted_rows_are_not_read(lake: Lake, tmp_path: Path) -> None:
    numbers = add(lake, 10)
    append(lake, [3_000, 3_001])
    later = add(lake, 5)
    assert ns(read(lake)) == [*numbers, *later]
    [file, *_] = RangeFiles().find(table(lake), 1, 10)
    places = pa.table({"file_path": [file.location] * 3, "pos": pa.array([0, 4, 9], pa.int64())})
    pq.write_table(places, tmp_path / "deletes.parquet")
    deletes = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES, file_path=f"file://{tmp_path}/deletes.parquet",
        file_format=FileFormat.PARQUET, partition=Record(),
    )  # fmt: skip
    reader: Any = source(lake).reader(source(lake).schema())
    task = reader.__reduce__()[1][0]
    assert isinstance(task, RowReader)
    left = task.read(RangeOfFile(file.location, 2, 10, (deletes,)))
    assert [n for batch in left for n in batch["n"].to_pylist()] == [2, 3, 4, 6, 7, 8, 9]


def test_a_number_on_two_rows_stops_the_read(lake: Lake) -> None:
    numbers = add(lake, 10)
    append(lake, numbers[4:5])
    with pytest.raises(DuplicateNumbers):
        read(lake)


def test_a_file_that_is_gone_says_what_to_do(lake: Lake) -> None:
    add(lake, 3)
    reader: Any = source(lake).reader(source(lake).schema())
    parts = reader.partitions()
    Path(parts[0].files[0].location.removeprefix("file://")).unlink()
    with pytest.raises(StorageError, match="is gone"):
        rows_of(reader, parts)


def test_a_stream_has_each_row_once_and_a_batch_that_is_repeated_has_the_same(lake: Lake) -> None:
    first = add(lake, 10)
    query = Query(lake)
    assert query.drain() == [first]
    second = add(lake, 10)
    query.trigger()
    add(lake, 10)
    query.start(unfinished=True)
    assert query.got == [first, second], "rows that came since do not change the batch"
    query.drain()
    assert [len(batch) for batch in query.got] == [10, 10, 10]


def test_a_stream_goes_in_steps_also_after_a_restart(lake: Lake) -> None:
    add(lake, 10)
    add(lake, 25)
    query = Query(lake, max_rows_per_trigger=10)
    query.trigger()
    query.start()
    query.trigger()
    query.start(unfinished=True)
    query.drain()
    assert [len(batch) for batch in query.got] == [10, 10, 10, 5]
    assert [n for batch in query.got for n in batch] == list(range(1, 36))


def test_a_stream_begins_where_it_was_told_and_ends_where_it_was_told(lake: Lake) -> None:
    first = add(lake, 10)
    second = add(lake, 10)
    token = Continuation(lake.id, lake.dataset("events").uuid, Seq(first[3])).encode()
    assert Query(lake, since=token, until=second[1]).drain() == [[*first[4:], *second[:2]]]
    latest = Query(lake, since="latest")
    assert latest.drain() == [[]]
    third = add(lake, 2)
    assert latest.drain() == [[], third]


def test_the_first_batch_begins_where_it_did_when_it_is_repeated(lake: Lake) -> None:
    """By then, the latest row is another one."""
    add(lake, 10)
    query = Query(lake, since="latest")
    query.reader._where()
    second = add(lake, 5)
    query.trigger()
    add(lake, 7)
    query.start(unfinished=True)
    assert query.got == [second]


def test_an_idle_trigger_asks_the_ledger_and_opens_no_table(lake: Lake) -> None:
    add(lake, 5)
    query = Query(lake, consumer="report")
    query.drain()
    query.start()
    for _ in range(3):
        assert query.trigger() is False
    assert "catalog" not in query.reader.source.__dict__


def test_a_step_of_a_long_backlog_plans_its_own_files_and_opens_a_manifest_once(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(12):
        add(lake, 5)
    opened: list[str] = []
    fetch = ManifestFile.fetch_manifest_entry

    def counted(manifest: ManifestFile, *args: Any, **more: Any) -> Any:
        opened.append(manifest.manifest_path)
        return fetch(manifest, *args, **more)

    query = Query(lake, max_rows_per_trigger=10)
    monkeypatch.setattr(ManifestFile, "fetch_manifest_entry", counted)
    query.trigger()
    opened.clear()
    query.trigger()
    assert query.got[-1] == list(range(11, 21)) and len(opened) == 2, "a manifest for each of the two blocks"
    parts = query.reader.partitions(query.logged[-2], query.logged[-1])
    assert sum(len(part.files) for part in parts) == 2


def test_a_query_without_a_name_that_comes_too_late_is_told_which_numbers_are_gone(lake: Lake) -> None:
    add(lake, 10)
    query = Query(lake)
    query.drain()
    add(lake, 10)
    add(lake, 5)
    raise_floor(lake, 20)
    with pytest.raises(RefusedError, match=r"rows 11\.\.20 of default\.events may be gone"):
        query.trigger()
    assert Query(lake).drain() == [[21, 22, 23, 24, 25]], "a new one begins above them"


def test_rows_that_retention_deletes_while_a_batch_is_planned_are_not_passed_over(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(lake, 10)
    query = Query(lake)
    query.drain()
    gone = add(lake, 10)
    add(lake, 5)
    load = settled_source.check_loaded_with_view

    def loaded_after_retention(*args: Any) -> Any:
        raise_floor(lake, gone[-1])
        return load(*args)

    monkeypatch.setattr(settled_source, "check_loaded_with_view", loaded_after_retention)
    with pytest.raises(RefusedError, match=f"rows {gone[0]}..{gone[-1]} .* may be gone"):
        query.trigger()


def test_the_floor_on_the_table_counts_where_the_ledger_was_restored_from_before_it(lake: Lake) -> None:
    add(lake, 10)
    query = Query(lake)
    query.drain()
    gone = add(lake, 10)
    with table(lake).transaction() as change:
        change.set_properties({f"{FLOOR_PREFIX}{gone[4]}": str(gone[4])})
    with pytest.raises(RefusedError, match=f"rows {gone[0]}..{gone[4]} .* may be gone"):
        query.trigger()


def test_a_number_of_a_leader_that_was_left_out_is_refused(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = add(lake, 10)
    query = Query(lake)
    query.drain()
    add(lake, 10)
    monkeypatch.setattr(cuts, "left_out_term", lambda _, __, of: 3 if Seq(numbers[-1]) in of else None)
    token = Continuation(lake.id, lake.dataset("events").uuid, Seq(numbers[-1])).encode()
    with pytest.raises(TokenError, match="the token's sequence number is from the leader of term 3"):
        query.trigger()
    with pytest.raises(TokenError, match="the leader of term 3"):
        read(lake, since=token)
    with pytest.raises(TokenError, match="the leader of term 3"):
        lake.consumers.begin(lake.dataset("events"), "etl", token)


def test_a_column_that_was_dropped_while_a_query_runs_stops_it_and_one_that_was_renamed_does_not(lake: Lake) -> None:
    add(lake, 10)
    query = Query(lake)
    query.drain()
    lake.alter_dataset("events", [RenameColumn("text", "words")])
    add(lake, 10)
    query.drain()
    lake.alter_dataset("events", [DropColumn("words")])
    add(lake, 10)
    with pytest.raises(SchemaError, match="column text was dropped"):
        query.trigger()


def test_a_read_that_is_no_stream_refuses_what_only_streams_have(lake: Lake) -> None:
    for option in ("consumer", "max_rows_per_trigger"):
        with pytest.raises(UsageError, match=f"`{option}` is for streams"):
            read(lake, **{option: "7"})


def test_a_start_that_says_nothing_of_lag_leaves_the_consumers_choice(lake: Lake) -> None:
    add(lake, 10)
    Query(lake, consumer="etl", on_lag="drop", drop_after="12h").drain()
    Query(lake, consumer="etl").drain()
    found = lake.ledger.query(consumers.find, lake.dataset("events").id, "etl")
    assert found is not None and found.terms == ConsumerTerms(OnLag.DROP, timedelta(hours=12))
    Query(lake, consumer="etl", on_lag="hold").drain()
    changed = [e.detail for e in lake.audit_events(99) if e.event == Event.CONSUMER_CHANGED]
    assert [c["on_lag"] for c in changed] == ["hold"]


@pytest.mark.parametrize(
    "where",
    ["text NOT IN ('t1', 't2')", "NOT (text = 't1')", "n < 99999999999 AND text > 'a'", "NOT (small > 99999999999)",
     "text IS NULL OR n = 1", "NOT (text IS NULL AND n > 3)", "small NOT IN (1)"],
)  # fmt: skip
def test_a_condition_holds_for_the_rows_for_which_it_holds_in_sql(lake: Lake, where: str) -> None:
    lake.create_dataset("nulls", [*COLUMNS, Column("small", Primitive("int"))])
    add(lake, 3, "nulls", small=1)
    add(lake, 3, "nulls", text=None, small=None)
    with sqlite3.connect(":memory:") as plain:
        plain.execute("CREATE TABLE rows (n, text, small)")
        rows = read(lake, dataset="nulls").to_pylist()
        plain.executemany("INSERT INTO rows VALUES (:n, :text, :small)", rows)
        wanted = [n for (n,) in plain.execute(f"SELECT n FROM rows WHERE {where} ORDER BY n")]
    assert ns(read(lake, dataset="nulls", where=where)) == wanted


def test_a_checkpoint_of_another_dataset_or_of_another_time_is_refused(lake: Lake) -> None:
    add(lake, 10)
    query = Query(lake)
    query.drain()
    lake.create_dataset("other", COLUMNS)
    other = source(lake, dataset="other")
    with pytest.raises(TokenError, match="of another dataset"):
        other.streamReader(other.schema()).partitions(query.logged[-1], query.logged[-1])
    ahead = query.logged[-1] | {"after": 99}
    query.reader.partitions(ahead, ahead)
    with pytest.raises(RefusedError, match=r"up to 99 of default\.events, but the dataset is settled only up to 10"):
        query.reader.latestOffset()


def watermark(lake: Lake, name: str = "report") -> int | None:
    return lake.ledger.query(consumers.get, lake.dataset("events"), name).watermark


def test_a_query_on_a_dataset_that_was_dropped_stops(lake: Lake) -> None:
    add(lake, 10)
    query = Query(lake, consumer="report")
    query.drain()
    lake.drop_dataset("events")
    with pytest.raises(RefusedError, match=r"default\.events was dropped while the query read it"):
        query.trigger()
    lake.create_dataset("events", COLUMNS)
    add(lake, 3)
    with pytest.raises(RefusedError, match=r"default\.events was dropped and made again while"):
        query.trigger()
    again = source(lake)
    with pytest.raises(TokenError, match="of another dataset"):
        again.streamReader(again.schema()).partitions(query.logged[-1], query.logged[-1])


def test_rows_that_were_purged_are_missing_and_the_others_come(lake: Lake) -> None:
    first = add(lake, 10)
    query = Query(lake, max_rows_per_trigger=10)
    second = add(lake, 10)
    table(lake).delete(f"n >= {first[5]} AND n <= {second[2]}")
    assert query.drain() == [first[:5], second[3:]]


def test_a_ledger_that_was_restored_holds_more_for_a_consumer_and_forgets_one_that_it_never_knew(lake: Lake) -> None:
    add(lake, 10)
    old = Query(lake, consumer="old")
    old.drain()
    ledger = lake.config.home / "ledger.db"
    add(lake, 5)
    with closing(sqlite3.connect(ledger)) as live, closing(sqlite3.connect(":memory:")) as copy:
        live.backup(copy)
        new = Query(lake, consumer="new")
        for query in (old, new):
            query.drain()
            query.reader.stop()
        assert watermark(lake, "old") == watermark(lake, "new") == 15
        copy.backup(live)
    assert watermark(lake, "old") == 10, "retention keeps more than is needed"
    with pytest.raises(NoSuchConsumer):
        watermark(lake, "new")
    more = add(lake, 2)
    for query in (old, new):
        query.start()
        query.drain()
        assert query.got[-1] == more, "the checkpoint is the truth"
    assert watermark(lake, "old") == watermark(lake, "new") == more[-1]


def test_a_consumer_is_as_far_as_its_last_finished_batch(lake: Lake) -> None:
    add(lake, 10)
    query = Query(lake, consumer="report")
    query.trigger()
    assert watermark(lake) is None, "the batch may have to be repeated"
    query.trigger()
    assert watermark(lake) == 10
    add(lake, 10)
    query.trigger()
    query.start(unfinished=True)
    assert watermark(lake) == 10
    query.trigger()
    assert watermark(lake) == 20


def test_a_query_whose_checkpoint_is_lost_goes_on_where_its_consumer_is(lake: Lake) -> None:
    add(lake, 10)
    Query(lake, consumer="report").drain()
    more = add(lake, 3)
    assert Query(lake, consumer="report").drain() == [more]
    assert Query(lake, consumer="report", since="earliest").drain() == [[*range(1, 14)]]


def test_an_older_query_of_the_same_name_stops(lake: Lake) -> None:
    old = Query(lake, consumer="report")
    old.drain()
    Query(lake, consumer="report").drain()
    add(lake, 3)
    old.trigger()
    with pytest.raises(RefusedError, match="another query has begun to read as consumer report"):
        old.trigger()


def test_rows_that_were_dropped_for_a_consumer_do_not_stop_it(lake: Lake) -> None:
    """A person chose so, and the loss is on record."""
    add(lake, 10)
    slow = Query(lake, consumer="slow", on_lag="drop", drop_after="7d")
    slow.trigger()
    slow.trigger()
    add(lake, 10)
    found = lake.ledger.query(consumers.get, lake.dataset("events"), "slow")
    assert found.drop_after == timedelta(days=7)
    raise_floor(lake, 15)
    with pytest.raises(RefusedError, match="may be gone"):
        slow.trigger()
    slow.logged.pop()
    lake.ledger.change(consumers.drop_for, found.id, Seq(15))
    slow.start()
    slow.drain()
    assert slow.got[-1] == [*range(11, 21)], "those that are still there"


def test_a_consumer_that_was_removed_is_made_known_again_by_the_next_start(lake: Lake) -> None:
    query = Query(lake, consumer="report")
    query.trigger()
    add(lake, 3)
    query.trigger()
    lake.ledger.change(consumers.remove, lake.dataset("events"), "report")
    with pytest.raises(NoSuchConsumer):
        query.trigger()
    query.start()
    query.trigger()
    assert watermark(lake) == 3


def test_tasks_get_no_address_or_secret_of_the_ledger_or_the_catalog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do they get what the data source was asked with, apart from what it holds itself."""
    init_lake(tmp_path).close()
    with open_lake(tmp_path) as lake:
        lake.create_dataset("events", COLUMNS)
        add(lake, 3)
        made = source(lake, consumer="report")
        reader: Any = made.streamReader(made.schema())
        start = reader.initialOffset()
        parts = reader.partitions(start, reader.latestOffset())
        for sent in (reader, *parts):
            text = cloudpickle.dumps(sent)
            for secret in (b"ledger", b"catalog.db", b"strandline.toml", b"report", b"SettledSource", b"sqlite"):
                assert secret not in text


def test_a_lake_in_a_bucket_behind_a_rest_catalog_is_read_and_its_other_secrets_stay(
    rest_catalogs: RestCatalogs, postgres_database: str, tmp_path: Path, make_home: MakeHome
) -> None:
    settings: dict[str, Any] = dict(rest_catalogs.take(bucket=True).settings())
    settings["ledger"] = {"url": postgres_database}
    make_home(tmp_path, settings)
    check_bucket(tmp_path, postgres_database, settings["catalog"]["uri"])


def test_a_lake_in_a_bucket_is_read_with_its_keys_and_without_those_of_its_ledger(
    s3: S3, postgres_database: str, tmp_path: Path, make_home: MakeHome
) -> None:
    keys = {"endpoint": s3.endpoint, "region": s3.region, "access_key": s3.access_key, "secret_key": s3.secret_key}
    warehouse = {"url": f"s3://{s3.make_bucket()}/lake", **keys}
    make_home(tmp_path, {"warehouse": warehouse, "ledger": {"url": postgres_database}})
    check_bucket(tmp_path, postgres_database, "catalog.db")


def check_bucket(home: Path, *secrets: str) -> None:
    init_lake(home).close()
    with open_lake(home) as lake:
        lake.create_dataset("events", COLUMNS)
        first, second = add(lake, 10), add(lake, 5)
        assert ns(read(lake, where=f"n > {first[4]}")) == [*first[5:], *second]
        query = Query(lake, consumer="report", max_rows_per_trigger=10)
        assert query.drain() == [first, second]
        for sent in (query.reader, *query.reader.partitions(query.reader.initialOffset(), query.logged[-1])):
            text = cloudpickle.dumps(sent)
            assert not [secret for secret in secrets if secret.encode() in text]
