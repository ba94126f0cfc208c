"""Rows in quarantine, for people and as documents."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

from strandline.cli.render.common import BAD, NOTHING, OK, age, done
from strandline.core.wording import plural

if TYPE_CHECKING:
    from strandline.deliver.quarantine.replay import ReplayReport
    from strandline.deliver.quarantine.rows import QuarantinedRow
    from strandline.ledger.deliver.quarantine import Quarantined

LINES_MAX = 20
"""Rows in the text; --json has them all."""
_ROW_CHARS_MAX = 300
"""Of one row in the text."""
_VALUE_CHARS_MAX = 10_000
"""Of one value in a document: a row may be as large as it likes, a list of rows not."""


def list_document(found: Sequence[QuarantinedRow]) -> dict[str, Any]:
    return {"rows": [_row_document(q) for q in found]}


def _row_document(q: QuarantinedRow) -> dict[str, Any]:
    row = q.row
    return {
        "sink": q.sink,
        "number": row.seq,
        "partition": row.partition or None,
        "generation": row.generation,
        "state": row.state,
        "reason": row.reason,
        "at": row.at,
        "changed_at": row.changed_at,
        "size": row.size,
        "object": q.place,
        "row": bounded(q.content),
        "problem": q.problem,
    }


def bounded(value: Any) -> Any:
    """As JSON can hold it, and no longer than is good for a list."""
    match value:
        case None | bool() | int() | float():
            return value
        case dict():
            return {str(k): bounded(v) for k, v in value.items()}
        case list() | tuple():
            return [bounded(v) for v in value]
        case bytes():
            return _cut(value.hex())
        case _:
            return _cut(value.isoformat() if hasattr(value, "isoformat") else str(value))


def _cut(text: str, chars_max: int = _VALUE_CHARS_MAX) -> str:
    return text if len(text) <= chars_max else f"{text[:chars_max]}…"


def listed(found: Sequence[QuarantinedRow], now: datetime | None = None) -> list[RenderableType]:
    if not found:
        return [Text.assemble(NOTHING, " No rows are in quarantine.")]
    moment = now or datetime.now(UTC)
    lines: list[RenderableType] = []
    for q in found[:LINES_MAX]:
        row = q.row
        where = f" of {row.partition}" if row.partition else ""
        older = f", generation {row.generation}" if row.generation > 1 else ""
        lines.append(
            Text.assemble(
                (q.sink, "bold"),
                f"  row {row.seq:,}{where}{older}  ",
                (row.state, "yellow"),
                f", {age(row.at, moment)} ago, {plural(row.size, 'byte')}",
            )
        )
        lines.append(Text(f"  {_one_line(row.reason)}", "red"))
        content = _one_line(json.dumps(bounded(q.content), ensure_ascii=False)) if q.content is not None else q.problem
        if content:
            lines.append(Text(f"  {content}", "dim"))
    if len(found) > LINES_MAX:
        lines.append(Text(f"… and {plural(len(found) - LINES_MAX, 'row')} more; --json has all", "dim"))
    lines.append(
        Text("`strandline sink quarantine replay SINK NUMBER…` sends them again, `… discard` gives them up", "dim")
    )
    return lines


def _one_line(text: str) -> str:
    return _cut(" ".join(text.split()), _ROW_CHARS_MAX)


def replay_document(report: ReplayReport) -> dict[str, Any]:
    return {
        "sink": report.sink,
        "replayed": sum(1 for r in report.rows if r.outcome == "replayed"),
        "rows": [{"number": r.number, "outcome": r.outcome, "why": r.why} for r in report.rows],
    }


def replayed(report: ReplayReport) -> list[RenderableType]:
    if not report.rows:
        return [Text.assemble(NOTHING, f" {report.sink} has no rows in quarantine.")]
    landed = sum(1 for r in report.rows if r.outcome == "replayed")
    sign = OK if landed == len(report.rows) else BAD
    head = f" {report.sink}: {landed:,} of {plural(len(report.rows), 'row')} landed"
    lines: list[RenderableType] = [Text.assemble(sign, head)]
    for r in [r for r in report.rows if r.outcome != "replayed"][:LINES_MAX]:
        lines.append(Text(f"  row {r.number:,} {r.outcome}: {_one_line(r.why or '')}", "yellow"))
    return lines


def discard_document(sink: str, gone: Sequence[Quarantined]) -> dict[str, Any]:
    return {"sink": sink, "discarded": len(gone), "numbers": [q.seq for q in gone]}


def discarded(sink: str, gone: Sequence[Quarantined]) -> RenderableType:
    return done(f"{plural(len(gone), 'row')} of {sink} given up; `strandline verify {sink}` counts them")
