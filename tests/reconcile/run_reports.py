"""A listener of the reconciler's runs that is made of functions."""

from __future__ import annotations

from collections.abc import Callable

from strandline.core.records.reconcile_records import ReconcileRunId
from strandline.reconcile.model import Finding, Phase
from strandline.reconcile.run_listener import RunListener


class RunReports(RunListener):
    def __init__(
        self,
        *,
        on_begun: Callable[[ReconcileRunId], object] = lambda run: None,
        on_progress: Callable[[Phase, int, int | None], object] = lambda phase, done, total: None,
        on_finding: Callable[[Finding], object] | None = None,
    ) -> None:
        self._on_begun = on_begun
        self._on_progress = on_progress
        self._on_finding = on_finding
        self.wants_findings = on_finding is not None

    def begun(self, run: ReconcileRunId) -> None:
        self._on_begun(run)

    def progressed(self, phase: Phase, done: int, total: int | None) -> None:
        self._on_progress(phase, done, total)

    def found(self, finding: Finding) -> None:
        if self._on_finding is not None:
            self._on_finding(finding)
