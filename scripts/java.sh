#!/usr/bin/env bash
# Makes sure that there is a Java that Spark can use. Installs one only where that is one plain command: Debian, as root.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1

if "$python" -m strandline.iceberg.session.runtime --java >/dev/null 2>&1; then
  exit 0
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "Installing Java"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  for package in openjdk-17-jre-headless openjdk-21-jre-headless; do
    if apt-get install -y -qq --no-install-recommends "$package" >/dev/null; then
      break
    fi
  done
fi
# Says what is missing and what to install, if something still is.
"$python" -m strandline.iceberg.session.runtime --java >/dev/null
