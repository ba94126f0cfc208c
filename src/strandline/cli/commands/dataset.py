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
from strandline.core.sites.replication import SHARDS_MAX
from strandline.core.types import History
from strandline.status.documents import change_documents, lake_documents

if TYPE_CHECKING:
    from strandline.iceberg.schema.alteration import Alteration
    from strandline.iceberg.schema.infer import Inferred

app = typer.Typer(name="dataset", help="Create, adopt, change and drop datasets.")

ReasonOption = Annotated[str, typer.Option(help="Why; it is recorded in the audit log.")]
DeliverByOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COL", help="A column that divides rows into logical partitions by its value. Repeat it for more."
    ),
]


@command(app)
def create(
    call: Call,
    name: NameArgument,
    schema: Path | None = typer.Option(None, metavar="FILE", help="A JSON or YAML list of columns."),
    like: Path | None = typer.Option(None, metavar="FILE", help="A data file to infer the columns from."),
    types: list[str] | None = typer.Option(
        None,
        metavar="NAME:TYPE",
        help="With --like: the type of a column, instead of the inferred one. Repeat it, or separate by commas.",
    ),
    partition_by: str | None = typer.Option(
        None, metavar="EXPR", help="How files are laid out: day(at), bucket(16, id), …"
    ),
    deliver_by: DeliverByOption = None,
    shards: int = typer.Option(
        1,
        metavar="N",
        min=1,
        max=SHARDS_MAX,
        help="Spread batches over N shards, which followers apply in parallel.",
    ),
) -> None:
    """Create a dataset: a new Iceberg table that rows enter through Strandline."""
    found = _columns(schema, like, types or [])
    made = call.lake.create_dataset(
        name, found.columns, deliver_by=deliver_by or (), partition_by=partition_by, shards=shards
    )
    call.show(lake_documents.created_dataset(made, found, like), render_lake.created(made, found, inferred_from=like))


def _columns(schema: Path | None, like: Path | None, types: Sequence[str]) -> Inferred:
    if (schema is None) == (like is None):
        raise UsageError(
            "a dataset needs columns: give either --schema FILE or --like FILE",
            hint="--like infers them from a data file, --schema reads them from a list that you wrote.",
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
        help="Whether sinks get the rows that are in the table now.",
        show_default="deliver; later, as before",
    ),
    deliver_by: DeliverByOption = None,
    leave_foreign: bool = typer.Option(
        False,
        "--leave-foreign",
        help="Leave rows foreign that have a value in _ingest_seq: reads leave them out, and no sink gets them.",
    ),
) -> None:
    """Make an existing table a dataset: its rows get sequence numbers. Run again, it numbers new rows."""
    with call.bar() as bar:
        numbered = call.lake.adopt_dataset(
            table,
            history=history,
            deliver_by=deliver_by,
            leave_foreign=leave_foreign,
            on_step=lambda rows, total: bar.step("numbering rows", rows, total),
        )
        name = call.lake.dataset(table).name
    call.show(lake_documents.adopted_dataset(name, numbered), render_lake.adopted(name, numbered))


@command(app, "list")
def list_(call: Call) -> None:
    """The lake's datasets. Starts no JVM."""
    found = call.lake.datasets()
    call.show({"datasets": [lake_documents.dataset(d) for d in found]}, render_lake.datasets(found))


@command(app)
def show(call: Call, name: NameArgument) -> None:
    """One dataset: its columns, its partitions, and where it came from. Starts no JVM."""
    from strandline.iceberg.pyiceberg.schema import describe

    found = call.lake.dataset(name)
    table = describe(call.lake.catalog.load(found.name))
    call.show(lake_documents.described_dataset(found, table), render_lake.shown(found, table))


@command(app)
def alter(
    call: Call,
    name: NameArgument,
    add: list[str] | None = typer.Option(None, metavar="NAME:TYPE", help="A new, optional column."),
    widen: list[str] | None = typer.Option(
        None, metavar="NAME:TYPE", help="A wider type: int to long, float to double, a longer decimal."
    ),
    rename: list[str] | None = typer.Option(None, metavar="OLD:NEW", help="A new name; the values stay."),
    drop: list[str] | None = typer.Option(
        None, metavar="NAME", help="Drop a column; its values stay in the files, unread."
    ),
) -> None:
    """Change columns in one commit, without rewriting files. a.b is the field b of a."""
    changes = _alterations(add or [], widen or [], rename or [], drop or [])
    found = call.lake.dataset(name)
    table = call.lake.alter_dataset(name, changes)
    document = change_documents.altered_dataset(found, table, changes, dry_run=False)
    call.show(document, render_lake.altered(found.name, changes))


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
        raise UsageError("nothing to change", hint="Give --add, --widen, --rename or --drop.")
    return changes


def _pair(text: str, option: str, form: str) -> tuple[str, str]:
    left, colon, right = text.partition(":")
    if not (colon and left.strip() and right.strip()):
        raise UsageError(f"{option} takes {form}, not {text!r}")
    return left.strip(), right.strip()


@command(app, asks=True)
def drop(call: Call, name: NameArgument) -> None:
    """Remove a dataset from catalog and ledger. Its files stay, and its sequence numbers are never used again."""
    target = call.lake.dataset(name)
    call.confirm(f"Drop {target.name} from catalog and ledger?", refusal=f"{target.name} is not dropped")
    allocated = call.lake.allocated(target)
    call.lake.drop_dataset(name)
    document = change_documents.dropped_dataset(target, allocated, dry_run=False)
    call.show(document, done(f"{target.name} is dropped; its files are still in the warehouse"))


@command(app, asks=True)
def accept(call: Call, name: NameArgument, reason: ReasonOption) -> None:
    """Accept a table that lacks published rows because it was rolled back on purpose."""
    target = call.lake.dataset(name).name
    question = f"Accept {target} as it is, without the rows that it lacks?"
    call.confirm(question, refusal=f"{target} is not accepted as it is")
    call.lake.accept_table(name, reason)
    call.show({"accepted": target}, done(f"{target} is accepted as it is; the audit log has the reason"))


@command(app, "accept-received", asks=True)
def accept_received(call: Call, name: NameArgument, reason: ReasonOption) -> None:
    """End the hold of a dataset's receiver, although it cannot know which bodies the table has.

    After the ledger was restored from an older copy, a receiver learns from receipts in the warehouse which bodies it
    has. If the receipts or the table's history are gone, the dataset goes on hold: a body from after the copy that is
    sent again would be in the table twice. Make sure first that no client sends one again: see "A ledger that was
    restored" in docs/receive.md. Files in the spool that may be in the table already get the suffix `.unsure`.
    """
    target = call.lake.dataset(name).name
    call.confirm(
        f"Receive rows for {target} again? If a client sends a body from after the copy again, its rows are in twice.",
        refusal=f"{target} stays on hold",
    )
    aside = call.lake.receiver.accept(target, reason)
    said = done(f"The receiver accepts rows for {target} again; the audit log has the reason")
    call.show({"accepted": target, "files_set_aside": aside}, said, *(Text(f"renamed: {name}") for name in aside))
