"""Columns that a new leader, or the one before it, changed when not every site had followed: each value stays in its
column, or the site stops and says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.core.errors import SchemaError
from strandline.iceberg.schema.alteration import AddColumn, DropColumn, RenameColumn
from strandline.iceberg.schema.columns import Primitive
from tests.conftest import MakeHome
from tests.spark.followed import assert_same, follow, follow_another, take_over, three_sites
from tests.spark.protocol import frame


def test_a_column_that_only_the_new_leader_renamed_is_known_by_the_leader_that_both_followed(
    tmp_path: Path, make_home: MakeHome
) -> None:
    """Its old name is a new column's by now."""
    with three_sites(tmp_path, make_home) as (_, new, other):
        take_over(new, 17)
        new.alter_dataset("events", [RenameColumn("text", "words")])
        new.alter_dataset("events", [AddColumn("text", Primitive("string"))])
        rows = new.spark.range(100, 103).selectExpr("id", "'later' AS words", "'another' AS text")
        new.append("events", rows, batch_id="n")
        follow_another(other, new)
        follow(other)
        assert_same(new, other)


def test_a_column_that_was_dropped_here_and_not_at_the_new_leader_stops_the_site(
    tmp_path: Path, make_home: MakeHome
) -> None:
    with three_sites(tmp_path, make_home) as (old, new, other):
        old.alter_dataset("events", [DropColumn("text")])
        old.append("events", old.spark.range(10, 12), batch_id="b")
        follow(other)
        take_over(new, 17)
        new.append("events", frame(new, 100, 3), batch_id="n")
        follow_another(other, new)
        with pytest.raises(SchemaError, match="the leader has text, and this site dropped it"):
            follow(other)
        new.alter_dataset("events", [DropColumn("text")])
        follow(other)
        assert_same(new, other)
