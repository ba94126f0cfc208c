"""The counters of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from strandline.core.records.reconcile_records import Done, FindingKind, SweepOutcome
from strandline.core.settings.reconcile import ReconcileSettings
from strandline.reconcile.compare.compared import Survey
from strandline.reconcile.model import Finding, LedgerContext, Protection
from strandline.reconcile.rendering import document, printable


@dataclass(slots=True)
class RunCounters:
    """What a run has seen and done so far."""

    settings: ReconcileSettings
    seen: SweepOutcome = field(default_factory=SweepOutcome)  # without `done`, failures and samples
    done: Done = field(default_factory=Done)
    failures: list[str] = field(default_factory=list)
    unlisted_failures: int = 0
    samples: list[Mapping[str, Any]] = field(default_factory=list)
    _sampled: dict[FindingKind, int] = field(default_factory=dict)

    def note(self, **values: Any) -> None:
        """Sets fields of `SweepOutcome`."""
        self.seen = replace(self.seen, **values)

    def did(self, **more: int) -> None:
        """Adds to fields of `Done`."""
        self.done = replace(self.done, **{name: getattr(self.done, name) + count for name, count in more.items()})

    @property
    def left(self) -> int:
        """How many more a run may act on."""
        return self.settings.deletes_max_per_run - self.done.missing - self.files

    @property
    def files(self) -> int:
        """How many files it acted on."""
        return self.done.orphans + self.done.foreign + self.done.superseded

    @property
    def flags(self) -> dict[str, object]:
        """What each record of the audit log says about the run so far."""
        return {
            "partial": self.seen.partial,
            "cap_hit": self.seen.cap_hit,
            "skipped_recheck": self.done.skipped_recheck,
        }

    def fail(self, what: str) -> None:
        if len(self.failures) < self.settings.errors_max:
            self.failures.append(printable(what))
        else:
            self.unlisted_failures += 1

    def begin(self, ledger_context: LedgerContext) -> None:
        """Takes over what an unfinished run passes on unchanged."""
        tables, sequences = ledger_context.contents_before, ledger_context.sequences_before
        self.note(tables=dict(tables), sequences=dict(sequences), clock=ledger_context.clock)

    def survey(self, survey: Survey, contents_before: Mapping[str, int]) -> None:
        drift = survey.drift
        unread = survey.references.unread
        # A table that was left alone keeps its earlier count: the next run must not take this one for normal.
        whole = [t for t in drift.tables if t.head.name not in unread and t.stopped is None]
        still = contents_before if unread else {t.head.uuid for t in drift.tables}
        # Carried from run to run, so that it outlives the record of the run that counted.
        tables = {uuid: count for uuid, count in contents_before.items() if uuid in still}
        sequences = {uuid: number for uuid, number in self.seen.sequences.items() if uuid in still}
        for head in (t.head for t in drift.tables):
            if head.lineage is not None and head.lineage.proven is not None:
                sequences[head.uuid] = max(head.lineage.proven, sequences.get(head.uuid, 0))
        # A table that cannot be read is among the failures.
        stopped = [t for t in drift.tables if t.stopped not in (None, Protection.TABLE_UNREAD)]
        self.note(
            partial=bool(survey.failures) or bool(unread),
            listed=drift.listed,
            referenced=len(survey.references),
            found=drift.found,
            planned=drift.planned,
            protected={reason.value: count for reason, count in drift.protected.items()},
            tables=tables | {t.head.uuid: t.contents for t in whole},
            sequences=sequences,
            stopped={t.head.name: t.stopped.value for t in stopped[: self.settings.errors_max] if t.stopped},
        )
        for failure in survey.failures:
            self.fail(f"{failure.prefix}: {failure.why}")
        for name, why in unread.items():
            self.fail(f"{name}: {why}")

    def reprotect(self, found: Mapping[Protection | None, int], by: Protection) -> None:
        """Counts findings under another protection than before. Those without protection were missing entries."""
        counts, planned = Counter(self.seen.protected), self.seen.planned
        for before, count in found.items():
            if before is None:
                planned = replace(planned, missing=planned.missing - count)
            else:
                counts[before.value] -= count
            counts[by.value] += count
        protected = {reason.value: counts[reason.value] for reason in Protection if counts[reason.value]}
        self.note(planned=planned, protected=protected)

    def sample(self, findings: Iterable[Finding]) -> None:
        """The first of each kind, those that can be acted on before protected ones."""
        waiting: dict[FindingKind, list[Finding]] = {}
        for finding in findings:
            if finding.protected is None:
                self._keep(finding)
            elif len(waiting.setdefault(finding.kind, [])) < self.settings.samples_max:
                waiting[finding.kind].append(finding)
            if self._sampled.get(finding.kind, 0) >= self.settings.samples_max:
                waiting.pop(finding.kind, None)
        for some in waiting.values():
            for finding in some:
                self._keep(finding)

    def _keep(self, finding: Finding) -> None:
        count = self._sampled.get(finding.kind, 0)
        if count < self.settings.samples_max:
            self._sampled[finding.kind] = count + 1
            self.samples.append(document(finding))

    def outcome(self) -> SweepOutcome:
        more = [f"and {self.unlisted_failures:,} more"] if self.unlisted_failures else []
        return replace(self.seen, done=self.done, failures=(*self.failures, *more), samples=tuple(self.samples))
