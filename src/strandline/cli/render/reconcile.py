"""Renders runs of the reconciler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

from strandline.cli.render.audit import who
from strandline.cli.render.elements import BAD, DOUBT, NOTHING, OK, UNKNOWN, done, grid
from strandline.core.records.reconcile_records import Counts, ReconcileRun, Suspect, SweepOutcome, Swept
from strandline.core.text.wording import age, plural, size, took
from strandline.reconcile.model import Protection

if TYPE_CHECKING:
    from strandline.reconcile.quarantine import PurgedFiles, Restored

_PROTECTED = {reason.value: reason.words for reason in Protection}  # a run of another version may have others
_KINDS = {
    "missing": "missing files",
    "orphans": "orphan files",
    "foreign": "foreign files",
    "superseded": "superseded metadata",
}


def run(found: ReconcileRun) -> list[RenderableType]:
    outcome = found.outcome
    kind = ", ".join(("report" if not found.asked.act else "acted", *found.doubts))
    compared = "nothing compared"
    if found.has_compared:
        compared = f"{plural(outcome.listed, 'file')} listed, {plural(outcome.referenced, 'reference')} read"
    length = f", {took(sum(outcome.phases.values()))}" if outcome.phases else ""
    head = Text.assemble(_sign(found), " Run ", (str(found.id), "bold"), f" ({kind}): {compared}{length}")
    shown: list[RenderableType] = [head]
    if found.aborted is not None:
        shown.append(Text.assemble(("  ended early: ", "bold red"), f"{found.aborted.value}: {found.why}"))
    if found.ended_at is None:
        how = "is under way" if found.stop_asked_at is None else "was called off and ends before its next batch"
        shown.append(Text(f"  it {how}", "yellow"))
    table = grid("", "found", "planned", "done", right=("found", "planned", "done"))
    for what, name in _KINDS.items():
        counts = [getattr(c, what) for c in (outcome.found, outcome.planned, outcome.done)]
        if what == "superseded" and not any(counts):
            continue
        known = (found.has_compared, found.has_compared, found.is_done_known)
        table.add_row(f"  {name}", *(_count(count, is_known) for count, is_known in zip(counts, known, strict=True)))
    shown += [table, *_notes(found), *_protected(outcome.protected), *_samples(outcome.samples), *_more(outcome)]
    if not found.asked.act and outcome.planned != Counts():
        shown.append(Text("  Nothing was touched. `strandline reconcile --act` acts on what is planned.", "dim"))
    if found.held:
        shown.append(
            Text(f"  {plural(found.held, 'file')} in quarantine: `strandline reconcile restore {found.id}`.", "dim")
        )
    return shown


def _count(number: int, is_known: bool) -> str:
    return f"{number:,}" if is_known else UNKNOWN


def _sign(found: ReconcileRun) -> tuple[str, str]:
    if found.aborted is not None:
        return BAD
    if found.ended_at is None:
        return NOTHING
    return DOUBT if found.doubts else OK


def _notes(found: ReconcileRun) -> list[RenderableType]:
    outcome, notes = found.outcome, list[RenderableType]()
    notes += [Text(f"  a guard would refuse to act on this: {why}", "yellow") for why in outcome.refusals]
    if outcome.partial:
        notes.append(Text("  partial: not everything could be read; nothing there is touched", "yellow"))
    for table, reason in outcome.stopped.items():
        notes.append(Text(f"  suspicious: {table} is left alone: {_PROTECTED.get(reason, reason)}", "yellow"))
    if outcome.vanished:
        known = plural(outcome.vanished, "table")
        notes.append(Text(f"  suspicious: the last run knew {known} that the catalog does not have", "yellow"))
    if outcome.suspects:
        files = plural(outcome.suspects, "file")
        notes.append(Text(f"  suspicious: {files} beside damaged entries: `strandline reconcile suspects`", "yellow"))
    if outcome.cap_hit:
        notes.append(Text("  the cap was reached: the next run continues", "yellow"))
    for count, words in (
        (outcome.done.restored, "brought back from quarantine: referenced by a table"),
        (outcome.done.skipped_recheck, "skipped: no longer what was listed"),
        (outcome.done.recheck_failed, "left alone: the check before acting failed"),
        (outcome.done.failed, "could not be moved or deleted"),
    ):
        if count:
            notes.append(Text(f"  {plural(count, 'finding')} {words}"))
    notes += [Text(f"  {failure}", "yellow") for failure in outcome.failures]
    return notes


def _protected(protected: Mapping[str, int]) -> list[RenderableType]:
    if not protected:
        return []
    table = grid("", "", right=())
    for reason, count in protected.items():
        table.add_row(Text(f"  {count:,}", justify="right"), Text(_PROTECTED.get(reason, reason), "dim"))
    return [Text("  protected:", "dim"), table]


def _more(outcome: SweepOutcome) -> list[RenderableType]:
    more = outcome.found.total - len(outcome.samples)
    return [] if more <= 0 else [Text(f"  and {more:,} more: `--findings FILE` writes all of them", "dim")]


def _samples(samples: Sequence[Mapping[str, Any]]) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for sample in samples:
        bytes_ = "" if sample["size"] is None else f" {size(sample['size'])}"
        when = None if sample["modified"] is None else datetime.fromisoformat(sample["modified"])
        old = "" if when is None or when > datetime.now(UTC) else f", {age(when)} old"
        table = "" if not sample.get("table") else f" of {sample['table']}"
        partition = "" if not sample.get("partition") else f" in {_one_line(sample['partition'])}"
        rows = "" if not sample.get("rows") else f" rows {sample['rows']['lo']}..{sample['rows']['hi']}"
        sinks = "".join(
            f" {words} {', '.join(sample[which])}"
            for which, words in (("delivered_to", "at"), ("undelivered_to", "not at"))
            if sample.get(which)
        )
        note = f" ({sample['protected']})" if sample["protected"] else ""
        if sample.get("probably"):
            note += f" probably {_one_line(sample['probably'])}"
        lines.append(
            Text.assemble(
                (f"  {sample['kind']:<8}", "dim"),
                _one_line(sample["path"]),
                (f"{table}{partition}{bytes_}{old}{rows}{sinks}{note}", "dim"),
            )
        )
    return lines


def _one_line(path: str) -> str:
    """A file name may contain a newline; a line must not."""
    return path if path.isprintable() else path.encode("unicode_escape").decode("ascii")


def runs(found: Sequence[ReconcileRun]) -> list[RenderableType]:
    if not found:
        return [Text("No runs yet: `strandline reconcile` starts one.", "dim")]
    table = grid(
        "run", "", "began", "who", "how", "missing", "orphans", "done", "held",
        right=("missing", "orphans", "done", "held"),
    )  # fmt: skip
    for one in found:
        outcome = one.outcome
        how = "report" if not one.asked.act else "acted"
        if one.aborted is not None:
            how = one.aborted.value
        elif one.ended_at is None:
            how = "under way" if one.stop_asked_at is None else "called off, not yet ended"
        how = ", ".join((how, *one.doubts))
        table.add_row(
            Text(str(one.id), "bold"),
            Text(*_sign(one)),
            f"{age(one.started_at)} ago",
            who(one.actor),
            how,
            _count(outcome.found.missing, one.has_compared),
            _count(outcome.found.orphans, one.has_compared),
            _count(outcome.done.total, one.is_done_known),
            f"{one.held:,}",
        )
    return [table]


def files(found: Sequence[Swept]) -> list[RenderableType]:
    if not found:
        return []
    table = grid("state", "size", "file", right=("size",))
    for file in found:
        table.add_row(file.state.value, size(file.size), _one_line(file.path))
    return [table]


def suspects(found: Sequence[Suspect]) -> list[RenderableType]:
    if not found:
        return [Text("No file is suspected of being that of a damaged entry.", "dim")]
    lines: list[RenderableType] = []
    for suspect in found:
        lines.append(Text.assemble(OK if suspect.released else DOUBT, f" {_one_line(suspect.path)}"))
        words = "was released" if suspect.released else "is probably the file of the entry"
        lines.append(Text(f"  {words} {_one_line(suspect.entry)} of {suspect.table}", "dim"))
    return lines


def released(found: Suspect) -> list[RenderableType]:
    return [done(f"{_one_line(found.path)} is an orphan from now on")]


def restored(found: Restored) -> list[RenderableType]:
    failed = bool(found.taken or found.lost or found.failed)
    lines: list[RenderableType] = [
        Text.assemble(BAD if failed else OK, f" {plural(found.restored, 'file')} of run {found.run} brought back")
    ]
    if found.already:
        lines.append(Text(f"  {plural(found.already, 'file', 'was')} in place already", "dim"))
    lines += [Text(f"  another file is in its place: {_one_line(path)}", "yellow") for path in found.taken]
    lines += [Text(f"  neither in its place nor in quarantine: {_one_line(path)}", "red") for path in found.lost]
    return lines + [Text(f"  {_one_line(words)}", "red") for words in found.failed]


def purged(found: PurgedFiles) -> list[RenderableType]:
    lines: list[RenderableType] = [
        Text.assemble(BAD if found.failed else OK, f" {plural(found.purged, 'file')} deleted, {size(found.bytes)}")
    ]
    if found.brought_back:
        lines.append(Text(f"  {plural(found.brought_back, 'file')} brought back: referenced by a table", "yellow"))
    if found.waiting:
        lines.append(Text(f"  {plural(found.waiting, 'file', 'stays')}: not old enough, or perhaps needed", "dim"))
    return lines + [Text(f"  {_one_line(words)}", "red") for words in found.failed]
