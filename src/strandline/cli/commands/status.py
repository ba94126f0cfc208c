"""status, top, recover, metrics."""

from __future__ import annotations

import time
from contextlib import suppress

import typer

from strandline.cli.command import CARE, Call, command
from strandline.cli.output import dumps
from strandline.cli.render import lake as render_lake
from strandline.cli.render import status as render_status
from strandline.cli.watch import WATCH_SECONDS, WatchOption, check_terminal, watch
from strandline.core.errors import StrandlineError
from strandline.status.documents import lake_documents

app = typer.Typer()


@command(app, panel=CARE)
def status(call: Call, watching: WatchOption = False) -> None:
    """Datasets and their seals, sinks and their lag, and what needs attention. Starts no JVM."""
    if watching:
        watch(call, lambda: render_status.status(call.lake.status()), once="strandline status")
        return
    found = call.lake.status()
    # Only one of the two is made: each takes a third of the time at a large lake.
    if call.as_json:
        call.show(lake_documents.lake_status(found))
    else:
        call.show({}, render_status.status(found))


@command(app, panel=CARE)
def top(
    call: Call,
    every: float = typer.Option(
        WATCH_SECONDS, min=0.5, max=3600, metavar="SECONDS", help="Read the status again at this interval."
    ),
) -> None:
    """What is wrong now, the sinks with the largest lag, and rows per second in and out; live, until Ctrl-C. Fits the
    window. Starts no JVM."""
    check_terminal(call, "top", once="strandline status")
    from rich.live import Live

    from strandline.cli.render.top import frame, old_frame
    from strandline.status.throughput import throughput

    last, read_at = None, time.monotonic()
    with suppress(KeyboardInterrupt), Live(console=call.out, auto_refresh=False, screen=True) as live:
        while True:
            try:
                found, at = call.lake.status(), time.monotonic()
            except StrandlineError as e:
                if last is None or not e.retryable:
                    raise
                live.update(old_frame(*last, e.message, lines_max=call.out.size.height), refresh=True)
            else:
                flow = throughput(None if last is None else last[0], found, at - read_at)
                live.update(frame(found, flow, lines_max=call.out.size.height), refresh=True)
                last, read_at = (found, flow), at
            time.sleep(every)


@command(app, panel=CARE)
def recover(call: Call) -> None:
    """Settle what dead writers left: publish what was committed, abandon what was not."""
    with call.spark("Settling open blocks") as lake:
        found = lake.recover()
    call.show(lake_documents.recovered(found), render_lake.recovered(found))


@command(app, panel=CARE)
def metrics(call: Call) -> None:
    """Metrics of sinks, maintenance, replication and the reconciler, in the text format of Prometheus. Starts no JVM,
    and reads only the ledger."""
    from strandline.status.metrics import exposition, load_samples

    lake = call.lake
    found = load_samples(lake.config, lake.ledger, lake.id)
    print(dumps({"metrics": found}) if call.as_json else exposition(found), end="\n" if call.as_json else "")
