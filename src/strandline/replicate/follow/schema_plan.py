"""Plans the changes that give a follower's table the leader's columns. Pure: schemas are Iceberg's JSON, with ids.

Two tables give the same column different ids, and a column can be renamed. So the follower's table stores, as a
property, the leader's field id for each of its own. A column that is missing there (the follower died before it stored
the property) is matched by name.

The steps are committed one after the other. After each one, the rest can be planned again.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from strandline.core.errors import SchemaError
from strandline.core.types import INTERNAL_COLUMNS
from strandline.iceberg.schema.alteration import AddColumn, Alteration, DropColumn, RenameColumn, WidenColumn
from strandline.iceberg.schema.columns import IcebergField, Primitive, can_widen, type_from_iceberg, type_text

# The JSON of `KnownFields`.
FIELDS_PROPERTY = "strandline.leader-fields"
_TEMPORARY_NAME = "strandline_aside_"


@dataclass
class _SchemaChanges:
    made_free: list[Alteration] = field(default_factory=list)  # renames that free a name for another column
    renamed: list[Alteration] = field(default_factory=list)
    added: list[Alteration] = field(default_factory=list)
    dropped: list[Alteration] = field(default_factory=list)
    others: frozenset[int] = frozenset()


def plan_alterations(
    leader: Sequence[IcebergField], own: Sequence[IcebergField], known: Mapping[int, int], others: Collection[int] = ()
) -> list[list[Alteration]]:
    """The commits that give our table the leader's columns; empty if it has them. `known` maps ids of the leader's
    fields to ids of ours. `others` are ids of ours that are not to be matched by name. Raises SchemaError for a type
    that cannot become the leader's."""
    changes = _SchemaChanges(others=frozenset(others))
    _plan_struct("", _users(leader), _users(own), known, changes)
    if changes.made_free:
        return [changes.made_free]  # the names of the rest depend on them: plan again
    if changes.renamed:
        return [changes.renamed]
    return [step for step in (changes.added, changes.dropped) if step]


def match_fields(leader: Sequence[IcebergField], own: Sequence[IcebergField]) -> dict[int, int]:
    """The ids of our fields by the ids of the leader's, matched by name."""
    found: dict[int, int] = {}
    ours = {f["name"]: f for f in own}
    for theirs in leader:
        if (mine := ours.get(theirs["name"])) is not None:
            found[theirs["id"]] = mine["id"]
            found |= _match_types(theirs["type"], mine["type"])
    return found


@dataclass(frozen=True, slots=True)
class KnownFields:
    """The ids of a site's fields by those of its leader, in that leader's term."""

    term: int
    fields: Mapping[int, int]  # by the id of the leader's field, the id of the site's own

    def to_json(self) -> str:
        return json.dumps({"term": self.term, "fields": {str(k): self.fields[k] for k in sorted(self.fields)}})

    @classmethod
    def parse(cls, text: str | None) -> KnownFields | None:
        """Returns None for a missing or damaged text."""
        try:
            stored = json.loads(text or "null")
            return cls(int(stored["term"]), {int(theirs): int(ours) for theirs, ours in stored["fields"].items()})
        except (ValueError, AttributeError, TypeError, KeyError):
            return None


def field_ids(own: Sequence[IcebergField]) -> set[int]:
    """The ids of all columns and of their nested fields."""
    return set(match_fields(own, own))


def match_across_leaders(before: Mapping[int, int], own: Mapping[int, int]) -> dict[int, int]:
    """For two sites that followed the same leader, one of which leads now: the ids of our fields by those of the new
    leader. `before`: what the new leader stored; `own`: what we stored. If one of the sites was that former leader
    itself, each id stands for itself."""
    return {theirs: own[former] for former, theirs in before.items() if former in own}


def dropped_by_both(leader: Sequence[IcebergField], before: Mapping[int, int], own: Mapping[int, int]) -> list[str]:
    """The leader's columns that this site has dropped, as the former leader did: their values are gone here, but not at
    the leader."""
    former = {theirs: id for id, theirs in before.items()}
    return sorted(path for path, id in _paths(leader) if id in former and former[id] not in own)


def reused_names(
    leader: Sequence[IcebergField], own: Sequence[IcebergField], former: Iterable[Sequence[IcebergField]]
) -> list[str]:
    """The leader's column names that belonged to another column of ours before it was renamed or dropped: it is unknown
    which of the two a leader means that has taken over since. `former`: all schemas that our table had."""
    now, before = dict(_paths(own)), [pair for fields in former for pair in _paths(fields)]
    return sorted({path for path, _ in _paths(leader) if any(p == path and id != now.get(path) for p, id in before)})


def _paths(fields: Sequence[IcebergField], above: str = "") -> Iterator[tuple[str, int]]:
    for of in _users(fields):
        path = _at(above, of)
        yield path.lower(), int(of["id"])
        yield from _inner_paths(of["type"], path)


def _inner_paths(of: Any, path: str) -> Iterator[tuple[str, int]]:
    if isinstance(of, str):
        return
    match of["type"]:
        case "struct":
            yield from _paths(of["fields"], path)
        case "list":
            yield from _inner_paths(of["element"], f"{path}.element")
        case _:
            yield from _inner_paths(of["key"], f"{path}.key")
            yield from _inner_paths(of["value"], f"{path}.value")


def _match_types(theirs: Any, mine: Any) -> dict[int, int]:
    if isinstance(theirs, str) or isinstance(mine, str) or theirs["type"] != mine["type"]:
        return {}
    match theirs["type"]:
        case "struct":
            return match_fields(theirs["fields"], mine["fields"])
        case "list":
            inner = _match_types(theirs["element"], mine["element"])
            return {theirs["element-id"]: mine["element-id"]} | inner
        case _:
            keys = {theirs["key-id"]: mine["key-id"]} | _match_types(theirs["key"], mine["key"])
            return keys | {theirs["value-id"]: mine["value-id"]} | _match_types(theirs["value"], mine["value"])


def _users(fields: Sequence[IcebergField]) -> list[IcebergField]:
    return [f for f in fields if f["name"] not in INTERNAL_COLUMNS]


def _plan_struct(
    path: str,
    leader: Sequence[IcebergField],
    own: Sequence[IcebergField],
    known: Mapping[int, int],
    changes: _SchemaChanges,
) -> None:
    pairs = _pairs(leader, own, known, changes.others)
    matched = {mine["id"] for _, mine in pairs if mine is not None}
    wanted = {f["name"].lower() for f in leader}
    for theirs, mine in pairs:
        if mine is None:
            changes.added.append(AddColumn(_at(path, theirs), type_from_iceberg(theirs["type"]), theirs.get("doc")))
            continue
        if mine["name"] != theirs["name"]:
            taken = any(f["name"].lower() == theirs["name"].lower() for f in own if f["id"] != mine["id"])
            # If another column still has the name, an earlier step renames that one.
            if not taken:
                changes.renamed.append(RenameColumn(_at(path, mine), theirs["name"]))
            elif not mine["name"].startswith(_TEMPORARY_NAME):
                changes.made_free.append(RenameColumn(_at(path, mine), f"{_TEMPORARY_NAME}{mine['id']}"))
        _plan_type(_at(path, mine), theirs["type"], mine["type"], known, changes)
    for mine in own:
        if mine["id"] in matched:
            continue
        if mine["name"].lower() in wanted:
            changes.made_free.append(RenameColumn(_at(path, mine), f"{_TEMPORARY_NAME}{mine['id']}"))
        changes.dropped.append(DropColumn(_at(path, mine)))


def _pairs(
    leader: Sequence[IcebergField], own: Sequence[IcebergField], known: Mapping[int, int], others: Collection[int]
) -> list[tuple[IcebergField, IcebergField | None]]:
    by_id = {f["id"]: f for f in own}
    stored = {*known.values(), *others}
    by_name = {f["name"]: f for f in own if f["id"] not in stored}
    return [(f, by_id.get(known.get(f["id"], -1)) or by_name.get(f["name"])) for f in leader]


def _plan_type(path: str, theirs: Any, mine: Any, known: Mapping[int, int], changes: _SchemaChanges) -> None:
    new, old = type_from_iceberg(theirs), type_from_iceberg(mine)
    if new == old and isinstance(new, Primitive):
        return
    if can_widen(old, new):
        changes.added.append(WidenColumn(path, new))
        return
    if isinstance(theirs, str) or isinstance(mine, str) or theirs["type"] != mine["type"]:
        raise SchemaError(
            f"column {path}: the leader has {type_text(new)}, this follower {type_text(old)}",
            hint="Somebody changed the follower's table. Undo that.",
        )
    match theirs["type"]:
        case "struct":
            _plan_struct(path, theirs["fields"], mine["fields"], known, changes)
        case "list":
            _plan_type(f"{path}.element", theirs["element"], mine["element"], known, changes)
        case _:
            _plan_type(f"{path}.key", theirs["key"], mine["key"], known, changes)
            _plan_type(f"{path}.value", theirs["value"], mine["value"], known, changes)


def _at(path: str, of: IcebergField) -> str:
    return f"{path}.{of['name']}" if path else str(of["name"])
