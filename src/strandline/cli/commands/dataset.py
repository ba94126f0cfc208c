"""dataset create, adopt, list, show, alter, drop."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from strandline.cli.command import Call, NameArgument, command
from strandline.cli.render import lake as render_lake
from strandline.cli.render.elements import done
from strandline.core.errors import UsageError
from strandline.core.replication import SHARDS_MAX
from strandline.core.types import History
from strandline.status import documents

if TYPE_CHECKING:
    from strandline.iceberg.schema.alteration import Alteration
    from strandline.iceberg.schema.infer import Inferred

app = typer.Typer(name="dataset", help="Make, take over, change and drop datasets.")

ReasonOption = Annotated[str, typer.Option(help="Why; it is kept in the audit log.")]
DeliverByOption = Annotated[
    list[str] | None,
    typer.Option(metavar="COL", help="A column whose values sort rows into logical partitions. Repeat it for more."),
]


@command(app)
def create(
    call: Call,
    name: NameArgument,
    schema: Path | None = typer.Option(None, metavar="FILE", help="JSON or YAML list of columns."),
    like: Path | None = typer.Option(None, metavar="FILE", help="A data file to read the columns off."),
    types: list[str] | None = typer.Option(
        None,
        metavar="NAME:TYPE",
        help="With --like: the type of a column that is not as it is guessed. Repeat it, or write several with "
        "commas between them.",
    ),
    partition_by: str | None = typer.Option(
        None, metavar="EXPR", help="How files are laid out: day(at), bucket(16, id), …"
    ),
    deliver_by: DeliverByOption = None,
    shards: int = typer.Option(
        1, metavar="N", min=1, max=SHARDS_MAX, help="Batches go into so many shards. Followers apply them side by side."
    ),
) -> None:
    """Make a dataset: a new Iceberg table that rows enter through Strandline."""
    found = _columns(schema, like, types or [])
    made = call.lake.create_dataset(
        name, found.columns, deliver_by=deliver_by or (), partition_by=partition_by, shards=shards
    )
    call.show(documents.created_dataset(made, found, like), render_lake.created(made, found, inferred_from=like))


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


@command(app)
def adopt(
    call: Call,
    table: str = typer.Argument(metavar="TABLE", help="An Iceberg table of the lake's catalog."),
    history: History | None = typer.Option(
        None,
        metavar="deliver|skip",
        help="Whether sinks get the rows that are there.",
        show_default="deliver; later, as it was",
    ),
    deliver_by: DeliverByOption = None,
    leave_foreign: bool = typer.Option(
        False,
        "--leave-foreign",
        help="Rows that have a value in _ingest_seq already stay foreign: nobody reads them, no sink gets them.",
    ),
) -> None:
    """Make a dataset of a table that has rows already: they are numbered. Again, it numbers what came since."""
    with call.bar() as bar:
        numbered = call.lake.adopt_dataset(
            table,
            history=history,
            deliver_by=deliver_by,
            leave_foreign=leave_foreign,
            on_step=lambda rows, total: bar.step("numbering rows", rows, total),
        )
        name = call.lake.dataset(table).name
    call.show(documents.adopted_dataset(name, numbered), render_lake.adopted(name, numbered))


@command(app, "list")
def list_(call: Call) -> None:
    """The lake's datasets. Starts no JVM."""
    found = call.lake.datasets()
    call.show({"datasets": [documents.dataset(d) for d in found]}, render_lake.datasets(found))


@command(app)
def show(call: Call, name: NameArgument) -> None:
    """Its columns, how it is partitioned and delivered, and where it came from. Starts no JVM."""
    from strandline.iceberg.pyiceberg.schema import describe

    found = call.lake.dataset(name)
    table = describe(call.lake.catalog.load(found.name))
    call.show(documents.described_dataset(found, table), render_lake.shown(found, table))


@command(app)
def alter(
    call: Call,
    name: NameArgument,
    add: list[str] | None = typer.Option(None, metavar="NAME:TYPE", help="A new, optional column."),
    widen: list[str] | None = typer.Option(
        None, metavar="NAME:TYPE", help="int to long, float to double, a longer decimal."
    ),
    rename: list[str] | None = typer.Option(None, metavar="OLD:NEW", help="Another name, the same values."),
    drop: list[str] | None = typer.Option(None, metavar="NAME", help="Its values stay in the files, unread."),
) -> None:
    """Change columns without rewriting a file, all changes in one commit. a.b is the field b of a."""
    changes = _alterations(add or [], widen or [], rename or [], drop or [])
    call.lake.alter_dataset(name, changes)
    full = call.lake.dataset(name).name
    said = render_lake.alterations(changes)
    call.show({"name": full, "changes": said}, render_lake.altered(full, said))


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


@command(app, asks=True)
def drop(call: Call, name: NameArgument) -> None:
    """Forget a dataset. Its files stay where they are, and its sequence numbers stay taken."""
    target = call.lake.dataset(name).name
    call.confirm(f"Drop {target} from catalog and ledger?", refusal=f"{target} is not dropped")
    call.lake.drop_dataset(name)
    call.show({"dropped": target}, done(f"{target} is dropped; its files are still in the warehouse"))


@command(app, asks=True)
def accept(call: Call, name: NameArgument, reason: ReasonOption) -> None:
    """Take a table as it is, although it lacks rows that were published: it was rolled back on purpose."""
    target = call.lake.dataset(name).name
    question = f"Take {target} as it is, with whatever rows it lacks?"
    call.confirm(question, refusal=f"{target} is not accepted as it is")
    call.lake.accept_table(name, reason)
    call.show({"accepted": target}, done(f"{target} is taken as it is; the audit log says why"))


@command(app, "accept-received", asks=True)
def accept_received(call: Call, name: NameArgument, reason: ReasonOption) -> None:
    """Let the receiver of a dataset go on, although nobody knows which bodies its table has.

    After the ledger was restored from an older copy, a receiver takes bodies back from receipts in the warehouse. Where
    receipts or the table's history are gone, it holds: a body that was received since the copy and is sent again would
    be in the table twice. Make sure first that nobody sends one again: see "A ledger that was restored" in
    docs/receive.md. Files in the spool that may be in the table already are set aside as `.unsure`.
    """
    target = call.lake.dataset(name).name
    call.confirm(
        f"Take rows for {target} again? A body from after the copy that is sent again is then in twice",
        refusal=f"the receiver of {target} goes on holding",
    )
    aside = call.lake.receiver.accept(target, reason)
    said = done(f"The receiver takes rows for {target} again; the audit log says why")
    call.show({"accepted": target, "files_set_aside": aside}, said, *(Text(f"set aside: {name}") for name in aside))
