#!/usr/bin/env bash
# Resolves the dependencies again, for every platform and Python that is supported, and writes the lock files.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/uv.sh
compile=("$UV" pip compile --quiet --upgrade --generate-hashes --universal -p 3.11 --no-header --no-emit-index-url)
"${compile[@]}" pyproject.toml -o requirements.lock
"${compile[@]}" pyproject.toml --group dev -o requirements-dev.lock
"${compile[@]}" bench/peers/requirements.in -o bench/peers/requirements.lock
