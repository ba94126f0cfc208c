"""Which snapshots go: a function of the table's history and the clock."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from strandline.core.types import SnapshotId
from strandline.iceberg.metadata.table_metadata import VOID_PREFIX, Ref, SnapshotView, TableView, parse_view
from strandline.maintain.expire_plan import ExpireOptions, plan, refusal

NOW = datetime(2030, 1, 31, tzinfo=UTC)
DAY = 86_400_000
NOW_MS = int(NOW.timestamp() * 1000)


def snapshot(id: int, parent: int | None, days_old: float) -> SnapshotView:
    past = None if parent is None else SnapshotId(parent)
    return SnapshotView(SnapshotId(id), past, "append", None, 0, {}, at_ms=NOW_MS - int(days_old * DAY))


def ref(name: str, at: int, *, is_branch: bool = True) -> Ref:
    return Ref(name, SnapshotId(at), is_branch, None, None, None)


def chain(*days_old: float) -> list[SnapshotView]:
    """1, 2, 3…, each the next one's parent."""
    return [snapshot(n, n - 1 or None, days) for n, days in enumerate(days_old, 1)]


def table(snapshots: Sequence[SnapshotView], *refs: Ref, properties: Mapping[str, str] | None = None) -> TableView:
    named = {r.name: r.snapshot for r in refs}
    return TableView(
        "u", "file:/t", 2, properties or {}, named, {s.id: s for s in snapshots}, {"fields": []}, 0, ref_rules=refs
    )


def gone(history: TableView, *, days: float = 5, keep_min: int = 1) -> list[int]:
    return [s.id for s in plan(history, ExpireOptions(timedelta(days=days), keep_min), NOW).expired]


def test_old_snapshots_go_and_young_ones_stay() -> None:
    assert gone(table(chain(9, 8, 4, 1), ref("main", 4))) == [1, 2]


def test_so_many_stay_however_old_they_are() -> None:
    assert gone(table(chain(40, 30, 20, 10), ref("main", 4)), keep_min=3) == [1]
    assert gone(table(chain(40, 30, 20, 10), ref("main", 4)), keep_min=10) == []


def test_the_head_of_every_branch_and_every_tag_stays() -> None:
    history = table(
        [*chain(40, 30, 20, 10), snapshot(9, 2, 29)], ref("main", 4), ref("sl_77", 9), ref("eoy", 1, is_branch=False)
    )
    assert gone(history) == [2, 3], "2 is where sl_77 began; a branch keeps its head, not its history"


def test_what_nothing_reaches_goes_when_it_is_old() -> None:
    history = table([*chain(3), snapshot(8, 1, 2), snapshot(9, 1, 6)], ref("main", 1))
    assert gone(history) == [9]


def test_a_branch_with_rules_of_its_own_goes_by_them() -> None:
    own = replace(ref("audit", 4), min_snapshots=2, max_snapshot_age_ms=15 * DAY)
    assert gone(table(chain(40, 30, 20, 10), own)) == [1, 2]
    assert gone(table(chain(40, 30, 14, 10), replace(own, min_snapshots=None)), keep_min=1) == [1, 2]


def test_a_clock_that_went_back_lets_nothing_go() -> None:
    assert gone(table(chain(-1, -2, -3), ref("main", 3)), days=0) == []


def test_an_empty_table_has_nothing_to_expire() -> None:
    assert plan(table([]), ExpireOptions(), NOW).expired == ()


@pytest.mark.parametrize(
    ("history", "says"),
    [
        (table(chain(1), ref("main", 1), properties={"history.expire.max-ref-age-ms": "1"}), "max-ref-age-ms"),
        (table(chain(1), ref("main", 1), replace(ref("sl_5", 1), max_ref_age_ms=1)), "branch sl_5"),
        (table(chain(1), ref("main", 1), replace(ref("t", 1, is_branch=False), max_ref_age_ms=1)), "tag t"),
        (table(chain(1), ref("main", 1), properties={"gc.enabled": "false"}), "gc.enabled"),
    ],
)
def test_a_table_whose_branches_or_tags_would_go_too_is_refused(history: TableView, says: str) -> None:
    why = refusal(history)
    assert why is not None and says in why


def test_a_tag_that_voids_a_batch_is_kept_for_its_time_and_refuses_nothing() -> None:
    """Expiry is what removes it then."""
    void = replace(ref(f"{VOID_PREFIX}x", 1, is_branch=False), max_ref_age_ms=10 * DAY)
    for age, is_kept in ((9, True), (11, False)):
        history = table(chain(age, 0), ref("main", 2), void)
        assert refusal(history) is None and gone(history, days=1, keep_min=1) == ([] if is_kept else [1]), age
    assert refusal(table(chain(1), ref("main", 1), replace(void, is_branch=True))) is not None


def test_any_other_table_is_not_refused() -> None:
    assert refusal(table(chain(1), replace(ref("main", 1), max_ref_age_ms=5), ref("sl_5", 1))) is None


def test_a_history_is_read_from_icebergs_own_json() -> None:
    text = json.dumps(
        {
            "table-uuid": "u",
            "location": "file:/t",
            "format-version": 1,
            "schema": {"fields": []},
            "properties": {"a": "b"},
            "current-snapshot-id": 2,
            "refs": {"t": {"snapshot-id": 1, "type": "tag", "max-ref-age-ms": 7}},
            "snapshots": [
                {"snapshot-id": 1, "timestamp-ms": NOW_MS, "summary": {"operation": "append"}},
                {"snapshot-id": 2, "parent-snapshot-id": 1, "timestamp-ms": NOW_MS},
            ],
        }
    )
    found = parse_view(text)
    assert found.ref_rules == (Ref("t", SnapshotId(1), False, None, None, 7), ref("main", 2)), (
        "an old table has no ref of main"
    )
    assert (found.snapshots[SnapshotId(1)].parent, found.snapshots[SnapshotId(1)].operation) == (None, "append")
    assert found.snapshots[SnapshotId(1)].at == NOW
    assert found.snapshots[SnapshotId(2)].parent == 1
