"""The counters of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from strandline.core.errors import StorageError
from strandline.core.reconcile_records import Counts, Done, FindingKind, Outcome
from strandline.core.settings_reconcile import ReconcileSettings
from strandline.reconcile.model import Finding, LedgerContext, Protection, Survey
from strandline.reconcile.rendering import document, printable


@dataclass(slots=True)
class RunCounters:
    """Has the fields of `Outcome`, and those of its `done`, under the same names."""

    settings: ReconcileSettings
    partial: bool = False
    cap_hit: bool = False
    listed: int = 0
    referenced: int = 0
    found: Counts = field(default_factory=Counts)
    planned: Counts = field(default_factory=Counts)
    missing: int = 0
    orphans: int = 0
    foreign: int = 0
    bytes: int = 0
    restored: int = 0
    skipped_recheck: int = 0
    failed: int = 0
    recheck_failed: int = 0
    superseded: int = 0
    protected: Mapping[str, int] = field(default_factory=dict)
    tables: dict[str, int] = field(default_factory=dict)
    sequences: dict[str, int] = field(default_factory=dict)
    clock: Mapping[str, Any] | None = None
    suspects: int = 0
    stopped: dict[str, str] = field(default_factory=dict)
    vanished: int = 0
    refusals: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    unlisted_failures: int = 0
    samples: list[Mapping[str, Any]] = field(default_factory=list)
    phases: Mapping[str, float] = field(default_factory=dict)
    _sampled: dict[FindingKind, int] = field(default_factory=dict)

    @property
    def left(self) -> int:
        """How many more a run may act on."""
        return self.settings.deletes_max_per_run - self.missing - self.files

    @property
    def files(self) -> int:
        """How many files it acted on."""
        return self.orphans + self.foreign + self.superseded

    @property
    def flags(self) -> dict[str, object]:
        """What each record of the audit log says about the run so far."""
        return {"partial": self.partial, "cap_hit": self.cap_hit, "skipped_recheck": self.skipped_recheck}

    def fail(self, what: str) -> None:
        if len(self.failures) < self.settings.errors_max:
            self.failures.append(printable(what))
        else:
            self.unlisted_failures += 1

    def not_checked(self, stats: Sequence[object]) -> int:
        """Counts candidates that could not be checked again, and reports them as far as there is room."""
        errors = [stat for stat in stats if isinstance(stat, StorageError)]
        for error in errors:
            self.fail(error.message)
        self.recheck_failed += len(errors)
        return len(errors)

    def begin(self, ledger_context: LedgerContext) -> None:
        """Takes over what an unfinished run passes on unchanged."""
        self.tables, self.sequences = dict(ledger_context.contents_before), dict(ledger_context.sequences_before)
        self.clock = ledger_context.clock

    def survey(self, survey: Survey, contents_before: Mapping[str, int]) -> None:
        drift = survey.drift
        self.partial = bool(survey.failures) or bool(survey.references.unread)
        self.listed, self.referenced = drift.listed, len(survey.references)
        self.found, self.planned = drift.found, drift.planned
        self.protected = {reason.value: count for reason, count in drift.protected.items()}
        unread = survey.references.unread
        # A table that was left alone keeps its earlier count: the next run must not take this one for normal.
        whole = [t for t in drift.tables if t.head.name not in unread and t.stopped is None]
        still = contents_before if unread else {t.head.uuid for t in drift.tables}
        # Carried from run to run, so that it outlives the record of the run that counted.
        self.tables = {uuid: count for uuid, count in contents_before.items() if uuid in still}
        self.tables |= {t.head.uuid: t.contents for t in whole}
        self.sequences = {uuid: number for uuid, number in self.sequences.items() if uuid in still}
        for head in (t.head for t in drift.tables):
            if head.lineage is not None and head.lineage.proven is not None:
                self.sequences[head.uuid] = max(head.lineage.proven, self.sequences.get(head.uuid, 0))
        # A table that cannot be read is among the failures.
        stopped = [t for t in drift.tables if t.stopped not in (None, Protection.TABLE_UNREAD)]
        self.stopped = {t.head.name: t.stopped.value for t in stopped[: self.settings.errors_max] if t.stopped}
        for failure in survey.failures:
            self.fail(f"{failure.prefix}: {failure.why}")
        for name, why in unread.items():
            self.fail(f"{name}: {why}")

    def reprotect(self, found: Mapping[Protection | None, int], by: Protection) -> None:
        """Counts findings under another protection than before. Those without protection were missing entries."""
        counts = Counter(self.protected)
        for before, count in found.items():
            if before is None:
                self.planned = replace(self.planned, missing=self.planned.missing - count)
            else:
                counts[before.value] -= count
            counts[by.value] += count
        self.protected = {reason.value: counts[reason.value] for reason in Protection if counts[reason.value]}

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

    def outcome(self) -> Outcome:
        more = [f"and {self.unlisted_failures:,} more"] if self.unlisted_failures else []
        done = Done(**{counter.name: getattr(self, counter.name) for counter in fields(Done)})
        values: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(Outcome) if f.name != "done"}
        values["failures"] = (*self.failures, *more)
        values |= {"samples": tuple(self.samples), "refusals": tuple(self.refusals)}
        return Outcome(done=done, **values)
