"""Adopting a table that has rows: each gets one number, once, in bounded steps that can be broken off anywhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from strandline.core import failpoints
from strandline.core.errors import (
    FailedError,
    LeaseOver,
    RefusedError,
    SchemaError,
    StorageError,
    Superseded,
    TableUnfit,
)
from strandline.core.types import PARTITION_COLUMN, SEQ_COLUMN, BlockKind, History, Reserved
from strandline.iceberg.metadata.table_metadata import NUMBERED_SINCE_PROPERTY
from strandline.iceberg.spark import rewrite
from strandline.iceberg.spark.prepare import add_sequence_column
from strandline.iceberg.spark.tables import SparkTables
from strandline.ingest import adopt, stamp
from strandline.lake import Lake
from strandline.ledger.ingest import blocks, sequence
from strandline.ledger.write_right import Unlimited
from tests.conftest import MakeHome
from tests.spark.lakes import count, create, in_order, new_lake, numbers, open_blocks, owned, sql, status, values
from tests.spark.protocol import outlive_lease

STEP_ROWS = 10


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, make_home: MakeHome) -> Iterator[Lake]:
    with new_lake(tmp_path_factory.mktemp("adopt"), make_home, adopt_rows_max=STEP_ROWS) as lake:
        create(lake, "first", {"n": "long"})  # makes the namespace
        yield lake


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.arm("")


def legacy(lake: Lake, name: str, files: int = 4, *, options: str = "", properties: str = "'x'='y'") -> None:
    """Someone's table: `files` commits of seven rows."""
    columns = "(n BIGINT, text STRING)"
    sql(lake, f"CREATE TABLE lake.default.{name} {columns} USING iceberg {options} TBLPROPERTIES ({properties})")
    for k in range(files):
        add(lake, name, k * 7, k * 7 + 7)


def add(lake: Lake, name: str, lo: int, hi: int) -> None:
    sql(lake, f"INSERT INTO lake.default.{name} (n, text) SELECT id, 'row ' || id FROM range({lo}, {hi}, 1, 1)")


def content(lake: Lake, name: str) -> list[tuple[Any, ...]]:
    return [tuple(r) for r in in_order(sql(lake, f"SELECT n, text FROM lake.default.{name}"))]


def numbered(lake: Lake, name: str) -> dict[int, int]:
    """The number of each n; every row has exactly one of its own, and it is one of ours."""
    rows = sql(lake, f"SELECT n, {SEQ_COLUMN} FROM lake.default.{name}")
    found = {r[0]: r[1] for r in rows}
    assert None not in found.values()
    assert len(found) == len(rows) == len(set(found.values()))
    ranges = owned(lake, name)
    assert all(any(seq in r for r in ranges) for seq in found.values())
    assert open_blocks(lake, name) == []
    return found


TABLES = {
    "plain": {},
    "partitioned": {"options": "PARTITIONED BY (bucket(3, n), truncate(5, text))"},
    "format_1": {"properties": "'format-version'='1'"},
    "format_3": {"properties": "'format-version'='3','write.delete.mode'='merge-on-read'"},
    "position_deletes": {"properties": "'write.delete.mode'='merge-on-read'"},
    "orc": {"properties": "'write.format.default'='orc'"},
    "avro": {"properties": "'write.format.default'='avro'"},
}


@pytest.mark.parametrize("kind", TABLES)
def test_every_row_of_a_table_gets_one_number_and_is_otherwise_unchanged(lake: Lake, kind: str) -> None:
    legacy(lake, name := f"kind_{kind}", **TABLES[kind])
    sql(lake, f"DELETE FROM lake.default.{name} WHERE n IN (3, 20)")
    before = content(lake, name)
    steps: list[tuple[int, int]] = []
    done = lake.adopt_dataset(name, on_step=lambda *told: steps.append(told))
    assert done.rows == len(before) == 26
    assert done.steps >= 3 and (steps[0][0], steps[-1][0]) == (0, 26), "in bounded steps"
    [total] = {total for _, total in steps}
    assert total in (26, 28), "the two that were deleted may still be in their files"
    assert content(lake, name) == before
    found = numbered(lake, name)
    assert lake.sealed(name) == max(found.values())
    assert (status(lake, name).unnumbered, status(lake, name).foreign) == (0, 0)
    assert sorted(values(lake, name)) == [r[0] for r in before]
    assert lake.adopt_dataset(name).rows == 0, "a second pass finds nothing to do"
    lake.append(name, lake.spark.sql("SELECT 1000L AS n, 'new' AS text"))
    assert len(values(lake, name)) == 27 and numbered(lake, name).items() >= found.items()


def test_no_step_is_larger_than_it_may_be_unless_one_file_is(lake: Lake) -> None:
    legacy(lake, "steps", files=3)
    add(lake, "steps", 100, 150)
    lake.adopt_dataset("steps")
    with lake.ledger.read() as connection:
        import sqlalchemy as sa

        found = connection.execute(
            sa.text("SELECT hi - lo + 1 FROM block WHERE dataset_id = :d AND kind = 'adopted'"),
            {"d": lake.dataset("steps").id},
        ).scalars()
        sizes = sorted(found)
    assert sizes == [7, 7, 7, 50]


def test_history_is_skipped_where_asked_but_numbered_all_the_same(lake: Lake) -> None:
    legacy(lake, "skipped", files=1)
    lake.adopt_dataset("skipped", history=History.SKIP)
    assert lake.dataset("skipped").history is History.SKIP
    properties = {r[0]: r[1] for r in sql(lake, "SHOW TBLPROPERTIES lake.default.skipped")}
    assert properties["strandline.history"] == "skip", "a ledger that is rebuilt finds it there"
    assert len(numbered(lake, "skipped")) == 7
    lake.adopt_dataset("skipped")
    assert lake.dataset("skipped").history is History.SKIP


def test_rows_that_others_append_later_are_counted_and_numbered_by_the_next_pass(lake: Lake) -> None:
    legacy(lake, "later", files=1)
    lake.adopt_dataset("later")
    before = numbered(lake, "later")
    token = lake.read_since("later").continuation
    add(lake, "later", 100, 104)
    assert status(lake, "later").unnumbered == 4
    assert values(lake, "later", token) == []
    # Numbered and unnumbered rows in one file, as a compaction leaves them.
    sql(lake, "CALL lake.system.rewrite_data_files(table => 'default.later', options => map('rewrite-all', 'true'))")
    assert status(lake, "later").unnumbered == 4
    lake.append("later", lake.spark.sql("SELECT 200L AS n, 'ours' AS text"))
    assert lake.adopt_dataset("later").rows == 4
    assert numbered(lake, "later").items() > before.items(), "a number never changes"
    assert sorted(values(lake, "later", token)) == [100, 101, 102, 103, 200]
    assert status(lake, "later").unnumbered == 0


def test_legacy_rows_get_their_logical_partition_too(lake: Lake) -> None:
    legacy(lake, "parted", files=1)
    sql(lake, "INSERT INTO lake.default.parted VALUES (50, null), (51, 'a/b')")
    lake.adopt_dataset("parted", deliver_by=["text"])
    assert values(lake, "parted", partition={"text": "row 3"}) == [3]
    assert values(lake, "parted", partition={"text": None}) == [50]
    assert values(lake, "parted", partition={"text": "a/b"}) == [51]


def test_a_table_without_rows_is_adopted_and_used(lake: Lake) -> None:
    legacy(lake, "hollow", files=0)
    assert lake.adopt_dataset("hollow").rows == 0
    lake.append("hollow", lake.spark.sql("SELECT 1L AS n, 'x' AS text"))
    assert values(lake, "hollow") == [1]


def test_columns_of_any_name_are_columns_and_mark_no_row(lake: Lake, tmp_path: Path) -> None:
    """What marks a rejected row is said by the reader of files, never found by a column's name."""
    columns = "n BIGINT, _reject STRING, _line BIGINT, _raw STRING, _metadata STRUCT<row_index: STRING>"
    sql(lake, f"CREATE TABLE lake.default.odd_names ({columns}) USING iceberg")
    row = ["id AS n", "if(id % 2 = 0, 'no', null) AS _reject", "id AS _line", "'r' AS _raw"]
    row.append("struct('m' AS row_index) AS _metadata")
    sql(lake, f"INSERT INTO lake.default.odd_names SELECT {', '.join(row)} FROM range(0, 10, 1, 1)")
    assert lake.adopt_dataset("odd_names").rows == 10
    assert lake.append("odd_names", lake.spark.range(10, 20).selectExpr(*row)).row_count == 10
    lines = [{"n": 20, "_reject": "x", "_line": 7, "_raw": "y"}, {"n": "not a number", "_raw": "z"}, {"n": 21}]
    (tmp_path / "some.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    lake.spark.range(22, 24).selectExpr(*row).coalesce(1).write.parquet(str(tmp_path / "folder"))
    [file] = (tmp_path / "folder").glob("*.parquet")
    first, second = lake.ingest("odd_names", [tmp_path / "some.jsonl", file])
    assert (first.error, first.rows, first.rejected, second.error, second.rows) == (None, 2, 1, None, 2)
    assert first.rejects_path is not None and json.loads(first.rejects_path.read_text())["line"] == 2
    assert sorted(values(lake, "odd_names")) == list(range(24))
    assert {r["n"]: r["_reject"] for r, _ in lake.read_since("odd_names")}[2] == "no"


@pytest.mark.parametrize("deletes", [False, True])
def test_a_pass_that_would_lose_a_row_is_refused_before_its_commit(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, deletes: bool
) -> None:
    legacy(lake, name := f"losing_{deletes}", files=1, properties="'write.delete.mode'='merge-on-read'")
    if deletes:
        sql(lake, f"DELETE FROM lake.default.{name} WHERE n = 3")
    before, pin = content(lake, name), stamp.pin
    with monkeypatch.context() as patched:
        patched.setattr(stamp, "pin", lambda spark, df, **how: pin(spark, df.where("n <> 5"), **how))
        with pytest.raises(FailedError, match=f"{len(before)} rows were read, and {len(before) - 1} rows were written"):
            lake.adopt_dataset(name)
    assert content(lake, name) == before and open_blocks(lake, name) == []
    assert lake.adopt_dataset(name).rows == len(before) == len(numbered(lake, name))


def test_what_cannot_be_adopted_is_refused_and_left_as_it_was(lake: Lake) -> None:
    for column in ("_sl_number", "_Ingest_Seq"):
        sql(lake, f"CREATE TABLE lake.default.taken (n BIGINT, {column} BIGINT) USING iceberg")
        with pytest.raises(SchemaError, match=column):
            lake.adopt_dataset("taken")
        sql(lake, "DROP TABLE lake.default.taken")
    sql(lake, "CREATE TABLE lake.default.odd (n BIGINT, _ingest_seq STRING) USING iceberg")
    with pytest.raises(SchemaError, match="_ingest_seq"):
        lake.adopt_dataset("odd")
    legacy(lake, "other_lake", files=0, properties="'strandline.lake'='someone-else'")
    with pytest.raises(RefusedError, match="another lake"):
        lake.adopt_dataset("other_lake")
    legacy(lake, "expiring", files=0, properties="'history.expire.max-ref-age-ms'='1'")
    with pytest.raises(TableUnfit):
        lake.adopt_dataset("expiring")
    legacy(lake, "elsewhere", files=0)
    with pytest.raises(SchemaError, match="no such column"):
        lake.adopt_dataset("elsewhere", deliver_by=["nope"])
    sql(lake, "ALTER TABLE lake.default.elsewhere SET TBLPROPERTIES ('strandline.epoch'='9')")
    with pytest.raises(Superseded):
        lake.adopt_dataset("elsewhere")
    refused = {"default.odd", "default.other_lake", "default.expiring", "default.elsewhere"}
    assert {d.name for d in lake.datasets()}.isdisjoint(refused)
    assert all(SEQ_COLUMN not in columns_of(lake, name) for name in refused - {"default.odd"})


def columns_of(lake: Lake, name: str) -> list[str]:
    return [field["name"] for field in lake.tables().view(name).schema["fields"]]


def test_our_columns_come_first_in_one_commit_and_what_is_missing_later_is_added(lake: Lake) -> None:
    legacy(lake, "prepared", files=1)
    before = lake.tables().view("default.prepared")
    first = add_sequence_column(lake.tables(), "default.prepared", lake_id=lake.id, epoch=1)
    assert len(first.metadata_log) == len(before.metadata_log) + 1
    assert columns_of(lake, "default.prepared") == [SEQ_COLUMN, "n", "text"]
    assert not any(field["required"] for field in first.schema["fields"])
    assert add_sequence_column(lake.tables(), "default.prepared", lake_id=lake.id, epoch=1) == first, "nothing changed"
    add(lake, "prepared", 7, 8)
    add_sequence_column(lake.tables(), "default.prepared", lake_id=lake.id, epoch=1, deliver_by=["text"])
    later = lake.tables().view("default.prepared")
    assert columns_of(lake, "default.prepared") == [SEQ_COLUMN, PARTITION_COLUMN, "n", "text"]
    since = first.properties[NUMBERED_SINCE_PROPERTY]
    assert later.properties[NUMBERED_SINCE_PROPERTY] == since == str(before.sequence)


# ---- broken off ------------------------------------------------------------------------------------------------------

ADOPT_POINTS = [p for p in failpoints.POINTS if p.startswith("adopt.")]


@pytest.mark.parametrize("point", [*ADOPT_POINTS, "reserve.after_commit", "settle.before_mark", "settle.after_mark"])
def test_a_pass_that_broke_off_anywhere_is_finished_by_the_next(lake: Lake, point: str) -> None:
    legacy(lake, name := "broken_" + point.replace(".", "_"), files=3)
    before = content(lake, name)
    failpoints.arm(f"{point}=fail@2")
    with pytest.raises(failpoints.FailpointError):
        lake.adopt_dataset(name)
    failpoints.arm("")
    left = open_blocks(lake, name)
    if point not in ("adopt.after_mark", "settle.after_mark"):
        assert len(left) == 1 and left[0].head.kind is BlockKind.ADOPTED
        assert lake.recover().abandoned == [], "such a block is never given up by lease"
        outlive_lease(lake)
    lake.adopt_dataset(name)
    assert len(numbered(lake, name)) == 21 and content(lake, name) == before
    assert sorted(values(lake, name)) == list(range(21))
    assert status(lake, name).unnumbered == 0


def test_a_pass_that_is_alive_is_not_taken_over(lake: Lake) -> None:
    legacy(lake, "alive", files=0)
    lake.adopt_dataset("alive")
    add(lake, "alive", 0, 3)
    wanted = blocks.NewBlock(lake.dataset("alive").id, 3, "adopt-alive", None, BlockKind.ADOPTED, ("some-file",))
    blocks.reserve(lake.ledger, lake.witness, wanted, lease_seconds=600)
    with pytest.raises(RefusedError, match="another process is numbering") as refused:
        lake.adopt_dataset("alive")
    assert refused.value.hint and status(lake, "alive").unnumbered == 3


def test_a_pass_that_could_not_write_does_not_hold_the_seal(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    legacy(lake, "unwritten", files=1)

    def full(*args: Any) -> list[Any]:
        raise StorageError("numbered rows cannot be written: the disk is full")

    monkeypatch.setattr(rewrite, "write", full)
    with pytest.raises(StorageError):
        lake.adopt_dataset("unwritten")
    assert open_blocks(lake, "unwritten") == []
    monkeypatch.undo()
    lake.adopt_dataset("unwritten")
    assert len(numbered(lake, "unwritten")) == 7


Prepared = tuple[rewrite.FileGroup, list[Any], Reserved]


def commit(lake: Lake, group: rewrite.FileGroup, files: list[Any], held: Reserved) -> None:
    tables, head = lake.work.tables, held.head
    rewrite.commit(
        tables, group, files, lake.work.wap(head), head.branch, epoch=epoch(lake), may_move_tag=lambda view: True
    )


def prepare(lake: Lake, name: str) -> Prepared:
    """A pass up to the moment before its commit; its process then seems dead to everyone else."""
    work, dataset = lake.work, lake.dataset(name)
    group = rewrite.unnumbered_group(work.tables, dataset.name, rows_max=1000)
    assert group is not None
    with rewrite.reading(work.tables, group) as df:
        pinned = stamp.pin(work.tables.spark, df.where(f"{SEQ_COLUMN} IS NULL"), always=True)
        counted = stamp.count(pinned, ["n", "text"], digest=False)
        wanted = blocks.NewBlock(dataset.id, counted.rows, "adopt-zombie", None, BlockKind.ADOPTED, group.paths)
        held, _ = blocks.reserve(lake.ledger, lake.witness, wanted, lease_seconds=0)
        assert isinstance(held, Reserved)
        work.tables.create_branch(dataset.name, held.head.branch)
        files = rewrite.write(work.tables, group, stamp.stamp(pinned, ["n", "text"], held.head.rows, counted, []))
    return group, files, held


def adopt_nothing(lake: Lake, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns and properties only."""
    with monkeypatch.context() as patch:
        patch.setattr(adopt, "number_rows", lambda *args, **options: None)
        lake.adopt_dataset(name)


def before_commit(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Before the next commit of a pass, once."""
    real, done = rewrite.commit, []

    def commit(*args: Any, **options: Any) -> None:
        if not done:
            done.append(True)
            act()
        real(*args, **options)

    monkeypatch.setattr(rewrite, "commit", commit)


def epoch(lake: Lake) -> int:
    with lake.ledger.read() as connection:
        return sequence.read(connection).epoch


def test_a_pass_whose_lease_ended_before_its_commit_point_commits_nothing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had looked, and was stopped: another site may lead by now."""

    class Over(Unlimited):
        def check(self) -> None:
            raise LeaseOver("this site cannot show that it still leads")

    legacy(lake, "lapsed", 1)
    monkeypatch.setattr(lake.ledger, "write_right", Over())
    with pytest.raises(LeaseOver):
        lake.adopt_dataset("lapsed")
    monkeypatch.undo()
    assert all(row[0] is None for row in sql(lake, f"SELECT {SEQ_COLUMN} FROM lake.default.lapsed"))
    lake.adopt_dataset("lapsed")
    assert len(numbered(lake, "lapsed")) == 7


def test_a_pass_of_a_ledger_that_was_superseded_cannot_commit_any_more(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other ledger counts the numbers of this pass as its own, and sinks have gone past them."""
    legacy(lake, "superseded", files=2)
    write = rewrite.write

    def raised(tables: SparkTables, group: rewrite.FileGroup, df: Any) -> Any:
        tables.raise_epoch("default.superseded", epoch(lake) + 1)
        return write(tables, group, df)

    monkeypatch.setattr(rewrite, "write", raised)
    with pytest.raises(Superseded):
        lake.adopt_dataset("superseded")
    assert {r[0] for r in sql(lake, f"SELECT {SEQ_COLUMN} FROM lake.default.superseded")} == {None}


def test_an_epoch_is_never_taken_back(lake: Lake) -> None:
    create(lake, "epochs", {"n": "long"})
    tables = lake.work.tables
    tables.raise_epoch("default.epochs", 9)
    tables.raise_epoch("default.epochs", 9)
    with pytest.raises(Superseded):
        tables.raise_epoch("default.epochs", 8)
    assert tables.view("default.epochs").epoch == 9


def test_a_pass_that_was_taken_over_cannot_commit_any_more(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    legacy(lake, "zombie", files=2)
    adopt_nothing(lake, "zombie", monkeypatch)
    group, files, held = prepare(lake, "zombie")
    before = content(lake, "zombie")
    lake.adopt_dataset("zombie")
    found = numbered(lake, "zombie")
    with pytest.raises(rewrite.FilesGone):
        commit(lake, group, files, held)
    assert numbered(lake, "zombie") == found and content(lake, "zombie") == before
    assert not any(seq in held.head.rows for seq in found.values())


def test_a_pass_that_slept_before_it_made_its_branch_and_lands_while_it_is_taken_over_wins(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever took it over found no branch to remove, and no row with its numbers."""
    legacy(lake, "slept", files=2)
    adopt_nothing(lake, "slept", monkeypatch)
    group, files, held = prepare(lake, "slept")
    before, tables, branch = content(lake, "slept"), lake.work.tables, held.head.branch
    tables.remove_branch("default.slept", branch)

    def wakes_up() -> None:
        tables.create_branch("default.slept", branch)
        commit(lake, group, files, held)

    before_commit(monkeypatch, wakes_up)
    lake.adopt_dataset("slept")
    found = numbered(lake, "slept")
    assert content(lake, "slept") == before and all(seq in held.head.rows for seq in found.values())
    assert not open_blocks(lake, "slept") and len(values(lake, "slept")) == len(before), "a sink would get them"


def test_a_pass_that_broke_off_and_whose_rows_were_deleted_since_does_not_hold_the_seal(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are still there, with no row left in them to be numbered."""
    legacy(lake, "emptied", files=2, properties="'write.delete.mode'='merge-on-read'")
    adopt_nothing(lake, "emptied", monkeypatch)
    prepare(lake, "emptied")
    sql(lake, "DELETE FROM lake.default.emptied WHERE n % 2 IN (0, 1)")
    assert sql(lake, "SELECT count(*) FROM lake.default.emptied.data_files")[0][0] == 2
    assert lake.adopt_dataset("emptied").rows == 0 and not open_blocks(lake, "emptied")
    lake.append("emptied", numbers(lake, 100, 101))
    assert sorted(values(lake, "emptied")) == [100, 101]


def test_a_dead_pass_that_commits_after_all_before_it_is_taken_over_wins(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    legacy(lake, "late", files=2)
    adopt_nothing(lake, "late", monkeypatch)
    group, files, held = prepare(lake, "late")
    before = content(lake, "late")
    commit(lake, group, files, held)
    lake.adopt_dataset("late")
    found = numbered(lake, "late")
    assert content(lake, "late") == before
    assert all(seq in held.head.rows for seq in found.values())
    assert lake.sealed("late") == held.head.rows.hi


def test_a_made_up_number_in_its_range_does_not_make_a_dead_pass_a_done_one(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    legacy(lake, "faked", files=1)
    adopt_nothing(lake, "faked", monkeypatch)
    _, _, held = prepare(lake, "faked")
    sql(lake, f"INSERT INTO lake.default.faked VALUES ({held.head.rows.lo}, 666, 'fake')")
    assert lake.adopt_dataset("faked").rows == 7
    assert sorted(values(lake, "faked")) == list(range(7)) and status(lake, "faked").foreign == 1


CHANGES = {
    "compacted": (
        "CALL lake.system.rewrite_data_files(table => 'default.{}', options => map('rewrite-all', 'true'))",
        set(),
    ),
    "deleted": ("DELETE FROM lake.default.{} WHERE n = 2", {2}),
    "marked deleted": ("DELETE FROM lake.default.{} WHERE n = 2", {2}),
    "appended": ("INSERT INTO lake.default.{} (n, text) VALUES (100, 'more')", set()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_happens_to_the_files_between_choosing_and_committing_is_not_undone(
    lake: Lake, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mode = "merge-on-read" if change == "marked deleted" else "copy-on-write"
    legacy(lake, name := "changed_" + change.replace(" ", "_"), files=2, properties=f"'write.delete.mode'='{mode}'")
    text, gone = CHANGES[change]
    before_commit(monkeypatch, lambda: sql(lake, text.format(name)))  # type: ignore[arg-type, return-value]
    lake.adopt_dataset(name)
    assert set(numbered(lake, name)) == (set(range(14)) - gone) | ({100} if change == "appended" else set())
    assert count(lake, name) == 14 - len(gone) + (change == "appended")


def test_a_property_that_someone_took_away_is_mended_by_adopting_again(lake: Lake) -> None:
    legacy(lake, "mended", files=1)
    lake.adopt_dataset("mended")
    sql(lake, "ALTER TABLE lake.default.mended UNSET TBLPROPERTIES ('write.metadata.metrics.column._ingest_seq')")
    with pytest.raises(TableUnfit, match="metrics"):
        lake.append("mended", numbers(lake, 1, 2))
    lake.adopt_dataset("mended")
    lake.append("mended", numbers(lake, 100, 101))
    assert len(values(lake, "mended")) == 9
