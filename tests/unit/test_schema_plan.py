"""A follower's columns become the leader's, whatever was changed there and wherever the follower died."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.core.errors import SchemaError
from strandline.iceberg.schema.alteration import AddColumn, Alteration, DropColumn, RenameColumn, WidenColumn
from strandline.iceberg.schema.columns import Primitive, iceberg_type
from strandline.replicate.follow.schema_plan import match_fields, plan_alterations

Fields = list[dict[str, Any]]
SEQ = {"id": 1, "name": "_ingest_seq", "type": "long", "required": True}


def column(id: int, name: str, type: Any = "string") -> dict[str, Any]:
    return {"id": id, "name": name, "type": type, "required": False}


def struct(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


def test_a_table_that_has_the_columns_is_left_alone() -> None:
    assert plan_alterations([SEQ, column(7, "a")], [SEQ, column(2, "a")], {7: 2}) == []


def test_a_renamed_column_is_renamed_and_not_added() -> None:
    assert plan_alterations([SEQ, column(7, "b")], [SEQ, column(2, "a")], {7: 2}) == [[RenameColumn("a", "b")]]


def test_columns_are_added_and_widened_before_others_are_dropped() -> None:
    leader = [column(7, "a", "long"), column(9, "c")]
    own = [column(2, "a", "int"), column(3, "b")]
    added = [WidenColumn("a", Primitive("long")), AddColumn("c", Primitive("string"))]
    assert plan_alterations(leader, own, {7: 2, 8: 3}) == [added, [DropColumn("b")]]


def test_a_column_that_was_dropped_and_added_again_is_another_column() -> None:
    assert settle([column(9, "a")], [column(2, "a")], {7: 2})[0]["id"] != 2


def test_a_column_of_which_the_property_does_not_tell_is_known_by_its_name() -> None:
    assert plan_alterations([column(7, "a"), column(9, "b")], [column(2, "a"), column(3, "b")], {7: 2}) == []


def test_a_type_that_no_change_leads_to_is_refused() -> None:
    with pytest.raises(SchemaError, match="the leader has long, this follower string"):
        plan_alterations([column(7, "a", "long")], [column(2, "a")], {7: 2})


def test_what_is_inside_a_column_is_changed_there() -> None:
    leader = [column(7, "a", struct(column(8, "x"), column(9, "z")))]
    own = [column(2, "a", struct(column(3, "y")))]
    assert plan_alterations(leader, own, {7: 2, 8: 3}) == [[RenameColumn("a.y", "x")]]
    listed = [column(7, "a", {"type": "list", "element-id": 8, "element": "long", "element-required": False})]
    ours = [column(2, "a", {"type": "list", "element-id": 3, "element": "int", "element-required": False})]
    assert plan_alterations(listed, ours, {7: 2, 8: 3}) == [[WidenColumn("a.element", Primitive("long"))]]


NAMES = st.sampled_from(["a", "b", "c", "d"])
LEADER = st.dictionaries(NAMES, st.integers(10, 15), min_size=1).map(
    lambda named: [column(id, name) for name, id in named.items()]
)


@settings(max_examples=300)
@given(LEADER, LEADER)
def test_any_change_of_columns_is_followed_and_the_same_column_keeps_its_values(before: Fields, after: Fields) -> None:
    before, after = once(before), once(after)
    own = [column(n, f["name"]) for n, f in enumerate(before, 2)]
    known = match_fields(before, own)
    ended = settle(after, own, known)
    assert {f["name"] for f in ended} == {f["name"] for f in after}
    ours = {f["name"]: f["id"] for f in ended}
    for field in after:
        kept = field["id"] in known
        assert (ours[field["name"]] == known.get(field["id"])) == kept, "a column has the values of another one"


def once(fields: Fields) -> Fields:
    """Each id once."""
    return list({f["id"]: f for f in fields}.values())


def settle(leader: Fields, own: Fields, known: dict[int, int]) -> Fields:
    """Applies the plan as a follower does that dies after each commit, and never stores what it learned."""
    own = copy.deepcopy(own)
    for _ in range(10):
        steps = plan_alterations(leader, own, known)
        if not steps:
            return own
        own = apply(own, steps[0])
    raise AssertionError("the plan does not end")


def apply(own: Fields, alterations: list[Alteration]) -> Fields:
    """What Iceberg does with them, and refuses."""
    next_id = max((f["id"] for f in own), default=1) + 1
    names = {f["name"] for f in own}
    changed = copy.deepcopy(own)
    for alteration in alterations:
        match alteration:
            case AddColumn(name, kind):
                assert name not in names
                changed.append(column(next_id, name, iceberg_type(kind, iter(()))))
                next_id += 1
            case RenameColumn(name, new):
                assert new not in names, "Iceberg refuses a name that another column has"
                next(f for f in changed if f["name"] == name)["name"] = new
            case DropColumn(name):
                changed = [f for f in changed if f["name"] != name]
            case WidenColumn():
                raise AssertionError("all columns have one type here")
    assert changed, "Iceberg refuses to drop the last column"
    return changed
