"""The JSON documents of the reconciler: its runs, what they found, and files in quarantine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from strandline.core.documents import Document, fields_of
from strandline.status.documents.lake_documents import who

if TYPE_CHECKING:
    from strandline.core.records.reconcile_records import ReconcileRun, Swept
    from strandline.status.reconciliation import Reconciliation

NOT_KNOWN_AT_FIRST = ("partial", "listed", "referenced", "found", "planned", "done")
"""Fields of a run of the reconciler that are null, and never 0, while they are unknown."""


def reconcile_run(run: ReconcileRun) -> Document:
    is_known = {"partial": run.has_compared or run.outcome.partial, "done": run.is_done_known}
    unknown = [name for name in NOT_KNOWN_AT_FIRST if not is_known.get(name, run.has_compared)]
    return (
        {"run": run.id, "dry_run": not run.asked.act, "delete": run.asked.delete, "accept_loss": run.asked.accept_loss}
        | fields_of(run, "id", "asked", "outcome", "folder", "actor")
        | who(run.actor)
        | {"doubts": run.doubts}
        | fields_of(run.outcome, "tables", "sequences", "vanished", "clock", "settled")
        | dict.fromkeys(unknown)
    )


def reconcile_run_with_files(run: ReconcileRun, files: Sequence[Swept]) -> Document:
    return reconcile_run(run) | {"files": list(map(quarantined_file, files))}


SHOWN_OF_ANY_RUN = ("run", "dry_run", "started_at", "ended_at", "aborted")
"""What a run of the reconciler shows to readers who may not see all datasets: when it was, and how it ended."""


def reconciliation(found: Reconciliation, *, whole_lake: bool = True) -> Document:
    """`whole_lake`: the reader may see all datasets. For others, what a run found is not known: null, never 0."""
    last = None if found.last_run is None else reconcile_run(found.last_run)
    if last is not None and not whole_lake:
        last = {name: value if name in SHOWN_OF_ANY_RUN else None for name, value in last.items()}
    return fields_of(found) | {"last_run": last}


def quarantined_file_of_run(file: Swept) -> Document:
    return {"run": file.run} | quarantined_file(file)


def quarantined_file(file: Swept) -> Document:
    return fields_of(file, "id", "run", "modified_ns", "begun_at", "changed_at") | {"at": file.changed_at}
