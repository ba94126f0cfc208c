"""The wheel, as someone installs it who has no checkout: it has everything in it and works on its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_SECONDS = 200


def run(*command: str | Path, cwd: Path, codes: tuple[int, ...] = (0,)) -> str:
    environ = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV", "STRANDLINE_CONFIG")}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=environ, capture_output=True, text=True, timeout=TIMEOUT_SECONDS
    )
    assert done.returncode in codes, f"{command}: {done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def uv() -> str:
    """One that is installed, or the one that `make` puts aside."""
    for found in (shutil.which("uv"), str(ROOT / ".cache/tools/bin/uv")):
        if found and Path(found).exists() and subprocess.run([found, "--version"], capture_output=True).returncode == 0:
            return found
    missing = "uv is not there; `make install` gets it"
    if os.environ.get("CI", "").lower() in ("", "0", "false"):
        pytest.skip(missing)
    pytest.fail(missing)


@pytest.fixture(scope="module")
def wheel(uv: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(uv, "build", "--wheel", "--out-dir", folder, ROOT, cwd=folder)
    [made] = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(uv: str, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a new environment that has the wheel; everything else comes from this one's packages."""
    venv = tmp_path_factory.mktemp("installed") / "venv"
    run(uv, "venv", "--python", sys.executable, venv, cwd=ROOT)
    python = venv / "bin" / "python"
    run(uv, "pip", "install", "--no-deps", "--python", python, wheel, cwd=venv)
    own = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=venv).strip())
    # A folder named in a .pth file is searched, but .pth files in it are not read: so the checkout stays out.
    (own / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n", "utf-8")
    origin = run(python, "-c", "import strandline; print(strandline.__file__)", cwd=venv).strip()
    assert Path(origin).is_relative_to(venv)
    return venv / "bin"


def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
    package = ROOT / "src"
    there = {p.relative_to(package).as_posix() for p in (package / "strandline").rglob("*") if p.is_file()}
    assert {p for p in there if "__pycache__" not in p} <= inside
    assert {"strandline/py.typed", "strandline/iceberg/session/log4j2.properties"} <= inside
    assert any(p.startswith("strandline/ledger/migrations/versions/0001") for p in inside)


def test_what_was_installed_from_the_wheel_makes_a_lake_and_looks_at_it(installed: Path, tmp_path: Path) -> None:
    program = installed / "strandline"
    assert "dataset" in run(program, "--help", cwd=tmp_path)
    made = json.loads(run(program, "init", "--json", cwd=tmp_path))  # runs the migrations
    assert json.loads(run(program, "status", "--json", cwd=tmp_path))["lake"] == made["lake"]
    # Java and the Iceberg runtime are not in a wheel: whether they are on this machine is not the question here.
    found = json.loads(run(program, "doctor", "--json", cwd=tmp_path, codes=(0, 1)))
    checks = {c["name"]: c["ok"] for c in found["checks"]}
    assert checks["python"] and checks["settings"] and checks["ledger"] and checks["witness"]
