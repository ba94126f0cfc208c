"""The actor of a row, in two columns: the current actor on insert, the stored one when the row is read."""

from __future__ import annotations

from typing import Any

from strandline.core.actor import Actor, Trigger, current_actor


def actor_values() -> dict[str, str]:
    actor = current_actor()
    return {"actor": actor.name, "trigger": actor.trigger.value}


def read_actor(row: Any) -> Actor | None:
    """None for a row that was stored by a version without actors."""
    return None if row.actor is None else Actor(row.actor, Trigger(row.trigger))
