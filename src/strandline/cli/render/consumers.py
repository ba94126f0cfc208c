"""Renders consumers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from strandline.cli.render.elements import grid, number
from strandline.core.text.duration import spell
from strandline.core.text.wording import age, duration

if TYPE_CHECKING:
    from strandline.status.consumers import ConsumerStatus

_NONE_YET = (
    "No consumers yet. A reader becomes one when it has a name: the option `consumer` of the Spark data source, or "
    "`strandline read --consumer NAME`."
)


def consumer_list(found: Sequence[ConsumerStatus]) -> RenderableType:
    return consumers(found) if found else Text(_NONE_YET, "dim")


def consumers(found: Sequence[ConsumerStatus]) -> RenderableType:
    table = grid(
        "consumer", "dataset", "watermark", "lag", "behind", "last contact", "retention",
        right=("watermark", "lag", "behind"),
    )  # fmt: skip
    for c in found:
        table.add_row(
            Text(c.name, "bold"),
            Text(c.dataset),
            Text("–", "dim") if c.watermark is None else Text(number(c.watermark)),
            Text(number(c.lag_rows)),
            Text(duration(c.lag_seconds)),
            Text("never", "yellow") if c.reported_at is None else Text(f"{age(c.reported_at)} ago"),
            _retention(c),
        )
    return table


def _retention(c: ConsumerStatus) -> Text:
    if c.held_since is not None:
        return Text(f"waits for {age(c.held_since)}", "yellow")
    if c.drop_after_seconds is None:
        return Text("holds", "dim")
    return Text(f"holds for {spell(timedelta(seconds=c.drop_after_seconds))}", "dim")
