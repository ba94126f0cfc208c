"""Renders quarantined rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from strandline.cli.render.elements import BAD, LINES_MAX, OK, dim, done, nothing, one_line
from strandline.core.text.wording import age, plural
from strandline.status.documents.lake_documents import bounded

if TYPE_CHECKING:
    from strandline.deliver.quarantine.replay import ReplayReport
    from strandline.deliver.quarantine.rows import QuarantinedRow
    from strandline.ledger.deliver.quarantine import Quarantined


def listed(found: Sequence[QuarantinedRow], now: datetime | None = None) -> list[RenderableType]:
    if not found:
        return [nothing("No rows are in quarantine.")]
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
                f", {age(row.at, now)} ago, {plural(row.size, 'byte')}",
            )
        )
        lines.append(Text(f"  {one_line(row.reason)}", "red"))
        content = one_line(json.dumps(bounded(q.content), ensure_ascii=False)) if q.content is not None else q.problem
        if content:
            lines.append(Text(f"  {content}", "dim"))
    if len(found) > LINES_MAX:
        lines.append(dim(f"… and {plural(len(found) - LINES_MAX, 'row')} more; --json has all"))
    return [*lines, dim("`strandline sink quarantine replay SINK NUMBER…` sends them again, `… discard` gives them up")]


def replayed(report: ReplayReport) -> list[RenderableType]:
    if not report.rows:
        return [nothing(f"{report.sink} has no rows in quarantine.")]
    sign = BAD if report.failed else OK
    head = f" {report.sink}: {report.landed:,} of {plural(len(report.rows), 'row')} landed"
    lines: list[RenderableType] = [Text.assemble(sign, head)]
    for r in [r for r in report.rows if r.outcome != "replayed"][:LINES_MAX]:
        lines.append(Text(f"  row {r.number:,} {r.outcome}: {one_line(r.why or '')}", "yellow"))
    return lines


def discarded(sink: str, gone: Sequence[Quarantined]) -> RenderableType:
    return done(f"{plural(len(gone), 'row')} of {sink} given up; `strandline verify {sink}` counts them")
