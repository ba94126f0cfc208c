#!/usr/bin/env bash
# Makes .venv from the lock file, every package checked against its hash, with the project itself linked into it.
set -euo pipefail
cd "$(dirname "$0")/.."

case "$(uname -s)" in
  Linux | Darwin) ;;
  *) echo "Strandline runs on Linux and macOS. On Windows, use the Windows Subsystem for Linux." >&2; exit 1 ;;
esac

. scripts/uv.sh
# A relative path would be taken by some tools for one inside .venv.
export VIRTUAL_ENV="$PWD/.venv"
if ! .venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  echo "Making .venv"
  "$UV" venv --quiet --clear --python '>=3.11,<3.15' .venv
fi
echo "Installing the packages of requirements-dev.lock"
"$UV" pip install --quiet --compile-bytecode --require-hashes -r requirements-dev.lock
"$UV" pip install --quiet --no-deps -e .
