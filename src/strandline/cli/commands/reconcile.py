"""reconcile, and its runs, show, restore, purge."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from strandline.cli.command import Call, command, with_call
from strandline.cli.render import reconcile as render_reconcile
from strandline.cli.render.findings_file import FindingsFile, findings_file
from strandline.cli.render.progress import OneBar
from strandline.core.documents import fields_of
from strandline.core.errors import FailedError, RefusedError, UsageError
from strandline.core.records.reconcile_records import AbortReason, Asked
from strandline.reconcile.model import Finding, Phase
from strandline.reconcile.run_listener import RunListener
from strandline.status.documents import reconcile_documents

app = typer.Typer(name="reconcile", invoke_without_command=True)

DOUBTFUL_EXIT_CODE = 4  # the run completed, and a person should check its result

ReconcileRunArgument = Annotated[int, typer.Argument(metavar="RUN", help="The run's number.", min=1)]


def reconcile(
    call: Call,
    context: typer.Context,
    act: bool = typer.Option(
        False, "--act", help="Drop entries of missing files, and quarantine orphan files. Asks first."
    ),
    delete: bool = typer.Option(
        False, "--delete", help="With --act: delete orphan files at once instead of moving them to quarantine."
    ),
    accept_loss: bool = typer.Option(
        False, "--accept-loss", help="With --act: also drop entries whose rows some sink does not have."
    ),
    findings: Path | None = typer.Option(None, metavar="FILE", help="Write every finding to this file, as JSON lines."),
    inventory: Path | None = typer.Option(
        None,
        metavar="FILE",
        help="Instead of listing the storage, read this inventory of it: a Parquet or CSV file with key, size and "
        "last-modified, as object stores export it.",
    ),
) -> None:
    """Find entries whose file is gone and files that nothing references; act on them only if asked to.

    Without --act it only reports, whatever the settings say. Starts no JVM, unless there are more references than
    reconcile.references_max, entries are dropped from a table of format version 3, or the ledger was restored from an
    older copy and has to be resynced first.

    Ends with 3 if a guard refused to act, with 1 if the run ended early for another reason, and with 4 if its result
    may be incomplete or wrong: not everything could be read, a guard would refuse to act on it, tables changed
    unexpectedly, or metadata is damaged.
    """
    if context.invoked_subcommand is not None:
        return
    if (delete or accept_loss) and not act:
        raise UsageError("--delete and --accept-loss say how to act", hint="Add --act.")
    if act:
        call.confirm(_question(delete=delete, accept_loss=accept_loss), refusal="nothing is touched")
    lake = call.lake
    with findings_file(findings) as file:
        with call.bar("Reconciling") as bar:
            run = lake.reconciler.run(
                Asked(act, delete, accept_loss),
                inventory_file=inventory,
                listener=_ShownRun(bar, file),
            )
        if file is not None and not file.finish(run):
            call.note(f"{findings} is not written: the run ended before it had reported everything", "yellow")
    call.show(reconcile_documents.reconcile_run(run), *render_reconcile.run(run))
    if run.aborted is not None:
        raise typer.Exit(RefusedError.exit_code if run.aborted is AbortReason.GUARD else FailedError.exit_code)
    call.exit(DOUBTFUL_EXIT_CODE if run.doubts else 0)


app.callback()(with_call(reconcile, asks=True))


def _question(*, delete: bool, accept_loss: bool) -> str:
    files = "deleted for good" if delete else "moved to quarantine, from where they can be restored"
    loss = " Rows that some sink does not have are given up." if accept_loss else ""
    return f"Drop entries of missing files? Files that nothing references are {files}.{loss}"


class _ShownRun(RunListener):
    """Shows the progress of a run, and writes its findings to a file."""

    def __init__(self, bar: OneBar, file: FindingsFile | None) -> None:
        self._bar = bar
        self._file = file
        self.wants_findings = file is not None

    def progressed(self, phase: Phase, done: int, total: int | None) -> None:
        self._bar.step(_PHASES[phase.value], done, total)

    def found(self, finding: Finding) -> None:
        if self._file is not None:
            self._file.write(finding)


_PHASES = {
    "settle": "Finishing earlier runs",
    "list": "Listing storage",
    "references": "Reading what the tables reference",
    "compare": "Comparing",
    "missing": "Missing files",
    "orphans": "Orphan files",
}


@command(app)
def runs(call: Call, limit: int = typer.Option(20, min=1, metavar="N", help="Show at most N runs.")) -> None:
    """The runs on record, newest first."""
    found = call.lake.reconciler.runs(limit)
    call.show({"runs": [reconcile_documents.reconcile_run(run) for run in found]}, *render_reconcile.runs(found))


@command(app)
def show(call: Call, run: ReconcileRunArgument) -> None:
    """One run: what it found, what it did, and where the files are that it moved."""
    found, files = call.lake.reconciler.show(run)
    call.show(
        reconcile_documents.reconcile_run_with_files(found, files),
        *render_reconcile.run(found),
        *render_reconcile.files(files),
    )


@command(app)
def cancel(call: Call, run: ReconcileRunArgument) -> None:
    """Call off a run, whichever process does it. It ends before its next batch; what it has done stays."""
    found = call.lake.reconciler.cancel(run)
    call.show(reconcile_documents.reconcile_run(found), *render_reconcile.run(found))


@command(app)
def suspects(call: Call) -> None:
    """Files that nothing references and that are probably those of entries whose path is damaged. No run touches them.

    To repair the table, copy the file to the path that its entry has. If the file really is an orphan, release it.
    """
    found = call.lake.reconciler.suspects()
    call.show({"suspects": found}, *render_reconcile.suspects(found))


@command(app, asks=True)
def release(call: Call, file: str = typer.Argument(metavar="FILE", help="The file, as `suspects` shows it.")) -> None:
    """Declare a suspected file an orphan, not the file of a damaged entry. Asks first.

    Later runs move it to quarantine like any orphan file, and may drop the entry that it seemed to belong to.
    """
    call.confirm(
        f"Is {file} an orphan? If it is the file of a damaged entry, its rows are lost.",
        refusal="it stays as it is",
    )
    released = call.lake.reconciler.release(file)
    call.show(fields_of(released), *render_reconcile.released(released))


@command(app)
def restore(call: Call, run: ReconcileRunArgument) -> None:
    """Bring back every file that a run has moved to quarantine. Never replaces a file. May be repeated.

    Ends with 1 if not all of them are back.
    """
    with call.bar(words := "Bringing files back") as bar:
        restored = call.lake.reconciler.restore(run, on_progress=lambda done, total: bar.step(words, done, total))
    call.show(fields_of(restored), *render_reconcile.restored(restored))
    if restored.taken or restored.lost or restored.failed:
        raise typer.Exit(FailedError.exit_code)


@command(app, asks=True)
def purge(
    call: Call,
    run: int | None = typer.Argument(None, metavar="RUN", help="Only of this run.", show_default="all", min=1),
) -> None:
    """Delete files for good that have been in quarantine for reconcile.quarantine_days. Asks first. A file that a table
    references by now is brought back instead.

    Ends with 1 if something could not be deleted.
    """
    call.confirm(
        "Delete the files that have been in quarantine long enough? They cannot be restored afterwards.",
        refusal="nothing is deleted",
    )
    with call.bar(words := "Deleting") as bar:
        purged = call.lake.reconciler.purge(run, on_progress=lambda done, total: bar.step(words, done, total))
    call.show(fields_of(purged), *render_reconcile.purged(purged))
    if purged.failed:
        raise typer.Exit(FailedError.exit_code)
