"""Delivery holds in every interleaving; and each rule that looks fussy is missed when it is taken away.

Which consumer may rely on what is part of it: see the last tests.
"""

from __future__ import annotations

import pytest

from tests.model.delivery_model import explored
from tests.model.delivery_state import Rules, World

OTHER_LANE = frozenset({1})


@pytest.mark.parametrize(
    "world",
    [
        World("files", rows=4),
        World("s3", rows=4),
        World("postgres", rows=4),
        World("files", rows=2, deletes=1, tasks_run_twice=True),
        World("s3", rows=2, deletes=1, tasks_run_twice=True),
        World("postgres", rows=2, deletes=1, tasks_run_twice=True),
    ],
    ids=lambda w: f"{w.kind}-{'delete' if w.deletes else 'plain'}",
)
def test_every_row_is_delivered_once_whoever_is_killed_or_late(world: World) -> None:
    found = explored(world, Rules())
    assert found.why == "" and found.states > 2_000


@pytest.mark.parametrize("kind", ["files", "s3", "postgres"])
def test_a_ledger_restored_from_a_copy_delivers_nothing_twice_and_forgets_nothing(kind: str) -> None:
    found = explored(World(kind, rows=2, ledger_restored=True), Rules())
    assert found.why == "" and found.states > 5_000


@pytest.mark.parametrize("kind", ["files", "s3", "postgres"])
def test_a_sink_restored_from_a_copy_is_noticed_before_its_mark_moves(kind: str) -> None:
    found = explored(World(kind, rows=2, sink_restored=True), Rules())
    assert found.why == "" and found.states > 2_000


RESTORED = World("files", rows=2, ledger_restored=True)
RESTORED_S3 = World("s3", rows=2, ledger_restored=True)
RESTORED_POSTGRES = World("postgres", rows=2, ledger_restored=True)
TWO_LEDGERS_S3 = World("s3", rows=2, ledger_restored=True, both_ledgers_live=True)
LOST_POSTGRES = World("postgres", rows=2, sink_restored=True)
DELETED = World("files", rows=2, deletes=1)
FORGETFUL = World("files", rows=2, keeps_a_cursor=False, tasks_run_twice=True)

TWICE, OVERLAP, LOST = "a row was seen twice", "ranges overlap", "a row is lost"
FALSE_ALARM, STUCK, WRONG = "stopped for nothing", "it never comes to rest", "called empty what is held"


# Where several rules guard the same place, all of them are taken away: any would do.
@pytest.mark.parametrize(
    ("world", "without", "why"),
    [
        (World("s3", rows=2), "pins_the_cut fixes_the_cut_at_the_sink", OVERLAP),
        (RESTORED_S3, "asks_what_is_held fixes_the_cut_at_the_sink", OVERLAP),
        (RESTORED, "asks_what_is_held", STUCK),
        (RESTORED_POSTGRES, "subtracts looks_again_before_the_mark", LOST),
        (
            RESTORED,
            "reads_marks_after_names takes_its_folder_away_before_the_mark a_mark_within_a_range_is_a_conflict",
            TWICE,
        ),
        (RESTORED, "fences", OVERLAP),
        (DELETED, "asks_for_its_lease_after_fencing", WRONG),
        (FORGETFUL, "takes_its_folder_away_before_the_mark", TWICE),
        (RESTORED_POSTGRES, "checks_the_token looks_again_before_the_mark", LOST),
        (World("files", rows=2, deletes=1, ledger_restored=True), "a_lease_that_ran_out_is_none", WRONG),
        (World("files", rows=2), "marks_the_sink_first", FALSE_ALARM),
        (LOST_POSTGRES, "stops_when_the_last_is_lacking", LOST),
        (World("postgres", rows=3, sink_restored=True), "last_is_the_whole_intent", LOST),
        (World("s3", rows=3, sink_restored=True), "a_name_does_not_stand_for_the_mark", LOST),
        (LOST_POSTGRES, "looks_again_before_the_mark", LOST),
        (DELETED, "asks_before_it_calls_a_chunk_empty", WRONG),
        (World("postgres", rows=2, deletes=1), "records_empty_ranges", WRONG),
        (RESTORED_S3, "fixes_the_cut_at_the_sink", OVERLAP),
        (
            World("s3", rows=2, leases=3, others=OTHER_LANE, ledger_restored=True),
            "the_cut_hangs_on_the_mark_of_the_sink",
            OVERLAP,
        ),
        (TWO_LEDGERS_S3, "looks_again_after_fixing_the_cut", OVERLAP),
        (World("s3", rows=2), "lets_lie_what_it_put", LOST),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else value.kind,
)
def test_without_this_rule_the_model_finds_a_way_to_fail(world: World, without: str, why: str) -> None:
    found = explored(world, Rules(**dict.fromkeys(without.split(), False)))
    assert found.why == why, found.broken


def test_a_consumer_of_files_that_takes_away_what_is_marked_needs_no_cursor() -> None:
    assert explored(FORGETFUL, Rules()).why == ""
    assert explored(World("files", rows=2, keeps_a_cursor=False, ledger_restored=True), Rules()).why == ""


def test_a_consumer_of_s3_needs_a_cursor_since_a_late_put_cannot_be_fenced() -> None:
    assert explored(World("s3", rows=2, keeps_a_cursor=False), Rules()).why == TWICE


@pytest.mark.parametrize("kind", ["files", "s3"])
def test_a_consumer_that_does_not_wait_for_the_mark_loses_rows_that_land_out_of_order(kind: str) -> None:
    assert explored(World(kind, rows=2, waits_for_the_mark=False, takes_away=False), Rules()).why == LOST
