"""What a migration moves, what it refuses, and which steps are left: of settings and states alone."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from strandline.core.errors import LedgerMoved, RefusedError
from strandline.core.records.ledger_moves import LedgerMove, MoveState
from strandline.core.settings.lake_config import LakeConfig, Settings
from strandline.migrate.plan import FoundLedger, MigrateStep, MigrationPlaces, Moves, find_moves, remaining_steps

BUCKET = {"url": "s3://bucket/lake"}
REST = {"kind": "rest", "uri": "http://127.0.0.1:1"}
POSTGRES = {"url": "postgresql://me:secret@host/db"}


def lake(**sections: dict[str, object]) -> LakeConfig:
    return LakeConfig(Settings(**sections), Path("/home/lake"))


def left(state: MoveState, move: str = "m") -> LedgerMove:
    return LedgerMove(state, move, "there")


def found(move: LedgerMove | None, lake: str = "lake-1", place: str = "there") -> FoundLedger:
    return FoundLedger(True, move, lake, place)


ABSENT, IN_USE = FoundLedger(False, None), found(None)
ALL = Moves(catalog=True, warehouse=True)


@pytest.mark.parametrize(
    ("new", "catalog", "warehouse"),
    [
        ({"ledger": POSTGRES}, False, False),
        ({"ledger": {"url": "ledger-2.db"}}, False, False),
        ({"ledger": POSTGRES, "catalog": REST}, True, False),
        ({"ledger": POSTGRES, "catalog": REST, "warehouse": BUCKET}, True, True),
        ({"ledger": POSTGRES, "warehouse": {"url": "./warehouse"}}, False, False),
    ],
)
def test_what_moves_is_what_the_new_settings_spell_otherwise(
    new: dict[str, dict[str, object]], catalog: bool, warehouse: bool
) -> None:
    assert find_moves(lake(), lake(**new)) == Moves(catalog, warehouse)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ({}, {}, "the same ledger"),
        ({}, {"warehouse": BUCKET, "catalog": REST}, "the same ledger"),
        ({}, {"ledger": {"url": "./ledger.db"}}, "the same ledger"),
        ({}, {"ledger": POSTGRES, "warehouse": BUCKET}, "the catalog would stay"),
        ({}, {"ledger": POSTGRES, "catalog": REST, "warehouse": {"url": "other"}}, "from a folder to a bucket"),
        ({"warehouse": BUCKET}, {"ledger": POSTGRES, "catalog": REST}, "from a folder to a bucket"),
        ({"catalog": REST}, {"ledger": POSTGRES, "catalog": {"path": "c.db"}}, "embedded catalog only"),
    ],
)
def test_what_cannot_move_is_refused_with_a_way_out(
    old: dict[str, dict[str, object]], new: dict[str, dict[str, object]], said: str
) -> None:
    with pytest.raises(RefusedError, match=said) as refused:
        find_moves(lake(**old), lake(**new))
    assert refused.value.hint


def test_steps_of_what_stays_are_left_out() -> None:
    ledger_only = (
        MigrateStep.CLOSE,
        MigrateStep.COPY_LEDGER,
        MigrateStep.LEAVE,
        MigrateStep.OPEN,
        MigrateStep.SETTINGS,
    )
    assert remaining_steps(Moves(False, False), found(None), ABSENT) == ledger_only
    assert remaining_steps(ALL, found(None), ABSENT) == tuple(MigrateStep)
    without_files = set(MigrateStep) - {MigrateStep.COPY_FILES, MigrateStep.WITNESS, MigrateStep.CLOSE_WITNESS}
    assert set(remaining_steps(Moves(catalog=True, warehouse=False), found(None), ABSENT)) == without_files


def test_the_commit_point_comes_behind_every_copy_and_before_every_change_of_what_is_in_use() -> None:
    order = list(MigrateStep)
    leave = order.index(MigrateStep.LEAVE)
    assert order[0] is MigrateStep.CLOSE and order[-1] is MigrateStep.SETTINGS
    assert {
        MigrateStep.COPY_FILES,
        MigrateStep.REGISTER,
        MigrateStep.COPY_LEDGER,
        MigrateStep.WITNESS,
        MigrateStep.CLOSE_CATALOG,
    } <= set(order[:leave])
    assert {MigrateStep.OPEN, MigrateStep.CLOSE_WITNESS, MigrateStep.DROP_OLD} <= set(order[leave:])
    assert order.index(MigrateStep.COPY_FILES) < order.index(MigrateStep.REGISTER)


def test_no_state_of_two_ledgers_opens_the_new_one_while_the_old_one_can_go_on() -> None:
    """Every combination: it is refused, or the new ledger is opened behind the commit point only."""
    olds = [None, *(left(s) for s in MoveState)]
    news = [ABSENT, IN_USE, *(found(left(s, m)) for s in MoveState for m in ("m", "another"))]
    allowed = set()
    for old, new in product(olds, news):
        try:
            steps = remaining_steps(ALL, found(old), new)
        except (RefusedError, LedgerMoved):
            continue
        was_left = old is not None and old.state is MoveState.LEFT
        if MigrateStep.OPEN in steps and not was_left:
            assert steps.index(MigrateStep.LEAVE) < steps.index(MigrateStep.OPEN)
            assert new == ABSENT or (new.move is not None and new.move.state is MoveState.ARRIVING)
        if was_left:
            assert MigrateStep.LEAVE not in steps and MigrateStep.COPY_LEDGER not in steps
            assert new is IN_USE or (new.move is not None and new.move == left(MoveState.ARRIVING))
        if new is IN_USE:
            assert was_left and MigrateStep.OPEN not in steps
        allowed.add((None if old is None else old.state, "in use" if new is IN_USE else new.exists))
    assert allowed == {
        (None, False), (None, True), (MoveState.LEAVING, False), (MoveState.LEAVING, True), (MoveState.LEFT, True),
        (MoveState.LEFT, "in use"),
    }  # fmt: skip


def test_a_copy_that_is_gone_behind_the_commit_point_is_not_made_anew_from_a_ledger_that_was_left() -> None:
    with pytest.raises(RefusedError, match="its copy is not there"):
        remaining_steps(ALL, found(left(MoveState.LEFT)), ABSENT)
    with pytest.raises(RefusedError, match="its copy is not there"):
        remaining_steps(ALL, found(left(MoveState.LEFT)), found(left(MoveState.ARRIVING, "another")))


@pytest.mark.parametrize("state", [None, MoveState.LEAVING, MoveState.LEFT])
@pytest.mark.parametrize("other", [{"lake": "lake-2"}, {"place": "elsewhere"}])
def test_the_copy_of_another_lake_is_never_overwritten(state: MoveState | None, other: dict[str, str]) -> None:
    here = FoundLedger(True, None if state is None else left(state), **({"lake": "lake-1", "place": "there"} | other))
    with pytest.raises(RefusedError, match="to which another lake moves"):
        remaining_steps(ALL, here, found(left(MoveState.ARRIVING)))
    with pytest.raises(RefusedError, match="in use already"):
        remaining_steps(ALL, here, found(None, lake="lake-3"))


def test_a_ledger_that_was_left_is_named_so_and_is_no_place_to_go() -> None:
    with pytest.raises(RefusedError, match="that a lake has left"):
        remaining_steps(ALL, found(None), found(left(MoveState.LEFT)))


@pytest.mark.parametrize(
    "other",
    [
        {"catalog": {"path": "catalog-3.db"}},
        {"catalog": REST},
        {"catalog": REST | {"options": {"warehouse": "w"}}},
        {"warehouse": {"url": "other"}},
        {"warehouse": BUCKET},
        {"warehouse": BUCKET | {"endpoint": "http://elsewhere"}},
    ],
)
def test_a_migration_goes_on_between_the_places_that_it_began_with_and_no_others(
    other: dict[str, dict[str, object]],
) -> None:
    begun = MigrationPlaces.of(lake(), "here", lake(catalog={"path": "catalog-2.db"}), "there")
    move = LedgerMove(MoveState.LEAVING, begun.new_id(), "there")
    begun.check(move)
    assert begun.new_id() != move.id
    for places in (
        MigrationPlaces.of(lake(), "here", lake(**({"catalog": {"path": "catalog-2.db"}} | other)), "there"),
        MigrationPlaces.of(lake(**other), "here", lake(catalog={"path": "catalog-2.db"}), "there"),
        MigrationPlaces.of(lake(), "here", lake(catalog={"path": "catalog-2.db"}), "elsewhere"),
    ):
        with pytest.raises(RefusedError, match="between other places") as refused:
            places.check(move)
        assert refused.value.hint
