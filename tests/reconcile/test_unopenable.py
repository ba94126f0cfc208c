"""Tables that cannot be opened, whatever is wrong with them, end nothing but what is done with themselves."""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from strandline.core.errors import TableUnfit
from strandline.core.settings.lake_config import LakeConfig, Settings
from strandline.iceberg.metadata.identifier import full_name, name_of, parse_identifier
from strandline.iceberg.pyiceberg import catalog as light
from tests.reconcile.conftest import SomeLake, acted_on


def zipped(text: bytes) -> bytes:
    return gzip.compress(text, mtime=0)


def without(text: bytes, *names: str) -> bytes:
    document = json.loads(text)
    return json.dumps({name: value for name, value in document.items() if name not in names}).encode()


def with_values(text: bytes, **values: Any) -> bytes:
    return json.dumps(json.loads(text) | {name.replace("_", "-"): value for name, value in values.items()}).encode()


DAMAGES = {
    "cut gzip": (True, lambda text: zipped(text)[:-20]),
    "gzip of another sum": (True, lambda text: zipped(text)[:-8] + b"\0\0\0\0" + zipped(text)[-4:]),
    "not gzip": (True, lambda text: text),
    "flipped gzip": (True, lambda text: zipped(text)[:60] + b"\xff\x00\xff" + zipped(text)[63:]),
    "v1 without a schema": (False, lambda text: without(with_values(text, format_version=1), "schema", "schemas")),
    "a list for a table": (False, lambda text: b"[]"),
    "numbers for snapshots": (False, lambda text: with_values(text, snapshots=[1, 2])),
    "a number for the schema": (False, lambda text: with_values(text, schemas=7, format_version=1)),
    "another version": (False, lambda text: with_values(text, format_version=9)),
    "not text": (False, lambda text: b"\xff\xfe\x00"),
    "nothing": (False, lambda text: b""),
}


@pytest.mark.parametrize("damage", sorted(DAMAGES))
def test_damaged_metadata_makes_a_table_unread_and_the_others_are_looked_at(some_lake: SomeLake, damage: str) -> None:
    some_lake.create()
    some_lake.create("ns.other")
    table = some_lake.append()
    some_lake.append("ns.other")
    is_zipped, damaged = DAMAGES[damage]
    path = Path(table.metadata_location.removeprefix("file://"))
    content = damaged(path.read_bytes())
    if is_zipped:
        path = path.with_name(path.name.replace(".metadata.json", ".gz.metadata.json"))
        with sqlite3.connect(some_lake.config.path("catalog.db")) as connection:
            connection.execute(
                "UPDATE iceberg_tables SET metadata_location = ? WHERE table_name = 't'", (f"file://{path}",)
            )
    path.write_bytes(content)
    stray = some_lake.put("ns/other/data/stray.parquet")
    survey = some_lake.survey(some_lake.context(seals={}))
    assert set(survey.references.unread) == {"ns.t"}
    assert acted_on(survey.drift.orphans()) == [stray]
    with pytest.raises(TableUnfit):
        some_lake.catalog.load("ns.t")


def test_a_table_with_a_dot_in_its_name_is_read(some_lake: SomeLake) -> None:
    table = some_lake.create()
    table.catalog.create_table(("ns", "a.b"), table.schema())
    table.catalog.create_namespace(("ns", "a"))
    table.catalog.create_table(("ns", "a", "b"), table.schema())
    some_lake.append("ns.`a.b`")
    assert some_lake.catalog.table_names() == ["ns.`a.b`", "ns.a.b", "ns.t"]
    survey = some_lake.survey(some_lake.context(seals={}))
    assert not survey.references.unread and not survey.failures and not list(survey.drift.orphans())
    assert survey.references.referenced(some_lake.live()) == some_lake.live()


@pytest.mark.parametrize(
    "identifier",
    [("ns", "t"), ("ns", "a.b"), ("a.b", "c"), ("ns", "a`b"), ("ns", "`a`"), ("ns", "`a.`b"), ("n", "a b")],
)
def test_a_name_is_read_back_as_it_was_written(identifier: tuple[str, ...]) -> None:
    assert parse_identifier(name_of(identifier)) == identifier
    assert full_name(name_of(identifier)) == name_of(identifier)


def test_all_snapshots_are_asked_for_whatever_options_and_the_server_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Served:
        """As PyIceberg has a REST catalog after the server's configuration came."""

        def __init__(self, **options: str) -> None:
            self.properties = options | {"snapshot-loading-mode": "refs"}

    monkeypatch.setattr(light, "rest_catalog", lambda name, options, **limits: Served(**options))
    options = {"kind": "rest", "uri": "http://127.0.0.1:1", "options": {"snapshot-loading-mode": "refs"}}
    catalog = light.open_catalog(LakeConfig(Settings(catalog=options), tmp_path))
    assert catalog._catalog.properties["snapshot-loading-mode"] == "all"
