"""The command line without Spark: exit codes, documents, errors, and what light commands must not load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from strandline.cli.main import MODULES, application, listing, run
from strandline.core.errors import ConfigError
from strandline.core.settings.lake_config import load_config
from strandline.core.types import History, Reserved, SnapshotId, Staged
from strandline.ingest.sources.identify import file_batch_id
from strandline.lake import Lake, open_lake
from strandline.ledger import engine
from strandline.ledger.engine import utc_now
from strandline.ledger.ingest import blocks, datasets
from tests.command_line import create_dataset_here, document, error, init_lake_here, plain_error

HEAVY = ("pyspark", "pyiceberg", "pyarrow", "alembic", "pandas", "py4j", "pydantic_settings")
ROW = '{"id": 1, "at": "2026-01-01T00:00:00Z", "who": "ada"}'


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lake with the dataset `events`, in the working folder."""
    init_lake_here(tmp_path, monkeypatch)
    create_dataset_here("events", "--deliver-by", "who", row=ROW)
    return tmp_path


# Documents.


def test_every_light_command_prints_one_json_document_and_nothing_else(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert document(capsys, "dataset", "list")["datasets"][0]["name"] == "default.events"
    status = document(capsys, "status")
    assert {"datasets", "sinks", "followers", "reconcile"} <= set(status)
    assert status["datasets"][0]["sealed"] is None
    assert [e["event"] for e in document(capsys, "audit")["events"]] == ["dataset.created"]
    assert document(capsys, "ledger", "backup", "copy.db")["backup"] == "copy.db"
    changed = document(capsys, "dataset", "alter", "events", "--add", "n:int", "--rename", "at:moment")
    assert changed["changes"] == ["rename at to moment", "add n: int"] and changed["dry_run"] is False
    assert [c["name"] for c in changed["columns"]] == ["id", "moment", "who", "n"]
    assert changed == document(capsys, "dataset", "show", "events") | {"changes": changed["changes"], "dry_run": False}
    assert document(capsys, "audit")["events"][0]["event"] == "dataset.altered"
    gone = document(capsys, "dataset", "drop", "events", "--yes")
    assert gone == {"dropped": "default.events", "dry_run": False, "allocated": None}
    assert document(capsys, "dataset", "list") == {"datasets": []}


def test_init_says_which_lake_it_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = document(capsys, "init", str(tmp_path / "new"))
    assert made["config"] == str(tmp_path / "new" / "strandline.toml")
    assert document(capsys, "status", "--config", str(tmp_path / "new"))["lake"] == made["lake"]


def test_create_like_a_file_shows_what_it_inferred(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = document(capsys, "dataset", "create", "more", "--like", "sample.jsonl")
    assert [(c["name"], c["type"]) for c in made["columns"]] == [
        ("id", "long"),
        ("at", "timestamptz"),
        ("who", "string"),
    ]
    assert made["inferred_from"] == "sample.jsonl"
    capsys.readouterr()
    assert run(["dataset", "create", "third", "--like", "sample.jsonl"]) == 0
    assert "timestamptz" in capsys.readouterr().out


def test_a_dataset_has_an_id_and_shards_that_no_other_one_has(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wide = document(capsys, "dataset", "create", "wide", "--like", "sample.jsonl", "--shards", "4")
    last = document(capsys, "dataset", "create", "last", "--like", "sample.jsonl")
    shown = {d["name"]: d for d in document(capsys, "dataset", "list")["datasets"]}
    assert (wide["shards"], last["shards"]) == (4, 1) and last["first_shard"] == wide["first_shard"] + 4
    assert len({d["uuid"] for d in shown.values()}) == len(shown)
    with open_lake(home) as lake:
        recorded = lake.catalog.load("wide").properties
    assert recorded["strandline.dataset-id"] == wide["uuid"] == shown["default.wide"]["uuid"]
    assert (recorded["strandline.first-shard"], recorded["strandline.shards"]) == (str(wide["first_shard"]), "4")
    capsys.readouterr()
    assert run(["dataset", "show", "wide"]) == 0
    assert f"{wide['first_shard']} to {wide['first_shard'] + 3}" in capsys.readouterr().out
    for many in ("0", "1025", "two"):
        assert run(["dataset", "create", "third", "--like", "sample.jsonl", "--shards", many]) == 2


def test_create_from_a_schema_file_partitions_and_delivers_as_told(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "s.yaml").write_text("- {name: id, type: long, required: true}\n- {name: at, type: timestamptz}\n")
    made = document(
        capsys, "dataset", "create", "web.hits", "--schema", "s.yaml", "--partition-by", "day(at)", "--deliver-by", "id"
    )
    assert (made["name"], made["deliver_by"]) == ("web.hits", ["id"])
    with open_lake(home) as lake:
        table = lake.catalog.load("web.hits")
    assert [str(f.transform) for f in table.spec().fields] == ["day"]


def test_show_tells_columns_partitioning_and_origin_in_the_words_that_make_the_same_dataset_again(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "s.yaml").write_text(
        "- {name: id, type: long, required: true, doc: of the order}\n"
        "- {name: at, type: timestamptz}\n"
        "- {name: tags, type: 'list<string>'}\n"
    )
    parts = "day(at), bucket(16, id), id"
    made = document(
        capsys, "dataset", "create", "hits", "--schema", "s.yaml", "--partition-by", parts, "--deliver-by", "id"
    )
    shown = document(capsys, "dataset", "show", "hits")
    assert shown["columns"] == [
        {"name": "id", "type": "long", "required": True, "doc": "of the order"},
        {"name": "at", "type": "timestamptz", "required": False},
        {"name": "tags", "type": "list<string>", "required": False},
    ]
    assert shown["partition_by"] == ["day(at)", "bucket(16, id)", "id"]
    assert {key: shown[key] for key in made if key in shown} == {k: v for k, v in made.items() if k in shown}
    assert (shown["adopted"], shown["problem"], shown["deliver_by"]) == (False, None, ["id"])
    (home / "again.json").write_text(json.dumps(shown["columns"]))
    again = ["dataset", "create", "again", "--schema", "again.json", "--partition-by", ", ".join(shown["partition_by"])]
    document(capsys, *again)
    capsys.readouterr()
    assert run(["dataset", "show", "again"]) == 0
    said = capsys.readouterr().out
    assert "of the order" in said and "bucket(16, id)" in said and "_ingest_seq" not in said


def test_show_says_where_the_catalog_has_another_table_under_the_name(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_lake(home) as lake:
        _replace_table(lake)
    shown = document(capsys, "dataset", "show", "events")
    assert "strandline dataset adopt default.events" in shown["problem"]
    assert run(["dataset", "show", "events"]) == 0
    assert "another table" in capsys.readouterr().out


def _replace_table(lake: Lake) -> None:
    from strandline.iceberg.schema.schema_file import parse_columns

    lake.catalog.drop("events")
    columns = parse_columns([{"name": "id", "type": "long"}])
    lake.catalog.create_dataset_table("events", columns, lake_id=lake.id, epoch=1)


@pytest.mark.parametrize("given", [["--deliver-by", "id"], ["--history", "skip"]])
def test_adopting_again_with_other_terms_is_refused_and_not_ignored(
    home: Path, capsys: pytest.CaptureFixture[str], given: list[str]
) -> None:
    with open_lake(home) as lake, lake.ledger.write() as connection:
        datasets.mark_adopted(connection, datasets.get(connection, "default.events"), History.DELIVER)
    before = document(capsys, "dataset", "show", "events")
    assert given[0] in error(capsys, "dataset", "adopt", "events", *given, code=2)["hint"]
    assert document(capsys, "dataset", "show", "events") == before


def test_migrate_says_which_version_the_ledger_had_and_where_the_copy_is(
    home: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    before = engine.REVISIONS[-1]
    assert document(capsys, "migrate") == {"migrated": False, "from": before, "to": before, "copy": None}
    assert run(["migrate"]) == 0
    assert before in capsys.readouterr().out
    old = (home / "ledger.db").read_bytes()
    newest = request.getfixturevalue("next_release")
    done = document(capsys, "migrate", "--config", str(home))
    copy = home / f"ledger.db.v{before}.bak"
    assert done == {"migrated": True, "from": before, "to": newest, "copy": str(copy)}
    assert copy.is_file()
    copy.unlink()
    (home / "ledger.db").write_bytes(old)
    assert run(["migrate"]) == 0
    assert str(copy) in capsys.readouterr().out
    (home / "ledger.db").unlink()
    assert error(capsys, "migrate", code=3)["type"] == "LedgerMissing"


def _commands(path: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    children = getattr(command, "commands", None)
    if children is None:
        yield path, command
        return
    for name, child in children.items():
        yield from _commands((*path, name), child)


def test_every_command_takes_config_and_json() -> None:
    for path, found in _commands((), typer.main.get_command(application())):
        taken = {option for parameter in found.params for option in parameter.opts}
        assert {"--config", "--json"} <= taken, " ".join(path)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("[ingest]\nreject_max = 5", "there is no setting ingest.reject_max; perhaps ingest.rejects_max"),
        ("[ingset]\nrejects_max = 5", "there is no setting ingset; perhaps ingest"),
        ("[deliver]\nrejects_max = 5", "there is no setting deliver.rejects_max; perhaps "),
        ("[maintain.compact]\nfile_byte = 5", "there is no setting maintain.compact.file_byte; perhaps "),
    ],
)
def test_a_setting_that_does_not_exist_is_refused_with_those_that_look_like_it(
    tmp_path: Path, written: str, said: str
) -> None:
    path = tmp_path / "strandline.toml"
    path.write_text(written)
    with pytest.raises(ConfigError) as e:
        load_config(path)
    assert said in e.value.message


@pytest.mark.parametrize(
    "written",
    [
        '[catalog]\nkind = "rest"\nuri = "http://user:canary-1@host/x"\n',
        '[catalog]\nkind = "rest"\nuri = "http://host/x?token=canary-1"\n',
        '[warehouse]\nurl = "s3://bucket/lake"\nendpoint = "http://canary-1@host"\n',
        '[replication]\naddress = "https://user:canary-1@host"\n',
        '[replication]\naddress = "https://host/?token=canary-1"\n',
        '[replication]\narbiter_endpoint = "https://user:canary-1@host"\n',
    ],
)
def test_an_address_that_holds_a_secret_is_refused_and_not_repeated(tmp_path: Path, written: str) -> None:
    path = tmp_path / "strandline.toml"
    path.write_text(written)
    with pytest.raises(ConfigError, match="a user, a password or a query") as refused:
        load_config(path)
    assert "canary-1" not in f"{refused.value.message} {refused.value.hint}"


@pytest.mark.parametrize("variable", ["STRANDLINE_INGSET__REJECTS_MAX", "STRANDLINE_INGEST__REJECT_MAX"])
def test_a_variable_that_is_no_setting_is_refused_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    (tmp_path / "strandline.toml").write_text("")
    monkeypatch.setenv(variable, "5")
    with pytest.raises(ConfigError, match=r"perhaps ingest\.rejects_max"):
        load_config(tmp_path / "strandline.toml")


def test_the_settings_file_is_found_by_option_environment_and_folder(
    home: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert run(["status"]) == 2
    assert run(["status", "--config", str(home)]) == 0
    assert run(["status", "--config", str(home / "strandline.toml")]) == 0
    monkeypatch.setenv("STRANDLINE_CONFIG", str(home / "strandline.toml"))
    assert run(["status"]) == 0


# Errors and exit codes.


def test_each_module_of_commands_adds_the_names_that_are_listed() -> None:
    names = [name for modules in MODULES.values() for listed in modules.values() for name in listed]
    assert sorted(names) == sorted(typer.main.get_command(application()).commands)
    for name in names:
        assert name in typer.main.get_command(application(only=name)).commands


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-command"],
        ["status", "--no-such-option"],
        ["read"],
        ["ingest", "events"],
        ["dataset", "create", "x"],
        ["dataset", "alter", "events"],
        ["dataset", "alter", "events", "--add", "no-type"],
        ["dataset", "alter", "events", "--add", "a:nonsense"],
        ["dataset", "list", "--config", "nowhere.toml"],
        ["dataset", "drop", "nope", "--yes"],
        ["dataset", "show", "nope"],
        ["ingest", "nope", "sample.jsonl"],
        ["ingest", "events", "sample.jsonl", "--batch-id", "b", "--again"],
        ["ingest", "events", "sample.jsonl", "--batch-id", " "],
        ["ingest", "events", "sample.jsonl", "--batch-id", "x" * 1025],
        ["token", "create", "x" * 513],
        ["read", "nope"],
        ["read", "events", "--partition", "who"],
        ["read", "events", "--partition", "id=1"],
        ["read", "events", "--limit", "0"],
        ["read", "events", "--until", "5"],
        ["status", "--watch"],
    ],
)
def test_wrong_usage_ends_with_2_and_a_message_in_both_forms(
    home: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert error(capsys, *arguments, code=2)["message"]
    plain_error(capsys, *arguments, code=2)


def test_tokens_are_refused_for_what_is_wrong_with_them_without_starting_spark(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from strandline.core.read_token import Continuation

    with open_lake(home) as lake:
        dataset, own = lake.dataset("events").uuid, lake.id
    good = Continuation(own, dataset, None).encode()
    wrong = {
        "nonsense": "not a continuation token",
        good[:-3]: "damaged",
        good.replace("sl1.", "sl9."): "version 9",
        Continuation("another", dataset, None).encode(): "another lake",
        Continuation(own, "another", None).encode(): "another dataset",
        Continuation(own, dataset, 7).encode(): "ahead of what is settled",  # type: ignore[arg-type]
    }
    for token, why in wrong.items():
        found = error(capsys, "read", "events", "--since", token, code=2)
        assert found["type"] == "TokenError"
        assert why in found["message"]
        assert found["hint"]


def test_what_a_guard_stops_ends_with_3(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--yes" in error(capsys, "dataset", "drop", "events", code=3)["hint"]
    assert "--yes" in plain_error(capsys, "dataset", "drop", "events", code=3)
    assert error(capsys, "ledger", "void", "1", "--reason", "x", code=3)["type"] == "RefusedError"
    assert error(capsys, "init", code=3)["type"] == "RefusedError"
    assert error(capsys, "dataset", "create", "events", "--like", "sample.jsonl", code=3)["type"] == "RefusedError"
    (home / "copy.db").write_text("something")
    assert "already" in error(capsys, "ledger", "backup", "copy.db", code=3)["message"]
    assert (home / "copy.db").read_text() == "something"
    (home / "ledger.db").unlink()
    assert error(capsys, "status", code=3)["type"] == "LedgerMissing"
    assert "ledger rebuild" in plain_error(capsys, "status", code=3)


def test_a_fault_of_the_program_is_one_line_and_the_traceback_is_kept(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fall_over(self: Lake) -> None:
        raise ZeroDivisionError("of all things\nsecond line")

    monkeypatch.setattr(Lake, "status", fall_over)
    monkeypatch.setenv("STRANDLINE_CACHE", str(home / "cache"))
    said = plain_error(capsys, "status", code=1)
    assert "ZeroDivisionError: of all things" in said
    [kept] = (home / "cache" / "logs").glob("crash-*.txt")
    assert str(kept) in said
    assert "fall_over" in kept.read_text()
    assert error(capsys, "status", code=1)["type"] == "UnexpectedError"
    monkeypatch.setenv("STRANDLINE_DEBUG", "1")
    capsys.readouterr()
    assert run(["status"]) == 1
    assert "fall_over" in capsys.readouterr().err


def test_an_interrupt_ends_with_130(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Lake) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Lake, "status", interrupted)
    assert run(["status"]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_windows_gets_a_clear_message(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    assert run(["status"]) == 1
    said = capsys.readouterr().err
    assert "not on Windows" in said
    assert "wsl" in said


def test_doctor_works_without_a_lake_and_fails_where_the_runtime_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STRANDLINE_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STRANDLINE_CACHE", str(tmp_path / "empty-cache"))
    found = document(capsys, "doctor", code=1)
    checks = {c["name"]: c for c in found["checks"]}
    assert not found["ok"]
    assert not checks["iceberg"]["ok"]
    assert checks["iceberg"]["hint"]
    assert checks["lake"]["ok"]
    assert checks["python"]["ok"]


def test_doctor_names_what_is_wrong_with_a_lake(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for witness in (home / "warehouse").rglob("*witness*"):
        if witness.is_file():
            witness.unlink()
    capsys.readouterr()
    assert run(["doctor", "--json"]) == 1
    checks = {c["name"]: c for c in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["ledger"]["ok"]
    assert not checks["witness"]["ok"]
    (home / "strandline.toml").write_text("[nonsense]\na = 1\n")
    assert run(["doctor", "--json"]) == 1
    checks = {c["name"]: c for c in json.loads(capsys.readouterr().out)["checks"]}
    assert not checks["settings"]["ok"]


# What light commands load, and how they end in a pipe.


def _probe(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A process of its own, whose last line on standard error is what it loaded of the heavy parts."""
    code = (
        "import sys\n"
        "from strandline.cli.main import run\n"
        f"code = run({list(arguments)!r})\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)\n"
        "sys.exit(code)\n"
    )
    return subprocess.run([sys.executable, "-c", code], cwd=home, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["ingest", "--help"], ["status"], ["dataset", "list"], ["audit"]]
)
def test_light_commands_load_no_engine(home: Path, arguments: list[str]) -> None:
    done = _probe(home, *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert done.stderr.splitlines()[-1] == "[]"


def test_help_and_version_load_neither_settings_nor_sql_nor_any_command() -> None:
    modules = [module for listed in MODULES.values() for module in listed]
    last = "apply"  # its options name what a plan has, and a plan has settings
    code = (
        "import importlib, sys\n"
        "from strandline.cli import start\n"
        "sys.argv = ['strandline', '--version']\n"
        "start.main()\n"
        "assert not {'typer', 'rich', 'strandline.cli.main'} & set(sys.modules)\n"
        "from strandline.cli.main import run\n"
        "assert run(['--help']) == 0\n"
        "assert not [m for m in sys.modules if m.startswith('strandline.cli.commands')]\n"
        f"for module in {[m for m in modules if m != last]!r}:\n"
        "    importlib.import_module(f'strandline.cli.commands.{module}')\n"
        "    names = {'pydantic', 'sqlalchemy', 'strandline.lake', 'strandline.core.settings.lake_config'}\n"
        "    loaded = names & set(sys.modules)\n"
        "    assert not loaded, (module, loaded)\n"
        f"import strandline.cli.commands.{last}\n"
        "assert 'sqlalchemy' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("columns", [60, 200])
def test_help_says_the_same_whether_commands_are_loaded_or_only_listed(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))

    def shown(app: typer.Typer) -> str:
        command = typer.main.get_command(app)
        with pytest.raises(typer.Exit), command.make_context("strandline", ["--help"]):
            pass
        return capsys.readouterr().out

    assert shown(listing()) == shown(application())


def test_a_command_is_found_behind_options_of_the_program(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run(["--", "dataset", "list"]) == 0
    assert "default.events" in capsys.readouterr().out


def test_help_shows_the_names_of_sections_in_brackets(capsys: pytest.CaptureFixture[str]) -> None:
    for command, section in (("compact", "[maintain.compact]"), ("retain", "[maintain.retain.<dataset>]")):
        assert run([command, "--help"]) == 0
        assert section in " ".join(capsys.readouterr().out.split())


def test_a_file_that_is_in_already_is_recognised_without_an_engine(home: Path) -> None:
    source = home / "day.jsonl"
    source.write_text(ROW + "\n")
    with open_lake(home) as lake:
        _pretend_published(lake, file_batch_id(source), rows=1)
    done = _probe(home, "ingest", "events", "day.jsonl", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "[]"
    [outcome] = json.loads(done.stdout)["files"]
    assert outcome["duplicate"]
    assert (outcome["lo"], outcome["hi"], outcome["rows"]) == (1, 1, 1)
    assert json.loads(done.stdout)["rows"] == 0


def test_empty_and_missing_files_need_no_engine_and_each_one_is_told(home: Path) -> None:
    (home / "empty.jsonl").write_text("")
    (home / "odd.xyz").write_text("?")
    done = _probe(home, "ingest", "events", "empty.jsonl", "missing.csv", "odd.xyz", ".", "--json")
    assert done.stderr.splitlines()[-1] == "[]", done.stderr
    assert done.returncode == 2
    empty, missing, odd, folder = json.loads(done.stdout)["files"]
    assert (empty["rows"], empty["error"]) == (0, None)
    assert "there is no file" in missing["error"]["message"]
    assert "the format is not clear" in odd["error"]["message"]
    assert "folder" in folder["error"]["message"] or "format" in folder["error"]["message"]


def _pretend_published(lake: Lake, batch_id: str, *, rows: int) -> None:
    wanted = blocks.NewBlock(lake.dataset("events").id, rows, batch_id, "digest")
    held, _ = blocks.reserve(lake.ledger, lake.witness, wanted, lease_seconds=60)
    assert isinstance(held, Reserved)
    assert blocks.mark_staged(lake.ledger, lake.witness, held, SnapshotId(1))
    staged = Staged(held.head, held.fence, SnapshotId(1), utc_now())
    assert blocks.mark_published(lake.ledger, staged, row_count=rows, snapshot=SnapshotId(1))


def test_a_reader_that_goes_away_is_not_an_error_message(home: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "strandline.cli.main", "status"],
        cwd=home, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60,
    )  # fmt: skip
    os.close(writing)
    assert (done.stderr, done.returncode) == ("", 141)


def test_a_misspelt_failpoint_is_said_and_not_ignored(home: Path) -> None:
    environ = {**os.environ, "STRANDLINE_FAILPOINT": "no.such.point=kill"}
    done = subprocess.run(
        [sys.executable, "-m", "strandline.cli.main", "status"],
        cwd=home, env=environ, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert "no.such.point" in done.stderr
