"""apply, export."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strandline.apply.steps import Permission, Plan, Step, Wish
from strandline.cli.options import START, ConfigOption, JsonOption, YesOption, confirm, opened
from strandline.cli.output import Output
from strandline.cli.render import apply as render_apply
from strandline.core.documents import error_document
from strandline.core.errors import ConfigError, RefusedError, StrandlineError
from strandline.core.settings import find_config
from strandline.core.wording import part, plural
from strandline.status import documents

if TYPE_CHECKING:
    from strandline.apply.declaration import Declaration
    from strandline.lake import Lake

WOULD_CHANGE = 4  # the exit code of a dry run that found a difference; others say done, failed, wrong usage, refused


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel=START)(apply)
    app.command(rich_help_panel=START)(export)


def apply(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILE…]",
            help="TOML files that are one declaration together.",
            show_default="lake.toml beside the settings file",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show the difference and change nothing. Exit code 4: there is one. 0: none."),
    ] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove what the lake has and the declaration does not.")
    ] = False,
    allow: Annotated[
        list[Permission] | None,
        typer.Option("--allow", help="A change that loses rows or values; repeat it for more.", show_default=False),
    ] = None,
    yes: YesOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Make the lake as declared: datasets, sinks, retention rules and schedules.

    Shows the difference, asks, and changes only what differs, one durable step after the other. What the lake has
    beyond the declaration is left alone, unless --prune is said. A change that loses rows or values is refused unless
    --allow names it; then nothing is changed at all. After a crash, run it again.
    """
    out = Output(as_json=json)
    wish = Wish(prune, frozenset(allow or ()))
    with opened(config) as lake:
        declared = _read(files or [], config)
        plan = lake.declarations.plan(declared, wish)
        if plan.refused:
            _refuse(out, plan)
        if dry_run or not plan.steps:
            out.show(documents.apply_plan(plan, done=None if dry_run else 0), *render_apply.plan(plan))
            raise typer.Exit(WOULD_CHANGE if dry_run and plan.steps else 0)
        if not json:
            out.show({}, *render_apply.plan(plan))
        question = f"Make {plural(len(plan.steps), 'change')}?"
        confirm(out, yes=yes, question=question, refusal="nothing was changed")
        _apply(out, lake, declared, wish, plan)


def _read(files: list[Path], config: Path | None) -> Declaration:
    from strandline.apply.read_toml import DECLARATION_NAME, read_declaration

    if files:
        return read_declaration(files)
    path = find_config(config, os.environ, Path.cwd()).parent / DECLARATION_NAME
    if not path.is_file():
        raise ConfigError(
            f"there is no declaration at {path}",
            hint="Name its files, or begin with what the lake has: `strandline export > lake.toml`.",
        )
    return read_declaration([path])


def _refuse(out: Output, plan: Plan) -> None:
    reason = plural(len(plan.refused), "difference", "is")
    error = RefusedError(f"{reason} refused, so nothing was changed", hint=plan.refused[0].hint)
    if out.as_json:
        out.show(documents.apply_plan(plan, done=0) | {"error": error_document(error)})
        raise typer.Exit(error.exit_code)
    out.show({}, *render_apply.plan(plan))
    raise error


def _apply(out: Output, lake: Lake, declared: Declaration, wish: Wish, plan: Plan) -> None:
    done: list[Step] = []

    def on_done(step: Step) -> None:
        done.append(step)
        if not out.as_json:
            out.show({}, render_apply.done(step))

    try:
        with out.working("Changing the lake") as say:
            lake.on_start = say
            lake.declarations.apply(declared, wish, plan, on_done)
    except StrandlineError as e:
        if out.as_json:
            out.show(documents.apply_plan(plan, done=len(done)) | {"error": error_document(e)})
            raise typer.Exit(e.exit_code) from e
        made = part(len(done), len(plan.steps), "change", "is")
        e.add_note(f"{made} made; run the command again for the rest")
        raise
    if out.as_json:
        out.show(documents.apply_plan(plan, done=len(done)))


def export(config: ConfigOption = None, json: JsonOption = False) -> None:
    """What the lake has, as a declaration for `apply`: TOML on standard output, the same text until something changes.

    Secrets are not in it: options name the variables and files that hold them. Starts no JVM.
    """
    with opened(config) as lake:
        text = lake.declarations.export()
    if json:
        Output(as_json=True).show({"declaration": text})
    else:
        print(text, end="")
