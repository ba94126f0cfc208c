"""Files that are cut off where a block ends read well, and name less than they should."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strandline.reconcile.model import Protection
from strandline.reconcile.references.collect import entries_of_summary
from strandline.reconcile.references.manifest_workers import ListedManifest, ManifestReading
from strandline.reconcile.storage.pool import Pool
from tests.reconcile.conftest import SomeLake, acted_on, by_path


def cut(path: Path) -> int:
    """Leaves its head, which is an Avro file without records. How long it was."""
    content = path.read_bytes()
    mark = content[-16:]
    path.write_bytes(content[: content.index(mark) + len(mark)])
    return len(content)


def local(path: str) -> Path:
    return Path(path.removeprefix("file://"))


@pytest.mark.parametrize("is_newest", [True, False])
def test_a_manifest_list_that_names_fewer_manifests_than_its_snapshot_has_stops_the_table(
    some_lake: SomeLake, is_newest: bool
) -> None:
    some_lake.create()
    some_lake.create("ns.other")
    some_lake.append("ns.other")
    some_lake.append()
    table = some_lake.append()
    snapshots = sorted(table.snapshots(), key=lambda s: s.timestamp_ms)
    cut(local(snapshots[-1 if is_newest else 0].manifest_list))
    strays = [some_lake.put(f"ns/{name}/data/stray.parquet") for name in ("t", "other")]
    survey = some_lake.survey()
    assert "its snapshot says" in survey.references.unread["ns.t"]
    assert by_path(survey.drift.orphans())[strays[0]].protected is Protection.TABLE_UNREAD
    assert acted_on(survey.drift.orphans()) == strays[1:]


def test_totals_that_a_writer_left_out_are_not_asked_for(some_lake: SomeLake) -> None:
    some_lake.create()
    table = some_lake.append()
    path = local(table.metadata_location)
    document = json.loads(path.read_text("utf-8"))
    for snapshot in document["snapshots"]:
        snapshot["summary"] = {"operation": "append"}
    path.write_text(json.dumps(document), "utf-8")
    assert not some_lake.survey().references.unread


@pytest.mark.parametrize(
    ("summary", "said"),
    [
        (None, None),
        ({}, None),
        ({"total-data-files": "7", "total-delete-files": "2"}, 9),
        ({"total-data-files": "7"}, 7),
        ({"total-data-files": "many", "total-delete-files": "-1"}, None),
    ],
)
def test_what_a_snapshot_says_of_itself_is_believed_as_far_as_it_goes(
    summary: dict[str, str] | None, said: int | None
) -> None:
    properties = None if summary is None else SimpleNamespace(additional_properties=summary)
    snapshot: Any = SimpleNamespace(summary=properties)
    assert entries_of_summary(snapshot) == said


def test_a_manifest_that_is_shorter_than_its_list_says_is_not_believed(some_lake: SomeLake) -> None:
    """Those of format version 1 need not say how many entries they have."""
    some_lake.create()
    table = some_lake.append()
    snapshot = table.current_snapshot()
    assert snapshot is not None
    (listed,) = snapshot.manifests(table.io)
    path, owners = listed.manifest_path, {listed.manifest_path: table.io}
    with Pool() as pool:
        reading = ManifestReading(pool, timeout_seconds=60)
        (found,) = reading.read_lists({snapshot.manifest_list: table.io}).values()
        assert isinstance(found, list)
        assert [(m.path, m.length) for m in found] == [(path, local(path).stat().st_size)]
        unknowing = ListedManifest(path, None, 0, 1, found[0].length)
        assert reading.read_manifests([unknowing], owners)[path].problem is None
        length = cut(local(path))
        problem = reading.read_manifests([unknowing], owners)[path].problem
        assert problem is not None and f"of {length:,} bytes" in problem
        assert reading.read_manifests([ListedManifest(path, None, 0, 1)], owners)[path].problem is None
