"""receive."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import typer

from strandline.cli.command import DELIVERY, EVENT_LINES, Call, command
from strandline.cli.daemon import EventLog, run_loops
from strandline.core.actor import Actor, Trigger, set_process_actor, system_user

if TYPE_CHECKING:
    from strandline.core.errors import StrandlineError
    from strandline.receive.intake import BatchReport

app = typer.Typer()


@command(app, panel=DELIVERY, json_help=EVENT_LINES)
def receive(
    call: Call,
    host: str | None = typer.Option(
        None, metavar="ADDRESS", help="The address to listen on.", show_default="receive.host of the settings"
    ),
    port: int | None = typer.Option(
        None,
        min=0,
        max=65_535,
        metavar="PORT",
        help="The port to listen on; 0 is any that is free.",
        show_default="receive.port of the settings",
    ),
    ingest: bool = typer.Option(
        True,
        "--ingest/--no-ingest",
        help="Ingest what was received, or leave that to another receiver of this lake: then no JVM is started.",
    ),
) -> None:
    """Take rows in over HTTP, in the foreground, until SIGTERM or Ctrl-C; then requests under way are answered first.

    The other end of `forward`, and a way in for any HTTP client that has a token (`strandline token create`). What was
    answered with 202 is durable, and is ingested soon after, by time or size. Several receivers of one lake are as good
    as one. What a receiver that is gone has left, the next one ingests; `strandline run` does not. Starts no JVM before
    there are rows to ingest. With --json every line is a JSON document of its own.
    """
    serve, journal = call.lake.receiver.serve, ReceiveLog(as_json=call.as_json)
    set_process_actor(Actor(system_user(), Trigger.DAEMON))
    run_loops(
        call.lake,
        journal,
        lambda stopping: [partial(serve, stopping, journal, host=host, port=port, ingest=ingest)],
    )


class ReceiveLog(EventLog):
    """The receiver's log. It writes a state once, not again while it lasts."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__(as_json=as_json)
        self._waiting: dict[str, str | None] = {}

    def listening(self, url: str, datasets: list[str]) -> None:
        self.write("listening", url=url, datasets=self.listed(datasets))

    def batch(self, report: BatchReport) -> None:
        rows, why = {"rows": report.rows}, {"reason": report.reason, "hint": report.hint}
        batch = {"dataset": report.dataset, "batch": report.batch_id}
        if report.did == "waiting":
            if self._waiting.get(report.batch_id) != report.reason:
                self._waiting[report.batch_id] = report.reason
                self.write("waiting", **batch, **rows, **why)
            return
        waited = self._waiting.pop(report.batch_id, None) is not None
        if report.did != "ingested":
            self.write(report.did, **batch, bodies=report.bodies, **rows, **why)
            return
        if waited:
            self.write("well_again", **batch)
        numbers = None if report.numbers is None else str(report.numbers)
        self.write("ingested", dataset=report.dataset, **rows, bodies=report.bodies, numbers=numbers)

    def trouble(self, error: StrandlineError) -> None:
        self.failed("intake_failed", error)
