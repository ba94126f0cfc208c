"""Every fence of a page is run, or checked against the code; every row of docs/failures.md has a test.

`tests/e2e/test_docs_run.py` runs pages. Commands that it cannot run (`NOT_RUN`) and settings are only parsed: a wrong
option fails all the same.
"""

from __future__ import annotations

import configparser
import json
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator

import pytest
import typer
import yaml

from strandline.cli.main import application
from strandline.core.documents import error_document
from strandline.core.errors import NoSuchSink
from strandline.core.settings.lake_config import Settings
from strandline.deliver.sink_kinds import check_options, find_kind, kind_names
from strandline.deliver.sink_options import check_common, own_options
from strandline.iceberg.schema.schema_file import parse_columns
from tests.e2e import test_docs_run
from tests.unit.test_docs import FENCE, PAGES, ROOT, name

RUN_BY_TESTS = {
    ("docs/sinks.md", "python"): "tests/sinks/test_consumers.py",
    ("docs/sinks.md", "sql"): "tests/sinks/test_consumers.py",
}
RUN_ON_PAGES = {"console", "python", "text"}
OTHER_PROGRAMS = {"env/bin/pip", "export", "make", "pip", "python3", "sqlite3", "uv"}
NOT_RUN = {
    ("README.md", "make demo"): "tests/e2e/test_demo.py runs what it runs",
    ("README.md", "make test"): "this is it",
    ("docs/operations.md", "uv build"): "needs a network; tests/e2e/test_wheel.py builds and installs a wheel",
    ("docs/operations.md", "python3 -m venv"): "as above",
    ("docs/operations.md", "env/bin/"): "as above",
    ("docs/sinks.md", "strandline sink add partner"): "needs a bucket: tests/sinks/test_s3.py",
    ("docs/sinks.md", "strandline sink add shop"): "needs a database: tests/sinks/test_postgres.py",
    ("docs/sinks.md", "strandline sink add mirror"): "needs a REST catalog: tests/sinks/test_iceberg.py",
    ("docs/sinks.md", "strandline sink add collector"): "needs another lake: tests/spark/test_forward.py",
    ("docs/sinks.md", "strandline sink add gateway"): "needs somebody else's server: tests/sinks/test_forward.py",
    ("docs/scale.md", "export"): "tests/e2e/test_cluster.py sets the addresses of its own servers",
    ("docs/scale.md", "strandline run --serve"): "tests/e2e/test_several_machines.py runs two machines",
    ("examples/strandline-sink-sqlite/README.md", ""): "needs the package installed: tests/sinks/test_example.py",
}
"""The commands on pages that no test runs as they stand there, by how they begin, and why."""
FENCES = [
    pytest.param(name(page), kind.partition(" ")[0], text, id=f"{name(page)}-{n}")
    for page in PAGES
    for n, (kind, text) in enumerate(FENCE.findall(page.read_text("utf-8")))
    if kind and " file=" not in kind
]


def check_sh(text: str) -> None:
    for words in commands(text):
        program = words[0].rpartition("/")[2]
        if program == "strandline":
            check_strandline(words[1:])
        elif program == "curl":
            assert any(re.search(r"/(api/)?v1/", word) for word in words), "tests/serve/test_docs_paths.py checks paths"
        else:
            assert words[0] in OTHER_PROGRAMS, f"nobody checks {words[0]}"


def commands(text: str) -> Iterator[list[str]]:
    """The words of each command, without redirections; a word in capitals stands for a name or a number."""
    for line in text.replace("\\\n", " ").splitlines():
        words: list[str] = []
        for word in [*shlex.split(line, comments=True), ";"]:
            if word in ("&&", "|", ";"):
                end = words.index(">") if ">" in words else len(words)
                if words:
                    yield [re.sub(r"^[A-Z]{2,}$", "1", w) for w in words[:end]]
                words = []
            else:
                words.append(word)


def check_strandline(words: list[str]) -> None:
    """With all that the command needs, values of the right types, and options that the kind of sink has."""
    command, context = typer.main.get_command(application()), None
    while hasattr(command, "commands"):
        context = command.make_context("strandline", words, parent=context)
        left = [*getattr(context, "_protected_args", ()), *context.args]
        if not left or left[0] not in command.commands:
            assert not left, f"no command {left[0]}"
            return
        command, words = command.commands[left[0]], left[1:]
    params = command.make_context("strandline", words, parent=context).params
    if params.get("kind") in kind_names():
        options = dict(option.split("=", 1) for option in params["option"])
        check_common(options)
        check_options(find_kind(params["kind"]), own_options(options))


def check_unit(text: str) -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(text)
    check_sh(unit["Service"]["ExecStart"])


def check_json(text: str) -> None:
    found = json.loads(text)
    if isinstance(found, list):
        assert parse_columns(found)
    else:
        said = error_document(NoSuchSink("x", hint="y"))
        assert found.keys() == {"type", "title", "status", "detail", "hint", "retryable"} and said.keys() & found.keys()


def check_yaml(text: str) -> None:
    found = yaml.safe_load(text)
    assert parse_columns(found) if isinstance(found, list) else found["scrape_configs"]
    check_sh("\n".join(re.findall(r"# (strandline .*)", text)))


CHECKS: dict[str, Callable[[str], object]] = {
    "sh": check_sh,
    "toml": lambda text: Settings.model_validate(tomllib.loads(text)),
    "ini": check_unit,
    "json": check_json,
    "yaml": check_yaml,
}


@pytest.mark.parametrize(("page", "kind", "text"), FENCES)
def test_every_fence_is_run_or_checked(page: str, kind: str, text: str) -> None:
    if kind in CHECKS:
        CHECKS[kind](text)
    elif (page, kind) in RUN_BY_TESTS or page not in test_docs_run.PAGES or kind not in RUN_ON_PAGES:
        runner = ROOT / RUN_BY_TESTS[page, kind]
        assert page.rpartition("/")[2] in runner.read_text("utf-8"), f"{runner} does not read {page}"


def test_every_command_that_can_be_run_is_run() -> None:
    typed = [(name(page), " ".join(words)) for page in PAGES for kind, text in FENCE.findall(page.read_text("utf-8"))
             if kind == "sh" for words in commands(text)]  # fmt: skip
    known = {
        (page, command): begin
        for page, command in typed
        for begin in NOT_RUN
        if begin[0] == page and command.startswith(begin[1])
    }
    assert [run for run in typed if run not in known] == [], "show it as `console`, or say in NOT_RUN why not"
    assert set(NOT_RUN) == set(known.values()), "no page has it any more"


@pytest.mark.parametrize(
    "wrong",
    [
        "strandline tick --no-such-option", "strandline no-such-command", "strandline run && strandline token create",
        "strandline sink add a --dataset d --kind files --option pth=a", "curl http://localhost/rows", "no-such",
    ],
)  # fmt: skip
def test_a_command_that_would_be_refused_is_noticed(wrong: str) -> None:
    with pytest.raises(Exception):  # noqa: B017
        check_sh(wrong)


FAILURES = """
a file is ingested twice
    spark/test_append.py test_the_same_batch_twice_is_one_block_whatever_the_order_of_its_rows
the same batch id with other rows
    spark/test_append.py test_the_same_batch_id_with_other_rows_is_refused
a writer is killed before
    e2e/test_crash.py test_a_writer_killed_at_any_step_of_ingest_loses_and_doubles_nothing
a writer is killed after
    spark/test_recover.py test_a_writer_that_was_away_after_staging_finds_its_batch_published_by_recovery
a process is paused
    e2e/test_crash.py test_a_writer_stopped_before_its_staged_commit_and_declared_dead_is_fenced
the answer to a commit is lost
    spark/test_unknown.py test_whichever_way_an_unknown_commit_went_the_rows_are_there_once
two writers at once
    spark/test_append.py test_several_writers_at_once_lose_and_double_nothing
rows do not fit
    e2e/test_cli.py test_strict_batch_ids_again_and_alter_do_what_they_say
the disk is full
    e2e/test_disk_full.py test_a_full_disk_fails_the_batch_and_leaves_nothing_half_visible
the ledger is restored
    spark/test_resync.py test_a_restored_ledger_forgets_no_row_and_uses_no_number_again
the ledger is lost or damaged
    e2e/test_cli.py test_a_killed_ingest_is_settled_and_a_lost_ledger_made_again
the witness is lost
    spark/test_resync.py test_a_lost_witness_refuses_stamping_and_is_made_again_from_a_whole_ledger
ledger and witness are both lost
    spark/test_resync.py test_a_lost_witness_and_a_lost_ledger_together_are_refused
a table is rolled back
    spark/test_rollback.py test_a_rollback_is_noticed_whoever_commits_and_expires_after_it
a deliverer is killed
    e2e/test_deliver_crash.py test_a_deliverer_that_is_killed_is_gone_on_from
two processes deliver
    e2e/test_deliver_crash.py test_two_deliverers_of_the_same_sinks_at_once_deliver_each_row_once
the answer of a sink is lost
    spark/test_deliver.py test_an_outcome_that_is_not_known_is_asked_for_and_not_sent_again
a sink is unreachable
    sinks/test_postgres.py test_a_server_that_is_away_is_tried_later
a sink refuses rows
    spark/test_rejected_rows.py test_the_bad_rows_stand_alone_in_quarantine_and_the_rest_flows
a receiver commits
    e2e/test_forward_endurance.py test_rows_that_arrive_before_the_retry_do_not_change_it_though_both_ends_are_killed
a receiver's ledger
    spark/test_intake.py test_a_ledger_that_was_restored_takes_back_what_was_received_since_the_copy
a receiver is killed
    e2e/test_receive_crash.py test_a_receiver_that_is_killed_at_any_step_of_taking_a_body_in_keeps_it_once
a sink's destination
    spark/test_deliver.py test_a_sink_that_was_restored_from_a_backup_is_noticed_and_stops
the owner of an
    spark/test_iceberg_sink.py test_what_is_delivered_outlives_the_owners_compaction_and_expiry
the table of an
    sinks/test_iceberg.py test_a_table_that_was_emptied_is_a_loss_unless_that_is_usual
others commit to the table
    sinks/test_iceberg.py test_a_commit_whose_answer_is_lost_or_that_arrives_twice_lands_once
compaction, retention
    e2e/test_maintain_crash.py test_maintenance_that_is_killed_is_done_by_the_next_run
another program compacts
    spark/test_compact.py test_what_anyone_compacts_is_taken_as_it_is
rows are due
    spark/test_retain.py test_what_the_slowest_sink_has_goes_the_rest_is_held_and_a_new_sink_starts_above_it
the clock jumps
    spark/test_retain.py test_after_a_jump_of_the_clock_a_run_is_skipped_and_says_so
files that no table
    reconcile/test_sweep.py test_orphans_are_set_aside_and_can_be_brought_back
the ledger is unreachable
    serve/test_ledger_away.py test_the_loops_of_a_daemon_outlive_a_ledger_that_is_away_for_longer_than_its_leases
the leader's site
    spark/test_promote.py test_a_promotion_that_dies_at_any_step_goes_on
two sites are promoted
    spark/test_promote.py test_of_two_promotions_at_once_one_wins_and_the_other_says_who_leads
an old leader
    spark/test_cut.py test_an_old_leader_rejoins_and_has_what_the_new_one_has
a follower is killed
    e2e/test_follow_killed.py test_a_follower_killed_at_any_step_goes_on_and_has_every_row_once
the reconciler is killed
    reconcile/test_crash.py test_a_run_killed_while_it_sets_files_aside_loses_none_and_can_be_undone
"""


def test_every_failure_that_is_promised_to_be_survived_has_a_test() -> None:
    """`FAILURES` has how each row of the table begins, and below it the test that shows what the row says."""
    table = (ROOT / "docs/failures.md").read_text("utf-8").partition("|---|---|\n")[2]
    rows = re.findall(r"^\| (.*?) \|", table, re.MULTILINE)
    shown = re.findall(r"^(\S.*)\n    (\S+) (\S+)$", FAILURES, re.MULTILINE)
    assert [row for row, (begin, _, _) in zip(rows, shown, strict=True) if not row.startswith(begin)] == []
    for _, file, function in shown:
        assert f"def {function}(" in (ROOT / "tests" / file).read_text("utf-8")
