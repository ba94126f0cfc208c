"""What the pages with commands (`PAGES`) show is run, in order, and must come out as shown.

The convention, so that a page stays readable:

- a fence ```` ```console ```` holds commands after `$ ` (`> ` continues one) with their output below. All commands of a
  page run in one bash, so folders and variables last. A command must succeed unless the next one is `echo $?`.
- a fence ```` ```python ```` is run; all of a page in one process. A ```` ```text ```` fence right after it is its
  output.
- a fence with `file=NAME` after its language is written to that file.
- in output, `…` stands for any text in a line, and alone on a line for any number of lines. All else must be there,
  nothing more; only the width of gaps and empty lines are free.
- a fence inside an HTML comment is run, and a reader does not see it: what the page takes for granted.
- addresses with the ports that servers listen on by default (`PORTS`) are those of free ports.

Every other fence (`sh`, `toml`, …) is for reading. `tests/unit/test_docs_blocks.py` says why a command is not run.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.campaign import TORTURE
from tests.conftest import QUICK_SPARK
from tests.fork_server import write_command, write_python
from tests.processes import environ_for_all_pythons
from tests.servers import free_port

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    "README.md",
    "docs/tutorial.md",
    "docs/apply.md",
    "docs/maintenance.md",
    "docs/operations.md",
    "docs/receive.md",
    "docs/reconcile.md",
    "docs/replication.md",
    "docs/serve.md",
    "docs/sinks.md",
    "docs/spark.md",
    "docs/takeover.md",
    "docs/why_not_streaming.md",
    "docs/scale.md",
)
PORTS = {"8420": "STRANDLINE_RECEIVE__PORT", "8421": "STRANDLINE_SERVE__PORT"}
ELSEWHERE = ("docs/scale.md",)
"""Run by a test that has what the page needs: tests/e2e/test_cluster.py."""
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
END = "--- end of output"


@dataclass(frozen=True)
class Written:
    name: str
    text: str


@dataclass(frozen=True)
class Command:
    line: int
    text: str
    shown: str
    may_fail: bool


@dataclass(frozen=True)
class Code:
    line: int
    text: str
    shown: str


Step = Written | Command | Code


def steps(page: str) -> list[Step]:
    found: list[Step] = []
    fences = list(FENCE.finditer(page))
    for i, fence in enumerate(fences):
        language, _, rest = fence["info"].partition(" ")
        line = page.count("\n", 0, fence.start("body")) + 1
        if rest.startswith("file="):
            found.append(Written(rest.removeprefix("file=").strip(), fence["body"]))
        elif language == "console":
            found += _commands(fence["body"], line)
        elif language == "python":
            after = fences[i + 1] if i + 1 < len(fences) else None
            is_output = after and after["info"] == "text" and not page[fence.end() : after.start()].strip()
            found.append(Code(line, fence["body"], after["body"] if after and is_output else ""))
    return found


def _commands(body: str, first_line: int) -> Iterator[Command]:
    typed: list[tuple[int, list[str], list[str]]] = []
    for line, text in enumerate(body.splitlines(), first_line):
        if text.startswith("$ "):
            typed.append((line, [text[2:]], []))
        elif (text == ">" or text.startswith("> ")) and not typed[-1][2]:
            typed[-1][1].append(text[2:])
        else:
            typed[-1][2].append(text)
    for i, (line, command, shown) in enumerate(typed):
        asks_next = i + 1 < len(typed) and typed[i + 1][1] == ["echo $?"]
        yield Command(line, "\n".join(command), "\n".join(shown), asks_next)


def matches(shown: str, actual: str) -> bool:
    pattern = ""
    for line in _lines(shown):
        if line == "…":
            pattern += r"(?:[^\n]*\n)*?"
        else:
            pattern += r"[^\n]*".join(re.escape(part) for part in line.split("…")) + r"\n"
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in _lines(actual))) is not None


def _lines(text: str) -> list[str]:
    return [line for line in (" ".join(raw.split()) for raw in text.splitlines()) if line]


PYTHON = textwrap.dedent(
    """
    import json, os, sys, traceback
    names, end = {"__name__": "__main__"}, sys.argv[1]
    for line in sys.stdin:
        block = json.loads(line)
        os.chdir(block["folder"])
        code = 0
        try:
            exec(compile(block["text"], block["where"], "exec"), names)
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stderr.flush()
        print(f"\\n{end} {code}", flush=True)
    """
)


KEPT = ("STRANDLINE_CACHE", "STRANDLINE_SPARK__OPTIONS")
"""Settings that a page shows nothing of: where jars are, and that the JVMs of these tests compile quickly."""
OWN_JVMS = ("README.md",) if TORTURE else ()
"""Run just as a reader would, in `make torture`. All other commands of pages are processes, too: forks that share the
JVM of the test run."""
OWN_JVM_OF_PYTHON = (*OWN_JVMS, "docs/tutorial.md", "docs/spark.md")
"""Where Spark gets paths that are relative to the folder of the reader, and calls Python back."""


class Session:
    """One bash, and one Python if the page has some; both in processes of their own, as a reader would have them."""

    def __init__(self, folder: Path, of_bash: Mapping[str, str], of_python: Mapping[str, str]) -> None:
        environ = {k: v for k, v in os.environ.items() if not k.startswith("STRANDLINE_") or k in KEPT}
        environ.pop("COLUMNS", None)
        environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environ["PATH"]])
        self.environ = environ | {"LC_ALL": "C", "PYTHONUTF8": "1", "PYTHONUNBUFFERED": "1"}
        self.folder = folder
        self.of_python = of_python
        self.bash = self._start("bash", "--norc", **of_bash)
        self.python: subprocess.Popen[str] | None = None

    def _start(self, *command: str, **environ: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command, cwd=self.folder, env=self.environ | environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, encoding="utf-8", start_new_session=True,
        )  # fmt: skip

    def run(self, command: str) -> tuple[str, int]:
        # The code is given back to bash, so that `echo $?` shows the command's and not ours.
        return _answer(self.bash, f"{command}\n_code=$?; printf '\\n%s %s\\n' '{END}' $_code; (exit $_code)\n")

    def run_python(self, text: str, where: str) -> tuple[str, int]:
        if self.python is None:
            self.python = self._start(sys.executable, "-c", PYTHON, END, **self.of_python)
        folder = self.run("pwd")[0].strip()
        return _answer(self.python, json.dumps({"text": text, "where": where, "folder": folder}) + "\n")

    def where(self) -> Path:
        return Path(self.run("pwd")[0].strip())

    def close(self) -> None:
        for process in filter(None, (self.bash, self.python)):
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def _answer(process: subprocess.Popen[str], text: str) -> tuple[str, int]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(text)
    process.stdin.flush()
    said: list[str] = []
    for line in process.stdout:
        if line.startswith(END):
            return "".join(said), int(line.removeprefix(END))
        said.append(line)
    raise AssertionError("the shell ended:\n" + "".join(said))


@contextmanager
def session(folder: Path, of_bash: Mapping[str, str], of_python: Mapping[str, str]) -> Iterator[Session]:
    made = Session(folder, of_bash, of_python)
    try:
        yield made
    finally:
        made.close()


def quick_commands(folder: Path) -> dict[str, str]:
    """The environment in which `strandline` is a fork, and in which any Python uses the JVM of the test run."""
    write_command(folder, "strandline", "strandline.cli.main")
    places = [str(folder), str(Path(sys.executable).parent), os.environ["PATH"]]
    return {**environ_for_all_pythons(folder), "PATH": os.pathsep.join(places)}


def quick_session(folder: Path) -> dict[str, str]:
    """The environment in which a session that a page makes without Strandline is as quick as those of tests."""
    options = [word for name, value in QUICK_SPARK.items() for word in ("--conf", f"{name}={value}")]
    return {"PYSPARK_SUBMIT_ARGS": shlex.join([*options, "pyspark-shell"]), "PYSPARK_PYTHON": str(write_python(folder))}


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("page", [page for page in PAGES if page not in ELSEWHERE])
def test_what_a_page_shows_is_what_happens(page: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    environ = {} if page in OWN_JVMS else quick_commands(tmp_path_factory.mktemp("attached"))
    if "$ python examples/" in (ROOT / page).read_text("utf-8"):
        (tmp_path / "examples").symlink_to(ROOT / "examples")  # as in the folder of the project
    of_python = quick_session(tmp_path_factory.mktemp("python")) if page in OWN_JVM_OF_PYTHON else environ
    run_page(page, tmp_path, environ, of_python)


def run_page(page: str, folder: Path, of_bash: Mapping[str, str], of_python: Mapping[str, str]) -> None:
    """Fails with all that did not come out as the page shows it."""
    wrong: list[str] = []
    ports = {port: str(free_port()) for port in PORTS}
    chosen = {variable: ports[port] for port, variable in PORTS.items()}
    text = (ROOT / page).read_text("utf-8")
    text = re.sub("localhost:(" + "|".join(ports) + r")\b", lambda m: f"localhost:{ports[m[1]]}", text)
    with session(folder, {**of_bash, **chosen}, {**of_python, **chosen}) as running:
        for step in steps(text):
            if isinstance(step, Written):
                (running.where() / step.name).write_text(step.text, "utf-8")
                continue
            where = f"{page}:{step.line}"
            actual, code = running.run(step.text) if isinstance(step, Command) else running.run_python(step.text, where)
            failed = code != 0 and not (isinstance(step, Command) and step.may_fail)
            if failed or not matches(step.shown, actual):
                wrong.append(f"{where}, exit {code}\n{step.text}\n--- shown\n{step.shown}\n--- happened\n{actual}")
            if failed:
                break  # what follows builds on it
    assert not wrong, "\n\n".join(wrong)


def test_output_is_compared_line_by_line_and_only_an_ellipsis_is_free() -> None:
    assert matches("a  b\n\nc …\n…\nz", "a b  \nc 1\nmore\nmore\nz\n")
    assert matches("…", "")
    assert not matches("", "something\n")
    assert not matches("a", "a\nb\n")
    assert not matches("a …", "b 1\n")


def test_the_convention_is_read_as_it_is_written() -> None:
    page = "```json file=a.jsonl\n{}\n```\n```console\n$ false\n$ echo $?\n1\n```\n"
    page += "```python\nprint(1)\n```\n\n```text\n1\n```\n"
    assert steps(page) == [
        Written("a.jsonl", "{}\n"),
        Command(5, "false", "", True),
        Command(6, "echo $?", "1", False),
        Code(10, "print(1)\n", "1\n"),
    ]
