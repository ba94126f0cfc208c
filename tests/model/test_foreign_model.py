"""Whatever numbers others make up, a reader is given our rows, or told that it cannot be."""

from __future__ import annotations

import pytest

from strandline.core.errors import RefusedError
from strandline.core.types import SEQ_MAX, Checked, SnapshotId
from strandline.iceberg.metadata.block_placement import NumberSpan, is_near, place
from tests.model.foreign_model import Rules, explored


def test_no_interleaving_places_a_block_on_a_foreign_number_or_hands_a_foreign_row_out() -> None:
    found = explored(Rules())
    assert found.broken == (), found.why
    assert found.states > 5_000


@pytest.mark.parametrize(
    ("without", "why"),
    [
        (Rules(placed_above_what_the_table_holds=False), "placed on"),
        (Rules(memory_moves_with_the_counter=False), "placed on"),
        (Rules(far_numbers_are_not_stepped_over=False, numbers=(1, 2, 100)), "used the sequence up"),
        (Rules(far_numbers_are_remembered=False), "placed on"),
        (Rules(a_stale_look_is_repeated=False), "placed on"),
        (Rules(history_decides_not_rows=False), "foreign row"),
        (Rules(readers_refuse_a_number_that_stands_twice=False), "foreign row"),
        (Rules(a_count_ends_where_a_block_may_have_a_foreign_number=False), "foreign row"),
    ],
)
def test_without_this_rule_the_model_finds_a_way(without: Rules, why: str) -> None:
    found = explored(without)
    assert found.broken and why in found.why


def test_a_block_lies_above_the_highest_number_and_rows_are_read_only_across_the_limit() -> None:
    asked: list[int] = []

    def highest(limit: int) -> tuple[int, int]:
        asked.append(limit)
        return 40, 6000

    at = SnapshotId(7)
    assert place(6, 10, at, [], highest, skip_max=100).above == 6
    assert place(6, 10, at, [NumberSpan(11, 11), NumberSpan(2, 30)], highest, skip_max=100) == (
        place(6, 10, at, [NumberSpan(30, 30)], highest, skip_max=100)
    )
    assert asked == []
    far = place(6, 10, at, [NumberSpan(5000, 6000)], highest, skip_max=100)
    assert (far.above, far.checked) == (6, Checked(at, 5000)) and asked == []
    across = place(6, 10, at, [NumberSpan(11, 6000)], highest, skip_max=100)
    assert (across.above, across.checked.beyond, asked) == (40, 6000, [106])
    tight = place(6, 10, at, [NumberSpan(100, 100), NumberSpan(108, 108)], highest, skip_max=100)
    assert tight.above == 108, "the block would have met the second one"
    assert far.fits(90, 10) and not far.fits(97, 10), "the counter has moved since"
    assert is_near(far.checked, 4895, 5, skip_max=100) and not is_near(far.checked, 4890, 5, skip_max=100)
    with pytest.raises(RefusedError, match="no room"):
        place(SEQ_MAX - 50, 60, at, [], highest, skip_max=100)
