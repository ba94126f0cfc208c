"""Schemas as people write them, and as data files show them."""

from __future__ import annotations

import gzip
import json
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.errors import InputError, SchemaError
from strandline.iceberg.schema.columns import (
    Column,
    ColumnType,
    ListOf,
    MapOf,
    Primitive,
    Struct,
    can_widen,
    check_writable,
    iceberg_schema,
    to_json,
    type_text,
)
from strandline.iceberg.schema.infer import Guess, infer
from strandline.iceberg.schema.partitioning import PartitionBy, parse_partition_by
from strandline.iceberg.schema.schema_file import parse_columns, parse_schema_file, parse_type

LONG, STRING = Primitive("long"), Primitive("string")


def write_schema(folder: Path, value: object, name: str = "schema.json") -> Path:
    path = folder / name
    path.write_text(value if isinstance(value, str) else json.dumps(value), "utf-8")
    return path


# ---- schema files --------------------------------------------------------------------------------------------------


def test_json_and_yaml_give_the_same_columns(tmp_path: Path) -> None:
    as_json = write_schema(
        tmp_path,
        [
            {"name": "id", "type": "long", "required": True, "doc": "who"},
            {"name": "price", "type": "decimal( 10 , 2 )"},
            {"name": "tags", "type": "list<string>"},
            {"name": "by", "type": "map<string, struct<a:int,b:list<decimal(4,1)>>>"},
        ],
    )
    as_yaml = write_schema(
        tmp_path,
        """
        - {name: id, type: long, required: true, doc: who}
        - {name: price, type: "decimal(10, 2)"}
        - {name: tags, type: {type: list, element: string, element-required: false}}
        - name: by
          type:
            type: map
            key: string
            value: {type: struct, fields: [{name: a, type: int}, {name: b, type: "list<decimal(4,1)>"}]}
        """,
        "schema.yaml",
    )
    columns = parse_schema_file(as_json)
    assert columns == parse_schema_file(as_yaml)
    assert columns[0] == Column("id", LONG, required=True, doc="who")
    assert columns[1] == Column("price", Primitive("decimal(10,2)"))
    assert columns[2] == Column("tags", ListOf(STRING))
    assert columns[3].type == MapOf(
        STRING, Struct((Column("a", Primitive("int")), Column("b", ListOf(Primitive("decimal(4,1)")))))
    )


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ([{"name": "a", "type": "bigint"}], "column a: there is no type 'bigint'"),
        ([{"name": "a"}], "column a: its type is missing"),
        ([{"type": "int"}], "column number 1: its name is missing"),
        ([{"name": True, "type": "int"}], "not text: True"),
        ([{"name": " ", "type": "int"}], "the name is empty"),
        ([{"name": "a", "type": "int"}, {"name": "A", "type": "int"}], "column A: the name occurs twice"),
        ([{"name": "a", "type": "int"}, {"name": "a", "type": "int"}], "column a: the name occurs twice"),
        ([{"name": "s", "type": "struct<x:int,X:int>"}], "column s.X: the name occurs twice"),
        ([{"name": "_ingest_seq", "type": "long"}], "column _ingest_seq: the name is Strandline's own"),
        ([{"name": "_Ingest_Partition", "type": "string"}], "column _Ingest_Partition: the name is Strandline's own"),
        ([{"name": "_SL_number", "type": "long"}], "column _SL_number: the name is Strandline's own"),
        ([{"name": "_file", "type": "string"}], "column _file: the name is Iceberg's own"),
        ([{"name": "a.b", "type": "string"}], "column a.b: a name cannot contain a dot"),
        ([{"name": "a", "type": "int", "requird": True}], "column a: unknown keys: requird"),
        ([{"name": "a", "type": "int", "required": "yes"}], "column a: required is true or false"),
        ([{"name": "a", "type": "decimal(39,2)"}], "column a: decimal(39,2) is not possible"),
        ([{"name": "a", "type": "decimal(4,5)"}], "column a: decimal(4,5) is not possible"),
        ([{"name": "a", "type": "fixed[0]"}], "column a: fixed[0] is too short"),
        ([{"name": "a", "type": "list<int"}], "column a"),
        ([{"name": "a", "type": "list<int,int>"}], "column a"),
        ([{"name": "a", "type": "map<int>"}], "column a"),
        ([{"name": "a", "type": "list<struct<x:nope>>"}], "column a.element.x: there is no type 'nope'"),
        ([{"name": "a", "type": {"type": "struct", "fields": []}}], "column a: a struct without fields"),
        ([{"name": "a", "type": {"type": "set", "of": "int"}}], "column a: this is not a type"),
        ([{"name": "a", "type": "list<" * 40 + "int" + ">" * 40}], "nested more than"),
        (["a"], "column number 1: not a column"),
        ([], "at least one column"),
        ({"a": "int"}, "a schema is a list of columns"),
    ],
)
def test_what_is_wrong_with_a_schema_is_said_with_the_columns_name(tmp_path: Path, value: object, says: str) -> None:
    with pytest.raises(SchemaError) as caught:
        parse_schema_file(write_schema(tmp_path, value))
    assert says in caught.value.message


def test_habits_of_other_systems_get_icebergs_name_as_a_hint() -> None:
    with pytest.raises(SchemaError) as caught:
        parse_type("VARCHAR(20)", where="a")
    assert caught.value.hint == "Iceberg calls it string."


@pytest.mark.parametrize(("name", "text"), [("s.json", "[{"), ("s.yaml", "a: [b"), ("s.json", "[" * 100_000)])
def test_a_file_that_is_no_schema_is_refused(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(SchemaError):
        parse_schema_file(write_schema(tmp_path, text, name))


def test_a_schema_file_that_is_not_there_or_not_text_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        parse_schema_file(tmp_path / "none.json")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SchemaError, match="UTF-8"):
        parse_schema_file(tmp_path / "binary.json")


names = st.text("abcdefgh_é ", min_size=1, max_size=6).filter(str.strip)
primitives = st.sampled_from(
    ["boolean", "int", "long", "float", "double", "date", "timestamp", "timestamptz", "string", "uuid", "binary",
     "decimal(10,2)", "decimal(38,0)", "fixed[16]", "time", "timestamp_ns", "variant"]
).map(Primitive)  # fmt: skip


def fields(types: st.SearchStrategy[ColumnType]) -> st.SearchStrategy[tuple[Column, ...]]:
    column = st.builds(Column, names, types, st.booleans(), st.none() | st.text(max_size=5))
    return st.lists(column, min_size=1, max_size=4, unique_by=lambda c: c.name.lower()).map(tuple)


types: st.SearchStrategy[ColumnType] = st.recursive(
    primitives,
    lambda inner: (
        st.builds(ListOf, inner, st.booleans())
        | st.builds(MapOf, inner, inner, st.booleans())
        | st.builds(Struct, fields(inner))
    ),
    max_leaves=8,
)


@given(fields(types))
def test_what_is_shown_reads_back_as_the_same_columns(columns: tuple[Column, ...]) -> None:
    assert parse_columns(json.loads(json.dumps(to_json(columns)))) == columns
    assert parse_columns(iceberg_schema(columns)) == columns


@given(fields(types))
def test_ids_are_unique_and_dense(columns: tuple[Column, ...]) -> None:
    def ids(node: object) -> list[int]:
        if isinstance(node, dict):
            own = [v for k, v in node.items() if k in ("id", "element-id", "key-id", "value-id")]
            return own + [i for v in node.values() for i in ids(v)]
        return [i for v in node for i in ids(v)] if isinstance(node, list) else []

    found = sorted(ids(iceberg_schema(columns)))
    assert found == list(range(1, len(found) + 1))


@pytest.mark.parametrize(
    "text", ["time", "timestamp_ns", "timestamptz_ns", "variant", "unknown", "geometry", "geography('OGC:CRS84')"]
)
def test_types_that_rows_cannot_be_written_to_are_refused_with_what_to_use_instead(text: str) -> None:
    nested = Column("outer", ListOf(Struct((Column("inner", parse_type(text, where="x")),))))
    with pytest.raises(SchemaError) as caught:
        check_writable([nested])
    assert "column outer.element.inner" in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("old", "new", "possible"),
    [
        ("int", "long", True),
        ("float", "double", True),
        ("decimal(5,2)", "decimal(9,2)", True),
        ("decimal(5,2)", "decimal(9,3)", False),
        ("decimal(9,2)", "decimal(5,2)", False),
        ("long", "int", False),
        ("int", "double", False),
        ("string", "binary", False),
        ("date", "timestamp", False),
        ("int", "list<long>", False),
    ],
)
def test_only_what_old_files_can_be_read_as_is_widening(old: str, new: str, possible: bool) -> None:
    assert can_widen(parse_type(old, where="a"), parse_type(new, where="a")) is possible


# ---- partitioning --------------------------------------------------------------------------------------------------


def test_partition_expressions_become_icebergs_transforms() -> None:
    text = "region, day(ts), bucket(16, id), truncate( 4 , a.b ), Hour(x)"
    assert parse_partition_by(text) == (
        PartitionBy("region", "identity"),
        PartitionBy("ts", "day"),
        PartitionBy("id", "bucket[16]"),
        PartitionBy("a.b", "truncate[4]"),
        PartitionBy("x", "hour"),
    )
    assert [p.field_name for p in parse_partition_by(text)] == ["region", "ts_day", "id_bucket", "a.b_trunc", "x_hour"]


@pytest.mark.parametrize("text", ["", "day()", "day(a,b)", "bucket(a)", "bucket(0,a)", "bucket(x,a)", "week(a)",
                                  "a,,b", "day(a", "a b", "day(a),day(a)"])  # fmt: skip
def test_what_is_no_partitioning_is_refused(text: str) -> None:
    with pytest.raises(SchemaError):
        parse_partition_by(text)


# ---- inference -----------------------------------------------------------------------------------------------------


def inferred(path: Path) -> dict[str, str]:
    columns = infer(path).columns
    assert all(not c.required for c in columns)
    assert parse_columns(to_json(columns)) == columns, "what was inferred must be usable as a schema file"
    return {c.name: type_text(c.type) for c in columns}


ROWS = [
    {"id": 1, "x": 1, "ok": True, "day": "2024-01-31", "at": "2024-01-31T10:00:00.123Z", "local": "2024-01-31 10:00:00",
     "name": "a", "big": 2**63, "nothing": None, "tags": ["a"], "empty": [], "o": {"a": 1}, "none": {}, "odd": "NaN",
     "nans": "NaN"},
    {"id": 2, "x": 1.5, "day": "2024-02-01", "at": "2024-01-31T10:00:00+02:00", "local": "2024-01-31T10:00:00.5",
     "name": "2024-01-01", "tags": [None, "b"], "o": {"b": {"c": "2024-01-01"}}, "late": "x", "odd": 1},
]  # fmt: skip
KINDS = {
    "id": "long", "x": "double", "ok": "boolean", "day": "date", "at": "timestamptz", "local": "timestamp",
    "name": "string", "big": "decimal(38,0)", "nothing": "string", "tags": "list<string>", "empty": "list<string>",
    "o": "struct<a:long,b:struct<c:date>>", "none": "map<string,string>", "odd": "double",
    "nans": "string", "late": "string",
}  # fmt: skip


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.ndjson", "rows.jsonl.gz", "rows.json.zst"])
def test_json_lines_show_their_columns_plain_and_compressed(tmp_path: Path, name: str) -> None:
    content = "\n".join(json.dumps(row) for row in ROWS).encode()
    path = tmp_path / name
    if name.endswith(".gz"):
        content = gzip.compress(content)
    elif name.endswith(".zst"):
        content = zstandard.compress(content)
    path.write_bytes(content)
    assert inferred(path) == KINDS


@pytest.mark.parametrize("text", ["2024-02-30", "2024-01-01T25:00:00Z", "2024-01-01T00:00:00.123456789Z", "20240101"])
def test_text_that_would_not_survive_as_a_time_stays_text(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"a": text}))
    assert inferred(path) == {"a": "string"}


def test_dates_mixed_with_timestamps_are_text(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": "2024-01-01"}\n{"a": "2024-01-01T00:00:00Z"}\n')
    assert inferred(path) == {"a": "string"}


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ('{"a": 1}\n{"a": "x"}\n', SchemaError, "line 2: column a has text, and rows before it have a number"),
        ('{"a": {"b": 1}}\n{"a": {"b": []}}\n', SchemaError, "line 2: column a.b has a list"),
        ('{"a": 1}\n\nnot json\n', InputError, "line 3: not JSON"),
        ('{"a": NaN}\n', InputError, "NaN is not a JSON number"),
        ("[1]\n", InputError, "line 1: not an object"),
        ("", InputError, "no rows"),
        ('{"_ingest_seq": 1}\n', SchemaError, "Strandline's own"),
        ('{"a": 1, "A": 2}\n', SchemaError, "twice"),
        ('{"a.b": 1}\n', SchemaError, "dot"),
    ],
)
def test_json_lines_that_show_no_schema_are_refused(
    tmp_path: Path, text: str, error: type[Exception], says: str
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    with pytest.raises(error, match=says):
        infer(path)


def test_csv_shows_its_columns_and_keeps_leading_zeros_as_text(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(
        'id,zip,price,ok,at,day,text,huge,none\n1,00123,1.5,true,2024-01-01T00:00:00Z,2024-01-01,"a\nb",1e999,\n'
        "-2,99999,3,FALSE,,2024-01-02,7,1,\n3,1,NaN,,,,,,\n"
    )
    assert inferred(path) == {
        "id": "long", "zip": "string", "price": "double", "ok": "boolean", "at": "timestamptz", "day": "date",
        "text": "string", "huge": "string", "none": "string",
    }  # fmt: skip


def test_a_column_that_became_text_says_what_did_not_fit_and_where(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    rows = [f"{i},{'n/a' if i in (57, 300) else i * 0.5},x{i},2024-01-01" for i in range(1000)]
    path.write_text("id,price,name,day,none\n" + "".join(f"{row},\n" for row in rows))
    found = infer(path, {})
    assert found.guesses == (Guess("price", "double", 1000, 2, ((59, "n/a"), (302, "n/a"))),)
    assert (found.empty, found.sampled_rows) == (("none",), None)
    chosen = infer(path, {"price": Primitive("double"), "none": Primitive("date")})
    assert (chosen.guesses, chosen.empty) == ((), ())
    assert {c.name: type_text(c.type) for c in chosen.columns} == {
        "id": "long", "price": "double", "name": "string", "day": "date", "none": "date"
    }  # fmt: skip
    with pytest.raises(SchemaError, match="no column Price") as e:
        infer(path, {"Price": Primitive("double")})
    assert "price" in (e.value.hint or "")


def test_a_mixed_column_of_json_can_be_chosen(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1, "d": "2024-01-01"}\n{"a": "x", "d": "2024-01-02"}\n{"d": "soon"}\n')
    with pytest.raises(SchemaError) as e:
        infer(path, {})
    assert "--types" in (e.value.hint or "")
    found = infer(path, {"a": Primitive("long")})
    assert {c.name: type_text(c.type) for c in found.columns} == {"a": "long", "d": "string"}
    assert found.guesses == (Guess("d", "date", 3, 1, ((3, "soon"),)),)


def test_fields_inside_objects_and_lists_that_became_text_are_told_of_too(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [
        '{"at": {"day": "2024-01-01", "none": null}, "tags": ["2024-01-01"], "o": {}, "e": []}',
        '{"at": {"day": "2024-01-02"}, "tags": ["2024-01-02", "soon"], "o": {}, "in": [{"d": "2024-01-01"}]}',
        '{"at": {"day": "n/a"}, "in": [{"d": "2024-01-01"}, {"d": "never"}]}',
    ]
    path.write_text("\n".join(rows))
    found = infer(path, {})
    assert found.guesses == (
        Guess("at.day", "date", 3, 1, ((3, "n/a"),)),
        Guess("tags.element", "date", 3, 1, ((2, "soon"),)),
        Guess("in.element.d", "date", 3, 1, ((3, "never"),)),
    )
    assert (found.empty, found.empty_objects) == (("at.none", "e.element"), ("o",))
    chosen: dict[str, ColumnType] = {
        "at": Struct((Column("day", Primitive("date")),)),
        "tags": ListOf(Primitive("string")),
        "o": Primitive("string"),
    }
    assert [g.column for g in infer(path, chosen).guesses] == ["in.element.d"]
    assert not infer(path, chosen).empty_objects


def test_a_sample_says_that_it_is_one(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("a\n" + "1\n" * 10_001)
    assert infer(path, {}).sampled_rows == 10_000


def test_other_delimiters_and_line_ends_are_named_with_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "a b.csv"
    path.write_text("id;name\n1;x, y\n")
    with pytest.raises(InputError, match="not separated by commas") as e:
        infer(path, {})
    command = (e.value.hint or "").partition("Convert it: ")[2].replace("NEW.csv", "new.csv")
    subprocess.run(command, shell=True, check=True, cwd=tmp_path)
    assert inferred(tmp_path / "new.csv") == {"id": "long", "name": "string"}
    path.write_bytes(b"id,name\r1,x\r")
    with pytest.raises(InputError) as e:
        infer(path, {})
    assert "tr '" in (e.value.hint or "")
    with pytest.raises(InputError, match="folder"):
        infer(tmp_path, {})


@pytest.mark.parametrize(
    ("text", "says"), [("", "no header"), ("a,b\n1\n", "line 2: 1 value, and"), ('a\n"x\n', "not CSV")]
)
def test_csv_that_shows_no_schema_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=says):
        infer(path)


def test_parquet_says_its_own_columns(tmp_path: Path) -> None:
    schema = pa.schema(
        {
            "i": pa.int32(), "l": pa.int64(), "u": pa.uint32(), "uu": pa.uint64(), "f": pa.float32(), "d": pa.float64(),
            "dec": pa.decimal128(12, 3), "day": pa.date32(), "t": pa.timestamp("ms"), "tz": pa.timestamp("us", "UTC"),
            "s": pa.large_string(), "b": pa.binary(), "x": pa.binary(16), "e": pa.dictionary(pa.int8(), pa.string()),
            "li": pa.list_(pa.int8()), "m": pa.map_(pa.string(), pa.int64()), "st": pa.struct({"a": pa.bool_()}),
            "n": pa.null(), "id": pa.uuid(),
        }
    )  # fmt: skip
    path = tmp_path / "rows.parquet"
    pq.write_table(schema.empty_table(), path)
    assert inferred(path) == {
        "i": "int", "l": "long", "u": "long", "uu": "decimal(20,0)", "f": "float", "d": "double",
        "dec": "decimal(12,3)", "day": "date", "t": "timestamp", "tz": "timestamptz", "s": "string", "b": "binary",
        "x": "fixed[16]", "e": "string", "li": "list<int>", "m": "map<string,long>", "st": "struct<a:boolean>",
        "n": "string", "id": "uuid",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.parquet", b""),
        ("rows.parquet", b"PAR1 not really"),
        ("rows.jsonl", b'{"a": "\xff\xfe"}'),
        ("rows.jsonl.gz", b"not gzip"),
        ("rows.jsonl.gz", gzip.compress(b'{"a":1}\n' * 1000, mtime=0)[:-10]),
        ("rows.jsonl.zst", b"not zstd"),
    ],
)
def test_files_that_are_not_what_they_claim_are_an_error_of_ours(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError):
        infer(tmp_path / name)


def test_only_the_first_rows_are_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n' * 10_000 + '{"b": "never seen"}\n')
    assert inferred(path) == {"a": "long"}


def test_a_file_of_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="does not show its format"):
        infer(tmp_path / "rows.xlsx")
