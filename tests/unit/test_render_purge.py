"""What a person is told of a purge: who has such rows, who may have them, and what is left to do."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

from strandline.core.types import History
from strandline.lake_admin import init_lake
from strandline.ledger.ingest import datasets, reject_folders
from strandline.ledger.ingest.reject_folders import RejectFolder
from strandline.ledger.maintain.runs import MaintenanceKind
from strandline.maintain.purge.outside_table import find_folders
from strandline.maintain.purge.plan import RETAINED, UNDER_WAY, AtSink, MayHold, PurgeResult
from tests.conftest import MakeHome
from tests.unit.test_cli_maintain import told

NOTHING: dict[str, Any] = {"first": None, "last": None, "floor": None, "snapshots_expired": 0}


def purged(**values: Any) -> PurgeResult:
    empty = {name: () if "tuple" in str(f.type) else 0 for name, f in PurgeResult.__dataclass_fields__.items()}
    return PurgeResult(**(empty | NOTHING | values))


def test_every_sink_that_has_such_rows_or_may_have_them_is_named_with_its_place() -> None:
    text = told(
        MaintenanceKind.PURGE,
        purged(
            deleted_rows=5,
            foreign=2,
            holding=(
                AtSink("partner", "files", "file:///out", 5),
                AtSink("partner", "files", "file:///out", 1, generation=1, older=True),
                AtSink("old", "http", "http://old", 2, removed=True),
            ),
            may_hold=(
                MayHold("partner", "files", "file:///out", 3, why=(UNDER_WAY,)),
                MayHold("late", "s3", "s3://late", None, why=(RETAINED,)),
            ),
            undelivered=(AtSink("late", "s3", "s3://late", 2),),
            named_before=("gone",),
        ),
    )
    for part in (
        "5 rows are deleted",
        "2 of them were foreign rows, which no sink ever got",
        "partner was sent 5 rows; delete them there: file:///out",
        "partner (generation 1, before it was reset) was sent 1 row",
        "old (removed since) was sent 2 rows; delete them there: http://old",
        f"partner may hold up to 3 such rows more ({UNDER_WAY}): check file:///out",
        f"late may hold such rows ({RETAINED}): check s3://late",
        "late will not get 2 rows",
        "an earlier run did not finish; rows that it deleted may be at gone, too",
    ):
        assert part in text
    assert "left" not in text and "again" not in text


def test_what_could_not_be_reached_is_told_and_what_to_do_about_it() -> None:
    text = told(
        MaintenanceKind.PURGE,
        purged(
            quarantined=1,
            quarantined_not_judged=4,
            rejects=2,
            rejects_not_judged=3,
            rejects_folders=("rejects/a", "other/a"),
            rejects_elsewhere=("node-7:/data/rejects/a",),
            snapshots_expired=None,
            floor=90,
            refs_kept=1,
            left=("1 row is not settled yet", "quarantine: the disk is full"),
        ),
    )
    for part in (
        "no row of the table meets the condition",
        "1 quarantined row deleted",
        "the condition could not be checked on 4 quarantined rows",
        "2 lines of reject files deleted",
        "3 rejected lines in rejects/a, other/a",
        "on other machines, too: node-7:/data/rejects/a; run it there",
        "old snapshots are kept, and still show the rows",
        "rows up to 90 were deleted by retention before",
        "1 other branch or tag",
        "left: 1 row is not settled yet",
        "left: quarantine: the disk is full",
        "run it again, until nothing is left",
    ):
        assert part in text
    assert "old snapshots are kept" not in told(MaintenanceKind.PURGE, purged(snapshots_expired=None), dry_run=True)


def test_reject_files_of_another_machine_are_named_also_where_a_folder_of_that_name_is_here(
    tmp_path: Path, make_home: MakeHome
) -> None:
    make_home(tmp_path)
    with init_lake(tmp_path) as lake:
        with lake.ledger.write() as connection:
            events = datasets.add(
                connection, name="default.events", table_uuid="u", deliver_by=(), adopted=False, history=History.DELIVER
            )
        usual, other = (tmp_path / "rejects").absolute(), tmp_path / "other"
        other.mkdir()
        for node, folder in ((socket.gethostname(), usual), ("node-7", usual), ("node-7", other)):
            reject_folders.note(lake.ledger, events.id, RejectFolder(node, str(folder)))
        found = find_folders(lake.maintenance.context, events)
    assert found.here == (other / "default.events", usual / "default.events"), "both may be mounted here"
    assert found.elsewhere == tuple(f"node-7:{f / 'default.events'}" for f in (other, usual))
