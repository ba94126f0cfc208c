"""Renders tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from strandline.cli.output import dumps
from strandline.cli.render.audit import who
from strandline.cli.render.elements import grid
from strandline.core.records.task_records import TaskOutcome
from strandline.core.text.wording import age
from strandline.status.attention import attention

if TYPE_CHECKING:
    from rich.console import RenderableType

    from strandline.ledger.tasks import Task

_STYLES = {
    TaskOutcome.DONE: "green",
    TaskOutcome.REFUSED: "yellow",
    TaskOutcome.FAILED: "red",
    TaskOutcome.CANCELLED: "yellow",
    TaskOutcome.DIED: "red",
}


def tasks(found: Sequence[Task], *, more: bool) -> Iterator[RenderableType]:
    if not found:
        yield Text("No tasks yet. The API begins one for work that takes long.", "dim")
        return
    table = grid("task", "kind", "of", "began", "who", "outcome", right=("task",))
    for t in found:
        table.add_row(
            Text(str(t.id), "bold"),
            Text(t.kind),
            Text(t.subject or "the lake"),
            Text(f"{age(t.started_at)} ago"),
            who(t.actor),
            _outcome(t),
        )
    yield table
    if more:
        yield Text(f"Older tasks: --before {found[-1].id}", "dim")


def _outcome(t: Task) -> Text:
    if t.outcome is None:
        return Text("called off, not yet ended" if t.stop_asked_at is not None else "under way", "cyan")
    if (why := attention(t)) is not None:
        return Text.assemble((f"{t.outcome}, but", "yellow"), f" {why}")
    text = Text(t.outcome, _STYLES[t.outcome])
    return text.append(f": {t.error['message']}", "") if t.error is not None else text


def shown(t: Task) -> Iterator[RenderableType]:
    of = f" of {t.subject}" if t.subject else ""
    began = f"began {age(t.started_at)} ago on {t.node}, by "
    yield Text.assemble(
        (f"Task {t.id}", "bold"), f" · {t.kind}{of} · ", (began, "dim"), who(t.actor), " · ", _outcome(t)
    )
    if t.error is not None and t.error["hint"]:
        yield Text(f"  {t.error['hint']}", "dim")
    if t.result is not None:
        yield Text(dumps(dict(t.result)), "dim")
