"""verify."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import typer
from rich.console import RenderableType
from rich.text import Text

from strandline.cli.command import DELIVERY, Call, command
from strandline.cli.render.elements import BAD, DOUBT, OK, nothing
from strandline.core.errors import FailedError
from strandline.core.text.wording import agreeing, plural
from strandline.status.documents import lake_documents, replication_documents

if TYPE_CHECKING:
    from strandline.deliver.verify.ranges import VerifyFinding
    from strandline.deliver.verify.verdict import SinkVerdict, VerifyReport
    from strandline.replicate.follow.compare_with_leader import DatasetVerdict

SHOWN_MAX = 20  # findings of one kind in the text; --json has all

app = typer.Typer()


@command(app, panel=DELIVERY)
def verify(
    call: Call,
    sink: str | None = typer.Argument(None, metavar="SINK", help="Only this sink.", show_default="all sinks"),
    taken_is_fine: bool = typer.Option(
        False, "--taken-is-fine", help="Do not report delivered objects that a consumer has deleted."
    ),
    leader: bool = typer.Option(
        False, "--leader", help="At a follower: prove instead that it has the leader's rows, up to the follower's seal."
    ),
) -> None:
    """Prove that sinks have every row that was delivered to them, once, with the lake's values.

    Reads everything that the sinks have and compares it with the lake; changes nothing. Ends with 1 if something is
    wrong, and with 3 if not everything could be read and the rest is right.
    """
    if leader:
        call.lake.replication.check_follows()
        with call.spinner("Comparing with the leader") as lake:
            verdicts = lake.replication.verify()
        call.show(replication_documents.verify_leader(verdicts), *of_leader(verdicts))
        call.exit(0 if all(v.ok for v in verdicts) else FailedError.exit_code)
        return
    if sink is not None:
        call.lake.delivery.get(sink)  # reports a wrong name before Spark starts
    with call.bar() as bar:
        report = call.lake.delivery.verify(
            sink,
            taken_is_fine=taken_is_fine,
            progress=lambda name, what, done, total: bar.step(f"{name}: {what}", done, total),
        )
    call.show(lake_documents.verify(report), *rendered(report))
    call.exit(report.exit_code)


def of_leader(verdicts: Sequence[DatasetVerdict]) -> Iterator[RenderableType]:
    if not verdicts:
        yield nothing("The leader has no datasets, or this site has not followed it yet.")
    for v in verdicts:
        if v.sealed is None:
            yield Text.assemble(DOUBT, " ", (v.dataset, "bold"), ": nothing is sealed here yet, so nothing is proved")
        elif v.ok:
            only = f"; {plural(v.extra, 'row', 'is')} only here, deleted at the leader since" if v.extra else ""
            said = f": {plural(v.rows, 'row', 'agrees')} with the leader's up to {v.sealed:,}"
            yield Text.assemble(OK, " ", (v.dataset, "bold"), (said, "green"), (only, "dim"))
        else:
            wrong = f"{plural(v.missing, 'row', 'is')} missing, {v.different:,} different, {v.doubled:,} doubled"
            wrong += f", from {v.first:,} on"
            yield Text.assemble(BAD, " ", (v.dataset, "bold"), f": {wrong}")
        if v.foreign:
            wrote = f": another program wrote {plural(v.foreign, 'row')} into this site's table; no reader gets them"
            yield Text.assemble(DOUBT, " ", (v.dataset, "bold"), wrote)


def rendered(report: VerifyReport) -> Iterator[RenderableType]:
    if not report.sinks:
        yield nothing("No sinks yet. `strandline sink add` adds one.")
    for verdict in report.sinks:
        yield _head(verdict)
        yield from _findings(verdict.findings)


def _head(s: SinkVerdict) -> Text:
    if s.unreadable:
        return Text.assemble(BAD, " ", (s.name, "bold"), ": not all of it could be read, so nothing is proved")
    if not s.ok:
        wrong = sum(1 for f in s.findings if f.is_fault)
        return Text.assemble(BAD, " ", (s.name, "bold"), f": {plural(wrong, 'thing', 'is')} wrong")
    if s.watermark is None:
        return Text.assemble(OK, " ", (s.name, "bold"), ": nothing was delivered yet, and the destination is empty")
    return Text.assemble(OK, " ", (s.name, "bold"), (f": {_tiling(s)}; {_agreement(s)}", "green"), (_rest(s), "dim"))


def _tiling(s: SinkVerdict) -> str:
    in_lanes = f" in {plural(s.lanes, 'partition')}" if s.lanes > 1 else ""
    ranges = s.ranges + s.taken
    tiled = f"{plural(ranges, 'range')}{in_lanes} {agreeing(ranges, 'tiles')}"
    return f"{tiled} {(s.start or 0) + 1:,}..{s.watermark:,} without gap or overlap"


def _agreement(s: SinkVerdict) -> str:
    rows = f"{plural(s.rows, 'row', 'agrees')} with the lake"
    if s.gone:
        before = "it was" if s.gone == 1 else "they were"
        rows += f", {s.gone:,} with the digest recorded before {before} deleted there"
    return f"{rows}, except for the notes" if s.findings else rows


def _rest(s: SinkVerdict) -> str:
    words = [
        f"{s.withheld:,} withheld" if s.withheld else "",
        f"{plural(s.empty, 'range')} without rows" if s.empty else "",
        f"{s.quarantined:,} in quarantine" if s.quarantined else "",
        f"{s.replayed:,} replayed" if s.replayed else "",
        f"{s.discarded:,} discarded" if s.discarded else "",
        f"{plural(s.lost, 'row')} lost by a rule" if s.lost else "",
        f"{s.unprovable:,} not to be proved any more" if s.unprovable else "",
        f"{s.taken:,} taken away" if s.taken else "",
        f"{s.taken_over:,} taken over" if s.taken_over else "",
        f"{plural(s.under_way, 'chunk')} under way" if s.under_way else "",
    ]
    listed = ", ".join(w for w in words if w)
    return f" ({listed})" if listed else ""


def _findings(findings: Sequence[VerifyFinding]) -> Iterator[Text]:
    shown: dict[str, int] = {}
    for f in sorted(findings, key=lambda f: not f.is_fault):
        shown[f.kind] = shown.get(f.kind, 0) + 1
        if shown[f.kind] <= SHOWN_MAX:
            where = f" ({f.partition})" if f.partition and f.partition not in f.what else ""
            sign = BAD if f.is_fault else DOUBT
            kind = f.kind.value.replace("_", " ")
            yield Text.assemble("  ", sign, f" {kind}: ", (f.what, "bold"), f"{where}: {f.detail}")
    for kind, count in shown.items():
        if count > SHOWN_MAX:
            yield Text(f"  and {count - SHOWN_MAX:,} more of {kind}; --json shows them all", "dim")
