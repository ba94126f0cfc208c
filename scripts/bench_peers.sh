#!/usr/bin/env bash
# Makes .cache/bench-peers, the environment of the peers that `make bench` measures against, from its lock file. Does
# nothing if that was done with the same lock file before.
set -euo pipefail
cd "$(dirname "$0")/.."
lock=bench/peers/requirements.lock
home=.cache/bench-peers
if cmp -s "$lock" "$home/installed.lock"; then
  exit 0
fi
. scripts/uv.sh
export VIRTUAL_ENV="$PWD/$home"
"$UV" venv --quiet --clear --python .venv/bin/python "$home"
"$UV" pip install --quiet --compile-bytecode --require-hashes -r "$lock"
cp "$lock" "$home/installed.lock"
