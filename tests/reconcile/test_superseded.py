"""Metadata files of commits that lost a race: a healthy lake has them, and they are told apart from drift."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from strandline.core.records.reconcile_records import SweptState
from strandline.iceberg.schema.alteration import AddColumn
from strandline.iceberg.schema.columns import Primitive
from strandline.reconcile.compare.judge import is_superseded
from strandline.reconcile.model import Finding, FindingKind
from strandline.reconcile.paths import metadata_version
from tests.reconcile.conftest import SomeLake, by_path
from tests.reconcile.test_crash import killed_at
from tests.reconcile.whole_lakes import ACT, REPORT, WholeLake

ID = "0e6648c5-e8c3-463a-88d6-9bb944dbdc4c"


def days_later(folder: Path, days: int = 3) -> None:
    """Everything is as old as if nothing had happened since."""
    at = time.time() - days * 86_400
    for path in folder.rglob("*"):
        if path.is_file():
            os.utime(path, (at, at))


def lose_once(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object]) -> list[Path]:
    """Somebody else commits between the writing of a metadata file and its commit, once. The files that were
    written for nothing."""
    write, lost = SqlCatalog._write_metadata, list[Path]()

    def written(metadata: Any, io: Any, metadata_path: str) -> None:
        write(metadata, io, metadata_path)
        if not lost:
            lost.append(Path(metadata_path.removeprefix("file://")))
            meanwhile()

    monkeypatch.setattr(SqlCatalog, "_write_metadata", staticmethod(written))
    return lost


def test_the_metadata_of_a_commit_that_lost_a_race_is_no_drift_and_is_set_aside_in_time(
    lake: WholeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = lose_once(monkeypatch, lake.append)
    lake.lake.catalog.alter("default.events", [AddColumn("more", Primitive("string"))])
    (left,) = lost
    assert left.exists() and "more" in lake.table().schema().column_names
    days_later(lake.warehouse)
    found: list[Finding] = []
    report = lake.run(REPORT, on_finding=found.append)
    assert [(f.kind, f.path, f.protected) for f in found] == [(FindingKind.SUPERSEDED, str(left), None)]
    assert not report.doubts and (report.outcome.found.orphans, report.outcome.found.superseded) == (0, 1)
    told = lake.lake.status().reconcile
    assert (told.orphans, told.missing, told.doubts) == (0, 0, ())
    run = lake.run(ACT)
    assert (run.outcome.done.orphans, run.outcome.done.superseded) == (0, 1) and not left.exists()
    assert set(lake.states(run.id).values()) == {SweptState.HELD}
    assert lake.lake.reconciler.restore(run.id).restored == 1 and left.exists()


def test_a_run_that_died_does_not_count_superseded_metadata_among_its_orphans(
    lake: WholeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = lose_once(monkeypatch, lake.append)
    lake.lake.catalog.alter("default.events", [AddColumn("more", Primitive("string"))])
    days_later(lake.warehouse)
    lake.puts(2)
    killed_at(lake, "reconcile.before_end", "act")
    assert not lost[0].exists()
    lake.run(REPORT)
    died = lake.lake.reconciler.runs()[1]
    assert (died.outcome.done.orphans, died.outcome.done.superseded) == (2, 1)
    assert died.outcome.done.bytes == sum(file.size for file in lake.swept(died.id))


@pytest.mark.parametrize(
    ("name", "superseded"),
    [
        (f"00007-{ID}.metadata.json", True),
        (f"00009-{ID}.metadata.json", True),
        (f"00009-{ID}.gz.metadata.json", True),
        (f".00009-{ID}.metadata.json.crc", True),
        (f"00010-{ID}.metadata.json", False),  # nobody has gone past it: the catalog may be an older copy
        ("00007-x.metadata.json", False),
        ("v7.metadata.json", False),
        (f"00007-{ID}-m0.avro", False),
    ],
)
def test_only_what_the_table_has_gone_past_is_superseded(name: str, superseded: bool) -> None:
    current = "/wh/ns/t/metadata/00009-ffffffff-e8c3-463a-88d6-9bb944dbdc4c.metadata.json"
    assert is_superseded(f"/wh/ns/t/metadata/{name}", current) is superseded
    assert not is_superseded(f"/wh/ns/t/metadata/more/{name}", current)
    assert not is_superseded(f"/wh/ns/t/metadata/{name}", "/wh/ns/t/metadata/v9.metadata.json")


def test_of_a_table_that_is_no_dataset_old_metadata_is_an_orphan(some_lake: SomeLake) -> None:
    some_lake.create()
    table = some_lake.append()
    version = metadata_version(Path(table.metadata_location).name)
    assert version == 1, "it is named as we expect it to be"
    left = some_lake.put(f"ns/t/metadata/00000-{ID}.metadata.json")
    for seals, kind in ((some_lake.context().seals, FindingKind.SUPERSEDED), ({}, FindingKind.ORPHAN)):
        survey = some_lake.survey(some_lake.context(seals=seals))
        assert by_path(survey.drift.orphans())[left].kind is kind
