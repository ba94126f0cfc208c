"""reconcile, and its runs, show, restore, purge."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from strandline.cli.options import ConfigOption, JsonOption, YesOption, confirm, opened
from strandline.cli.output import Output
from strandline.cli.render import reconcile as render_reconcile
from strandline.cli.render.bars import one_bar
from strandline.cli.render.findings_file import findings_file
from strandline.core.documents import fields_of
from strandline.core.errors import FailedError, RefusedError, UsageError
from strandline.core.reconcile_records import AbortReason, Asked
from strandline.status import documents

app = typer.Typer(invoke_without_command=True)

DOUBTFUL_EXIT_CODE = 4  # the run completed, and somebody should look

RunArgument = Annotated[int, typer.Argument(metavar="RUN", help="The run's number.", show_default=False, min=1)]


@app.callback()
def reconcile(
    context: typer.Context,
    act: Annotated[
        bool, typer.Option("--act", help="Drop entries of missing files, and set orphans aside. Asks first.")
    ] = False,
    delete: Annotated[
        bool, typer.Option("--delete", help="With --act: delete orphans at once instead of setting them aside.")
    ] = False,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="With --act: also drop entries whose rows not every sink holds.")
    ] = False,
    yes: YesOption = False,
    findings: Annotated[
        Path | None, typer.Option("--findings", metavar="FILE", help="Write every finding there, a JSON line each.")
    ] = None,
    inventory: Annotated[
        Path | None,
        typer.Option(
            "--inventory",
            metavar="FILE",
            help="Take what storage holds from a Parquet or CSV file with key, size and last-modified, as object "
            "stores export it, instead of listing.",
        ),
    ] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Find entries whose file is gone and files that nothing references; act on them only if asked to.

    Without --act it only reports, whatever the settings say. Starts no JVM, unless there are more references than
    reconcile.references_max, entries are dropped from a table of format version 3, or the ledger was restored from an
    older copy and must be opened before anything is touched.

    Ends with 3 if a guard refused to act, with 1 if the run ended early for another reason, and with 4 if what it says
    is not the whole truth: not everything could be read, a guard would refuse to act on it, tables are not what they
    were, or metadata is damaged.
    """
    if context.invoked_subcommand is not None:
        return
    if (delete or accept_loss) and not act:
        raise UsageError("--delete and --accept-loss say how to act", hint="Say --act, too.")
    out = Output(as_json=json)
    if act:
        confirm(out, yes=yes, question=_question(delete=delete, accept_loss=accept_loss), refusal="nothing is touched")
    with opened(config) as lake, findings_file(findings) as told:
        with one_bar(out, "Looking") as bar:
            run = lake.reconciler.run(
                Asked(act, delete, accept_loss),
                inventory_file=inventory,
                on_progress=lambda phase, count, total: bar.step(_PHASES[phase.value], count, total),
                on_finding=None if told is None else told.write,
            )
        if told is not None and not told.finish(run):
            out.note(f"{findings} is not written: the run ended before everything was told", "yellow")
    out.show(documents.reconcile_run(run), *render_reconcile.run(run))
    if run.aborted is not None:
        raise typer.Exit(RefusedError.exit_code if run.aborted is AbortReason.GUARD else FailedError.exit_code)
    if run.doubts:
        raise typer.Exit(DOUBTFUL_EXIT_CODE)


def _question(*, delete: bool, accept_loss: bool) -> str:
    files = "deleted for good" if delete else "set aside, from where they can be restored"
    loss = " Rows that not every sink holds are given up." if accept_loss else ""
    return f"Drop entries of missing files? Files that nothing references are {files}.{loss}"


_PHASES = {
    "settle": "Looking at what earlier runs left",
    "list": "Listing storage",
    "references": "Reading what the tables reference",
    "compare": "Comparing",
    "missing": "Missing files",
    "orphans": "Orphan files",
}


@app.command()
def runs(
    limit: Annotated[int, typer.Option("--limit", min=1, metavar="N", help="Show so many.")] = 20,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """The runs that the ledger remembers, newest first."""
    with opened(config) as lake:
        found = lake.reconciler.runs(limit)
    Output(as_json=json).show({"runs": [documents.reconcile_run(run) for run in found]}, *render_reconcile.runs(found))


@app.command()
def show(run: RunArgument, config: ConfigOption = None, json: JsonOption = False) -> None:
    """One run: what it found, what it did, and where the files are that it acted on."""
    with opened(config) as lake:
        found, files = lake.reconciler.show(run)
    Output(as_json=json).show(
        documents.reconcile_run_with_files(found, files),
        *render_reconcile.run(found),
        *render_reconcile.files(files),
    )


@app.command()
def suspects(config: ConfigOption = None, json: JsonOption = False) -> None:
    """Files that nothing references and that are probably those of entries whose path is damaged. No run touches them.

    To repair the table, copy the file to the path that its entry has. If the file really is an orphan, release it.
    """
    with opened(config) as lake:
        found = lake.reconciler.suspects()
    Output(as_json=json).show({"suspects": found}, *render_reconcile.suspects(found))


@app.command()
def release(
    file: Annotated[str, typer.Argument(metavar="FILE", help="As `suspects` shows it.", show_default=False)],
    yes: YesOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Say that a suspected file is an orphan, and not the file of a damaged entry. Asks first.

    Later runs set it aside like any orphan, and may drop the entry that it seemed to belong to.
    """
    out = Output(as_json=json)
    confirm(
        out,
        yes=yes,
        question=f"Is {file} an orphan? If it is the file of a damaged entry, its rows are lost.",
        refusal="it stays as it is",
    )
    with opened(config) as lake:
        released = lake.reconciler.release(file)
    out.show(fields_of(released), *render_reconcile.released(released))


@app.command()
def restore(run: RunArgument, config: ConfigOption = None, json: JsonOption = False) -> None:
    """Bring back every file that a run has set aside. Never replaces a file. May be repeated.

    Ends with 1 if not all of them are back.
    """
    out = Output(as_json=json)
    with opened(config) as lake, one_bar(out, words := "Bringing files back") as bar:
        restored = lake.reconciler.restore(run, on_progress=lambda done, total: bar.step(words, done, total))
    out.show(fields_of(restored), *render_reconcile.restored(restored))
    if restored.taken or restored.lost or restored.failed:
        raise typer.Exit(FailedError.exit_code)


@app.command()
def purge(
    run: Annotated[
        int | None, typer.Argument(metavar="RUN", help="Only of this run.", show_default="all", min=1)
    ] = None,
    yes: YesOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Delete for good what was set aside at least reconcile.quarantine_days ago. Asks first. What a table references
    by now is brought back instead.

    Ends with 1 if something could not be deleted.
    """
    out = Output(as_json=json)
    confirm(
        out,
        yes=yes,
        question="Delete what was set aside long enough ago? It cannot be restored afterwards.",
        refusal="nothing is deleted",
    )
    with opened(config) as lake, one_bar(out, words := "Deleting") as bar:
        purged = lake.reconciler.purge(run, on_progress=lambda done, total: bar.step(words, done, total))
    out.show(fields_of(purged), *render_reconcile.purged(purged))
    if purged.failed:
        raise typer.Exit(FailedError.exit_code)
