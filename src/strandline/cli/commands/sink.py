"""sink add, list, show, update, pause, resume, reset, recover, remove, kinds; sink quarantine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import RenderableType

from strandline.cli.command import Call, command
from strandline.cli.commands import quarantine
from strandline.cli.render import sinks as render_sinks
from strandline.cli.render.elements import done
from strandline.core.errors import StrandlineError, UsageError
from strandline.status.documents import change_documents, lake_documents

if TYPE_CHECKING:
    from strandline.core.delivery_types import SinkRecord
    from strandline.deliver.sink import Option

app = typer.Typer(name="sink", help="Destinations that rows are delivered to: add, show, change and remove them.")
app.add_typer(quarantine.app, name="quarantine")

BEGINNING = "beginning"

SinkArgument = Annotated[str, typer.Argument(metavar="NAME", help="The sink's name.")]
OptionsOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="K=V",
        help="An option of the sink; repeat it for more. A value env:NAME is read from the environment when it is "
        "needed, and never stored. `strandline sink kinds` lists the options.",
    ),
]


@command(app)
def add(
    call: Call,
    name: SinkArgument,
    dataset: str = typer.Option(metavar="DATASET", help="The dataset whose rows it gets."),
    kind: str = typer.Option(
        metavar="KIND", help="files, s3, postgres, forward, iceberg, or a kind from another package."
    ),
    option: OptionsOption = None,
    start: Literal["beginning", "now"] = typer.Option(
        BEGINNING,
        "--from",
        metavar="beginning|now",
        help="Where it begins: with all settled rows, or with new ones only.",
    ),
) -> None:
    """Deliver a dataset to a new destination, which is checked and claimed before anything is recorded."""
    options = pairs(option or [])
    with call.spinner("Checking the destination") as lake:
        made = lake.delivery.add(name, dataset, kind, options, from_now=start == "now")
        full = lake.dataset(dataset).name
        floor = lake.delivery.floor(made)
    call.show(lake_documents.sink(made, full), render_sinks.added(made, full, floor))


def pairs(given: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        key, equals, value = text.partition("=")
        key = key.strip()
        if not (equals and key):
            raise UsageError(f"--option takes K=V, not {text!r}")
        if key in found:
            raise UsageError(f"the option {key} is given twice")
        found[key] = value
    return found


@command(app, "list")
def list_(call: Call) -> None:
    """All sinks: their progress, and what needs attention. Starts no JVM."""
    from strandline.status.sinks import load_sinks

    found = load_sinks(call.lake.ledger, call.lake.id)
    call.show({"sinks": [lake_documents.sink_status(s) for s in found]}, *render_sinks.sink_list(found))


@command(app)
def show(call: Call, name: SinkArgument) -> None:
    """One sink: its options, its watermarks, and the chunks that are under way. Starts no JVM."""
    from strandline.status.sinks import load_sinks

    record = call.lake.delivery.get(name)
    lanes = load_sinks(call.lake.ledger, call.lake.id, name)
    found = record, lanes, call.lake.delivery.open_intents(record)
    call.show(lake_documents.sink_in_full(*found), *render_sinks.detail(*found))


@command(app)
def update(
    call: Call,
    name: SinkArgument,
    option: OptionsOption = None,
    unset: list[str] | None = typer.Option(
        None, metavar="K", help="An option to set back to its default; repeat it for more."
    ),
) -> None:
    """Change options. An open intent is still delivered with the old ones; nothing is sent again."""
    options, taken_back = pairs(option or []), unset or []
    if not (options or taken_back):
        raise UsageError("nothing to change", hint="Give --option K=V or --unset K.")
    if both := sorted(options.keys() & set(taken_back)):
        raise UsageError(f"the option {both[0]} is both set and unset")
    with call.spinner("Checking the destination") as lake:
        changed = lake.delivery.update(name, options, taken_back)
    _show(call, changed, f"Sink {name} is changed; new intents use the new options")


def _show(call: Call, record: SinkRecord, text: str, *notes: RenderableType) -> None:
    call.show(lake_documents.sink(record, call.lake.delivery.dataset_name(record)), done(text), *notes)


@command(app)
def pause(call: Call, name: SinkArgument) -> None:
    """Stop delivering to a sink until `resume`; its rows wait. A tick that is under way finishes first."""
    _show(call, call.lake.delivery.pause(name), f"Sink {name} is paused; `strandline sink resume {name}` continues")


@command(app)
def resume(call: Call, name: SinkArgument) -> None:
    """Resume a sink that is paused, waiting or stopped. If the cause is still there, it stops again."""
    _show(call, call.lake.delivery.resume(name), f"Sink {name} is active")


@command(app, asks=True)
def reset(
    call: Call,
    name: SinkArgument,
    to: str = typer.Option(
        metavar="TOKEN|beginning", help="Where the new generation starts: after TOKEN, or at the beginning."
    ),
) -> None:
    """Deliver again in a new generation, which has its own watermarks and its own folder beside the old one."""
    record = call.lake.delivery.get(name)
    which = "all rows" if to == BEGINNING else "the rows after that token"
    call.confirm(
        f"Start a new generation of {name}? It delivers {which} again, beside what generation "
        f"{record.generation} delivered, which stays. A consumer that reads both gets rows twice.",
        refusal=f"{name} is not reset",
    )
    fresh = call.lake.delivery.reset(name, to=None if to == BEGINNING else to)
    note = render_sinks.floor_note(fresh, call.lake.delivery.floor(fresh))
    begins = "from the beginning" if fresh.start is None else f"after {fresh.start:,}"
    _show(call, fresh, f"Sink {name} begins generation {fresh.generation}, {begins}", *note)


@command(app, asks=True)
def recover(
    call: Call,
    name: SinkArgument,
    resend: bool = typer.Option(
        False, "--resend", help="Send the rows that the destination has lost again, in a new generation."
    ),
    accept_loss: bool = typer.Option(
        False, "--accept-loss", help="Go on without the rows that the destination has lost; the audit log records it."
    ),
) -> None:
    """Ask the destination which rows it has, and continue from there.

    If it lacks rows that it acknowledged, the command changes nothing without --resend or --accept-loss.
    """
    if resend and accept_loss:
        raise UsageError("either --resend or --accept-loss, not both")
    call.lake.delivery.get(name)
    if resend or accept_loss:
        what = (
            f"Send the rows that the destination of {name} has lost again, in a new generation?"
            if resend
            else f"Give up the rows that the destination of {name} has lost? They are not delivered again."
        )
        call.confirm(what, refusal=f"{name} is not recovered")
    with call.working("Asking the destination which rows it has"):
        found = call.lake.delivery.recover_sink(name, resend=resend, accept_loss=accept_loss)
    call.show(lake_documents.recovered_sink(found), render_sinks.recovered(found))


@command(app, asks=True)
def remove(call: Call, name: SinkArgument) -> None:
    """Remove a sink. The rows that were delivered stay at the destination."""
    from strandline.status.sinks import load_sinks

    record = call.lake.delivery.get(name)
    call.confirm(
        f"Remove sink {name}? It gets no more rows; those at {record.destination} stay.",
        refusal=f"{name} is not removed",
    )
    lanes = load_sinks(call.lake.ledger, call.lake.id, name)
    document = change_documents.removed_sink(record, lanes, call.lake.delivery.open_intents(record), dry_run=False)
    gone = call.lake.delivery.remove(name)
    call.show(document, done(f"Sink {name} is removed; the rows at {gone.destination} stay"))


@command(app, ignores_config="Ignored: kinds belong to the program, not to a lake.")
def kinds(call: Call) -> None:
    """The kinds of sinks, and the options of each. Works without a lake."""
    from strandline.deliver.sink_kinds import kind_names
    from strandline.deliver.sink_options import COMMON

    found = {name: _options_of(name) for name in kind_names()}
    call.show(lake_documents.sink_kinds(found, COMMON), *render_sinks.kinds(found, COMMON))


def _options_of(kind: str) -> Sequence[Option] | str:
    """The options, or what is wrong with the package of the kind: the other kinds are still shown."""
    from strandline.deliver.sink_kinds import find_kind

    try:
        return find_kind(kind).options
    except StrandlineError as e:
        return e.message
    except Exception as e:
        return f"it cannot be loaded: {type(e).__name__}: {e}"
