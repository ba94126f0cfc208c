"""Renders the difference between a declaration and the lake."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from strandline.apply.steps import Action, Plan, Step
from strandline.cli.render import elements
from strandline.core.masking import masked
from strandline.core.wording import plural

_SIGNS = {Action.CREATE: ("+", "green"), Action.CHANGE: ("~", "yellow"), Action.REMOVE: ("-", "red")}
_DONE = {Action.CREATE: "is created", Action.CHANGE: "is changed", Action.REMOVE: "is removed"}


def plan(found: Plan) -> Iterator[RenderableType]:
    for step in found.steps:
        yield _headline(step)
        yield from (Text(f"    {masked(line)}") for line in step.details)
    for refusal in found.refused:
        yield Text.assemble(elements.BAD, f" {refusal.what} {refusal.name}: {masked(refusal.reason)}")
        if refusal.hint:
            yield Text(f"    {refusal.hint}", "yellow")
    if found.not_declared:
        yield Text(f"not declared and left alone: {', '.join(found.not_declared)}", "dim")
    if not (found.steps or found.refused):
        yield elements.done(f"Nothing to change: {plural(found.unchanged, 'thing', 'is')} as declared")


def _headline(step: Step) -> Text:
    sign, style = _SIGNS[step.action]
    less = " (columns)" if step.what == "dataset" and step.action is Action.REMOVE and step.details else ""
    return Text.assemble((sign, style), " ", (f"{step.what} {step.name}", "bold"), less)


def done(step: Step) -> RenderableType:
    what = _DONE[step.action]
    if step.what == "dataset" and step.action is Action.REMOVE:
        what = "is changed" if step.details else "is dropped"
    return elements.done(f"{step.what} {step.name} {what}")
