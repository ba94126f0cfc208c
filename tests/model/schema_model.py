"""Columns across a take-over: the leader changes them, two sites have followed some of the changes each, one of them is
promoted and changes them, too, and the other one follows it. Goes through all of these orders with the functions that
the code plans with. Each change of the leader comes with a row; a value is the column that it was written into.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, product
from typing import Any

from strandline.iceberg.schema.alteration import AddColumn, Alteration, DropColumn, RenameColumn
from strandline.replicate.follow.schema_plan import (
    dropped_by_both,
    match_across_leaders,
    match_fields,
    plan_alterations,
    reused_names,
)

NAMES = ("a", "b", "c")
Change = tuple[str, ...]
"""`add`, `drop`, `rename` or `swap`, with names; or nothing."""


@dataclass(frozen=True, slots=True)
class Rules:
    knows_columns_across_leaders: bool = True
    """From what the new leader stored when it followed the same leader."""
    stops_where_a_column_was_dropped_here: bool = True
    # What is left where nobody stored anything:
    stops_where_a_column_would_be_dropped: bool = True
    stops_where_a_name_was_another_columns: bool = True


@dataclass
class Table:
    """Ids of fields are given by the table itself."""

    first_id: int
    fields: list[dict[str, Any]] = field(default_factory=list)
    former: list[list[dict[str, Any]]] = field(default_factory=list)
    values: dict[tuple[int, int], str] = field(default_factory=dict)
    """By row and field."""
    known: dict[int, int] = field(default_factory=dict)
    """Of the leader's fields, which is which."""
    ids: Iterator[int] = field(init=False)

    def __post_init__(self) -> None:
        self.ids = count(self.first_id)

    def add(self, name: str) -> None:
        self.fields.append({"id": next(self.ids), "name": name, "type": "long", "required": False})

    def alter(self, changes: Sequence[Alteration]) -> None:
        for change in changes:
            found = {f["name"]: f for f in self.fields}
            match change:
                case AddColumn(name):
                    self.add(name)
                case RenameColumn(name, new):
                    found[name]["name"] = new
                case DropColumn(name):
                    self.fields.remove(found[name])
        self.former.append([dict(f) for f in self.fields])

    def seen(self, row: int) -> dict[str, str | None]:
        return {f["name"]: self.values.get((row, f["id"])) for f in self.fields}

    def put(self, row: int, values: Mapping[str, str | None]) -> None:
        for f in self.fields:
            if (value := values.get(f["name"])) is not None:
                self.values[row, f["id"]] = value


def alterations(table: Table, change: Change) -> list[list[Alteration]] | None:
    """None: it cannot be made."""
    names = {f["name"] for f in table.fields}
    match change:
        case ():
            return []
        case ("add", name) if name not in names:
            return [[AddColumn(name, "long")]]  # type: ignore[arg-type]
        case ("drop", name) if name in names and len(names) > 1:
            return [[DropColumn(name)]]
        case ("rename", name, new) if name in names and new not in names:
            return [[RenameColumn(name, new)]]
        case ("swap", one, other) if {one, other} <= names:
            return [[RenameColumn(one, "t")], [RenameColumn(other, one)], [RenameColumn("t", other)]]
    return None


CHANGES: list[Change] = [
    *(("add", n) for n in NAMES), *(("drop", n) for n in NAMES), ("swap", "a", "b"),
    *(("rename", n, m) for n in NAMES for m in NAMES if n != m),
]  # fmt: skip


def made(first_id: int) -> Table:
    table = Table(first_id)
    table.add("a")
    table.add("b")
    table.former.append([dict(f) for f in table.fields])
    return table


def write(table: Table, row: int) -> None:
    for f in table.fields:
        table.values[row, f["id"]] = f"{row}.{f['id']}"


def followed(table: Table, leader: Table, rows: Sequence[int], rules: Rules, *, is_new: bool) -> bool:
    """False if the site stops, and says why."""
    others = set[int]()
    if is_new and rules.knows_columns_across_leaders:
        if rules.stops_where_a_column_was_dropped_here and dropped_by_both(leader.fields, leader.known, table.known):
            return False
        others, table.known = set(table.known.values()), match_across_leaders(leader.known, table.known)
        is_new = False
    if is_new:
        table.known = {}
    while True:
        steps = plan_alterations(leader.fields, table.fields, table.known, others)
        if is_new and rules.stops_where_a_name_was_another_columns and _is_unclear(leader, table):
            return False
        if not steps:
            break
        drops = any(isinstance(c, DropColumn) for step in steps for c in step)
        if is_new and rules.stops_where_a_column_would_be_dropped and drops:
            return False
        table.alter(steps[0])
    table.known = match_fields(leader.fields, table.fields)
    for row in rows:
        table.put(row, leader.seen(row))
    return True


def _is_unclear(leader: Table, table: Table) -> bool:
    return bool(reused_names(leader.fields, table.fields, table.former))


@dataclass(frozen=True, slots=True)
class Outcomes:
    orders: int
    stopped: int
    broken: tuple[object, ...]
    """An order after which the follower has another value than its leader; empty if there is none."""
    needless: tuple[object, ...]
    """One without any change while the two sites were apart, after which the follower stops; empty if there is none."""


def explored(changes_max: int, rules: Rules, *, the_old_leader_follows: bool = False) -> Outcomes:
    """`the_old_leader_follows`: it is the other site, and each of its fields is its own."""
    orders = stopped = 0
    broken: tuple[object, ...] = ()
    needless: tuple[object, ...] = ()
    for changes in product(CHANGES, repeat=changes_max):
        for mine, its, after in product(range(changes_max + 1), range(changes_max + 1), [(), *CHANGES]):
            if the_old_leader_follows and its != changes_max:
                continue
            if (found := _order(changes, mine, its, after, rules, the_old_leader_follows)) is None:
                continue
            orders += 1
            stopped += found == "stops"
            order = (changes, mine, its, after)
            broken = broken or (order if found == "differs" else ())
            if found == "stops" and not changes[: max(mine, its)] and (not after or after[0] == "add"):
                needless = needless or order
    return Outcomes(orders, stopped, broken, needless)


def _order(
    changes: Sequence[Change], mine: int, its: int, after: Change, rules: Rules, old_follows: bool
) -> str | None:
    """The site that is promoted has followed the first `mine` changes, the other one the first `its`."""
    old, new, other = made(100), made(200), made(300)
    for site in (new, other):
        site.known = match_fields(old.fields, site.fields)
    write(old, 0)
    for site in (new, other):
        site.put(0, old.seen(0))
    for row, change in enumerate(changes, 1):
        if (steps := alterations(old, change)) is None:
            return None
        for step in steps:
            old.alter(step)
        write(old, row)
        for site, has in ((new, mine), (other, its)):
            if row <= has:
                followed(site, old, [row], rules, is_new=False)
    if old_follows:
        other = old
        other.known = {f["id"]: f["id"] for f in old.fields}
    if (steps := alterations(new, after)) is None:
        return None
    for step in steps:
        new.alter(step)
    write(new, len(changes) + 1)
    rows = [*range(its + 1, mine + 1), len(changes) + 1]  # what the other one has above is cut out
    if not followed(other, new, rows, rules, is_new=True):
        return "stops"
    both = [*range(mine + 1), len(changes) + 1]
    return "agrees" if all(other.seen(row) == new.seen(row) for row in both) else "differs"
