"""apply, export."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from strandline.apply.steps import ApplyStep, Permission, Plan, Wish
from strandline.cli.command import Call, command
from strandline.cli.render import apply as render_apply
from strandline.core.documents import error_document
from strandline.core.errors import ConfigError, RefusedError, StrandlineError
from strandline.core.settings.lake_config import find_config
from strandline.core.text.wording import part, plural
from strandline.status.documents import lake_documents

if TYPE_CHECKING:
    from strandline.apply.declaration import Declaration

WOULD_CHANGE = 4  # the exit code of a dry run that found a difference

app = typer.Typer()


@command(app, asks=True)
def apply(
    call: Call,
    files: list[Path] | None = typer.Argument(
        None,
        metavar="[FILE…]",
        help="TOML files that together are one declaration.",
        show_default="lake.toml beside the settings file",
    ),
    dry_run: bool = typer.Option(
        False, "--dry-run", help="Show the difference and change nothing. Ends with 4 if there is one, with 0 if not."
    ),
    prune: bool = typer.Option(False, "--prune", help="Remove what the lake has and the declaration lacks."),
    allow: list[Permission] | None = typer.Option(
        None, help="Allow a change that loses rows or values; repeat it for more.", show_default=False
    ),
) -> None:
    """Change the lake to match a declaration of datasets, sinks, retention rules and schedules.

    Shows the difference, asks, and changes only what differs, one durable step after the other. Without --prune, it
    leaves alone what the declaration lacks. If a change would lose rows or values and --allow does not name it, the
    command changes nothing at all. After a crash, run it again.
    """
    wish = Wish(prune, frozenset(allow or ()))
    declared = _read(files or [], call.config)
    plan = call.lake.declarations.plan(declared, wish)
    if plan.refused:
        _refuse(call, plan)
    if dry_run or not plan.steps:
        call.show(lake_documents.apply_plan(plan, done=None if dry_run else 0), *render_apply.plan(plan))
        raise typer.Exit(WOULD_CHANGE if dry_run and plan.steps else 0)
    if not call.as_json:
        call.show({}, *render_apply.plan(plan))
    call.confirm(f"Make {plural(len(plan.steps), 'change')}?", refusal="nothing was changed")
    _apply(call, declared, wish, plan)


def _read(files: list[Path], config: Path | None) -> Declaration:
    from strandline.apply.read_toml import DECLARATION_NAME, read_declaration

    if files:
        return read_declaration(files)
    path = find_config(config, os.environ, Path.cwd()).parent / DECLARATION_NAME
    if not path.is_file():
        raise ConfigError(
            f"there is no declaration at {path}",
            hint="Name its files, or start from the lake as it is: `strandline export > lake.toml`.",
        )
    return read_declaration([path])


def _refuse(call: Call, plan: Plan) -> None:
    reason = plural(len(plan.refused), "difference", "is")
    error = RefusedError(f"{reason} refused, so nothing was changed", hint=plan.refused[0].hint)
    if call.as_json:
        call.show(lake_documents.apply_plan(plan, done=0) | {"error": error_document(error)})
        raise typer.Exit(error.exit_code)
    call.show({}, *render_apply.plan(plan))
    raise error


def _apply(call: Call, declared: Declaration, wish: Wish, plan: Plan) -> None:
    done: list[ApplyStep] = []

    def on_done(step: ApplyStep) -> None:
        done.append(step)
        if not call.as_json:
            call.show({}, render_apply.done(step))

    try:
        with call.spinner("Changing the lake") as lake:
            lake.declarations.apply(declared, wish, plan, on_done)
    except StrandlineError as e:
        if call.as_json:
            call.show(lake_documents.apply_plan(plan, done=len(done)) | {"error": error_document(e)})
            raise typer.Exit(e.exit_code) from e
        made = part(len(done), len(plan.steps), "change", "is")
        e.add_note(f"{made} made; run the command again for the rest")
        raise
    if call.as_json:
        call.show(lake_documents.apply_plan(plan, done=len(done)))


@command(app)
def export(call: Call) -> None:
    """Print the lake as a declaration for `apply`, in TOML. The text is the same until something changes.

    It contains no secrets: options name the variables and files that hold them. Starts no JVM.
    """
    text = call.lake.declarations.export()
    if call.as_json:
        call.show({"declaration": text})
    else:
        print(text, end="")
