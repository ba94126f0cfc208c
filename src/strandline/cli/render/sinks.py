"""Renders sinks: their progress, their options, and the kinds of sinks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from strandline.cli.render.elements import LINES_MAX, attention, cut, dim, done, grid, number
from strandline.core.delivery_types import ChunkState
from strandline.core.text.wording import age, agreeing, plural
from strandline.status.problems.lake_problems import due_text, find_sink_problems, lag_text

if TYPE_CHECKING:
    from strandline.core.delivery_types import Chunk, Intent, SinkRecord
    from strandline.deliver.recover_sink import SinkRecovered
    from strandline.deliver.sink import Option
    from strandline.status.sinks import SinkStatus

STYLES = {"active": "green", "paused": "yellow", "waiting": "yellow", "stopped": "bold red"}


def table(found: Sequence[SinkStatus], now: datetime | None = None) -> RenderableType:
    lines = grid("sink", "dataset", "state", "up to", "behind", "trend", "last batch")
    for _, group in groupby(found, key=lambda s: s.name):
        of_sink = list(group)
        one = of_sink[0]
        lines.add_row(
            Text(one.name, "bold"),
            Text(one.dataset),
            Text(one.state, STYLES.get(one.state, "")),
            _delivered(of_sink),
            lag(one.sink_lag_rows, one.sink_lag_seconds),
            Text(one.trend, {"growing": "yellow", "shrinking": "green"}.get(one.trend, "dim")),
            _last_batch(of_sink, now or datetime.now(UTC)),
        )
    return lines


def _delivered(of_sink: Sequence[SinkStatus]) -> Text:
    if len(of_sink) == 1 and of_sink[0].partition is None:
        if (watermark := of_sink[0].watermark) is not None:
            return Text(number(watermark))
        return Text("nothing yet", "dim") if of_sink[0].exported is not None else Text("?", "bold red")
    behind = sum(is_behind(s) for s in of_sink)
    said = Text(plural(len(of_sink), "partition"))
    return said.append(f", {behind:,} behind", "yellow") if behind else said


def is_behind(status: SinkStatus) -> bool:
    """Whether the lane certainly lacks rows. Rows that no intent has yet may belong to it, too."""
    return status.open_intent is not None or bool(status.lag_rows)


def lag(rows: int | None, seconds: float | None) -> Text:
    return Text(lag_text(rows, seconds), "green" if rows == 0 else "yellow")


def _last_batch(of_sink: Sequence[SinkStatus], now: datetime) -> Text:
    """Partitions that were delivered together were closed at the same moment."""
    batches = [s.last_batch for s in of_sink if s.last_batch is not None]
    if not batches:
        return Text("–", "dim")
    at = max(b.at for b in batches)
    rows = sum(b.count for b in batches if b.at == at)
    return Text(f"{plural(rows, 'row')}, {age(at, now)} ago", "dim")


def sink_list(found: Sequence[SinkStatus]) -> list[RenderableType]:
    if not found:
        return [dim("No sinks yet. `strandline sink add NAME --dataset D --kind files --option path=DIR` adds one.")]
    return [table(found), *map(attention, find_sink_problems(found))]


def detail(
    record: SinkRecord, lanes: Sequence[SinkStatus], open_intents: Sequence[Intent], now: datetime | None = None
) -> list[RenderableType]:
    one, moment = lanes[0], now or datetime.now(UTC)
    facts = grid("", "")
    for label, value in (
        ("dataset", Text(one.dataset)),
        ("kind", Text(record.kind)),
        ("delivers to", Text(record.destination, "cyan")),
        ("generation", Text(str(record.generation))),
        ("began", Text("at the beginning" if record.start is None else f"after {record.start:,}")),
        ("state", Text(one.state, STYLES.get(one.state, ""))),
        ("behind", _behind(one)),
        ("trend", Text(one.trend)),
        ("held for it", _held(one, moment)),
        ("lost to it", Text(plural(one.lost_rows, "row"), "yellow" if one.lost_rows else "dim")),
    ):
        facts.add_row(Text(label, "dim"), value)
    for name, given in sorted(record.options.items()):
        facts.add_row(Text(f"option {name}", "dim"), Text(given))
    parts: list[RenderableType] = [Text(record.name, "bold"), facts]
    parts += map(attention, find_sink_problems(lanes, moment))
    parts += [Text(""), _lanes(lanes, moment)]
    if len(lanes) > LINES_MAX:
        parts.append(Text(f"… and {plural(len(lanes) - LINES_MAX, 'partition')} more; --json has all", "dim"))
    if open_intents:
        parts += [Text(""), Text("Under way", "bold")]
        parts += cut([line for i in open_intents for line in _intent(i, moment)], "line")
    return parts


def _held(one: SinkStatus, now: datetime) -> Text:
    if one.held_since is None:
        return Text("nothing", "dim")
    due = f"{due_text(one.held_rows)} that {agreeing(one.held_rows or 0, 'is')} due for deletion"
    return Text(f"{due}, for {age(one.held_since, now)}", "yellow")


def _behind(one: SinkStatus) -> Text:
    said = lag(one.sink_lag_rows, one.sink_lag_seconds)
    return said.append(f" ({one.unplanned_rows:,} not planned yet)", "dim") if one.unplanned_rows else said


def _lanes(found: Sequence[SinkStatus], now: datetime) -> RenderableType:
    """Partitions that are behind come first."""
    counts = ("delivered up to", "delivered", "withheld")
    lines = grid("partition", *counts, "behind", "last batch", right=counts)
    for s in sorted(found, key=lambda s: not is_behind(s))[:LINES_MAX]:
        batch = s.last_batch
        lines.add_row(
            Text(s.partition or "all"),
            Text("–" if s.watermark is None else number(s.watermark)),
            number(s.exported),
            number(s.withheld),
            lag(s.lag_rows, s.lag_seconds),
            dim("–" if batch is None else f"{plural(batch.count, 'row')} in {batch.rows}, {age(batch.at, now)} ago"),
        )
    return lines


def _intent(i: Intent, now: datetime) -> list[RenderableType]:
    settled = sum(c.state is not ChunkState.PLANNED for c in i.chunks)
    head = Text.assemble(
        (i.partition or "all", "bold"),
        f"  {(i.after or 0) + 1}..{i.until}, opened {age(i.opened_at, now)} ago, {settled} of "
        f"{plural(len(i.chunks), 'chunk')} settled",
    )
    return [head, *(_chunk(c) for c in i.chunks)]


def _chunk(c: Chunk) -> Text:
    if c.state is ChunkState.PLANNED:
        return Text.assemble(("  · ", "dim"), f"{c.rows}  {plural(c.expected, 'row')} to send")
    if c.state is ChunkState.EMPTY:
        return Text.assemble(("  ✓ ", "green"), f"{c.rows}  nothing to send", _withheld(c))
    rows = "rows that it held already" if c.count is None else plural(c.count, "row")
    return Text.assemble(("  ✓ ", "green"), f"{c.rows}  {rows}{', found there' if c.found else ''}", _withheld(c))


def _withheld(c: Chunk) -> str:
    return f", {c.withheld:,} withheld" if c.withheld else ""


def floor_note(record: SinkRecord, floor: int | None) -> list[Text]:
    """A note if the sink begins above the requested place, because of the floor."""
    if floor is None or record.start != floor:
        return []
    return [Text(f"  Rows up to {floor:,} were deleted by retention: the sink begins above them", "yellow")]


def added(record: SinkRecord, dataset: str, floor: int | None = None) -> RenderableType:
    begins = "from the beginning" if record.start is None else f"after {record.start:,}"
    goes = done(f"Sink {record.name}: {dataset} goes to {record.destination}, {begins}")
    lines: list[RenderableType] = [goes, *floor_note(record, floor)]
    if record.generation > 1:
        lines.append(Text(f"  The destination was used before: generation {record.generation} continues there", "dim"))
    lines.append(Text("  Next: strandline tick delivers once, strandline run keeps delivering", "dim"))
    return Group(*lines)


def recovered(found: SinkRecovered) -> RenderableType:
    lines: list[RenderableType] = [done(f"Sink {found.name} continues, in generation {found.generation}")]
    if found.repaired:
        lines.append(Text(f"  Read from the destination: {_some('watermark', found.repaired)}"))
    lost = [f"  It had lost {rows}{f' of {partition}' if partition else ''}" for partition, rows in found.lost]
    lines += cut([Text(line, "yellow") for line in lost], "range")
    if found.intents_dropped:
        lines.append(Text(f"  Withdrawn, to be planned again: {plural(found.intents_dropped, 'intent')}"))
    if found.intents_kept:
        kept = plural(found.intents_kept, "intent")
        lines.append(
            Text(f"  This destination cannot say which rows it has: chunks of {kept} that may have been sent stay")
        )
    return Group(*lines)


def _some(noun: str, partitions: Sequence[str]) -> str:
    names = [p for p in partitions if p]
    if not names:
        return plural(len(partitions), noun)
    rest = f" and {len(names) - 5:,} more" if len(names) > 5 else ""
    return f"{plural(len(partitions), noun)} ({', '.join(names[:5])}{rest})"


def kinds(found: Mapping[str, Sequence[Option] | str], common: Sequence[Option]) -> list[RenderableType]:
    parts: list[RenderableType] = []
    for name, options in found.items():
        parts.append(Text(name, "bold"))
        parts += [Text(f"  {options}", "red") if isinstance(options, str) else _options(options), Text("")]
    return [*parts, Text("every kind", "bold"), _options(common)]


def _options(options: Sequence[Option]) -> RenderableType:
    lines = grid("", "", "")
    for o in options:
        given = "required" if o.required else "" if o.default is None else f"default {o.default}"
        secret = " Only as env:NAME, never stored." if o.secret and "env:" not in o.description else ""
        lines.add_row(
            Text(f"  {o.name}", "cyan"), Text(given, "yellow" if o.required else "dim"), Text(o.description + secret)
        )
    return lines
