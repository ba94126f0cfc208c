"""`strandline apply` and `export` against real lakes: SQLite, Iceberg tables, folders as sinks. No JVM."""

from __future__ import annotations

import io
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import strandline.maintain.facade as maintain_facade
import strandline.reconcile.facade as reconcile_facade
from strandline.apply.declaration import Declaration, SinkSpec
from strandline.apply.read_toml import parse_declaration
from strandline.apply.steps import Permission, Wish
from strandline.apply.write_toml import write_declaration
from strandline.cli.command import Call
from strandline.cli.commands import apply as command
from strandline.cli.main import run
from strandline.core import failpoints
from strandline.core.errors import RefusedError
from strandline.core.settings.reconcile import ReconcileSettings
from strandline.core.types import SnapshotId
from strandline.iceberg.schema.columns import Column, Primitive
from strandline.jobs.loop import LoopControl
from strandline.lake import Lake, open_lake
from strandline.lake_admin import init_lake
from strandline.ledger import audit
from strandline.ledger.ingest import blocks
from strandline.status.reconciliation import load_reconciliation
from tests.apply.declarations import DatasetSpec, crons, fields, primitives, rules
from tests.command_line import document, error, init_lake_here

DECLARED = """
[dataset.events]
deliver_by = ["who"]
shards = 2
partition_by = "bucket(4, who)"
columns = [
    { name = "id", type = "long", required = true },
    { name = "who", type = "string", doc = "the user" },
]

[sink.archive]
dataset = "events"
kind = "files"
options = { path = "archive", format = "jsonl" }

[sink.new]
dataset = "events"
kind = "files"
from = "now"
options = { path = "new" }

[retain.events]
older_than = "30d"

[schedule]
retain = "30 3 * * *"
reconcile = "17 4 * * *"
"""
ALL = [word for p in Permission for word in ("--allow", p.value)]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    init_lake_here(tmp_path, monkeypatch)
    (tmp_path / "lake.toml").write_text(DECLARED)
    yield tmp_path
    failpoints.arm("")


def declare(old: str, new: str) -> None:
    text = Path("lake.toml").read_text()
    assert old in text
    Path("lake.toml").write_text(text.replace(old, new))


def exported(capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert run(["export"]) == 0
    return capsys.readouterr().out


def test_a_lake_is_made_as_declared_and_the_second_time_nothing_is_done(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = document(capsys, "apply", "--yes")
    assert [(c["action"], c["what"], c["name"]) for c in made["changes"]] == [
        ("create", "dataset", "events"),
        ("create", "sink", "archive"),
        ("create", "sink", "new"),
        ("create", "retain", "events"),
        ("create", "schedule", "reconcile"),
        ("create", "schedule", "retain"),
    ]
    assert made["done"] == 6 and made["refused"] == made["not_declared"] == []
    with open_lake() as lake:
        events = [e.event for e in lake.audit_events(events_max=100)]
        status = lake.status()
        assert lake.reconciler.settings.enabled and lake.reconciler.settings.schedule == "17 4 * * *"
        assert lake.reconciler.settings.dry_run
        reconciler = load_reconciliation(lake.config, lake.ledger, lake.reconciler)
        assert reconciler.enabled and reconciler.report_only and reconciler.next_run is not None
    assert status.maintenance is not None and status.maintenance.schedules["retain"] == "30 3 * * *"
    assert events.count("apply.setting_changed") == 3
    again = document(capsys, "apply")
    assert (again["changes"], again["done"], again["unchanged"]) == ([], 0, 6)
    with open_lake() as lake:
        assert [e.event for e in lake.audit_events(events_max=100)] == events, "nothing is even recorded"


def test_an_export_is_stable_and_applying_it_changes_nothing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["apply", "--yes"]) == 0
    text = exported(capsys)
    assert text == exported(capsys) and text.startswith("# What the lake has.")
    found, declared = parse_declaration(text), parse_declaration(DECLARED)
    assert found == declared
    Path("lake.toml").write_text(text)
    assert document(capsys, "apply", "--dry-run", "--prune")["changes"] == []
    assert document(capsys, "export") == {"declaration": text}


def test_a_dry_run_shows_the_difference_changes_nothing_and_its_exit_code_says_whether_there_is_one(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = exported(capsys)
    found = document(capsys, "apply", "--dry-run", code=command.WOULD_CHANGE)
    assert len(found["changes"]) == 6 and found["done"] is None
    assert exported(capsys) == before
    assert run(["apply", "--dry-run"]) == command.WOULD_CHANGE
    said = capsys.readouterr().out
    assert "+ dataset events\n    id: long required\n    who: string\n    partition_by bucket(4, who)" in said
    assert "+ sink new\n    files, dataset events, new rows only\n    path = new\n" in said
    assert run(["apply", "--yes"]) == 0 and run(["apply", "--dry-run"]) == 0
    assert "Nothing to change: 6 things are as declared" in capsys.readouterr().out


def test_without_a_person_only_yes_is_an_answer(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nothing was changed" in error(capsys, "apply", code=3)["message"]
    assert "dataset" not in exported(capsys)


def test_a_person_is_asked_and_only_yes_changes_anything(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Call, "can_ask", True)
    for answer, code in (("n", 3), ("", 3), ("y", 0)):
        before = exported(capsys)
        monkeypatch.setattr("sys.stdin", io.StringIO(f"{answer}\n"))
        assert run(["apply"]) == code
        said = capsys.readouterr()
        assert "+ dataset events" in said.out and "Make 6 changes?" in said.err, "the difference comes before"
        assert ("nothing was changed" in said.err) == (code == 3)
        assert (exported(capsys) == before) == (code == 3)


def test_only_what_differs_is_changed_and_what_is_not_declared_is_left_alone(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["apply", "--yes"]) == 0
    declare('format = "jsonl"', 'format = "jsonl", chunk_rows_max = 7')
    declare('doc = "the user" },', 'doc = "the user" },\n    { name = "n", type = "int" },')
    declare('retain = "30 3 * * *"\n', "")
    found = document(capsys, "apply", "--yes")
    assert [(c["what"], c["name"], c["details"]) for c in found["changes"]] == [
        ("dataset", "events", ["add column n: int"]),
        ("sink", "archive", ["chunk_rows_max: not set → 7"]),
    ]
    assert found["not_declared"] == ["schedule retain"] and found["unchanged"] == 3
    pruned = document(capsys, "apply", "--prune", "--yes")
    assert [(c["action"], c["name"]) for c in pruned["changes"]] == [("remove", "retain")]
    with open_lake() as lake:
        assert lake.status().maintenance.schedules["retain"] is None  # type: ignore[union-attr]


def test_what_loses_rows_is_refused_until_it_is_allowed_and_then_nothing_else_is_done_either(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["apply", "--yes"]) == 0
    with open_lake() as lake:
        rows_in(lake)
    declare('    { name = "id", type = "long", required = true },\n', '    { name = "more", type = "int" },\n')
    declare("30d", "3d")
    declare('format = "jsonl"', 'format = "parquet"')
    before = exported(capsys)
    found = document(capsys, "apply", "--yes", code=3)
    assert sorted(r["hint"] for r in found["refused"]) == [
        f"If that is meant: --allow {p}." for p in ("change-delivery", "delete-rows", "drop-column")
    ]
    assert found["done"] == 0 and found["error"]["type"] == "RefusedError" and exported(capsys) == before
    assert run(["apply", "--yes"]) == 3
    assert "3 differences are refused, so nothing was changed" in capsys.readouterr().err
    assert run(["apply", "--yes", *ALL]) == 0
    assert document(capsys, "apply", "--dry-run", "--prune")["changes"] == []


def rows_in(lake: Lake) -> None:
    """A dataset that has had a block."""
    dataset = lake.dataset("events")
    wanted = blocks.NewBlock(dataset.id, 3, "batch", None)
    reserved, _ = blocks.reserve(lake.ledger, lake.witness, wanted, lease_seconds=60)
    assert blocks.mark_staged(lake.ledger, lake.witness, reserved, SnapshotId(1))  # type: ignore[arg-type]
    staged = blocks.find_block(lake.ledger, reserved.head)
    assert blocks.mark_published(lake.ledger, staged, row_count=3, snapshot=SnapshotId(1))  # type: ignore[arg-type]


def test_prune_removes_what_is_not_declared_and_a_dropped_dataset_takes_its_rule_along(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["apply", "--yes"]) == 0
    Path("lake.toml").write_text("")
    assert run(["apply", "--yes"]) == 0, "left alone"
    found = document(capsys, "apply", "--prune", "--yes", code=3)
    assert {r["hint"].split()[-1] for r in found["refused"]} == {"drop-dataset.", "remove-sink."}
    assert run(["apply", "--prune", "--yes", *ALL]) == 0
    assert exported(capsys).count("\n") == 1, "nothing but the comment"
    Path("lake.toml").write_text(DECLARED.partition("[sink.archive]")[0])
    assert run(["apply", "--yes"]) == 0
    assert "[retain" not in exported(capsys), "the rule of the old dataset does not delete rows of the new one"


@pytest.mark.parametrize("nth", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("point", ["apply.after_step"])
def test_after_a_kill_between_two_steps_the_same_command_does_the_rest(
    home: Path, point: str, nth: int, capsys: pytest.CaptureFixture[str]
) -> None:
    child = os.fork()
    if child == 0:
        failpoints.arm(f"{point}=kill@{nth}")
        run(["apply", "--yes"])
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -9
    found = document(capsys, "apply", "--yes")
    assert found["done"] == 6 - nth
    assert parse_declaration(exported(capsys)) == parse_declaration(DECLARED)


def test_a_step_that_fails_says_how_far_it_came_and_the_rest_can_be_done_later(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "new").write_text("not a folder")
    found = document(capsys, "apply", "--yes", code=1)
    assert found["done"] == 2 and "new" in found["error"]["message"]
    assert run(["apply", "--yes"]) == 1
    assert "note: 0 of 4 changes are made; run the command again for the rest" in capsys.readouterr().err
    (home / "new").unlink()
    assert run(["apply", "--yes"]) == 0
    assert parse_declaration(exported(capsys)) == parse_declaration(DECLARED)


def test_a_plan_that_is_no_longer_true_is_not_carried_out(home: Path) -> None:
    declared = parse_declaration(DECLARED)
    with open_lake() as lake:
        plan = lake.declarations.plan(declared, Wish())
        lake.create_dataset("other", [Column("id", Primitive("long"))])
        with pytest.raises(RefusedError, match="changed after the plan was shown"):
            lake.declarations.apply(declared, Wish(), plan)
        assert [d.name for d in lake.datasets()] == ["default.other"]


def test_what_the_settings_file_names_is_refused_and_counts_where_both_have_it(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["apply", "--yes"]) == 0
    config = Path("strandline.toml")
    plain = config.read_text()
    config.write_text(
        plain + '[maintain]\nretain_schedule = "1 1 * * *"\n[maintain.retain.events]\nolder_than = "9d"\n'
    )
    monkeypatch.setenv("STRANDLINE_RECONCILE__ENABLED", "false")
    found = document(capsys, "apply", code=3)
    settings_named = ["maintain.retain.default.events", "reconcile.enabled", "maintain.retain_schedule"]
    assert sorted(r["reason"].split()[0] for r in found["refused"]) == sorted(settings_named)
    with open_lake() as lake:
        status = lake.status().maintenance
        assert status is not None and status.schedules["retain"] == "1 1 * * *"
        assert status.overridden == ("retain.default.events", "schedule.reconcile", "schedule.retain")
        assert not lake.reconciler.settings.enabled
    text = exported(capsys)
    assert "[retain" not in text and "[schedule" not in text
    assert "# maintain.retain_schedule is in the settings, so not here.\n" in text
    Path("lake.toml").write_text(text)
    assert document(capsys, "apply")["changes"] == []
    assert run(["status"]) == 0
    assert "the applied schedule.retain is ignored" in capsys.readouterr().out
    config.write_text(plain)
    monkeypatch.delenv("STRANDLINE_RECONCILE__ENABLED")
    with open_lake() as lake:
        assert lake.status().maintenance.schedules["retain"] == "30 3 * * *"  # type: ignore[union-attr]


def test_a_secret_is_never_shown_stored_or_written(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = '[sink.b]\ndataset = "events"\nkind = "s3"\n[sink.b.options]\nurl = "s3://b/p"\nsecret_key = "{}"\n'
    Path("more.toml").write_text(bucket.format("hunter22hunter22"))
    capsys.readouterr()
    assert run(["apply", "lake.toml", "more.toml", "--yes"]) == 2
    said = capsys.readouterr()
    assert "secret_key is a secret" in said.err and "hunter22" not in said.out + said.err
    Path("more.toml").write_text(bucket.format("env:BUCKET_KEY"))
    found = document(capsys, "apply", "lake.toml", "more.toml", "--dry-run", code=command.WOULD_CHANGE)
    (change,) = [c for c in found["changes"] if c["name"] == "b"]
    assert "secret_key = env:BUCKET_KEY" in change["details"]
    monkeypatch.setenv("PLACE", "secret-place-of-ours")
    Path("lake.toml").write_text(DECLARED.replace('path = "archive"', 'path = "env:PLACE"'))
    assert run(["apply", "--yes"]) == 0
    said = capsys.readouterr()
    assert 'path = "env:PLACE"' in exported(capsys) and "secret-place" not in said.out + said.err
    monkeypatch.delenv("PLACE")
    declare('format = "jsonl"', 'format = "jsonl", chunk_rows_max = 5')
    assert document(capsys, "apply", "--dry-run", code=command.WOULD_CHANGE)["refused"] == []


def test_several_files_are_one_declaration_and_a_missing_one_says_what_to_do(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, bar, rest = DECLARED.partition("[retain.events]")
    Path("a.toml").write_text(first)
    Path("b.toml").write_text(bar + rest)
    assert document(capsys, "apply", "a.toml", "b.toml", "--yes")["done"] == 6
    assert "is declared in another file, too" in error(capsys, "apply", "a.toml", "a.toml", code=2)["message"]
    Path("lake.toml").unlink()
    assert "strandline export > lake.toml" in error(capsys, "apply", code=2)["hint"]


def test_the_example_can_be_applied(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = Path(__file__).parents[2] / "examples/declared_lake/lake.toml"
    assert document(capsys, "apply", str(example), "--yes")["done"] == 9
    assert document(capsys, "apply", str(example), "--dry-run")["unchanged"] == 9


def test_nested_columns_are_added_and_widened_in_the_table_itself(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds = ("struct<a:int>", "list<struct<a:int>>", "map<string,struct<a:int>>", "list<int>", "map<string,float>")
    more = ("struct<a:long,b:string>", "list<struct<a:long,b:string>>", "map<string,struct<a:long,b:string>>",
            "list<long>", "map<string,double>")  # fmt: skip

    def text(types: tuple[str, ...]) -> str:
        columns = "\n".join(f'{{ name = "c{i}", type = "{kind}" }},' for i, kind in enumerate(types))
        return f"[dataset.nested]\ncolumns = [\n{columns}\n]\n"

    for types in (kinds, more):
        Path("lake.toml").write_text(text(types))
        assert run(["apply", "--yes"]) == 0
        assert document(capsys, "apply", "--dry-run")["changes"] == []
    Path("lake.toml").write_text(text(tuple(k.replace("a:long,", "") for k in more)))
    assert run(["apply", "--yes", "--allow", "drop-column"]) == 0
    assert document(capsys, "apply", "--dry-run")["changes"] == []


def test_a_daemon_notices_schedules_that_are_applied_while_it_runs(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (maintain_facade, reconcile_facade):
        monkeypatch.setattr(module, "_POLL_SECONDS", 0.01)
    told: list[Any] = []
    stopping, maintain_heard, reconcile_heard = threading.Event(), threading.Event(), threading.Event()

    def hear(crons: Any, _: Any) -> None:
        told.append(dict(crons))
        maintain_heard.set()

    def hear_reconcile(found: ReconcileSettings) -> None:
        told.append(found.schedule)
        reconcile_heard.set()

    with open_lake() as lake:
        by_control = (LoopControl(stopping), SimpleNamespace(scheduled=hear, sweep_scheduled=hear_reconcile))
        maintain = threading.Thread(target=lake.maintenance.run, args=by_control)
        sweep = threading.Thread(target=lake.reconciler.run_on_schedule, args=by_control)
        maintain.start()
        sweep.start()
        assert run(["apply", "--yes"]) == 0
        assert maintain_heard.wait(60) and reconcile_heard.wait(60)
        stopping.set()
        maintain.join()
        sweep.join()
    assert {"retain": "30 3 * * *"} in told and "17 4 * * *" in told


plain_types = st.sampled_from(["int", "long", "string", "date"]).map(Primitive)


@st.composite
def lakes(draw: st.DrawFn) -> Declaration:
    """What a lake without a JVM can be made of."""
    found: dict[str, DatasetSpec] = {}
    for name in draw(st.lists(st.sampled_from(["default.a", "shop.b-c", "x.y.z"]), unique=True, max_size=3)):
        key = Column("key", draw(plain_types), draw(st.booleans()))
        columns = (*(c for c in draw(fields(primitives)) if c.name.lower() != "key"), key)
        parts = draw(st.sampled_from([(), ("key",), ("bucket(4, key)",)]))
        found[name] = DatasetSpec(name, columns, parts, draw(st.sampled_from([(), ("key",)])))
    fed = {}
    if found:
        for name in draw(st.lists(st.sampled_from(["one", "a.b", "2-x"]), unique=True, max_size=3)):
            options = {"path": f"out/{name} é"} | draw(st.sampled_from([{}, {"columns": "key"}, {"format": "csv"}]))
            fed[name] = SinkSpec(name, draw(st.sampled_from(sorted(found))), "files", options, draw(st.booleans()))
    ruled = {n: draw(rules) for n in sorted(found) if draw(st.booleans())}
    return Declaration(found, fed, ruled, draw(st.dictionaries(st.sampled_from(["compact", "expire"]), crons)))


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(lakes(), lakes())
def test_random_lakes_are_exported_and_applied_without_a_difference(
    tmp_path_factory: pytest.TempPathFactory, first: Declaration, then: Declaration
) -> None:
    with init_lake(tmp_path_factory.mktemp("lake")) as lake:
        for declared in (first, then):
            wish = Wish(prune=True, allowed=frozenset(Permission))
            plan = lake.declarations.plan(declared, wish)
            if plan.refused:
                continue
            lake.declarations.apply(declared, wish, plan)
            text = lake.declarations.export()
            found = parse_declaration(text)
            assert lake.declarations.plan(found, wish).steps == () and lake.declarations.export() == text
            assert write_declaration(found, text.splitlines()[0].removeprefix("# ").splitlines()) == text
            assert lake.declarations.plan(declared, wish).steps == ()
            assert {n: replace(s, from_now=False) for n, s in found.sinks.items()} == {
                n: replace(s, from_now=False) for n, s in declared.sinks.items()
            }
        with lake.ledger.read() as connection:
            events = audit.latest(connection, events_max=1000)
        assert all(json.dumps(e.detail) for e in events)
