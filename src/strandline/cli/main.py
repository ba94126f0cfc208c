"""`strandline`: the one place where errors become messages and exit codes.

0 done, 1 failed, 2 wrong usage, 3 refused; 130 interrupted, 141 the reader of a pipe has gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

import typer

from strandline.cli.command import CARE, DELIVERY, ROWS, START
from strandline.cli.log_lines import mask_stray_lines
from strandline.cli.output import Output, dumps
from strandline.core import failpoints
from strandline.core.actor import Actor, Trigger, set_process_actor, system_user
from strandline.core.documents import error_document
from strandline.core.errors import StrandlineError, UsageError, unexpected_message
from strandline.core.text.masking import masked
from strandline.iceberg.session.java import refuse_windows

INTERRUPTED = 128 + signal.SIGINT
PIPE_CLOSED = 128 + 13  # SIGPIPE, which Python does not have on every system

# The modules of commands, and the names that each adds to `strandline`.
MODULES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    START: {"lake": ("init", "demo", "doctor"), "apply": ("apply", "export")},
    ROWS: {"dataset": ("dataset",), "ingest": ("ingest",), "read": ("read",)},
    DELIVERY: {
        "sink": ("sink",),
        "deliver": ("tick",),
        "daemon": ("run",),
        "verify": ("verify",),
        "receive": ("receive",),
        "spool": ("spool",),
        "token": ("token",),
        "consumer": ("consumer",),
        "follower": ("follower",),
    },
    CARE: {
        "follow": ("follow",),
        "rejoin": ("rejoin",),
        "replication": ("replication",),
        "promote": ("promote",),
        "status": ("status", "top", "recover", "metrics"),
        "migrate": ("migrate",),
        "serve": ("serve",),
        "maintain": ("compact", "retain", "expire", "purge", "maintenance"),
        "reconcile": ("reconcile",),
        "audit": ("audit",),
        "task": ("task",),
        "ledger": ("ledger",),
    },
}


# What `strandline --help` says of each command; `make docs` writes it from the commands.
HELP_INDEX = Path(__file__).with_name("help_index.json")


def application(only: str | None = None) -> typer.Typer:
    """`strandline` with all commands, or with those of the module that has the command `only`, if one has: the imports
    are most of the time of a short command."""
    app = _without_commands()
    found = {module for modules in MODULES.values() for module, names in modules.items() if only in names}
    for panel, modules in MODULES.items():
        for module in modules:
            if not found or module in found:
                app.add_typer(import_module(f"strandline.cli.commands.{module}").app, rich_help_panel=panel)
    return app


def listing() -> typer.Typer:
    """`strandline` with the names of its commands and what help says of each, and nothing behind them."""
    app = _without_commands()
    for name, listed in json.loads(HELP_INDEX.read_text("utf-8")).items():
        app.command(name, help=listed["help"], rich_help_panel=listed["panel"])(_nothing)
    return app


def _without_commands() -> typer.Typer:
    app = typer.Typer(
        name="strandline",
        help="Every row of an Iceberg lake to every sink exactly once, and only once it is settled.",
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(root)
    return app


def _nothing() -> None:
    raise AssertionError("a command was called that is only listed")


def _application_for(arguments: Sequence[str]) -> typer.Typer:
    """With no more commands loaded than the arguments can name. After an option, any argument might be the command."""
    names = {name for modules in MODULES.values() for listed in modules.values() for name in listed}
    first = next(iter(arguments), None)
    if first in names:
        return application(only=first)
    return listing() if names.isdisjoint(arguments) else application()


def root(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and end."),
) -> None:
    if version:
        from strandline import __version__

        print(__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(UsageError.exit_code)


def main() -> None:
    # Times are UTC everywhere. Spark passes timestamps to Python in the process's time zone, where some do not exist.
    os.environ["TZ"] = "UTC"
    if hasattr(time, "tzset"):
        time.tzset()
    mask_stray_lines()
    code = run(sys.argv[1:])
    with contextlib.suppress(BrokenPipeError):
        sys.stderr.flush()
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    as_json = "--json" in arguments
    try:
        code = _invoke(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # What is still buffered would fail again when Python closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except (KeyboardInterrupt, typer.Abort):
        if not as_json:
            print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except StrandlineError as e:
        return _report(e, as_json=as_json)
    except typer.TyperException as e:
        return _report(_wrong_usage(e), as_json=as_json)
    except Exception as e:
        return _report(_unexpected(e), as_json=as_json)


def _invoke(arguments: Sequence[str]) -> int:
    refuse_windows()
    try:
        failpoints.arm_from(os.environ)
    except ValueError as e:
        raise UsageError(f"STRANDLINE_FAILPOINT: {e}") from e
    command = typer.main.get_command(_application_for(arguments))
    set_process_actor(Actor(system_user(), Trigger.COMMAND))
    try:
        with command.make_context("strandline", list(arguments)) as context:
            command.invoke(context)
    except typer.Exit as e:
        return e.exit_code
    return 0


def _report(error: StrandlineError, *, as_json: bool) -> int:
    from rich.text import Text

    out = Output(as_json=as_json)
    if as_json:
        print(dumps({"error": error_document(error)}), flush=True)
    else:
        out.err.print(Text.assemble(("error: ", "bold red"), error.message), soft_wrap=True)
        for note in getattr(error, "__notes__", ()):
            out.err.print(Text.assemble(("note: ", "bold"), masked(note)), soft_wrap=True)
        if error.hint:
            out.err.print(Text.assemble(("hint: ", "bold cyan"), error.hint), soft_wrap=True)
    if os.environ.get("STRANDLINE_DEBUG"):
        print(_traceback(error), end="", file=sys.stderr)
    return error.exit_code


def _wrong_usage(error: typer.TyperException) -> StrandlineError:
    context = getattr(error, "ctx", None)
    path = "strandline" if context is None else context.command_path
    return UsageError(error.format_message().rstrip("."), hint=f"`{path} --help` shows how it is used.")


class UnexpectedError(StrandlineError):
    """Nobody raised this on purpose: a bug of the program."""


def _unexpected(error: Exception) -> StrandlineError:
    wrapped = UnexpectedError(unexpected_message(error), hint=_keep_traceback(error))
    wrapped.__cause__ = error
    return wrapped


def _traceback(error: Exception) -> str:
    import traceback

    return masked("".join(traceback.format_exception(error)))


def _keep_traceback(error: Exception) -> str:
    from strandline.iceberg.session.runtime import cache_folder

    path = cache_folder() / "logs" / f"crash-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}.txt"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_traceback(error), "utf-8")
    except OSError:
        return "This is a fault of the program; STRANDLINE_DEBUG=1 shows where it happened."
    return f"This is a fault of the program; please report it with {path}."


if __name__ == "__main__":
    main()
