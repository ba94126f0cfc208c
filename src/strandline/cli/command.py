"""What all commands share: --config, --json and --yes, the lake that they work on, and where their output goes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from strandline.cli.output import Output
from strandline.cli.render.progress import OneBar, one_bar
from strandline.core.errors import RefusedError, UsageError

if TYPE_CHECKING:
    from strandline.lake import Lake

START, ROWS, DELIVERY, CARE = "Begin", "Rows", "Delivery", "Care"  # the groups that `strandline --help` shows
EVENT_LINES = "One JSON document per line on standard output, one for each event."  # --json of a daemon

OnlyDatasetsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--dataset",
        metavar="DATASET",
        help="Only this dataset; repeat it for more.",
        show_default="every dataset",
    ),
]
NameArgument = Annotated[str, typer.Argument(metavar="DATASET", help="TABLE or NAMESPACE.TABLE")]


def host_option(section: str) -> Any:
    default = f"{section}.host of the settings"
    return typer.Option(None, metavar="ADDRESS", help="The address to listen on.", show_default=default)


def port_option(section: str) -> Any:
    said = "The port to listen on; 0 picks a free one."
    default = f"{section}.port of the settings"
    return typer.Option(None, min=0, max=65_535, metavar="PORT", help=said, show_default=default)


class Call(Output):
    """One call of a command. The lake is opened when it is first used, and closed when the command ends."""

    def __init__(self, config: Path | None, *, as_json: bool, yes: bool) -> None:
        super().__init__(as_json=as_json)
        self.config = config
        self._yes = yes

    @cached_property
    def lake(self) -> Lake:
        """The lake that --config names. Opening it starts no Spark."""
        from strandline.lake import open_lake  # settings and SQL: half a second that help does not need

        return open_lake(self.config)

    def close(self) -> None:
        if "lake" in self.__dict__:
            self.lake.close()

    @contextmanager
    def spinner(self, words: str) -> Iterator[Lake]:
        """The lake, with a spinner that also shows how Spark starts."""
        lake = self.lake
        with self.working(words) as say:
            lake.on_start = say
            yield lake

    @contextmanager
    def spark(self, words: str) -> Iterator[Lake]:
        """The lake, with a spinner that shows `words` once Spark has started."""
        with self.spinner("Starting Spark") as lake:
            _ = lake.spark
            if lake.on_start is not None:
                lake.on_start(words)
            yield lake

    @contextmanager
    def bar(self, words: str = "starting Spark") -> Iterator[OneBar]:
        """A progress bar that also shows how Spark starts."""
        lake = self.lake
        with one_bar(self, words) as bar:
            lake.on_start = bar.say
            yield bar

    def confirm(self, question: str, *, refusal: str) -> None:
        """Asks on a terminal; elsewhere only --yes confirms. Raises RefusedError."""
        if self._yes:
            return
        if not self.can_ask:
            raise RefusedError(refusal, hint="This is not a terminal. Pass --yes to confirm.")
        if not typer.confirm(question, err=True):
            raise RefusedError(f"{refusal}: the answer was no")

    def exit(self, code: int) -> None:
        if code:
            raise typer.Exit(code)


def chosen(numbers: list[int] | None, what: str, *, everything: bool) -> list[int] | None:
    """The given numbers; None for all, which needs --all. Raises UsageError for neither or both."""
    if bool(numbers) == everything:
        raise UsageError(f"which {what}?", hint="Give their numbers, or --all.")
    return numbers or None


def command(
    app: typer.Typer, name: str | None = None, *, panel: str | None = None, **options: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Adds a function that takes a `Call` to the commands of a group; `options` as for `with_call`."""

    def add(function: Callable[..., None]) -> Callable[..., None]:
        return app.command(name, rich_help_panel=panel)(with_call(function, **options))

    return add


def with_call(
    function: Callable[..., None],
    *,
    asks: bool = False,
    ignores_config: str | None = None,
    json_help: str = "One JSON document on standard output, nothing else.",
) -> Callable[..., None]:
    """The function as Typer calls it: with --config and --json, and --yes if it asks, instead of the `Call`.
    `ignores_config` is the help text of --config where the command needs no lake."""
    config_help = ignores_config or "The lake's settings file, or its folder."
    place = "STRANDLINE_CONFIG, or strandline.toml here" if ignores_config is None else False
    shared: dict[str, tuple[Any, Any]] = {
        "yes": (Annotated[bool, typer.Option("--yes", help="Do not ask.")], False),
        "config": (Annotated[Path | None, typer.Option(metavar="FILE", help=config_help, show_default=place)], None),
        "json": (Annotated[bool, typer.Option("--json", help=json_help)], False),
    }
    if not asks:
        del shared["yes"]

    @wraps(function)
    def run(*, config: Path | None, json: bool, yes: bool = False, **own: Any) -> None:
        with closing(Call(config, as_json=json, yes=yes)) as call:
            function(call, **own)

    [_, *own] = inspect.signature(function, eval_str=True).parameters.values()
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in shared.items()
    ]
    signature = inspect.Signature([*own, *added])
    run.__doc__ = escape(run.__doc__ or "")  # Rich would take `[maintain.compact]` for markup, and show nothing
    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__annotations__ = {name: p.annotation for name, p in signature.parameters.items()}
    return run
