"""What the reconciler says to people."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console, Group, RenderableType

from strandline.cli.render import reconcile
from strandline.core.records.reconcile_records import (
    AbortReason,
    Asked,
    Counts,
    Done,
    ReconcileRun,
    ReconcileRunId,
    StorageKind,
    SweepOutcome,
)
from strandline.reconcile.model import Protection

AT = datetime(2026, 3, 1, tzinfo=UTC)
FOUND = SweepOutcome(listed=9, referenced=8, found=Counts(missing=5, orphans=6), done=Done(orphans=6, restored=5))


def test_a_reason_is_shown_in_words_and_one_of_another_version_as_it_is() -> None:
    table: Any = reconcile._protected({Protection.LAYOUT.value: 1, "of another version": 2})[1]
    assert [cell.plain for cell in table.columns[1].cells] == ["outside every table's layout", "of another version"]


def of(
    ended: bool, aborted: AbortReason | None = None, outcome: SweepOutcome = SweepOutcome(), act: bool = True
) -> ReconcileRun:
    return ReconcileRun(
        ReconcileRunId(7), Asked(act=act), StorageKind.LOCAL, AT, AT if ended else None, aborted, "why", outcome
    )


def said(shown: list[RenderableType]) -> list[str]:
    out = Console(file=io.StringIO(), width=200)
    out.print(Group(*shown))
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue().splitlines()


@pytest.mark.parametrize(
    ("run", "figures"),
    [
        (of(ended=False), ["?", "?", "?"]),
        (of(ended=False, act=False), ["?", "?", "0"]),
        (of(ended=False, outcome=FOUND), ["5", "6", "?"]),
        (of(ended=True, aborted=AbortReason.GUARD), ["?", "?", "0"]),
        (of(ended=True, aborted=AbortReason.DIED), ["?", "?", "?"]),
        (of(ended=True, aborted=AbortReason.DIED, outcome=SweepOutcome(settled=True)), ["?", "?", "0"]),
        (of(ended=True), ["0", "0", "0"]),
        (of(ended=True, outcome=FOUND), ["5", "6", "11"]),
    ],
)
def test_what_nobody_knows_of_a_run_is_not_zero(run: ReconcileRun, figures: list[str]) -> None:
    assert said(reconcile.runs([run]))[-1].split()[-4:-1] == figures
    shown = "\n".join(said(reconcile.run(run)))
    assert ("nothing compared" in shown) == (figures[0] == "?")
    [missing] = [line.split() for line in shown.splitlines() if "missing files" in line]
    assert (missing[-3] == "?") == (figures[0] == "?") and (missing[-1] == "?") == (figures[2] == "?")
