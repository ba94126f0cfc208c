"""read."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import typer

from strandline.cli.command import ROWS, Call, NameArgument, command
from strandline.cli.output import Output, dumps, printable
from strandline.core.documents import error_document
from strandline.core.errors import StrandlineError, UsageError
from strandline.core.partition import choose_partition

if TYPE_CHECKING:
    from strandline.lake import Lake
    from strandline.read.request import Lines

app = typer.Typer()


@command(app, panel=ROWS)
def read(
    call: Call,
    dataset: NameArgument,
    since: str | None = typer.Option(
        None, metavar="TOKEN", help="Only rows after this continuation token.", show_default="from the beginning"
    ),
    until: int | None = typer.Option(
        None, metavar="N", min=1, help="Up to this sequence number.", show_default="the seal"
    ),
    limit: int | None = typer.Option(None, metavar="N", min=1, help="At most this many rows.", show_default="all"),
    columns: str | None = typer.Option(None, metavar="A,B", help="Only these columns."),
    partition: list[str] | None = typer.Option(
        None, metavar="COL=VALUE,…", help="Only this logical partition; ~ is null. Repeat it for more columns."
    ),
    consumer: str | None = typer.Option(
        None,
        metavar="NAME",
        help="Read under this name: continue where the last read under it ended. Retention keeps what it lacks.",
    ),
    internal: bool = typer.Option(False, "--internal", help="Also print Strandline's own columns."),
) -> None:
    """Print settled rows as JSON lines, in order of their sequence numbers, and a continuation token on standard error.

    With --json both are one document. Rows are streamed, however many there are. Starts no JVM for at most 10,000 rows,
    if the table's Parquet files alone give them: no delete files, no rows with the same number. With --consumer, the
    lake knows after the last row how far the reader is; a read that fails before that is repeated by the next one.
    """
    if consumer is not None and partition:
        raise UsageError("a consumer reads every partition", hint="Leave out --partition, or --consumer.")
    named = None if consumer is None else call.lake.consumers.begin(call.lake.dataset(dataset), consumer, since)
    since = since if named is None else named.start
    with ExitStack() as spinning:
        where = _partition(call.lake, dataset, partition or [])
        lake = spinning.enter_context(call.spinner("Reading rows"))
        rows = lake.read_lines(
            dataset,
            since,
            until=until,
            limit=limit,
            columns=None if columns is None else [c.strip() for c in columns.split(",")],
            partition=where,
            internal=internal,
        )
        code = (
            _print_document(rows, spinning.close) if call.as_json else _print_lines(call, rows, since, spinning.close)
        )
    if named is not None and code == 0:
        named.advance(rows.continuation)
    call.exit(code)


def _partition(lake: Lake, dataset: str, given: Sequence[str]) -> str | None:
    if not given:
        return None
    found: dict[str, str | None] = {}
    for part in (p for text in given for p in text.split(",")):
        column, equals, value = part.partition("=")
        if not equals:
            raise UsageError(f"--partition takes COL=VALUE, not {part!r}")
        found[column.strip()] = None if value == "~" else value
    return choose_partition(lake.dataset(dataset).deliver_by, found)


def _print_lines(out: Output, rows: Lines, since: str | None, ready: Callable[[], None]) -> int:
    """If reading fails or is interrupted, prints the token of the last printed row."""
    behind = since
    try:
        for line, token in rows.lines():
            ready()  # the spinner must be gone before the first row
            sys.stdout.write(printable(line) + "\n")
            behind = token
        behind = rows.continuation
    except BrokenPipeError:
        raise
    except (StrandlineError, KeyboardInterrupt):
        ready()
        sys.stdout.flush()
        if behind is not None:
            out.err.print(f"next: {behind}", soft_wrap=True)
        raise
    ready()
    sys.stdout.flush()
    out.err.print(f"next: {behind}", soft_wrap=True)
    return 0


def _print_document(rows: Lines, ready: Callable[[], None]) -> int:
    """Streams the document, and completes it even if reading fails: then it has the error, and where to continue."""
    write = sys.stdout.write
    write('{"rows": [')
    tail: dict[str, Any] = {}
    code, separator = 0, "\n  "
    try:
        for line, token in rows.lines():
            write(separator + printable(line))
            separator, tail["continuation"] = ",\n  ", token
        tail["continuation"] = rows.continuation
    except StrandlineError as e:
        tail.setdefault("continuation", None)
        tail["error"], code = error_document(e), e.exit_code
    ready()
    write("\n], " + dumps(tail, indent=None)[1:] + "\n")
    sys.stdout.flush()  # before a consumer's watermark moves past these rows
    return code
