"""receive."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli.daemon import EventLog, stopped_by_signals, wait_for
from strandline.cli.options import DELIVERY, ConfigOption, opened
from strandline.core.actor import Actor, Trigger, set_process_actor, system_user

if TYPE_CHECKING:
    from strandline.core.errors import StrandlineError
    from strandline.receive.intake import BatchReport


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel=DELIVERY)(receive)


def receive(
    host: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="The address to listen on.", show_default="receive.host of the settings"),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65_535,
            metavar="PORT",
            help="The port to listen on; 0 is any that is free.",
            show_default="receive.port of the settings",
        ),
    ] = None,
    ingest: Annotated[
        bool,
        typer.Option(
            "--ingest/--no-ingest",
            help="Ingest what was received, or leave that to another receiver of this lake: then no JVM is started.",
        ),
    ] = True,
    config: ConfigOption = None,
    json: Annotated[
        bool, typer.Option("--json", help="One JSON document per line on standard output, one for each event.")
    ] = False,
) -> None:
    """Take rows in over HTTP, in the foreground, until SIGTERM or Ctrl-C; then requests under way are answered first.

    The other end of `forward`, and a way in for any HTTP client that has a token (`strandline token create`). What was
    answered with 202 is durable, and is ingested soon after, by time or size. Several receivers of one lake are as good
    as one. What a receiver that is gone has left, the next one ingests; `strandline run` does not. Starts no JVM before
    there are rows to ingest. With --json every line is a JSON document of its own.
    """
    with opened(config) as lake:
        journal = ReceiveLog(as_json=json)
        set_process_actor(Actor(system_user(), Trigger.DAEMON))
        stopping = threading.Event()
        lake.on_start = lambda words: journal.write("starting", what=words)

        def serve() -> None:
            lake.receiver.serve(stopping, journal, host=host, port=port, ingest=ingest)

        with stopped_by_signals(stopping, journal), ThreadPoolExecutor(1, "strandline-receive") as pool:
            # Not in the main thread, where PySpark would replace our handler for Ctrl-C by its own.
            wait_for(stopping, pool.submit(serve))
        journal.write("stopped")


class ReceiveLog(EventLog):
    """The receiver's log. It writes a state once, not again while it lasts."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__(as_json=as_json)
        self._waiting: dict[str, str | None] = {}

    def listening(self, url: str, datasets: list[str]) -> None:
        self.write("listening", url=url, datasets=self.listed(datasets))

    def batch(self, report: BatchReport) -> None:
        if report.did == "ingested":
            if self._waiting.pop(report.batch_id, None) is not None:
                self.write("well_again", dataset=report.dataset, batch=report.batch_id)
            self.write(
                "ingested",
                dataset=report.dataset,
                rows=report.rows,
                bodies=report.bodies,
                numbers=None if report.numbers is None else str(report.numbers),
            )
        elif report.did != "waiting":
            self._waiting.pop(report.batch_id, None)
            self.write(
                report.did,
                dataset=report.dataset,
                batch=report.batch_id,
                bodies=report.bodies,
                rows=report.rows,
                reason=report.reason,
                hint=report.hint,
            )
        elif self._waiting.get(report.batch_id) != report.reason:
            self._waiting[report.batch_id] = report.reason
            self.write(
                "waiting",
                dataset=report.dataset,
                batch=report.batch_id,
                rows=report.rows,
                reason=report.reason,
                hint=report.hint,
            )

    def trouble(self, error: StrandlineError) -> None:
        self.write("intake_failed", reason=error.message, hint=error.hint)

    def well(self) -> None:
        self.write("well_again")
