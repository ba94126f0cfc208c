#!/usr/bin/env bash
# check.sh lint: ruff, mypy, import-linter. check.sh all: and the quick tests: without Spark, a server, a daemon, the
# command line (a process for every command), many processes, or files that take three seconds or more. Side by side; prints
# what failed. `make test` runs all of them.
set -uo pipefail
cd "$(dirname "$0")/.."
bin=.venv/bin
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

names=() pids=()
start() {
  local name=$1
  shift
  "$@" >"$out/$name" 2>&1 &
  names+=("$name") pids+=($!)
}

start types "$bin/mypy"
start lint "$bin/ruff" check .
start layers "$bin/lint-imports"
if [ "${1:-all}" = all ]; then
  long='import json; print(*(f"--ignore=tests/{k}" for k, s in json.load(open("tests/times.json")).items() if s >= 3))'
  # shellcheck disable=SC2046
  start tests "$bin/python" -m pytest -q -n 2 tests/unit tests/ledger -k "not postgres and not processes" \
    --ignore-glob='tests/unit/test_cli*.py' $("$bin/python" -c "$long")
fi

failed=0
for i in "${!names[@]}"; do
  if wait "${pids[$i]}"; then
    echo "ok      ${names[$i]}: $(tail -n 1 "$out/${names[$i]}")"
  else
    failed=1
    echo "FAILED  ${names[$i]}"
    cat "$out/${names[$i]}"
  fi
done
exit $failed
