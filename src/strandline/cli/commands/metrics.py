"""metrics."""

from __future__ import annotations

import typer

from strandline.cli.options import CARE, ConfigOption, JsonOption, opened
from strandline.cli.output import dumps
from strandline.status.metrics import exposition, look


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel=CARE)(metrics)


def metrics(config: ConfigOption = None, json: JsonOption = False) -> None:
    """How sinks, maintenance and the reconciler fare, in the text format of Prometheus. Starts no JVM, and asks the
    ledger only."""
    with opened(config) as lake:
        found = look(lake.config, lake.ledger, lake.id)
    print(dumps({"metrics": found}) if json else exposition(found), end="\n" if json else "")
