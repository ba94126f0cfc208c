"""Renders the difference between a declaration and the lake."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from strandline.apply.steps import ApplyStep, Plan, StepAction
from strandline.cli.render import elements
from strandline.core.text.masking import masked
from strandline.core.text.wording import plural

_SIGNS = {StepAction.CREATE: ("+", "green"), StepAction.CHANGE: ("~", "yellow"), StepAction.REMOVE: ("-", "red")}
_DONE = {StepAction.CREATE: "is created", StepAction.CHANGE: "is changed", StepAction.REMOVE: "is removed"}


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


def _headline(step: ApplyStep) -> Text:
    sign, style = _SIGNS[step.action]
    less = " (columns)" if step.what == "dataset" and step.action is StepAction.REMOVE and step.details else ""
    return Text.assemble((sign, style), " ", (f"{step.what} {step.name}", "bold"), less)


def done(step: ApplyStep) -> RenderableType:
    what = _DONE[step.action]
    if step.what == "dataset" and step.action is StepAction.REMOVE:
        what = "is changed" if step.details else "is dropped"
    return elements.done(f"{step.what} {step.name} {what}")
