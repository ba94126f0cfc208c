"""Whose a file is: on a local folder that a catalog beyond this machine speaks of, nobody can say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from strandline.core.settings.lake_config import LakeConfig, Settings
from strandline.reconcile.compare import guard
from strandline.reconcile.ledger_context import LedgerContextLoader
from strandline.reconcile.model import LedgerContext, Protection
from tests.reconcile.conftest import SomeLake, acted_on, by_path, data_files

REST = {"kind": "rest", "uri": "http://127.0.0.1:1"}
BUCKET = {"url": "s3://bucket/lake"}


@pytest.mark.parametrize(
    ("settings", "is_own"),
    [({}, True), ({"catalog": REST}, False), ({"catalog": REST, "warehouse": BUCKET}, True)],
)
def test_a_folder_is_this_nodes_own_only_with_a_catalog_of_this_machine(
    tmp_path: Path, settings: dict[str, Any], is_own: bool
) -> None:
    ground = LedgerContextLoader(LakeConfig(Settings(**settings), tmp_path), None, None)  # type: ignore[arg-type]
    assert ground.own_origin is is_own


@pytest.mark.parametrize(("own", "reason"), [(True, None), (False, Protection.ORIGIN)])
def test_what_cannot_be_attributed_is_only_reported(own: bool, reason: Protection | None) -> None:
    context = LedgerContext(10**18, 0, 0, own_origin=own, delete_foreign=True)
    place = {"stopped": None, "in_layout": True, "failed_prefix": False, "any_unread": False}
    assert guard.by_place(context, known_root=False, **place) is reason  # type: ignore[arg-type]
    assert guard.by_place(context, known_root=True, **place) is None  # type: ignore[arg-type]


def test_of_a_lake_that_may_be_elsewhere_files_of_whole_tables_are_acted_on_and_entries_never(
    some_lake: SomeLake,
) -> None:
    table = some_lake.create()
    (path,) = data_files(some_lake.append())
    some_lake.append()
    uuid = str(table.metadata.table_uuid)
    stray = some_lake.put("ns/t/data/stray.parquet")
    body = some_lake.put(f"_strandline/spool/{uuid}/body.arrow")
    for own, is_whole in ((True, True), (False, True), (False, False)):
        if not is_whole:
            Path(path).unlink()
        context = some_lake.context(spool_tables=frozenset((uuid,)), own_origin=own, grace_seconds=0)
        drift = some_lake.survey(context).drift
        assert set(acted_on(drift.orphans())) == ({stray, body} if is_whole else {body})
        if not is_whole:
            assert by_path(drift.orphans())[stray].protected is Protection.ENTRIES_MISSING
            assert [f.protected for f in drift.missing()] == [Protection.ORIGIN]


def test_a_table_whose_files_are_on_another_machine_costs_nothing_but_itself(some_lake: SomeLake) -> None:
    for name in ("ns.here", "ns.there"):
        some_lake.create(name)
        some_lake.append(name)
    # Its metadata file comes from the catalog; the rest is on the other machine.
    for path in some_lake.path("ns/there").rglob("*"):
        if path.is_file() and not path.name.endswith(".metadata.json"):
            path.unlink()
    strays = [some_lake.put(f"ns/{name}/data/stray.parquet") for name in ("here", "there")]
    survey = some_lake.survey(some_lake.context(own_origin=False))
    assert acted_on(survey.drift.orphans()) == strays[:1] and not acted_on(survey.drift.missing())
    assert by_path(survey.drift.orphans())[strays[1]].protected is Protection.TABLE_UNREAD
