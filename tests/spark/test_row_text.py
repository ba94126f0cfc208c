"""A row has one spelling: what `read` prints, what a sink of JSON lines holds, and what `quarantine list` shows."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame

from strandline.deliver.quarantine.content import RowContent, in_json
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.iceberg.spark.row_text import line
from strandline.ingest.sources.rows import json_row
from strandline.lake import Lake
from tests.conftest import MakeHome
from tests.spark.lakes import new_lake
from tests.spark.test_lines import FROM_INTEGERS, NESTED, PLAIN, a_value, converted, raw_type

KEYS = {
    "keys": "map<binary,map<boolean,map<int,long>>>",
    "times": "map<timestamptz,map<timestamp,map<decimal(38,10),float>>>",
}
COLUMNS = parse_columns([{"name": n, "type": k} for n, k in (PLAIN | NESTED | KEYS).items()])
ROWS = 60


def frame_of(lake: Lake, rows: list[tuple[Any, ...]]) -> DataFrame:
    raw = lake.spark.createDataFrame(rows, ", ".join(f"{c.name} {raw_type(c.type)}" for c in COLUMNS))
    return raw.selectExpr(*(f"{converted(c.name, c.type, FROM_INTEGERS)} AS {c.name}" for c in COLUMNS))


def same(found: Any, wanted: Any) -> bool:
    """Texts alike, and numbers that are the same in the narrowest type that they may come from."""
    match found:
        case dict():
            # Keys that are bytes have no order of their own when a frame is made from Python's values.
            return found.keys() == wanted.keys() and all(same(v, wanted[k]) for k, v in found.items())
        case list():
            return len(found) == len(wanted) and all(map(same, found, wanted))
        case float():
            return found == wanted or bool(np.float32(found) == np.float32(wanted))
    return bool(found == wanted) and type(found) is type(wanted)


@pytest.fixture(scope="module")
def values() -> list[tuple[Any, ...]]:
    rng = random.Random(17)
    return [tuple(a_value(rng, c.type) for c in COLUMNS) for _ in range(ROWS)]


def test_a_row_is_the_same_text_in_read_and_in_a_sink(
    tmp_path: Path, make_home: MakeHome, values: list[tuple[Any, ...]]
) -> None:
    with new_lake(tmp_path / "lake", make_home) as lake:
        lake.create_dataset("all", COLUMNS)
        lake.append("all", frame_of(lake, values))
        read = lake.read_since("all", internal=True, columns=["_ingest_seq", *(c.name for c in COLUMNS)])
        printed = [text for text, _ in read.lines()]
        lake.delivery.add("out", "all", "files", {"path": str(tmp_path / "out"), "format": "jsonl"})
        lake.delivery.tick()
    sent = [text for f in (tmp_path / "out").rglob("*.jsonl") for text in f.read_text("utf-8").rstrip("\n").split("\n")]
    assert printed == sorted(sent, key=lambda text: int(json.loads(text)["_ingest_seq"])) and len(sent) == ROWS


def test_a_row_that_was_set_aside_is_shown_as_it_is_sent_and_can_be_ingested_again(
    tmp_path: Path, make_home: MakeHome, values: list[tuple[Any, ...]]
) -> None:
    with new_lake(tmp_path / "lake", make_home) as lake:
        frame = frame_of(lake, values).coalesce(1)
        lines = [row.line for row in frame.select(line("jsonl", frame.schema.fields).alias("line")).collect()]
        table, schema = frame.toArrow(), frame.schema
    for n, text in enumerate(lines):
        found, sent = in_json(RowContent(table.slice(n, 1), ()), "rows"), json.loads(text)
        assert list(found) == list(sent)
        for name, value in found.items():
            assert same(value, sent[name]), (name, value, sent[name])
        json_row(text.encode(), schema)  # raises if it does not fit
