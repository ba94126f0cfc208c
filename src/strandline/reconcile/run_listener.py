"""What a run reports while it works."""

from __future__ import annotations

from strandline.core.records.reconcile_records import ReconcileRunId
from strandline.reconcile.model import Finding, Phase


class RunListener:
    """Gets the reports of one run. Each method does nothing: a subclass has those that it needs."""

    wants_findings = False
    """Whether `found` gets all findings. Without that, a run reads no more orphan files than it stores as samples."""

    def begun(self, run: ReconcileRunId) -> None:
        """The run is on record. It has neither settled what a dead run left, nor compared anything."""

    def progressed(self, phase: Phase, done: int, total: int | None) -> None:
        """`total` is None if it is not known."""

    def found(self, finding: Finding) -> None: ...
