"""The results as a person reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

_SIGNS = {"at least": "≥", "at most": "≤", "exactly": "="}


def table(results: Sequence[Mapping[str, Any]]) -> Table:
    made = Table(title="Strandline, side by side (medians)", title_justify="left", title_style="bold")
    for name in ("group", "figure", "against"):
        made.add_column(name, overflow="fold")
    for name in ("ours", "peer"):
        made.add_column(name, justify="right", no_wrap=True)
    made.add_column("unit", no_wrap=True)
    for name in ("ratio", "goal", "samples"):
        made.add_column(name, justify="right", no_wrap=True)
    made.add_column("holds", no_wrap=True)
    last = None
    for r in results:
        if last not in (None, r["group"]):
            made.add_section()
        last = r["group"]
        made.add_row(*_cells(r))
    return made


def _cells(r: Mapping[str, Any]) -> Iterator[Text | str]:
    yield r["group"]
    yield Text(r["figure"]) if r["note"] is None else Text.assemble(r["figure"], "\n", (r["note"], "dim"))
    yield r["peer_name"] or "–"
    yield value(r, "ours")
    yield value(r, "peer")
    yield r["unit"]
    yield number(r["ratio"])
    yield goal(r)
    yield str(r["samples"])
    if r["ours"] is None:
        yield Text("not run", "dim")
    else:
        yield Text("yes", "green") if r["holds"] else Text("no", "bold red")


def value(r: Mapping[str, Any], side: str) -> str:
    """Of one side; a count says of how many."""
    if r[side] is None or not r.get("counts"):
        return number(r[side])
    least, most = min(r[f"{side}_samples"]), max(r[f"{side}_samples"])
    counted = f"{least:,.0f}" if least == most else f"{least:,.0f} to {most:,.0f}"
    return f"{counted} of {r['size']['rows']:,}"


def number(found: float | None) -> str:
    """Three digits that matter."""
    if found is None:
        return "–"
    if abs(found) >= 100:
        return f"{found:,.0f}"
    return f"{found:.3g}"


def goal(r: Mapping[str, Any]) -> str:
    if r["goal"] is None:
        return "–"
    unit = f" {r['unit']}" if r["goal_of"] == "ours" else ""
    return f"{_SIGNS[r['goal_is']]} {number(r['goal'])}{unit}"
