"""Finds a Java that Spark can run on.

Spark 4.1 needs Java 17 to 21 with the module `jdk.incubator.vector`. The small Javas in Python packages lack it. On
newer versions (tried: 25) Hadoop's login code fails while Spark starts. A machine may have several Javas: if the first
one on the PATH is unfit, another one may fit.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from glob import glob
from pathlib import Path

from strandline.core.errors import RuntimeMissing

MAJOR_MIN = 17
MAJOR_MAX = 21
VECTOR_MODULE = "jdk.incubator.vector"
_PROBE_TIMEOUT_SECONDS = 30

_USUAL_PLACES = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/jdk*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "~/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "/usr/local/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "/home/linuxbrew/.linuxbrew/opt/openjdk*/libexec",
    "~/.sdkman/candidates/java/*",
    "~/.jdks/*",
)


@dataclass(frozen=True, slots=True)
class JavaFound:
    home: Path
    version: str

    @property
    def program(self) -> Path:
        return self.home / "bin" / "java"


def find_java(environ: Mapping[str, str] | None = None) -> JavaFound:
    """The first Java that fits: from JAVA_HOME, the PATH, or the usual places. Raises RuntimeMissing."""
    refuse_windows()
    unfit: list[str] = []
    for place in _candidates(os.environ if environ is None else environ):
        inspected = inspect_java(place)
        if isinstance(inspected, JavaFound):
            return inspected
        unfit.append(f"{place}: {inspected}")
    if not unfit:
        raise RuntimeMissing("Java was not found", hint=install_hint())
    raise RuntimeMissing(f"no Java that Spark can use was found ({'; '.join(unfit)})", hint=install_hint())


def refuse_windows() -> None:
    if sys.platform == "win32":
        raise RuntimeMissing(
            "Strandline runs on Linux and macOS, not on Windows",
            hint="Use the Windows Subsystem for Linux: install it with `wsl --install`, and Strandline inside it.",
        )


def install_hint() -> str:
    if sys.platform == "darwin":
        return "Install Java 17: `brew install openjdk@17`. Or point JAVA_HOME at a JDK 17 to 21."
    return (
        "Install Java 17 or 21. Debian, Ubuntu: `sudo apt-get install openjdk-17-jre-headless` "
        "(or openjdk-21-jre-headless); "
        "Fedora: `sudo dnf install java-21-openjdk-headless`; macOS: `brew install openjdk@17`. "
        "Or point JAVA_HOME at a JDK 17 to 21."
    )


def inspect_java(home: Path) -> JavaFound | str:
    """The Java that is installed here, or why Spark cannot use it."""
    program = home / "bin" / "java"
    if not os.access(program, os.X_OK):
        return "there is no bin/java in it"
    version, modules = _read_release(home) or _run_program(program)
    if version is None:
        return "it does not start"
    major = major_version(version)
    if major is None or not MAJOR_MIN <= major <= MAJOR_MAX:
        return f"version {version}, Spark needs {MAJOR_MIN} to {MAJOR_MAX}"
    if VECTOR_MODULE not in modules:
        return f"version {version}, but without the module {VECTOR_MODULE}"
    return JavaFound(home, version)


def major_version(version: str) -> int | None:
    """17 for "17.0.15", 8 for "1.8.0_392"."""
    if not (match := re.match(r"(?:1\.)?(\d+)", version)):
        return None
    return int(match.group(1))


def _candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    seen: set[Path] = set()
    for place in _places(environ):
        real = place.resolve()
        if real not in seen:
            seen.add(real)
            yield real


def _places(environ: Mapping[str, str]) -> Iterator[Path]:
    if named := environ.get("JAVA_HOME"):
        yield Path(named)
    if on_path := shutil.which("java", path=environ.get("PATH", "")):
        yield from _home_of(Path(on_path))
    if sys.platform == "darwin":
        yield from _macos_homes()
    for pattern in _USUAL_PLACES:
        for home in map(Path, sorted(glob(os.path.expanduser(pattern)))):
            if (home / "bin" / "java").exists():
                yield home


def _home_of(program: Path) -> Iterator[Path]:
    home = program.resolve().parent.parent
    if (home / "release").is_file():
        yield home
    # Version managers put a script on the PATH, and macOS a stub: only the program itself knows its home.
    elif match := re.search(r"^\s*java\.home = (.+)$", _output(_settings_command(program)) or "", flags=re.MULTILINE):
        yield Path(match.group(1))


def _settings_command(program: Path) -> list[str]:
    return [str(program), "-XshowSettings:properties", "-version"]


def _macos_homes() -> Iterator[Path]:
    for major in range(MAJOR_MIN, MAJOR_MAX + 1):
        # If there is no Java of this version, the answer is the newest one. `inspect_java` checks the version.
        if answer := _output(["/usr/libexec/java_home", "-v", str(major)]):
            yield Path(answer.strip().splitlines()[-1])


def _read_release(home: Path) -> tuple[str | None, frozenset[str]] | None:
    """The version and modules from the file `release` of a JDK. Running the program instead would cost a fifth of a
    second per start."""
    try:
        text = (home / "release").read_text("utf-8", errors="replace")
    except OSError:
        return None
    values = dict(re.findall(r'^(\w+)="(.*)"\s*$', text, flags=re.MULTILINE))
    if "JAVA_VERSION" not in values or "MODULES" not in values:
        return None
    return values["JAVA_VERSION"], frozenset(values["MODULES"].split())


def _run_program(program: Path) -> tuple[str | None, frozenset[str]]:
    """The version and modules that the program prints."""
    settings = _output(_settings_command(program)) or ""
    if not (version := re.search(r"^\s*java\.version = (\S+)", settings, flags=re.MULTILINE)):
        return None, frozenset()
    modules = _output([str(program), "--list-modules"]) or ""
    return version.group(1), frozenset(line.partition("@")[0].strip() for line in modules.splitlines())


def _output(command: list[str]) -> str | None:
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_PROBE_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return run.stdout + run.stderr if run.returncode == 0 else None
