"""dataset create, adopt, list, show, alter, drop."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from strandline.cli.options import ConfigOption, JsonOption, NameArgument, YesOption, confirm, opened
from strandline.cli.output import Output
from strandline.cli.render import common, created
from strandline.cli.render.bars import one_bar
from strandline.core.errors import UsageError
from strandline.core.types import History
from strandline.status import documents

if TYPE_CHECKING:
    from strandline.iceberg.schema.alteration import Alteration
    from strandline.iceberg.schema.infer import Inferred

app = typer.Typer(help="Make, take over, change and drop datasets.")

DeliverByOption = Annotated[
    list[str] | None,
    typer.Option(
        "--deliver-by",
        metavar="COL",
        help="A column whose values sort rows into logical partitions. Repeat it for more.",
        show_default=False,
    ),
]


@app.command()
def create(
    name: NameArgument,
    schema: Annotated[
        Path | None, typer.Option(metavar="FILE", help="JSON or YAML list of columns.", show_default=False)
    ] = None,
    like: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A data file to read the columns off.", show_default=False)
    ] = None,
    types: Annotated[
        list[str] | None,
        typer.Option(
            "--types",
            metavar="NAME:TYPE",
            help="With --like: the type of a column that is not as it is guessed. Repeat it, or write several with "
            "commas between them.",
            show_default=False,
        ),
    ] = None,
    partition_by: Annotated[
        str | None, typer.Option(metavar="EXPR", help="How files are laid out: day(at), bucket(16, id), …")
    ] = None,
    deliver_by: DeliverByOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Make a dataset: a new Iceberg table that rows enter through Strandline."""
    out = Output(as_json=json)
    with opened(config) as lake:
        found = _columns(schema, like, types or [])
        made = lake.create_dataset(name, found.columns, deliver_by=deliver_by or (), partition_by=partition_by)
    out.show(documents.created_dataset(made, found, like), created.created(made, found, inferred_from=like))


def _columns(schema: Path | None, like: Path | None, types: Sequence[str]) -> Inferred:
    if (schema is None) == (like is None):
        raise UsageError(
            "a dataset needs its columns: --schema FILE or --like FILE, one of them",
            hint="--like reads them off a data file, --schema from a list that you wrote.",
        )
    from strandline.iceberg.schema.infer import Inferred, infer
    from strandline.iceberg.schema.schema_file import parse_schema_file, parse_type

    if schema is not None:
        if types:
            raise UsageError("--types goes with --like", hint="With --schema, the file says the types.")
        return Inferred(parse_schema_file(schema))
    pairs = [_pair(text, "--types", "NAME:TYPE") for given in types for text in _between_commas(given)]
    return infer(like or Path(), {name: parse_type(kind, where=name) for name, kind in pairs})


def _between_commas(text: str) -> list[str]:
    """A comma inside brackets belongs to a type: decimal(9,2), map<string,long>."""
    parts, depth = [""], 0
    for c in text:
        depth += (c in "(<[") - (c in ")>]")
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return parts


@app.command()
def adopt(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="An Iceberg table of the lake's catalog.")],
    history: Annotated[
        History | None,
        typer.Option(
            metavar="deliver|skip",
            help="Whether sinks get the rows that are there.",
            show_default="deliver; later, as it was",
        ),
    ] = None,
    deliver_by: DeliverByOption = None,
    leave_foreign: Annotated[
        bool,
        typer.Option(
            "--leave-foreign",
            help="Rows that have a value in _ingest_seq already stay foreign: nobody reads them, no sink gets them.",
        ),
    ] = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Make a dataset of a table that has rows already: they are numbered. Again, it numbers what came since."""
    out = Output(as_json=json)
    with opened(config) as lake, one_bar(out, "starting Spark") as bar:
        lake.on_start = bar.say
        done = lake.adopt_dataset(
            table,
            history=history,
            deliver_by=deliver_by,
            leave_foreign=leave_foreign,
            on_step=lambda rows, total: bar.step("numbering rows", rows, total),
        )
        name = lake.dataset(table).name
    out.show({"name": name, "numbered": done.rows, "steps": done.steps}, common.adopted(name, done.rows, done.steps))


@app.command("list")
def list_(config: ConfigOption = None, json: JsonOption = False) -> None:
    """The lake's datasets. Starts no JVM."""
    with opened(config) as lake:
        found = lake.datasets()
    Output(as_json=json).show({"datasets": [documents.dataset(d) for d in found]}, common.datasets(found))


@app.command()
def show(name: NameArgument, config: ConfigOption = None, json: JsonOption = False) -> None:
    """Its columns, how it is partitioned and delivered, and where it came from. Starts no JVM."""
    from strandline.iceberg.pyiceberg.describe import describe

    with opened(config) as lake:
        found = lake.dataset(name)
        table = describe(lake.catalog.load(found.name))
    Output(as_json=json).show(documents.described_dataset(found, table), common.shown(found, table))


@app.command()
def alter(
    name: NameArgument,
    add: Annotated[list[str] | None, typer.Option(metavar="NAME:TYPE", help="A new, optional column.")] = None,
    widen: Annotated[
        list[str] | None, typer.Option(metavar="NAME:TYPE", help="int to long, float to double, a longer decimal.")
    ] = None,
    rename: Annotated[list[str] | None, typer.Option(metavar="OLD:NEW", help="Another name, the same values.")] = None,
    drop: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Its values stay in the files, unread.")
    ] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Change columns without rewriting a file, all changes in one commit. a.b is the field b of a."""
    changes = _alterations(add or [], widen or [], rename or [], drop or [])
    with opened(config) as lake:
        lake.alter_dataset(name, changes)
        full = lake.dataset(name).name
    said = common.alterations(changes)
    Output(as_json=json).show({"name": full, "changes": said}, common.altered(full, said))


def _alterations(add: list[str], widen: list[str], rename: list[str], drop: list[str]) -> list[Alteration]:
    """Drops first and adds last, so that a column can be replaced by another of its name."""
    from strandline.iceberg.schema.alteration import AddColumn, DropColumn, RenameColumn, WidenColumn
    from strandline.iceberg.schema.schema_file import parse_type

    changes: list[Alteration] = [DropColumn(text) for text in drop]
    changes += [RenameColumn(*_pair(text, "--rename", "OLD:NEW")) for text in rename]
    for text in widen:
        column, kind = _pair(text, "--widen", "NAME:TYPE")
        changes.append(WidenColumn(column, parse_type(kind, where=column)))
    for text in add:
        column, kind = _pair(text, "--add", "NAME:TYPE")
        changes.append(AddColumn(column, parse_type(kind, where=column)))
    if not changes:
        raise UsageError("nothing to change", hint="Say --add, --widen, --rename or --drop.")
    return changes


def _pair(text: str, option: str, form: str) -> tuple[str, str]:
    left, colon, right = text.partition(":")
    if not (colon and left.strip() and right.strip()):
        raise UsageError(f"{option} takes {form}, not {text!r}")
    return left.strip(), right.strip()


@app.command()
def drop(name: NameArgument, yes: YesOption = False, config: ConfigOption = None, json: JsonOption = False) -> None:
    """Forget a dataset. Its files stay where they are, and its numbers stay taken."""
    out = Output(as_json=json)
    with opened(config) as lake:
        target = lake.dataset(name).name
        confirm(out, yes=yes, question=f"Drop {target} from catalog and ledger?", refusal=f"{target} is not dropped")
        lake.drop_dataset(name)
    out.show({"dropped": target}, common.done(f"{target} is dropped; its files are still in the warehouse"))


@app.command()
def accept(
    name: NameArgument,
    reason: Annotated[str, typer.Option("--reason", help="Why; it is kept in the audit log.")],
    yes: YesOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Take a table as it is, although it lacks rows that were published: it was rolled back on purpose."""
    out = Output(as_json=json)
    with opened(config) as lake:
        target = lake.dataset(name).name
        confirm(
            out,
            yes=yes,
            question=f"Take {target} as it is, with whatever rows it lacks?",
            refusal=f"{target} is not accepted as it is",
        )
        lake.accept_table(name, reason)
    out.show({"accepted": target}, common.done(f"{target} is taken as it is; the audit log says why"))


@app.command("accept-received")
def accept_received(
    name: NameArgument,
    reason: Annotated[str, typer.Option("--reason", help="Why; it is kept in the audit log.")],
    yes: YesOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Let the receiver of a dataset go on, although nobody knows which bodies its table has.

    After the ledger was restored from an older copy, a receiver takes bodies back from receipts in the warehouse. Where
    receipts or the table's history are gone, it holds: a body that was received since the copy and is sent again would
    be in the table twice. Make sure first that nobody sends one again: see "A ledger that was restored" in
    docs/receive.md. Files in the spool that may be in the table already are set aside as `.unsure`.
    """
    out = Output(as_json=json)
    with opened(config) as lake:
        target = lake.dataset(name).name
        confirm(
            out,
            yes=yes,
            question=f"Take rows for {target} again? A body from after the copy that is sent again is then in twice",
            refusal=f"the receiver of {target} goes on holding",
        )
        aside = lake.receiver.accept(target, reason)
    told = common.done(f"The receiver takes rows for {target} again; the audit log says why")
    out.show({"accepted": target, "files_set_aside": aside}, told, *(Text(f"set aside: {name}") for name in aside))
