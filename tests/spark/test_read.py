"""Bounded reads: exactly the settled rows behind a token, however they are cut, and a clear no to every bad token."""

from __future__ import annotations

import base64
import json
import random
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from strandline.core.errors import SchemaError, TableRolledBack, TokenError, UsageError
from strandline.core.read_token import Continuation, decode
from strandline.core.types import Reserved, Seq
from strandline.lake import Lake, open_lake
from strandline.ledger.ingest import blocks
from tests.conftest import MakeHome
from tests.spark.lakes import create, numbers, snapshots, sql, values
from tests.spark.lakes import new_lake as opened


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, make_home: MakeHome) -> Iterator[Lake]:
    with opened(tmp_path_factory.mktemp("read"), make_home, lease_seconds=1) as lake:
        yield lake


def reserve(lake: Lake, name: str, rows: int) -> Reserved:
    wanted = blocks.NewBlock(lake.dataset(name).id, rows, f"by-hand-{rows}", None)
    held, _ = blocks.reserve(lake.ledger, lake.witness, wanted, lease_seconds=600)
    assert isinstance(held, Reserved)
    return held


# ---- where a reader goes on ------------------------------------------------------------------------------------------


def test_reading_on_from_any_token_gives_exactly_the_rest_each_row_once(lake: Lake) -> None:
    create(lake, "cut", {"n": "long"})
    rng = random.Random(7)
    sizes = [rng.randint(1, 40) for _ in range(4)]
    at = 0
    for size in sizes:
        lake.append("cut", numbers(lake, at, at + size - 1, rng.randint(1, 4)))
        at += size
    whole = [(row.n, token) for row, token in lake.read_since("cut")]
    assert sorted(n for n, _ in whole) == list(range(at))
    assert len({token for _, token in whole}) == at, "each row has a token of its own"
    for cut in rng.sample(range(at), 2):
        assert values(lake, "cut", whole[cut][1]) == [n for n, _ in whole[cut + 1 :]]
    got: list[int] = []
    token: str | None = None
    while len(got) < at:
        rows = lake.read_since("cut", token, limit=(limit := rng.randint(10, 60)))
        page = [row.n for row, _ in rows]
        assert 0 < len(page) <= limit
        got += page
        token = rows.continuation
    assert got == [n for n, _ in whole]
    assert values(lake, "cut", token) == []


def test_after_a_limit_the_token_is_that_of_the_last_row_given(lake: Lake) -> None:
    create(lake, "limited", {"n": "long"})
    lake.append("limited", numbers(lake, 1, 10))
    tokens = [token for _, token in lake.read_since("limited")]
    rows = lake.read_since("limited", limit=4)
    assert rows.df.count() == 4 and rows.continuation == tokens[3]
    assert lake.read_since("limited", limit=10).continuation == tokens[9]
    assert lake.read_since("limited", limit=99).continuation == tokens[9]
    with pytest.raises(UsageError, match="limit"):
        lake.read_since("limited", limit=0)


def test_until_bounds_a_read_and_never_moves_a_token_back(lake: Lake) -> None:
    create(lake, "until", {"n": "long"})
    done = lake.append("until", numbers(lake, 1, 10, 1))
    assert done.rows is not None
    first = done.rows.lo
    rows = lake.read_since("until", until=first + 2)
    assert [row.n for row, _ in rows] == [1, 2, 3]
    assert values(lake, "until", rows.continuation, until=first + 5) == [4, 5, 6]
    behind = lake.read_since("until", until=first + 8).continuation
    earlier = lake.read_since("until", behind, until=first + 2)
    assert list(earlier) == [] and values(lake, "until", earlier.continuation) == [10]
    with pytest.raises(UsageError, match="above what is settled"):
        lake.read_since("until", until=done.rows.hi + 1)
    for nonsense in (0, -5):
        with pytest.raises(UsageError, match="until"):
            lake.read_since("until", until=nonsense)


def test_nothing_above_an_open_block_is_read(lake: Lake) -> None:
    create(lake, "open", {"n": "long"})
    lake.append("open", numbers(lake, 1, 3))
    held = reserve(lake, "open", 5)
    lake.append("open", numbers(lake, 4, 6))
    rows = lake.read_since("open")
    assert sorted(row.n for row, _ in rows) == [1, 2, 3]
    assert values(lake, "open", rows.continuation) == []
    assert blocks.abandon(lake.ledger, lake.witness, held, "test")
    assert sorted(values(lake, "open", rows.continuation)) == [4, 5, 6]


def test_an_empty_dataset_gives_no_rows_and_a_token_that_gets_all_that_come(lake: Lake) -> None:
    create(lake, "empty", {"n": "long"})
    rows = lake.read_since("empty")
    assert list(rows) == [] and rows.df.columns == ["n"]
    lake.append("empty", numbers(lake, 1, 2))
    assert sorted(values(lake, "empty", rows.continuation)) == [1, 2]
    with pytest.raises(UsageError, match="until"):
        create(lake, "empty_too", {"n": "long"})
        lake.read_since("empty_too", until=1)


# ---- what a reader sees ----------------------------------------------------------------------------------------------


def test_internal_columns_are_stripped_unless_asked_for(lake: Lake) -> None:
    create(lake, "strip", {"n": "long", "cls": "string", "a`b c": "string"}, deliver_by=["cls"])
    lake.append("strip", lake.spark.createDataFrame([(1, "x", "y")], "n long, cls string, `a``b c` string"))
    ((row, _),) = lake.read_since("strip")
    assert row.asDict() == {"n": 1, "cls": "x", "a`b c": "y"}
    ((row, _),) = lake.read_since("strip", internal=True)
    assert row["_ingest_partition"] == "cls=x" and row["_ingest_seq"] >= 1
    for columns in (["a`b c"], ["n", "_ingest_seq"], ["_ingest_seq"]):
        rows = lake.read_since("strip", columns=columns)
        ((row, _),) = rows
        assert list(row.asDict()) == columns == rows.df.columns
    with pytest.raises(SchemaError, match="no column 'nope'"):
        lake.read_since("strip", columns=["nope"])
    with pytest.raises(SchemaError, match="twice"):
        lake.read_since("strip", columns=["n", "n"])


PLACES = [
    None,
    "",
    "~",
    "a/b",
    "a_b",
    "a b",
    "a+b",
    "a%2Fb",
    "%",
    "%7E",
    "place=x",
    "ü",
    "u\u0308",
    "日本",
    "*.-_",
    "\n",
]


def test_logical_partitions_are_kept_apart_whatever_their_values_are(lake: Lake) -> None:
    create(lake, "places", {"n": "long", "place": "string"}, deliver_by=["place"])
    lake.append("places", lake.spark.createDataFrame(list(enumerate(PLACES)), "n long, place string"))
    encoded = {r[0] for r in sql(lake, "SELECT _ingest_partition FROM lake.default.places")}
    assert len(encoded) == len(PLACES)
    for n, place in enumerate(PLACES):
        assert values(lake, "places", partition={"place": place}) == [n], place
    assert values(lake, "places", partition={"place": "nowhere"}) == []
    with pytest.raises(UsageError, match="place"):
        lake.read_since("places", partition={"other": "x"})
    with pytest.raises(UsageError, match="place"):
        lake.read_since("places", partition={"place": "x", "other": "x"})


def test_a_value_names_one_partition_however_it_was_typed_when_it_came(lake: Lake) -> None:
    create(lake, "typed", {"d": "decimal(10,2)", "b": "binary", "t": "timestamp"}, deliver_by=["d", "b", "t"])
    frames = [
        "SELECT 7 AS d, X'FF' AS b, DATE'2024-01-02' AS t",
        "SELECT 7.00BD AS d, X'FF' AS b, TIMESTAMP_NTZ'2024-01-02 00:00:00' AS t",
        "SELECT 7BD AS d, X'FE' AS b, TIMESTAMP_NTZ'2024-01-02 00:00:00' AS t",
        "SELECT 7 AS d",
    ]
    for frame in frames:
        lake.append("typed", lake.spark.sql(frame))
    found = sql(lake, "SELECT _ingest_partition, count(*) FROM lake.default.typed GROUP BY 1 ORDER BY 1")
    assert [tuple(r) for r in found] == [
        ("d=7.00/b=FE/t=2024-01-02+00%3A00%3A00", 1),
        ("d=7.00/b=FF/t=2024-01-02+00%3A00%3A00", 2),
        ("d=7.00/b=~/t=~", 1),
    ]


def test_a_later_update_moves_no_row_between_partitions(lake: Lake) -> None:
    create(lake, "moved", {"n": "long", "place": "string"}, deliver_by=["place"])
    lake.append("moved", lake.spark.sql("SELECT 1L AS n, 'a' AS place"))
    sql(lake, "UPDATE lake.default.moved SET place = 'b'")
    assert values(lake, "moved", partition={"place": "a"}) == [1]
    assert values(lake, "moved", partition={"place": "b"}) == []


# ---- bad tokens ------------------------------------------------------------------------------------------------------


def _sealed_token(version: int, *body: Any) -> str:
    """A token with a right checksum, whatever it says."""
    text = json.dumps(body, separators=(",", ":")).encode()
    checked = zlib.crc32(text).to_bytes(4, "big") + text
    return f"sl{version}." + base64.urlsafe_b64encode(checked).decode().rstrip("=")


def test_a_token_with_any_one_character_changed_or_missing_is_refused() -> None:
    for after in (Seq(1), Seq(12), Seq(123), None):  # other lengths end in other bits
        token = Continuation("lake", "table", after).encode()
        for at, character in enumerate(token):
            for other in "A_0z²" if character != "." else "A":
                if other != character:
                    with pytest.raises(TokenError):
                        decode(token[:at] + other + token[at + 1 :])
            with pytest.raises(TokenError):
                decode(token[:at] + token[at + 1 :])
        assert decode(f" {token}\n") == Continuation("lake", "table", after), "what a shell puts around it is fine"


@pytest.mark.parametrize("token", ["", "x", "sl", "sl.", "sl1", "sl1.", "sl1.!", "sl².AAAA", "sl0.AAAA", "42", "sl1.ü"])
def test_what_is_no_token_is_refused(token: str) -> None:
    with pytest.raises(TokenError, match=r"not a continuation token|damaged") as refused:
        decode(token)
    assert refused.value.hint


def test_a_token_that_was_made_elsewhere_is_refused_with_the_reason(lake: Lake) -> None:
    made = create(lake, "mine", {"n": "long"})
    lake.append("mine", numbers(lake, 1, 3))
    token = lake.read_since("mine", limit=1).continuation
    seal = lake.sealed("mine")
    assert seal is not None
    bad = {
        "another lake": Continuation("other", made.uuid, Seq(1)).encode(),
        "another dataset": Continuation(lake.id, "other", Seq(1)).encode(),
        "version 2": _sealed_token(2, lake.id, made.uuid, 1),
        "ahead of what is settled": Continuation(lake.id, made.uuid, Seq(seal + 1)).encode(),
    }
    for why, text in bad.items():
        with pytest.raises(TokenError, match=why) as refused:
            lake.read_since("mine", text)
        assert refused.value.hint
    for odd in ([lake.id, made.uuid], [lake.id, made.uuid, -1], [1, 2, 3], [lake.id, made.uuid, "1"]):
        with pytest.raises(TokenError, match="damaged"):
            lake.read_since("mine", _sealed_token(1, *odd))
    lake.drop_dataset("mine")
    create(lake, "mine", {"n": "long"})
    lake.append("mine", numbers(lake, 1, 3))
    with pytest.raises(TokenError, match="another dataset"):
        lake.read_since("mine", token)


# ---- what is opened --------------------------------------------------------------------------------------------------


def _files_opened(lake: Lake, name: str, token: str) -> tuple[int, int, int]:
    """Data files that the scan took, data files in the table, and rows read, by what Spark itself measured."""
    df = lake.read_since(name, token).df
    rows = len(df.collect())
    metrics = _metrics(df._jdf.queryExecution().executedPlan())
    total = sql(lake, f"SELECT count(*) FROM lake.default.{name}.files")[0][0]
    return metrics["resultDataFiles"], total, rows


def _metrics(plan: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    todo = [plan]
    while todo:
        node = todo.pop()
        if node.getClass().getSimpleName() == "AdaptiveSparkPlanExec":
            todo.append(node.executedPlan())
            continue
        measured = node.metrics().iterator()
        while measured.hasNext():
            pair = measured.next()
            found[pair._1()] = found.get(pair._1(), 0) + pair._2().value()
        children = node.children().iterator()
        while children.hasNext():
            todo.append(children.next())
    return found


def test_only_files_that_hold_new_rows_are_opened_fresh_and_compacted(lake: Lake) -> None:
    create(lake, "pruned", {"n": "long", "text": "string"})
    frame = "SELECT id AS n, repeat('x', 20) AS text FROM range({}, {}, 1, 1)"
    for k in range(6):
        lake.append("pruned", lake.spark.sql(frame.format(k * 100, k * 100 + 100)))
    token = lake.read_since("pruned").continuation
    assert len(lake.read_since("pruned", token).df.inputFiles()) == 0
    lake.append("pruned", lake.spark.sql(frame.format(600, 700)))
    assert _files_opened(lake, "pruned", token) == (1, 7, 100)
    sql(
        lake,
        "CALL lake.system.rewrite_data_files(table => 'default.pruned', options => map("
        "'rewrite-all', 'true', 'max-file-group-size-bytes', '7000', 'target-file-size-bytes', '5000', "
        "'min-file-size-bytes', '100', 'max-file-size-bytes', '6000'))",
    )
    opened, total, rows = _files_opened(lake, "pruned", token)
    hold_new = sql(lake, "SELECT count(DISTINCT _file) FROM lake.default.pruned WHERE n >= 600")[0][0]
    assert rows == 100 and opened == hold_new and total > hold_new
    lake.append("pruned", lake.spark.sql(frame.format(700, 710)))
    behind = lake.read_since("pruned", token, limit=100).continuation
    assert _files_opened(lake, "pruned", behind)[::2] == (1, 10)


# ---- a table that others touched -------------------------------------------------------------------------------------


def test_compaction_and_expiry_change_nothing_for_a_reader(lake: Lake) -> None:
    create(lake, "tidied", {"n": "long"})
    for k in range(3):
        lake.append("tidied", numbers(lake, k * 10, k * 10 + 9))
    before = [(row.n, token) for row, token in lake.read_since("tidied")]
    sql(lake, "CALL lake.system.rewrite_data_files(table => 'default.tidied', options => map('rewrite-all', 'true'))")
    assert [(row.n, token) for row, token in lake.read_since("tidied")] == before
    sql(
        lake,
        "CALL lake.system.expire_snapshots(table => 'default.tidied', retain_last => 1, "
        "older_than => TIMESTAMP'2999-01-01 00:00:00')",
    )
    assert len(snapshots(lake, "tidied")) == 2, "the snapshot of main, and the one that the tag of settled rows holds"
    assert [(row.n, token) for row, token in lake.read_since("tidied")] == before
    lake.append("tidied", numbers(lake, 30, 39))
    assert len(values(lake, "tidied", before[-1][1])) == 10


@pytest.mark.parametrize("expired", [False, True])
def test_a_table_that_was_rolled_back_is_said_to_be_and_not_read(lake: Lake, expired: bool) -> None:
    create(lake, name := f"rolled_{expired}".lower(), {"n": "long"})
    for k in range(3):
        lake.append(name, numbers(lake, k * 10, k * 10 + 9))
    history = snapshots(lake, name)
    newest = history[-1]
    sql(lake, f"ALTER TABLE lake.default.{name} CREATE TAG newest AS OF VERSION {newest}")
    sql(lake, f"CALL lake.system.rollback_to_snapshot('default.{name}', {history[1]})")
    if expired:
        sql(
            lake,
            f"CALL lake.system.expire_snapshots(table => 'default.{name}', retain_last => 1, "
            "older_than => TIMESTAMP'2999-01-01 00:00:00')",
        )
    with pytest.raises(TableRolledBack) as held:
        lake.read_since(name)
    assert held.value.hint
    sql(lake, f"CALL lake.system.set_current_snapshot('default.{name}', {newest})")
    assert len(values(lake, name)) == 30


def test_a_rollback_is_not_covered_up_by_the_next_batch(lake: Lake) -> None:
    create(lake, "covered", {"n": "long"})
    lake.append("covered", numbers(lake, 1, 10))
    lake.append("covered", numbers(lake, 11, 20))
    sql(lake, f"CALL lake.system.rollback_to_snapshot('default.covered', {snapshots(lake, 'covered')[0]})")
    with pytest.raises(TableRolledBack):
        lake.append("covered", numbers(lake, 21, 30), batch_id="later")


def test_a_token_of_one_handle_on_the_lake_is_good_for_another(lake: Lake) -> None:
    create(lake, "shared", {"n": "long"})
    lake.append("shared", numbers(lake, 1, 5))
    token = lake.read_since("shared", limit=2).continuation
    with open_lake(lake.config.home) as other:
        lake.append("shared", numbers(lake, 6, 7))
        assert len(values(other, "shared", token)) == 5
