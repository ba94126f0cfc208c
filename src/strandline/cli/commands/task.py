"""task list, show, cancel."""

from __future__ import annotations

from typing import Annotated

import typer

from strandline.cli.command import Call, command
from strandline.cli.render import task as render
from strandline.status.documents import lake_documents

app = typer.Typer(name="task", help="Long work that the API began: list it, show its result, call it off.")

TaskArgument = Annotated[int, typer.Argument(metavar="TASK", help="The task's number.")]


@command(app, "list")
def list_(
    call: Call,
    before: int | None = typer.Option(None, metavar="ID", min=1, help="Only tasks before this one."),
    limit: int = typer.Option(20, metavar="N", min=1, max=1000, help="How many tasks, newest first."),
) -> None:
    """Tasks that are under way and those that have ended. Starts no JVM."""
    found = call.lake.tasks.latest(before=before, tasks_max=limit + 1)
    page, more = found[:limit], len(found) > limit
    document = {"tasks": list(map(lake_documents.task, page)), "next": page[-1].id if more else None}
    call.show(document, *render.tasks(page, more=more))


@command(app)
def show(call: Call, task: TaskArgument) -> None:
    """Who began a task, how far it is, and its result."""
    found = call.lake.tasks.get(task)
    call.show(lake_documents.task(found), *render.shown(found))


@command(app)
def cancel(call: Call, task: TaskArgument) -> None:
    """Call off a task. It ends at its next durable step; what it has done stays."""
    found = call.lake.tasks.cancel(task)
    call.show(lake_documents.task(found), *render.shown(found))
