"""`docs/benchmarks.md`, written from the results of all groups. Pure, but for the writing itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.plots import plots
from bench.table import goal, number, value

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"

_HEAD = """\
# Benchmarks

`make bench` wrote this page. `make bench ONLY=read` measures one group again, and leaves the others as they are.

Both sides of a line run in the same process or on the same servers, in turn: ours, the peer's, ours, the peer's. A peer
that is no Spark has a process of its own, whose start is not measured. Each figure is a median. *Ratio* is the median
of what neighbouring samples are to each other, and *spread* is where the middle half of these ratios lies (of our own
samples where there is no peer). *Holds* compares with the goal. A figure without a goal is shown because it is worth
knowing. A line whose values say "of" is no time: it counts rows that were lost or came twice, each time that it was
tried. All samples are in `bench/results/`.
"""

_COLUMNS = ("what", "against", "ours", "peer", "unit", "ratio", "spread", "goal", "samples", "holds")


def page(documents: Sequence[Mapping[str, Any]], pictures: Mapping[str, Sequence[str]] | None = None) -> str:
    """`pictures`: the files of a group's plots, as the page names them."""
    parts = [_HEAD]
    for document in documents:
        parts.append("\n".join(_group(document, (pictures or {}).get(document["group"], ()))))
    return "\n".join(parts)


def write_page(documents: Sequence[Mapping[str, Any]], path: Path) -> None:
    """The page, and its plots beside it in `images/`."""
    images = path.parent / "images"
    images.mkdir(parents=True, exist_ok=True)
    pictures: dict[str, list[str]] = {}
    for document in documents:
        for name, drawn in plots(document):
            (images / name).write_text(drawn, "utf-8")
            pictures.setdefault(document["group"], []).append(f"images/{name}")
    path.write_text(page(documents, pictures), "utf-8")


def _group(document: Mapping[str, Any], pictures: Sequence[str]) -> Iterator[str]:
    yield f"## {document['group']}"
    yield ""
    ran_on = f"{_machine(document['machine'])}; {_versions(document['versions'])}"
    yield f"`{document['command']}`, {document['date']}: {ran_on}."
    yield ""
    yield "| " + " | ".join(_COLUMNS) + " |"
    yield "|" + "---|" * len(_COLUMNS)
    for entry in document["results"]:
        yield "| " + " | ".join(_cells(entry)) + " |"
    yield ""
    for picture in pictures:
        yield f"![{Path(picture).stem.replace('-', ' ')}]({picture})"
        yield ""


def _cells(entry: Mapping[str, Any]) -> Iterator[str]:
    yield entry["figure"] + ("" if entry["note"] is None else f"<br>*{_plain(entry['note'])}*")
    yield entry["peer_name"] or "–"
    yield value(entry, "ours")
    yield value(entry, "peer")
    yield entry["unit"]
    yield number(entry["ratio"])
    yield "–" if entry["spread"] is None else " to ".join(number(edge) for edge in entry["spread"])
    yield goal(entry)
    yield str(entry["samples"])
    if entry["ours"] is None:
        yield "not measured"
    elif entry["goal"] is None and entry["holds"]:
        yield "–"
    else:
        yield "yes" if entry["holds"] else "**no**"


def _plain(note: str) -> str:
    return note.replace("|", "/").replace("*", "")


def _machine(machine: Mapping[str, Any]) -> str:
    return f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB, {machine['system']}"


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in versions.items())
