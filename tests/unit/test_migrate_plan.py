"""What a migration moves, what it refuses, and which steps are left: of settings and states alone."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from strandline.core.errors import LedgerMoved, RefusedError
from strandline.core.records.ledger_moves import LedgerMove, MoveState
from strandline.core.settings.lake_config import LakeConfig, Settings
from strandline.migrate.plan import Moves, NewLedger, Step, find_moves, remaining_steps

BUCKET = {"url": "s3://bucket/lake"}
REST = {"kind": "rest", "uri": "http://127.0.0.1:1"}
POSTGRES = {"url": "postgresql://me:secret@host/db"}


def lake(**sections: dict[str, object]) -> LakeConfig:
    return LakeConfig(Settings(**sections), Path("/home/lake"))


def left(state: MoveState, move: str = "m") -> LedgerMove:
    return LedgerMove(state, move, "there")


ABSENT, IN_USE = NewLedger(False, None), NewLedger(True, None)
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
    ledger_only = (Step.CLOSE, Step.COPY_LEDGER, Step.LEAVE, Step.OPEN, Step.SETTINGS)
    assert remaining_steps(Moves(False, False), None, ABSENT) == ledger_only
    assert remaining_steps(ALL, None, ABSENT) == tuple(Step)
    without_files = set(Step) - {Step.COPY_FILES, Step.WITNESS, Step.CLOSE_WITNESS}
    assert set(remaining_steps(Moves(catalog=True, warehouse=False), None, ABSENT)) == without_files


def test_the_commit_point_comes_behind_every_copy_and_before_every_change_of_what_is_in_use() -> None:
    order = list(Step)
    leave = order.index(Step.LEAVE)
    assert order[0] is Step.CLOSE and order[-1] is Step.SETTINGS
    assert {Step.COPY_FILES, Step.REGISTER, Step.COPY_LEDGER, Step.WITNESS, Step.CLOSE_CATALOG} <= set(order[:leave])
    assert {Step.OPEN, Step.CLOSE_WITNESS} <= set(order[leave:])
    assert order.index(Step.COPY_FILES) < order.index(Step.REGISTER)


def test_no_state_of_two_ledgers_opens_the_new_one_while_the_old_one_can_go_on() -> None:
    """Every combination: it is refused, or the new ledger is opened behind the commit point only."""
    olds = [None, *(left(s) for s in MoveState)]
    news = [ABSENT, IN_USE, *(NewLedger(True, left(s, m)) for s in MoveState for m in ("m", "another"))]
    allowed = set()
    for old, new in product(olds, news):
        try:
            steps = remaining_steps(ALL, old, new)
        except (RefusedError, LedgerMoved):
            continue
        was_left = old is not None and old.state is MoveState.LEFT
        if Step.OPEN in steps and not was_left:
            assert steps.index(Step.LEAVE) < steps.index(Step.OPEN)
            assert new == ABSENT or (new.move is not None and new.move.state is MoveState.ARRIVING)
        if was_left:
            assert Step.LEAVE not in steps and Step.COPY_LEDGER not in steps
            assert new is IN_USE or (new.move is not None and new.move == left(MoveState.ARRIVING))
        if new is IN_USE:
            assert was_left and Step.OPEN not in steps
        allowed.add((None if old is None else old.state, "in use" if new is IN_USE else new.exists))
    assert allowed == {
        (None, False), (None, True), (MoveState.LEAVING, False), (MoveState.LEAVING, True), (MoveState.LEFT, True),
        (MoveState.LEFT, "in use"),
    }  # fmt: skip


def test_a_copy_that_is_gone_behind_the_commit_point_is_not_made_anew_from_a_ledger_that_was_left() -> None:
    with pytest.raises(RefusedError, match="its copy is not there"):
        remaining_steps(ALL, left(MoveState.LEFT), ABSENT)
    with pytest.raises(RefusedError, match="its copy is not there"):
        remaining_steps(ALL, left(MoveState.LEFT), NewLedger(True, left(MoveState.ARRIVING, "another")))
