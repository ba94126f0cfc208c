"""The kind `iceberg`: the contract over a SQLite and a REST catalog, and what is its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from pyiceberg.types import StringType

from strandline.core.errors import DestinationTaken, RefusedError, SchemaError, StorageError, UsageError
from strandline.core.types import PARTITION_COLUMN, SEQ_COLUMN
from strandline.deliver.sink import (
    Address,
    ChunkRows,
    Claim,
    Conflict,
    Landed,
    OlderRows,
    Refused,
    Sink,
    SinkContext,
    TryLater,
    Unknown,
)
from strandline.deliver.sink_kinds import check_options, find_kind, resolve
from strandline.deliver.sinks.iceberg import send as sending
from strandline.deliver.sinks.iceberg.content_digest import content_digest
from strandline.deliver.sinks.iceberg.record import LANE_PREFIX, TableRecord
from strandline.deliver.sinks.iceberg.sink import IcebergSink
from strandline.iceberg.metadata.table_metadata import LAKE_PROPERTY
from strandline.iceberg.pyiceberg.other_table import Committed, NotCommitted, OtherTable
from strandline.iceberg.schema.columns import Column, Primitive
from strandline.iceberg.schema.schema_file import parse_type
from tests.rest_catalog import RestCatalogs
from tests.sinks.contract import (
    ADDRESS,
    COLUMNS,
    DATASET,
    LAKE,
    TOKEN,
    Made,
    RefusesLowerTerms,
    SinkContract,
    landed,
    parcel,
    ready,
    seqs,
)
from tests.sinks.http_faults import Answer, Cut, Fault, FaultyStore, Twice, faulty_store
from tests.sinks.whole_ranges import as_table, is_read_back, rows

LANE = replace(ADDRESS, partition="country=PT")


@dataclass
class Catalog:
    """Opens sinks to tables of one catalog."""

    home: Path
    options: dict[str, str]

    def open(self, place: str = "one", generation: int = 1, *, has_lanes: bool = True, **options: str) -> IcebergSink:
        return self.with_rows_below(place, generation, (), has_lanes=has_lanes, **options)

    def with_rows_below(
        self, place: str, generation: int, older: tuple[OlderRows, ...], *, has_lanes: bool = True, **options: str
    ) -> IcebergSink:
        kind = find_kind("iceberg")
        resolved = resolve(kind, self.options | {"table": f"shop.{place}", "create": "true"} | options)
        sink = kind.open(
            SinkContext(self.home, DATASET, generation, resolved, has_lanes=has_lanes, builds_on=lambda: older)
        )
        assert isinstance(sink, IcebergSink)
        return sink

    @property
    def made(self) -> Made:
        return Made(self.open, numbers_in, take_away=None)

    def plain(self, place: str = "one", **options: str) -> IcebergSink:
        """Claimed, for a dataset without lanes."""

        def opened(place: str, generation: int) -> IcebergSink:
            return self.open(place, generation, has_lanes=False, **options)

        sink = ready(Made(opened, numbers_in, None), place)
        assert isinstance(sink, IcebergSink)
        return sink


def table_of(sink: IcebergSink) -> Any:
    """PyIceberg's, as its owner has it."""
    loaded = sink._table.load()
    assert loaded is not None
    return loaded.table


_READ: dict[str, pa.Table] = {}
"""What the table that was read last holds, by its metadata file: a test that looks at 27 lanes reads it once."""


def numbers_in(sink: Sink, address: Address) -> list[int]:
    assert isinstance(sink, IcebergSink)
    table = table_of(sink)
    if table.metadata_location not in _READ:
        _READ.clear()
        _READ[table.metadata_location] = table.scan().to_arrow()
    found = _READ[table.metadata_location]
    if PARTITION_COLUMN in found.column_names:
        found = found.filter(pc.field(PARTITION_COLUMN) == address.partition)
    return sorted(n for n in found[SEQ_COLUMN].to_pylist() if n is not None)


def sqlite_catalog(folder: Path) -> Catalog:
    from pyiceberg.catalog.sql import SqlCatalog

    SqlCatalog("default", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse").close()
    return Catalog(folder, {"catalog": "catalog.db", "warehouse": "warehouse"})


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return sqlite_catalog(tmp_path)


class TestSqliteCatalog(RefusesLowerTerms, SinkContract):
    @pytest.fixture
    def made(self, catalog: Catalog) -> Made:
        return catalog.made


class TestPartitionedTable(SinkContract):
    """A table that its owner made, partitioned by a column of the rows and by their sequence numbers."""

    @pytest.fixture
    def made(self, catalog: Catalog) -> Made:
        def opened(place: str = "one", generation: int = 1) -> IcebergSink:
            sink = catalog.open(place, generation, create="false")
            if sink._table.load() is None:
                make_table(catalog, place, partition_by=(("name", "bucket[3]"), (SEQ_COLUMN, "truncate[4]")))
            return sink

        return Made(opened, numbers_in, take_away=None)


def make_table(
    catalog: Catalog,
    place: str,
    columns: tuple[Column, ...] = (*COLUMNS, Column(PARTITION_COLUMN, Primitive("string"))),
    partition_by: tuple[tuple[str, str], ...] = (),
    **properties: str,
) -> Any:
    """As the owner of a table does it, with a catalog of their own."""
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.transforms import parse_transform

    from strandline.iceberg.schema.columns import iceberg_schema

    schema = Schema.model_validate(iceberg_schema(columns))
    fields = [
        PartitionField(schema.find_field(name).field_id, 1000 + n, parse_transform(text), f"p{n}")
        for n, (name, text) in enumerate(partition_by)
    ]
    owner = catalog.open(place)._table._open()
    owner.create_namespace_if_not_exists("shop")
    return owner.create_table(
        f"shop.{place}", schema, partition_spec=PartitionSpec(*fields), properties={"format-version": "2"} | properties
    )


# --- what is delivered ---


@settings(
    max_examples=10,
    deadline=None,
    phases=(Phase.generate,),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(rows)
def test_every_type_comes_back_as_it_was_sent(
    whole_sink: IcebergSink, taken: list[int], values: list[tuple[Any, ...]]
) -> None:
    lo = taken[0]
    taken[0] += len(values)
    sent = as_table(values)
    numbers = pa.array(range(lo, lo + len(values)), pa.int64())
    sent = sent.set_column(0, SEQ_COLUMN, numbers)
    given_parcel = ChunkRows(ADDRESS, seqs(lo, lo + len(values) - 1), sent)
    done = landed(whole_sink.sender(TOKEN), given_parcel)
    assert done.digest == content_digest(sent)
    found = whole_sink.inspector().inspect(ADDRESS, given_parcel.range)
    assert (found.count, found.digest, found.problem) == (len(values), done.digest, None)
    from strandline.iceberg.pyiceberg.other_rows import OtherTableReader

    loaded = whole_sink._table.load()
    assert loaded is not None
    read = OtherTableReader(loaded).rows(given_parcel.range, None)
    assert read is not None
    assert is_read_back(read.select(sent.column_names).cast(sent.schema), values), values


@pytest.fixture
def taken() -> list[int]:
    """The next sequence number that no example has used."""
    return [1]


_PLAIN = (
    "flag:boolean,small:int,large:long,single:float,double:double,money:decimal(38,10),day:date,instant:timestamptz,"
    "local:timestamp,word:string,id:uuid,bytes:binary,fixed:fixed[4]"
)


@pytest.fixture
def whole_sink(catalog: Catalog) -> IcebergSink:
    texts = dict(part.split(":") for part in _PLAIN.replace("decimal(38,10)", "decimal(38;10)").split(","))
    columns = [Column(name, parse_type(text.replace(";", ","), where=name)) for name, text in texts.items()]
    nested = {
        "struct": f"struct<{_PLAIN}>",
        "list": "list<timestamp>",
        "map": "map<string,decimal(38,10)>",
        "deep": f"struct<of:list<struct<{_PLAIN}>>,by:map<date,list<timestamptz>>>",
    }
    columns += [Column(name, parse_type(text, where=name)) for name, text in nested.items()]
    sink = catalog.open("whole", has_lanes=False)
    sink.prepare([COLUMNS[0], *columns])
    sink.claim(Claim(LAKE, ADDRESS.instance, DATASET, "table-uuid"), 1)
    return sink


def test_a_digest_does_not_depend_on_how_arrow_divides_the_rows_nor_on_wider_types() -> None:
    table = pa.table({
        SEQ_COLUMN: pa.array(range(1, 9), pa.int64()),
        "n": pa.array([1, None, 3, 4, None, 6, 7, 8], pa.int32()),
        "s": ["a", "", None, "bc", "d", "e", "f", "g"],
        "l": pa.array([[1, 2], None, [], [None], [3], [4], [5], [6]], pa.list_(pa.int32())),
        "m": pa.array([[("a", 1)], None, [], [("b", None)], [], [], [], []], pa.map_(pa.string(), pa.int32())),
    })  # fmt: skip
    wanted = content_digest(table)
    divided = pa.concat_tables([table.slice(0, 3), table.slice(3, 1), table.slice(4)])
    assert content_digest(divided) == wanted
    assert content_digest(table.select(["m", "l", "s", "n", SEQ_COLUMN])) == wanted
    assert content_digest(table.append_column("later", pa.nulls(8, pa.string()))) == wanted
    wider = table.set_column(1, "n", table["n"].cast(pa.int64())).set_column(2, "s", table["s"].cast(pa.large_string()))
    assert content_digest(wider) == wanted
    for name, value in (("n", 2), ("s", "x")):
        at = table.column_names.index(name)
        for place in (0, 1, 2):
            values = table[name].to_pylist()
            values[place] = value
            assert content_digest(table.set_column(at, name, pa.array(values, table[name].type))) != wanted
    moved = table.set_column(2, "s", pa.array(["ab", "c", None, "", "d", "e", "f", "g"]))
    assert content_digest(moved) != wanted, "the same letters, divided otherwise"


def test_a_uuid_that_is_none_is_refused_and_the_table_stays_as_it_was(catalog: Catalog) -> None:
    sink = catalog.open("one", has_lanes=False)
    sink.prepare([COLUMNS[0], Column("id", Primitive("uuid"))])
    sink.claim(Claim(LAKE, ADDRESS.instance, DATASET, "table-uuid"), 1)
    for text in ("nonsense", "12345678-1234-1234-1234-12345678ABCX", "12345678x1234-1234-1234-12345678abcd"):
        table = pa.table({SEQ_COLUMN: pa.array([1], pa.int64()), "id": [text]})
        outcome = sink.sender(TOKEN).send(ChunkRows(ADDRESS, seqs(1, 1), table))
        assert isinstance(outcome, Refused) and "UUID" in outcome.why, outcome
    assert sink.held([(ADDRESS, None)])[0].ranges == ()


# --- several who commit at once ---


def test_many_senders_and_a_foreign_writer_commit_at_once_and_nothing_is_lost(catalog: Catalog) -> None:
    """A commit that lost is made again on what is there then."""
    sink = catalog.plain()
    stopping = threading.Event()
    added: list[str] = []

    def write() -> None:
        while not stopping.is_set() or not added:
            names = [f"foreign {len(added)}"]
            rows = pa.table({SEQ_COLUMN: pa.nulls(1, pa.int64()), "name": names})
            try:
                table_of(sink).append(rows)
                added.extend(names)
            except Exception as e:
                assert "updated by another process" in str(e) or "has changed" in str(e), e

    with ThreadPoolExecutor(5) as pool:
        foreign = pool.submit(write)
        chunks = [(1 + 10 * n, 10 + 10 * n) for n in range(12)]
        outcomes = list(
            pool.map(lambda c: sink.sender(TOKEN).send(parcel("rows", ADDRESS, *c)), [*chunks, *chunks[::3]])
        )
        stopping.set()
        foreign.result()
    assert all(isinstance(o, Landed) for o in outcomes), outcomes
    assert sum(not o.repeat for o in outcomes if isinstance(o, Landed)) == len(chunks)
    assert numbers_in(sink, ADDRESS) == list(range(1, 121))
    names = table_of(sink).scan().to_arrow()["name"].to_pylist()
    assert sorted(n for n in names if n.startswith("foreign")) == sorted(added)
    assert [h.rows for h in sink.held([(ADDRESS, None)])[0].ranges] == [seqs(*c) for c in chunks]


def test_the_files_of_a_chunk_that_another_sender_landed_first_are_removed(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = catalog.plain()
    commit = OtherTable.commit

    def overtaken(table: OtherTable, *given: Any) -> Any:
        monkeypatch.setattr(OtherTable, "commit", commit)
        assert not landed(sink.sender(TOKEN), parcel("rows", ADDRESS, 1, 5)).repeat
        assert len(files_of(catalog)) == 2
        return commit(table, *given)

    monkeypatch.setattr(OtherTable, "commit", overtaken)
    assert landed(sink.sender(TOKEN), parcel("rows", ADDRESS, 1, 5)).repeat
    assert files_of(catalog) == files_in(sink) and len(files_in(sink)) == 1


def files_of(catalog: Catalog, place: str = "one") -> set[str]:
    return {p.name for p in (catalog.home / "warehouse" / "shop" / place / "data").rglob("*.parquet")}


def files_in(sink: IcebergSink) -> set[str]:
    return {Path(t.file.file_path).name for t in table_of(sink).scan().plan_files()}


def test_a_commit_decided_on_an_older_table_is_refused_whoever_moved_main(catalog: Catalog) -> None:
    """A zombie's, whose ranges would replace those that landed meanwhile."""
    sink = catalog.plain()
    zombie = sink._open()
    before = zombie.load()
    assert before is not None
    landed(sink.sender(TOKEN), parcel("rows", ADDRESS, 1, 5))
    stale = {LANE_PREFIX + TableRecord(before.properties).lane(ADDRESS).key: "nothing is held"}
    assert isinstance(zombie.commit(before, None, lambda head: stale, {}), NotCommitted)
    now = zombie.load()
    assert now is not None
    assert isinstance(zombie.commit(now, None, lambda head: {"note": "mine"}, {}), Committed)
    assert [h.rows for h in sink.held([(ADDRESS, None)])[0].ranges] == [seqs(1, 5)]


def test_two_that_claim_a_table_at_once_do_not_both_get_it(catalog: Catalog) -> None:
    make_table(catalog, "one")
    start = threading.Barrier(2)

    def claim(lake: str) -> str:
        sink = catalog.open()
        sink.claimed()
        start.wait()
        try:
            return sink.claim(Claim(lake, "instance", DATASET, "uuid"), 1).claim.lake
        except DestinationTaken:
            return "taken"

    with ThreadPoolExecutor(2) as pool:
        found = set(pool.map(claim, ("one lake", "another lake")))
    assert len(found) == 2 and "taken" in found, found


def test_a_deliverer_of_an_older_generation_adds_nothing(catalog: Catalog) -> None:
    first = ready(catalog.made)
    stopped = first.sender(TOKEN)
    landed(stopped, parcel("rows", ADDRESS, 1, 5))
    ready(catalog.made, generation=2)
    outcome = stopped.send(parcel("rows", ADDRESS, 6, 9))
    assert isinstance(outcome, TryLater) and "generation 2" in outcome.why, outcome
    assert landed(stopped, parcel("rows", ADDRESS, 1, 5)).repeat, "what it held is still known"
    assert numbers_in(first, ADDRESS) == [1, 2, 3, 4, 5]


def test_a_sink_that_another_lake_took_over_adds_nothing(catalog: Catalog) -> None:
    sink = catalog.plain()
    sender = sink.sender(TOKEN)
    with table_of(sink).transaction() as change:
        change.remove_properties("strandline.sink")
    outcome = sender.send(parcel("rows", ADDRESS, 1, 5))
    assert isinstance(outcome, TryLater) and "does not belong" in outcome.why
    assert numbers_in(sink, ADDRESS) == []


# --- commits without an answer ---


class Lost(Exception):
    """The answer to a commit."""


@pytest.mark.parametrize("after", [False, True])
def test_a_commit_without_an_answer_is_looked_up(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    sink = catalog.plain()
    commit, calls = SqlCatalog.commit_table, list[object]()

    def lost(*arguments: Any, **given: Any) -> Any:
        calls.append(None)
        if len(calls) > 1:
            return commit(*arguments, **given)
        if after:
            commit(*arguments, **given)
        raise Lost

    monkeypatch.setattr(SqlCatalog, "commit_table", lost)
    outcome = landed(sink.sender(TOKEN), parcel("rows", ADDRESS, 1, 5))
    assert not outcome.repeat
    assert len(calls) == (1 if after else 2)
    assert numbers_in(sink, ADDRESS) == [1, 2, 3, 4, 5]


def test_a_commit_without_an_answer_is_unknown_while_the_catalog_is_away(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    sink = catalog.plain()
    commit, load = SqlCatalog.commit_table, OtherTable.load

    def away(*_: Any) -> Any:
        raise StorageError("the catalog is away")

    def lost(*arguments: Any, **given: Any) -> Any:
        commit(*arguments, **given)
        monkeypatch.setattr(OtherTable, "load", away)
        raise Lost

    monkeypatch.setattr(SqlCatalog, "commit_table", lost)
    outcome = sink.sender(TOKEN).send(parcel("rows", ADDRESS, 1, 5))
    assert isinstance(outcome, Unknown) and "the catalog is away" in outcome.why
    assert isinstance(sink.sender(TOKEN).send(parcel("rows", ADDRESS, 6, 9)), TryLater), "nothing of this one was sent"
    monkeypatch.setattr(OtherTable, "load", load)
    monkeypatch.setattr(SqlCatalog, "commit_table", commit)
    assert landed(sink.sender(TOKEN), parcel("rows", ADDRESS, 1, 5)).repeat
    assert numbers_in(sink, ADDRESS) == [1, 2, 3, 4, 5]


def test_a_commit_that_cannot_be_prepared_makes_the_chunk_wait_at_once(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.table import Transaction

    sink = catalog.plain()

    def full(*_: Any, **__: Any) -> Any:
        raise OSError("no space left")

    monkeypatch.setattr(Transaction, "update_snapshot", full)
    outcome = sink.sender(TOKEN).send(parcel("rows", ADDRESS, 1, 5))
    assert isinstance(outcome, TryLater) and "no space left" in outcome.why


def test_a_table_that_others_change_all_the_time_makes_the_chunk_wait(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = catalog.plain()
    monkeypatch.setattr(sending, "SEND_SECONDS_MAX", 0.3)
    monkeypatch.setattr(OtherTable, "commit", lambda *_: NotCommitted("main has changed"))
    outcome = sink.sender(TOKEN).send(parcel("rows", ADDRESS, 1, 5))
    assert isinstance(outcome, TryLater) and "main has changed" in outcome.why


# --- owners who compact, expire, delete and set back ---


def rewrite(sink: IcebergSink) -> None:
    """Every row into one new file, by somebody who knows nothing of us."""
    table = table_of(sink)
    table.overwrite(table.scan().to_arrow())


def expire(sink: IcebergSink) -> None:
    """All snapshots but main's."""
    table = table_of(sink)
    main = table.current_snapshot().snapshot_id
    if ids := [s.snapshot_id for s in table.snapshots() if s.snapshot_id != main]:
        table.maintenance.expire_snapshots().by_ids(ids).commit()


def test_what_is_held_outlives_compaction_and_expiry(catalog: Catalog) -> None:
    sink = catalog.plain()
    sent = [parcel("rows", ADDRESS, lo, lo + 9) for lo in (1, 11, 21)]
    for one in sent:
        landed(sink.sender(TOKEN), one)
    rewrite(sink)
    expire(sink)
    assert len(files_in(sink)) == 1 and len(table_of(sink).snapshots()) == 1
    assert sink.find_loss() is None
    assert [h.rows for h in sink.held([(ADDRESS, None)])[0].ranges] == [seqs(1, 10), seqs(11, 20), seqs(21, 30)]
    for one in sent:
        assert landed(sink.sender(TOKEN), one).repeat
        found = sink.inspector().inspect(ADDRESS, one.range)
        assert (found.count, found.digest, found.problem) == (10, content_digest(one.rows), None)
    landed(sink.sender(TOKEN), parcel("rows", ADDRESS, 31, 40))
    assert numbers_in(sink, ADDRESS) == list(range(1, 41))


def test_rows_that_the_owner_deletes_by_age_are_no_loss(catalog: Catalog) -> None:
    sink = catalog.plain()
    for lo in (1, 11, 21):
        landed(sink.sender(TOKEN), parcel("rows", ADDRESS, lo, lo + 9))
    table_of(sink).delete(f"{SEQ_COLUMN} <= 25")
    expire(sink)
    assert sink.find_loss() is None
    assert landed(sink.sender(TOKEN), parcel("rows", ADDRESS, 1, 10)).repeat
    landed(sink.sender(TOKEN), parcel("rows", ADDRESS, 31, 40))
    assert numbers_in(sink, ADDRESS) == [*range(26, 31), *range(31, 41)]
    found = sink.inspector().inspect(ADDRESS, seqs(21, 30))
    assert found.problem == "5 of 10 rows are missing"


def set_back(sink: IcebergSink, snapshots: int) -> None:
    table = table_of(sink)
    at = table.current_snapshot()
    for _ in range(snapshots):
        at = table.snapshot_by_id(at.parent_snapshot_id)
    with table.manage_snapshots() as change:
        change.set_current_snapshot(at.snapshot_id)


@pytest.mark.parametrize("expired", [False, True])
def test_a_table_that_was_set_back_is_noticed_although_its_properties_list_everything(
    catalog: Catalog, expired: bool
) -> None:
    sink = catalog.plain()
    for lo in (1, 11, 21):
        landed(sink.sender(TOKEN), parcel("rows", ADDRESS, lo, lo + 9))
    running = sink.sender(TOKEN)
    set_back(sink, 2)
    if expired:
        rewrite(sink)
        expire(sink)
    assert numbers_in(sink, ADDRESS) == list(range(1, 11))
    assert len(sink.held([(ADDRESS, None)])[0].ranges) == 3
    loss = sink.find_loss()
    assert loss is not None and (loss.given, loss.there) == (30, 10)
    outcome = running.send(parcel("rows", ADDRESS, 31, 40))
    assert isinstance(outcome, TryLater), "its rows would hide the loss"
    [remains] = sink.remaining([ADDRESS])
    assert [h.rows for h in remains.held.ranges] == [seqs(1, 10)]
    assert (remains.in_part, remains.missing) == ((), 20)


def test_a_loss_that_was_accepted_is_not_reported_again_and_nothing_of_it_is_sent(catalog: Catalog) -> None:
    sink = catalog.plain()
    for lo in (1, 11, 21):
        landed(sink.sender(TOKEN), parcel("rows", ADDRESS, lo, lo + 9))
    set_back(sink, 1)
    assert sink.find_loss() is not None
    sink.accept_loss()
    assert sink.find_loss() is None
    assert landed(sink.sender(TOKEN), parcel("rows", ADDRESS, 21, 30)).repeat
    landed(sink.sender(TOKEN), parcel("rows", ADDRESS, 31, 40))
    assert numbers_in(sink, ADDRESS) == [*range(1, 21), *range(31, 41)]
    set_back(sink, 1)
    loss = sink.find_loss()
    assert loss is not None and (loss.given, loss.there) == (30, 20), "the next one is counted without it"


def test_a_new_generation_goes_on_after_a_table_was_set_back(catalog: Catalog) -> None:
    sink = catalog.plain()
    for lo in (1, 11):
        landed(sink.sender(TOKEN), parcel("rows", ADDRESS, lo, lo + 9))
    set_back(sink, 1)
    again = catalog.with_rows_below("one", 2, (OlderRows(ADDRESS, 0, 10),), has_lanes=False)
    again.prepare(COLUMNS)
    again.claim(Claim(LAKE, ADDRESS.instance, DATASET, "table-uuid"), 2)
    assert again.find_loss() is None
    anew = replace(ADDRESS, generation=2)
    landed(again.sender(TOKEN), parcel("rows", anew, 11, 20))
    assert numbers_in(again, anew) == list(range(1, 21))
    set_back(again, 1)
    loss = again.find_loss()
    assert loss is not None and (loss.given, loss.there) == (20, 10)
    [remains] = again.remaining([anew])
    assert [h.rows for h in remains.held.ranges] == [seqs(1, 10)]


def test_rows_that_were_put_back_by_a_new_commit_are_no_loss(catalog: Catalog) -> None:
    sink = catalog.plain()
    for lo in (1, 11):
        landed(sink.sender(TOKEN), parcel("rows", ADDRESS, lo, lo + 9))
    rows = table_of(sink).scan().to_arrow()
    set_back(sink, 1)
    assert sink.find_loss() is not None
    table_of(sink).append(rows.filter(pc.field(SEQ_COLUMN) > 10))
    assert sink.find_loss() is None


def test_a_table_that_was_emptied_is_a_loss_unless_that_is_usual(catalog: Catalog) -> None:
    sink = catalog.plain()
    landed(sink.sender(TOKEN), parcel("rows", ADDRESS, 1, 10))
    table_of(sink).delete()
    loss = sink.find_loss()
    assert loss is not None and "emptied" in loss.what and "may_be_empty" in (loss.hint or "")
    usual = catalog.open("one", has_lanes=False, may_be_empty="true")
    usual.prepare(COLUMNS)
    assert usual.find_loss() is None
    landed(usual.sender(TOKEN), parcel("rows", ADDRESS, 11, 20))
    assert numbers_in(usual, ADDRESS) == list(range(11, 21))


def test_a_table_that_is_gone_is_made_again_without_its_ranges(catalog: Catalog) -> None:
    """So the ledger misses what it acknowledged, and the sink stops."""
    sink = catalog.plain()
    landed(sink.sender(TOKEN), parcel("rows", ADDRESS, 1, 10))
    running = sink.sender(TOKEN)
    sink._table._open().drop_table("shop.one")
    assert isinstance(running.send(parcel("rows", ADDRESS, 11, 20)), TryLater)
    assert sink.claimed() is None and sink.find_loss() is None
    kept = catalog.open("one", has_lanes=False, create="false")
    with pytest.raises(StorageError, match="no such table"):
        kept.claim(Claim(LAKE, ADDRESS.instance, DATASET, "table-uuid"), 1)
    again = catalog.plain()
    assert again.held([(ADDRESS, None)])[0].ranges == ()


# --- verify ---


def test_a_row_that_is_missing_twice_there_or_changed_is_seen_when_it_is_read_back(catalog: Catalog) -> None:
    sink = ready(catalog.made)
    assert isinstance(sink, IcebergSink)
    sent = parcel("rows", LANE, 1, 10)
    landed(sink.sender(TOKEN), sent)
    other = replace(ADDRESS, partition="country=ES")
    landed(sink.sender(TOKEN), parcel("rows", other, 1, 20, numbers=[15, 16]))
    before = table_of(sink).scan().to_arrow()
    inspector = sink.inspector()

    def now(rows: pa.Table) -> Any:
        table_of(sink).overwrite(rows)
        inspector.close()
        return inspector.inspect(LANE, seqs(1, 10))

    assert now(before).problem is None
    found = now(before.filter(pc.field(SEQ_COLUMN) != 3))
    assert (found.count, found.problem) == (9, "1 of 10 rows is missing")
    assert inspector.numbers(LANE, seqs(1, 10)).to_pylist() == [1, 2, *range(4, 11)]
    found = now(pa.concat_tables([before, before.filter(pc.field(SEQ_COLUMN) == 4)]))
    assert (found.count, found.problem) == (11, "1 sequence number is there more than once: 4")
    at = before.column_names.index("name")
    found = now(before.set_column(at, "name", pc.utf8_upper(before["name"])))
    assert (found.count, found.problem) == (10, None) and found.digest != content_digest(sent.rows)
    found = now(before.filter(pc.field(PARTITION_COLUMN) != LANE.partition))
    assert (found.count, found.problem) == (0, "all 10 rows of it are missing")
    assert inspector.inspect(LANE, seqs(11, 12)).problem is not None, "the record does not know of it"
    sink._table._open().drop_table("shop.one")
    inspector.close()
    assert "is gone" in (inspector.inspect(LANE, seqs(1, 10)).problem or "")


# --- the table ---


def test_a_table_that_does_not_fit_is_refused_and_left_as_it_was(catalog: Catalog) -> None:
    wrong = (COLUMNS[0], Column("name", Primitive("long")), Column("must", Primitive("string"), required=True))
    table = make_table(catalog, "one", wrong)
    for create in ("true", "false"):
        with pytest.raises(SchemaError, match=r"name is long.*must is required") as refused:
            catalog.open("one", has_lanes=False, create=create).prepare([*COLUMNS, Column("more", Primitive("int"))])
        assert "Make must optional." in (refused.value.hint or "")
    assert table.refresh().schema() == table.schema() and len(table.schema().fields) == 3


def test_a_missing_table_is_described(catalog: Catalog) -> None:
    with pytest.raises(SchemaError, match=r"no table shop\.one") as refused:
        catalog.open("one", create="false").prepare(COLUMNS)
    assert "_ingest_seq long, _ingest_partition string, name string" in (refused.value.hint or "")


def test_new_columns_are_added_if_the_sink_creates_them(catalog: Catalog) -> None:
    sink = catalog.plain()
    landed(sink.sender(TOKEN), parcel("rows", ADDRESS, 1, 5))
    wider = [
        *COLUMNS,
        Column("price", Primitive("decimal(10,2)")),
        Column("tags", parse_type("list<string>", where="t")),
    ]
    with pytest.raises(SchemaError, match="price"):
        catalog.open("one", has_lanes=False, create="false").prepare(wider)
    sink.prepare(wider)
    rows = parcel("rows", ADDRESS, 6, 6).rows.append_column("tags", pa.array([["a"]]))
    landed(sink.sender(TOKEN), ChunkRows(ADDRESS, seqs(6, 6), rows))
    assert sorted(r["tags"] or [] for r in table_of(sink).scan().to_arrow().to_pylist()) == [[]] * 5 + [["a"]]


def test_a_table_that_was_altered_between_two_chunks_is_followed_or_waited_for(catalog: Catalog) -> None:
    sink = catalog.plain()
    sender = sink.sender(TOKEN)
    landed(sender, parcel("rows", ADDRESS, 1, 5))
    with table_of(sink).update_schema() as change:
        change.add_column("note", StringType())
    landed(sender, parcel("rows", ADDRESS, 6, 9))
    with table_of(sink).update_schema() as change:
        change.rename_column("name", "title")
    outcome = sender.send(parcel("rows", ADDRESS, 10, 12))
    assert isinstance(outcome, TryLater) and "column name (string) is not there" in outcome.why
    assert numbers_in(sink, ADDRESS) == list(range(1, 10))


def test_a_dataset_is_no_target(catalog: Catalog) -> None:
    make_table(catalog, "one", **{LAKE_PROPERTY: "another"})
    with pytest.raises(RefusedError, match="dataset of lake another"):
        catalog.open("one").prepare(COLUMNS)


def test_tables_of_other_formats_are_refused(catalog: Catalog) -> None:
    make_table(catalog, "one", **{"write.format.default": "ORC"})
    with pytest.raises(SchemaError, match="orc files"):
        catalog.open("one").prepare(COLUMNS)


# --- options ---


@pytest.mark.parametrize(
    ("catalog_option", "said"),
    [
        ("postgresql://db/catalog", "not safe"),
        ("jdbc:postgresql://db/catalog", "not safe"),
        ("mysql+pymysql://db/c", "not safe"),
        ("thrift://hive:9083", "thrift"),
        ("https://user:word@catalog.example.com", "may hold a secret"),
    ],
)
def test_a_catalog_that_cannot_be_used_safely_is_refused(catalog_option: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check_options(find_kind("iceberg"), {"catalog": catalog_option, "table": "a.b"})


def test_secrets_are_never_stored_or_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kind = find_kind("iceberg")
    given = {"catalog": "https://catalog.example.com/api", "table": "a.b"}
    for name in ("token", "credential", "access_key", "secret_key"):
        with pytest.raises(UsageError, match="secret"):
            check_options(kind, given | {name: "plain"})
    monkeypatch.setenv("WORD", "s3cr3t-word")
    names = ("token", "credential", "access_key", "secret_key")
    sink = kind.open(SinkContext(tmp_path, DATASET, 1, resolve(kind, given | dict.fromkeys(names, "env:WORD"))))
    assert isinstance(sink, IcebergSink)
    sink._columns = COLUMNS
    for thing in (sink, sink._table, sink._table.address, sink.sender(TOKEN), sink.inspector()):
        assert "s3cr3t-word" not in repr(thing)
        assert "s3cr3t-word" not in sink.destination


def test_a_destination_names_the_table_and_nothing_else(tmp_path: Path) -> None:
    kind = find_kind("iceberg")

    def destination(**options: str) -> str:
        return kind.open(SinkContext(tmp_path, DATASET, 1, resolve(kind, options))).destination

    plain = destination(catalog="c.db", table="a.b")
    assert plain == f"iceberg+sqlite://{tmp_path}/c.db/default/a.b"
    assert destination(catalog=str(tmp_path / "x" / ".." / "c.db"), table="a.b", create="true") == plain
    assert destination(catalog="c.db", table="a.b", catalog_name="other") != plain
    assert destination(catalog="https://h/api/", table="a.b", warehouse="w") == "iceberg+https://h/api/w/a.b"


def test_a_catalog_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    sink = Catalog(tmp_path, {"catalog": "none.db", "warehouse": "warehouse"}).open()
    with pytest.raises(StorageError, match="no SQLite catalog"):
        sink.prepare(COLUMNS)
    assert not (tmp_path / "none.db").exists()


# --- a REST catalog ---


@pytest.fixture
def rest(rest_catalogs: RestCatalogs, tmp_path: Path) -> Iterator[tuple[Catalog, FaultyStore]]:
    """One that all tests share, each with tables of its own, behind a proxy that loses answers."""
    shared = rest_catalogs.folders[0]
    with faulty_store(shared.port) as proxy:
        yield Catalog(tmp_path, {"catalog": f"http://127.0.0.1:{proxy.port}"}), proxy


class TestRestCatalog(RefusesLowerTerms, SinkContract):
    @pytest.fixture
    def made(self, rest: tuple[Catalog, FaultyStore], request: pytest.FixtureRequest) -> Made:
        catalog, own = rest[0], f"{abs(hash(request.node.name)):x}"

        def opened(place: str = "one", generation: int = 1) -> IcebergSink:
            return catalog.open(f"{place}_{own}", generation)

        return Made(opened, numbers_in, take_away=None)


@pytest.mark.parametrize(
    "fault",
    [
        Cut(after=False),
        Cut(after=True),
        Twice(),
        Answer(503, "busy", (("Retry-After", "1"),), after=True),
        Answer(500, "broken", after=True),
        Answer(502, "gateway"),
        Answer(429, "slow down", after=True),
    ],
    ids=str,
)
def test_a_commit_whose_answer_is_lost_or_that_arrives_twice_lands_once(
    rest: tuple[Catalog, FaultyStore], fault: Fault, request: pytest.FixtureRequest
) -> None:
    catalog, proxy = rest
    place = f"faulty_{abs(hash(request.node.name)):x}"
    sink = catalog.plain(place)
    landed(sink.sender(TOKEN), parcel("rows", ADDRESS, 1, 5))
    sender = sink.sender(TOKEN)
    proxy.fail(fault, "POST", f"/tables/{place}")
    assert not landed(sender, parcel("rows", ADDRESS, 6, 10)).repeat
    assert proxy.fired == 1
    assert numbers_in(sink, ADDRESS) == list(range(1, 11)), "and no file of the table is missing"
    assert landed(sender, parcel("rows", ADDRESS, 6, 10)).repeat
    assert isinstance(sender.send(parcel("rows", ADDRESS, 8, 12)), Conflict)


def test_a_rest_catalog_that_is_away_makes_chunks_wait(rest: tuple[Catalog, FaultyStore]) -> None:
    catalog, proxy = rest
    sink = catalog.plain("away")
    sender = sink.sender(TOKEN)
    landed(sender, parcel("rows", ADDRESS, 1, 5))
    proxy.fail(Cut(after=False), "GET", "/tables/away", times=3)
    assert isinstance(sender.send(parcel("rows", ADDRESS, 6, 10)), TryLater)
    proxy.heal()
    proxy.fail(Cut(after=True), "POST", "/tables/away")

    def gone_from_now_on(method: str, _: str) -> None:
        if method == "POST":
            proxy.fail(Cut(after=False), "GET", "/tables/away", times=9)

    proxy.before = gone_from_now_on
    assert isinstance(sender.send(parcel("rows", ADDRESS, 6, 10)), Unknown)
    proxy.heal()
    assert landed(sender, parcel("rows", ADDRESS, 6, 10)).repeat
    proxy.fail(Answer(401, "no"), "GET", "/tables/away", times=9)
    outcome = sender.send(parcel("rows", ADDRESS, 11, 12))
    assert isinstance(outcome, TryLater) and "refuses" in outcome.why, outcome


def test_senders_of_a_rest_catalog_commit_at_once_and_nothing_is_lost(rest: tuple[Catalog, FaultyStore]) -> None:
    sink = rest[0].plain("at_once")
    chunks = [(1 + 10 * n, 10 + 10 * n) for n in range(8)]
    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(lambda c: sink.sender(TOKEN).send(parcel("rows", ADDRESS, *c)), chunks))
    assert all(isinstance(o, Landed) and not o.repeat for o in outcomes), outcomes
    assert numbers_in(sink, ADDRESS) == list(range(1, 81))
