"""task list, show, cancel."""

from __future__ import annotations

from typing import Annotated

import typer

from strandline.cli.options import ConfigOption, JsonOption, opened
from strandline.cli.output import Output
from strandline.cli.render import task as render
from strandline.status import documents

app = typer.Typer(help="Long work that the API began: list it, look at its result, call it off.")

TaskArgument = Annotated[int, typer.Argument(metavar="TASK", help="The task's number.", show_default=False)]


@app.command("list")
def list_(
    before: Annotated[
        int | None, typer.Option(metavar="ID", min=1, help="Only tasks before this one.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="How many tasks, newest first.")] = 20,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Tasks that are under way and those that have ended. Starts no JVM."""
    with opened(config) as lake:
        found = lake.tasks.latest(before=before, tasks_max=limit + 1)
    page, more = found[:limit], len(found) > limit
    document = {"tasks": list(map(documents.task, page)), "next": page[-1].id if more else None}
    Output(as_json=json).show(document, *render.tasks(page, more=more))


@app.command()
def show(task: TaskArgument, config: ConfigOption = None, json: JsonOption = False) -> None:
    """Who began a task, how far it is, and its result."""
    with opened(config) as lake:
        found = lake.tasks.get(task)
    Output(as_json=json).show(documents.task(found), *render.shown(found))


@app.command()
def cancel(task: TaskArgument, config: ConfigOption = None, json: JsonOption = False) -> None:
    """Call a task off. It ends at its next durable step; what it has done stays."""
    with opened(config) as lake:
        found = lake.tasks.cancel(task)
    Output(as_json=json).show(documents.task(found), *render.shown(found))
