"""What a person is told of a purge: who has such rows, who may have them, and what is left to do."""

from __future__ import annotations

from typing import Any

from strandline.ledger.maintenance import Kind
from strandline.maintain.purge_plan import RETAINED, UNDER_WAY, AtSink, MayHold, Purged
from tests.unit.test_cli_maintain import told

NOTHING: dict[str, Any] = {"first": None, "last": None, "floor": None, "snapshots_expired": 0}


def purged(**values: Any) -> Purged:
    empty = {name: () if "tuple" in str(f.type) else 0 for name, f in Purged.__dataclass_fields__.items()}
    return Purged(**(empty | NOTHING | values))


def test_every_sink_that_has_such_rows_or_may_have_them_is_named_with_its_place() -> None:
    text = told(
        Kind.PURGE,
        purged(
            deleted_rows=5,
            holding=(
                AtSink("partner", "files", "file:///out", 5),
                AtSink("partner", "files", "file:///out", 1, generation=1, older=True),
                AtSink("old", "http", "http://old", 2, removed=True),
            ),
            may_hold=(
                MayHold("partner", "files", "file:///out", 3, (UNDER_WAY,)),
                MayHold("late", "s3", "s3://late", None, (RETAINED,)),
            ),
            undelivered=(AtSink("late", "s3", "s3://late", 2),),
            named_before=("gone",),
        ),
    )
    for part in (
        "5 rows are deleted",
        "partner was sent 5 rows; delete them there: file:///out",
        "partner (generation 1, before it was reset) was sent 1 row",
        "old (removed since) was sent 2 rows; delete them there: http://old",
        f"partner may hold up to 3 such rows more ({UNDER_WAY}): look there: file:///out",
        f"late may hold such rows ({RETAINED}): look there: s3://late",
        "late will not get 2 rows",
        "a run before this one did not end; the rows that it deleted are, or may be, at gone, too",
    ):
        assert part in text
    assert "left" not in text and "again" not in text


def test_what_could_not_be_reached_is_told_and_what_to_do_about_it() -> None:
    text = told(
        Kind.PURGE,
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
            left=("1 rows are not settled yet", "quarantine: the disk is full"),
        ),
    )
    for part in (
        "no row of the table fits",
        "1 quarantined row deleted",
        "of 4 quarantined rows nobody can tell",
        "2 lines of reject files deleted",
        "3 rejected lines in rejects/a, other/a",
        "on other machines, too: node-7:/data/rejects/a; run it there",
        "old snapshots are kept, and still show the rows",
        "rows up to 90 were deleted before by retention",
        "1 other branch or tag",
        "left: 1 rows are not settled yet",
        "left: quarantine: the disk is full",
        "run it again, until nothing is left",
    ):
        assert part in text
    assert "old snapshots are kept" not in told(Kind.PURGE, purged(snapshots_expired=None), dry_run=True)
