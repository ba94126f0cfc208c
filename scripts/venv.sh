#!/usr/bin/env bash
# Makes .venv from the lock file, every package checked against its hash, with the project itself linked into it.
set -euo pipefail
cd "$(dirname "$0")/.."

case "$(uname -s)" in
  Linux | Darwin) ;;
  *) echo "Strandline runs on Linux and macOS. On Windows, use the Windows Subsystem for Linux." >&2; exit 1 ;;
esac

# Microseconds that a Python takes to make some objects; nothing where it is not there, or its version is not ours.
microseconds() {
  "$1" -c '
import sqlite3, ssl, sys, time
from dataclasses import make_dataclass
Point = make_dataclass("Point", ["x", "y"], frozen=True)
def once(): start = time.perf_counter(); [Point(n, n) for n in range(5000)]; return time.perf_counter() - start
if (3, 11) <= sys.version_info[:2] < (3, 15): print(round(min(once() for _ in range(9)) * 1e6))
' 2>/dev/null || true
}

# The first Python on the path, unless the one of the system is quicker by a fifth: one that was built on this machine is
# often built without optimization, and all tests take longer.
choose_python() {
  local first system
  first=$(microseconds python3)
  system=$(microseconds /usr/bin/python3)
  if [ -n "$system" ] && [ $((${first:-1000000000} * 5)) -gt $((system * 6)) ]; then
    echo /usr/bin/python3
  else
    echo '>=3.11,<3.15'
  fi
}

. scripts/uv.sh
# A relative path would be taken by some tools for one inside .venv.
export VIRTUAL_ENV="$PWD/.venv"
if ! .venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  echo "Making .venv"
  "$UV" venv --quiet --clear --python "$(choose_python)" .venv
fi
echo "Installing the packages of requirements-dev.lock"
"$UV" pip install --quiet --compile-bytecode --require-hashes -r requirements-dev.lock
"$UV" pip install --quiet --no-deps -e .
