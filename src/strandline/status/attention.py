"""What needs a person's attention in the result of a task that is done. Work can end without an error, and its result
still show failures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from strandline.core.text.wording import part, plural

if TYPE_CHECKING:
    from strandline.ledger.tasks import Task


def attention(t: Task) -> str | None:
    """None if there is nothing, or if the task's error says it."""
    if t.result is None:
        return None
    if "omitted" in t.result:  # the result was too large to be stored; this was found before
        stored: str | None = t.result.get("attention")
        return stored
    return find_attention(t.kind, t.result)


def find_attention(kind: str, result: Mapping[str, Any]) -> str | None:
    """What needs attention in the result of a task of this kind; None if nothing does."""
    return "; ".join(_found(kind, result)) or None


def _found(kind: str, result: Mapping[str, Any]) -> Iterator[str]:
    match kind:
        case "verify":
            for sink in result.get("sinks", ()):
                if not sink["ok"]:
                    yield f"{sink['name']} failed the check: {plural(len(sink['findings']), 'finding')}"
        case "tick" | "tick_dry_run":
            for sink in result.get("sinks", ()):
                yield from _tick(sink)
        case "replay":
            if lacking := [row for row in result.get("rows", ()) if row["outcome"] != "replayed"]:
                why = lacking[0]["why"] or lacking[0]["outcome"]
                yield f"{part(len(lacking), len(result['rows']), 'row')} not delivered: {why}"
        case "restore":
            for key, why in (("taken", "another file is in its place"), ("lost", "not found"), ("failed", "failed")):
                if result.get(key):
                    yield f"{plural(len(result[key]), 'file')} not restored: {why}"
        case "purge_files":
            if failed := result.get("failed"):
                yield f"{plural(len(failed), 'file')} not purged: {failed[0]}"


def _tick(sink: Mapping[str, Any]) -> Iterator[str]:
    """What needs attention in the result of a tick, or of its dry run."""
    if (error := sink.get("error")) is not None:
        yield f"{sink['name']}: {error['message']}"
    elif sink.get("did") == "busy":
        yield sink["reason"] or f"{sink['name']} got nothing: another process delivers to it just now"
    elif sink.get("did") == "paused":
        yield f"{sink['name']} is paused, and got nothing"
    elif sink.get("did") in ("stopped", "waiting") and sink["reason"] is not None:
        yield f"{sink['name']} is {sink['did']}: {sink['reason']}"
    if sink.get("quarantined"):
        yield f"{sink['name']} refused {plural(sink['quarantined'], 'row')}, which went to quarantine"
