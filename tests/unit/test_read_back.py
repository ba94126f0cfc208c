"""What a sink lists without count and digest is read, and what is damaged is not taken for delivered."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from strandline.core.errors import SinkStopped
from strandline.core.types import Seq, SeqRange
from strandline.deliver.plan.planner import read_back
from strandline.deliver.sink import HeldRange, Inspected

ROWS = SeqRange(Seq(1), Seq(5))


def read(listed: HeldRange, seen: Inspected) -> list[HeldRange]:
    inspector = SimpleNamespace(inspect=lambda address, rows: seen, close=lambda: None)
    sink: Any = SimpleNamespace(inspector=lambda: inspector)
    run: Any = SimpleNamespace(address=lambda partition: partition, record=SimpleNamespace(name="archive"))
    return read_back(sink, run, "", [listed])


def test_count_and_digest_come_from_the_content_where_the_record_lacks_them() -> None:
    assert read(HeldRange(ROWS, None, None, 10), Inspected(5, "abc")) == [HeldRange(ROWS, 5, "abc", 10)]


def test_a_record_that_has_both_is_not_read_again() -> None:
    listed = HeldRange(ROWS, 5, "abc", 10)
    assert read(listed, Inspected(None, None, "nobody looks")) == [listed]


def test_a_damaged_range_stops_the_sink() -> None:
    with pytest.raises(SinkStopped, match="which is damaged: it ends too early"):
        read(HeldRange(ROWS, None, None, 10), Inspected(None, None, "it ends too early"))
