"""Which tables of another catalog take a dataset's columns."""

from __future__ import annotations

import pytest

from strandline.core.errors import SchemaError
from strandline.core.types import PARTITION_COLUMN, SEQ_COLUMN
from strandline.deliver.sinks.iceberg.columns import misfits, table_columns, takes
from strandline.iceberg.schema.columns import Column, ListOf, MapOf, Primitive, Struct
from strandline.iceberg.schema.schema_file import parse_type

SEQ = Column(SEQ_COLUMN, Primitive("long"), required=True)
NAME = Column("name", Primitive("string"))


@pytest.mark.parametrize(
    ("there", "given", "fits"),
    [
        ("long", "int", True),
        ("int", "long", False),
        ("double", "float", True),
        ("decimal(12,2)", "decimal(10,2)", True),
        ("decimal(12,3)", "decimal(10,2)", False),
        ("string", "uuid", False),
        ("timestamp", "timestamptz", False),
        ("list<long>", "list<int>", True),
        ("list<int>", "list<long>", False),
        ("map<string,long>", "map<string,int>", True),
        ("struct<a:long,b:string>", "struct<a:int>", True),
        ("struct<a:long>", "struct<a:int,b:string>", False),
        ("list<struct<a:map<string,double>>>", "list<struct<a:map<string,float>>>", True),
    ],
)
def test_a_column_takes_what_it_reads_back_as_it_was(there: str, given: str, fits: bool) -> None:
    assert takes(parse_type(there, where="c"), parse_type(given, where="c")) is fits


def test_what_is_required_there_must_be_required_here() -> None:
    long = Primitive("long")
    assert not takes(ListOf(long, element_required=True), ListOf(long))
    assert takes(ListOf(long), ListOf(long, element_required=True))
    assert not takes(MapOf(long, long, value_required=True), MapOf(long, long))
    assert not takes(Struct((Column("a", long, required=True),)), Struct((Column("a", long),)))
    assert not takes(Struct((Column("a", long), Column("b", long, required=True))), Struct((Column("a", long),)))


def said(columns: list[Column], there: list[Column]) -> list[str]:
    return [m.what for m in misfits(columns, there)]


def test_every_reason_is_said_at_once() -> None:
    extra = Column("mine", Primitive("string"))
    assert said([SEQ, NAME], [SEQ, NAME, extra]) == []
    assert said([SEQ, NAME], [SEQ]) == ["column name (string) is not there"]
    strict = [SEQ, Column("name", Primitive("int")), Column("must", Primitive("long"), required=True)]
    assert said([SEQ, NAME], strict) == [
        "column name is int, which does not take every string",
        "column must is required, and is not delivered",
    ]
    assert said([SEQ, NAME], [SEQ, Column("name", Primitive("string"), required=True)]) == [
        "column name is required, and the dataset's may be null"
    ]


def test_a_dataset_with_lanes_brings_the_column_that_tells_them_apart() -> None:
    assert [c.name for c in table_columns([NAME, SEQ], has_lanes=False)] == [SEQ_COLUMN, "name"]
    assert [c.name for c in table_columns([NAME, SEQ], has_lanes=True)] == [SEQ_COLUMN, PARTITION_COLUMN, "name"]
    with pytest.raises(SchemaError, match=SEQ_COLUMN):
        table_columns([NAME], has_lanes=False)
