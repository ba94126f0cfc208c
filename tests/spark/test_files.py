"""Ingest of files, where the readers' own tests do not reach: what the file is when it is committed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from strandline import Lake
from strandline.core.errors import InputError
from strandline.core.settings.lake_config import LakeConfig
from strandline.iceberg.schema.schema_file import parse_columns
from tests.spark.protocol import assert_sound, new_lake, rows, states


@pytest.fixture
def lake(tmp_path: Path, make_home: Callable[..., LakeConfig]) -> Iterator[Lake]:
    with new_lake(tmp_path / "lake", make_home) as made:
        yield made


def lines(start: int, count: int) -> str:
    return "".join(json.dumps({"id": i, "text": f"row {i}"}) + "\n" for i in range(start, start + count))


def test_a_file_that_grows_while_it_is_read_is_refused_and_goes_in_once_when_it_is_done(
    lake: Lake, tmp_path: Path
) -> None:
    path = tmp_path / "growing.jsonl"
    path.write_text(lines(0, 10))

    def grow(_: Path, step: str, __: int | None) -> None:
        if step == "writing":
            path.write_text(lines(0, 12))

    outcome = lake.ingest("events", [path], progress=grow)[0]
    assert isinstance(outcome.error, InputError) and "changed" in outcome.error.message
    assert rows(lake) == [] and "published" not in states(lake)
    seen: list[tuple[Path, int, int]] = []
    assert lake.ingest("events", [path], on_bytes=lambda *told: seen.append(told))[0].rows == 12
    assert seen[-1] == (path, path.stat().st_size, path.stat().st_size), "and says how far it has come"
    assert_sound(lake, list(range(12)))


def test_values_that_a_uuid_or_a_fixed_column_cannot_hold_are_rejected_one_by_one(lake: Lake, tmp_path: Path) -> None:
    lake.create_dataset(
        "narrow",
        parse_columns(
            [
                {"name": "id", "type": "long", "required": True},
                {"name": "u", "type": "uuid"},
                {"name": "f", "type": "fixed[4]"},
            ]
        ),
    )
    path = tmp_path / "narrow.jsonl"
    good = {"u": "01234567-89ab-cdef-0123-456789abcdef", "f": "AAECAw=="}
    entries = [
        {"id": 0, **good},
        {"id": 1, **good, "u": "nonsense"},
        {"id": 2, **good, "f": "AAE="},
        {"id": 3},
        {"id": 4, "u": good["u"] + "\n"},
    ]
    path.write_text("".join(json.dumps(e) + "\n" for e in entries))
    outcome = lake.ingest("narrow", [path])[0]
    assert outcome.error is None and (outcome.rows, outcome.rejected) == (2, 3)
    assert outcome.rejects_path is not None
    kept = [json.loads(line) for line in outcome.rejects_path.read_text().splitlines()]
    assert [(k["line"], k["reason"]) for k in kept] == [
        (2, 'column "u": "nonsense" is not a uuid'),
        (3, 'column "f": 2 bytes, expected 4'),
        (5, f'column "u": "{good["u"]}\n" is not a uuid'),
    ]
    assert_sound(lake, [0, 3], "narrow")


def test_columns_that_no_json_line_has_are_named_as_those_that_a_csv_lacks_are(lake: Lake, tmp_path: Path) -> None:
    columns = {"id": "long", "a": "string", "b": "string", "c": "string"}
    lake.create_dataset("wide", parse_columns([{"name": n, "type": t} for n, t in columns.items()]))
    contents = {
        "some.jsonl": '{"id": 1}\n{"id": 2, "b": null, "c": "x"}\n{"id": "no", "a": "x"}\n',
        "all.jsonl": '{"id": 3, "a": "x", "b": "x"}\n{"id": 4, "c": "x"}\n',
        "none.jsonl": "",
        "some.csv": "id,a\n5,\n",
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
    found = lake.ingest("wide", [tmp_path / name for name in contents])
    assert [(o.error, o.rows) for o in found] == [(None, 2), (None, 2), (None, 0), (None, 1)]
    assert [o.absent for o in found if o.rows] == [("a", "b"), (), ("b", "c")]
    [both] = lake.ingest("wide", [tmp_path / "some.jsonl", tmp_path / "some.csv"], batch_id="both")
    assert both.absent == ("b",)
