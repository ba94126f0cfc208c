"""The pages agree with the code and with each other, and speak of nothing but the project."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from pydantic import BaseModel

from strandline.cli.main import application
from strandline.core.settings.lake_config import Settings
from strandline.core.settings.maintain import RetainSettings
from tests.e2e import test_docs_run

ROOT = Path(__file__).resolve().parents[2]
ROOMS = sorted(p.parent for p in (ROOT / "src/strandline").glob("*/__init__.py"))
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md"), *ROOT.glob("src/**/*.md")]
)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
CODE = re.compile(r"^```[^\n]*\n.*?^```$", re.MULTILINE | re.DOTALL)


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("script", ["settings_reference.py", "cli_reference.py", "help_index.py", "sinks_reference.py"])
def test_what_is_made_from_the_code_is_not_stale(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [script, "--check"])
    monkeypatch.syspath_prepend(ROOT / "scripts")
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "scripts" / script), run_name="__main__")
    assert ended.value.code == 0, "run `make docs`"


def test_every_setting_is_in_the_reference_with_its_environment_variable() -> None:
    text = (ROOT / "docs/settings.md").read_text("utf-8")

    def check(name: str, section: type[BaseModel]) -> None:
        assert f"## `[{name}]`" in text
        for setting, field in section.model_fields.items():
            if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
                check(f"{name}.{setting}", field.annotation)
            else:
                variable = "STRANDLINE_" + f"{name}.{setting}".upper().replace(".", "__")
                assert f"`{setting}`<br>`{variable}`" in text

    for name, field in Settings.model_fields.items():
        assert isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
        check(name, field.annotation)
    check("maintain.retain.<name>", RetainSettings)


def test_the_map_leads_to_the_readme_of_every_room() -> None:
    links = {m["target"] for m in LINK.finditer((ROOT / "docs/architecture.md").read_text("utf-8"))}
    assert {f"../{name(room)}/README.md" for room in ROOMS} <= links


ADRS = sorted(ROOT.glob("docs/adr/0*.md"))


def test_the_index_of_decisions_has_each_of_them_once() -> None:
    text = (ROOT / "docs/adr/README.md").read_text("utf-8")
    rows = re.findall(r"^\| \[(\d+)\]\(([^)]+)\) \|", text, re.MULTILINE)
    assert sorted(rows, key=lambda row: row[1]) == [(str(int(adr.name[:4])), adr.name) for adr in ADRS]


@pytest.mark.parametrize("adr", ADRS, ids=name)
def test_a_decision_says_its_status_context_and_what_was_rejected(adr: Path) -> None:
    _, *sections = re.split(r"^## (.+)$", adr.read_text("utf-8"), flags=re.MULTILINE)
    heads, bodies = sections[::2], [body.strip() for body in sections[1::2]]
    assert heads[:3] == ["Status", "Context", "Decision"] and "Rejected" in heads and all(bodies)


MODULE = re.compile(rf"`((?:{'|'.join(room.name for room in ROOMS)})/[\w/]+)")


@pytest.mark.parametrize("page", [p for p in PAGES if p.name in ("architecture.md", "README.md")], ids=name)
def test_modules_that_a_page_names_are_there(page: Path) -> None:
    src = ROOT / "src/strandline"
    named = {m[1].rstrip("/") for m in MODULE.finditer(page.read_text("utf-8"))}
    assert [m for m in sorted(named) if not (src / m).exists() and not (src / f"{m}.py").exists()] == []


OF_LIBRARIES = {"SupportsTriggerAvailableNow", "DataSourceWriter", "DataSourceStreamWriter"}
"""Classes that pages name and the code does not: it needs none of them."""


def test_files_and_classes_that_a_page_names_are_there() -> None:
    sources = [*ROOT.glob("src/**/*.py"), *ROOT.glob("tests/**/*.py"), *ROOT.glob("scripts/*.py")]
    names = {word for path in sources for word in re.findall(r"\w+", path.read_text("utf-8"))} | OF_LIBRARIES
    wrong = []
    for page in PAGES:
        # A bare name in the README of a room is one of its own files.
        near = [path for path in sources if page.name != "README.md" or path.is_relative_to(page.parent)]
        for code in re.findall(r"`([^`\n]+)`", CODE.sub("", page.read_text("utf-8"))):
            files = [file for file in re.findall(r"[\w/]+\.py\b", code) if not (ROOT / file).exists()]
            for file in files:
                where = sources if "/" in file else near
                wrong += [] if any(path.as_posix().endswith(f"/{file}") for path in where) else [(name(page), file)]
            classes = re.findall(r"(?<![\w.])(?:[A-Z][a-z0-9]+){2,}\b", code)
            wrong += [(name(page), c) for c in classes if c not in names]
    assert not wrong


ROOM_PARTS = ("promises", "in.", "out.", "durable", "must not know")


@pytest.mark.parametrize("room", ROOMS, ids=name)
def test_a_room_says_what_it_promises_what_flows_and_what_it_must_not_know(room: Path) -> None:
    text = (room / "README.md").read_text("utf-8").lower()
    assert [part for part in ROOM_PARTS if part not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    broken = []
    for link in LINK.finditer(CODE.sub("", page.read_text("utf-8"))):
        target, _, anchor = link["target"].partition("#")
        if target.startswith(("http://", "https://")):
            continue
        there = (page.parent / target).resolve() if target else page
        missing = not there.exists() or not there.is_relative_to(ROOT)
        if missing or (anchor and anchor not in anchors(there)):
            broken.append(link["target"])
    assert not broken


def anchors(page: Path) -> set[str]:
    """As GitHub makes them: lower case, no punctuation, a hyphen for a space."""
    heads = re.findall(r"^#+ (.+)$", CODE.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_page_speaks_of_no_machine_and_of_no_package_host(page: Path) -> None:
    text = page.read_text("utf-8")
    paths = re.findall(r"(?<![\w.~…/])/(?:work|tmp|root|home|Users|private|mnt|opt|var)/[\w.]+", text)
    hosts = re.findall(r"https?://[^\s)\"'`>]*", text)
    allowed = ("https://keepachangelog.com", "https://semver.org", "https://collector.example.com", "http://localhost",
               "http://HOST:PORT")  # fmt: skip
    registries = re.findall(
        r"(?i)\b(?:pypi\.org|pythonhosted|repo\d*\.maven|maven\.org|sonatype|proxy\.golang|deb\.debian|artifactory|nexus)",
        text,
    )
    assert (paths, registries) == ([], [])
    assert [h for h in hosts if not h.startswith(allowed) and "apache.org/licenses" not in h] == []


def commands(text: str) -> Iterator[list[str]]:
    """Every `strandline …` of a page, typed in a fence or named in the text."""
    typed = r"(?:`|\$ (?:\w+=\S+ )?|bin/|^ *)strandline ((?:(?!`|\n|  |\||#|;|&|2>).)+)"
    for found in re.finditer(typed, text, re.MULTILINE):
        yield found[1].split()


@pytest.mark.parametrize("page", [*(p for p in PAGES if p.name != "cli.md"), ROOT / "docs/alerts.yml"], ids=name)
def test_every_command_and_option_that_a_page_names_is_there(page: Path) -> None:
    root = typer.main.get_command(application())
    for words in commands(page.read_text("utf-8")):
        command, spelled = root, "strandline"
        options = {o for p in command.params for o in p.opts}
        while words and words[0] in getattr(command, "commands", {}):
            command = getattr(command, "commands")[words[0]]  # noqa: B009
            spelled += f" {words.pop(0)}"
            options = {o for p in command.params for o in p.opts}
        unknown = [w for w in words if w.startswith("--") and w.partition("=")[0] not in {*options, "--help"}]
        assert not unknown, f"{spelled} has no {unknown}"
        named = [] if not hasattr(command, "commands") else [w for w in words[:1] if not w.startswith("--")]
        assert not named, f"{spelled} has no {named}"


FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_with_their_output_are_on_pages_that_are_run(page: Path) -> None:
    """`console` is run. `sh` is for reading: commands without output. A fence without a language is neither."""
    fences = FENCE.findall(page.read_text("utf-8"))
    assert name(page) in test_docs_run.PAGES or not any(kind.startswith("console") for kind, _ in fences)
    for kind, text in fences:
        typed = re.findall(r"^\$ .*" if kind == "sh" else r"^(?:\$ )?(?:strandline|make|curl) .*", text, re.MULTILINE)
        assert kind.startswith("console") or (kind == "sh" and not typed) or not typed, typed


def test_every_make_target_that_a_page_names_is_there() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    for page in PAGES:
        named = set(re.findall(r"(?:^ *|`)make ([a-z][a-z0-9-]*)\b", page.read_text("utf-8"), re.MULTILINE))
        assert named <= targets, f"{name(page)}: {named - targets}"
