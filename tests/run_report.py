"""What a test run took, and of what: seconds by file and phase, CPU by file, how many JVMs started.

Seconds say how long somebody waits. On a machine that does other things too, only CPU can be compared with another run:
that of the process that runs the tests and of all that it started. Beside the file of `--junit-xml`, a JSON document of
the same name keeps all of it for `make test-times`.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

_JVMS = "STRANDLINE_TEST_JVMS"
_CPU = "cpu_by_file"


def note_start() -> str:
    """The flag with which a JVM leaves a file in the folder of this run when it starts."""
    folder = os.environ.get(_JVMS) or os.environ.setdefault(_JVMS, tempfile.mkdtemp(prefix="sl-jvms-"))
    return f"-Xlog:init=off:file={folder}/%p-%t"


def register(config: pytest.Config) -> None:
    """The process that hands out tests adds up, those that run them count their CPU; without `-n` one does both."""
    runs_tests = hasattr(config, "workerinput") or not getattr(config.option, "numprocesses", None)
    counter = _CpuCounter(config) if runs_tests else None
    if counter is not None:
        config.pluginmanager.register(counter)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Summary(config, counter))


class _CpuCounter:
    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.by_file: dict[str, float] = defaultdict(float)
        self._last = 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
        try:
            return (yield)
        finally:
            if nextitem is None or nextitem.path != item.path:
                now = _cpu_of_this_process_and_its_children()
                self.by_file[_file(item.nodeid)] += max(0.0, now - self._last)
                self._last = now

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        if (output := getattr(self.config, "workeroutput", None)) is not None:
            output[_CPU] = dict(self.by_file)


def _cpu_of_this_process_and_its_children() -> float:
    me = psutil.Process()
    total = 0.0
    for process in (me, *me.children(recursive=True)):
        try:
            total += sum(process.cpu_times()[:4])  # with those that have ended and were waited for
        except psutil.Error:
            continue
    return total


class _Summary:
    def __init__(self, config: pytest.Config, own: _CpuCounter | None) -> None:
        self.own = own
        self.seconds: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        self.cpu: dict[str, float] = defaultdict(float)
        xml = getattr(config.option, "xmlpath", None)
        self.target = None if xml is None else Path(xml).with_suffix(".json")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when is not None:
            self.seconds[_file(report.nodeid)][report.when] += report.duration

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        for file, seconds in getattr(node, "workeroutput", {}).get(_CPU, {}).items():
            self.cpu[file] += seconds

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        cpu = self.own.by_file if self.own is not None else self.cpu
        folder = os.environ.get(_JVMS)
        starts = len(os.listdir(folder)) if folder is not None else 0
        terminalreporter.write_line(f"JVM starts: {starts}; CPU: {sum(cpu.values()):.0f} s")
        if self.target is not None:
            self.target.parent.mkdir(parents=True, exist_ok=True)
            files = {f: {"phases": dict(phases), "cpu": cpu.get(f, 0.0)} for f, phases in sorted(self.seconds.items())}
            self.target.write_text(json.dumps({"jvm_starts": starts, "files": files}, indent=1), "utf-8")

    def pytest_unconfigure(self) -> None:
        if (folder := os.environ.pop(_JVMS, None)) is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _file(node: str) -> str:
    return node.partition("::")[0].removeprefix("tests/")
