# Sourced: sets UV to a uv that works. One that is installed is used; else it is put into a small environment of its own.

if uv --version >/dev/null 2>&1; then
  UV=uv
else
  UV=.cache/tools/bin/uv
  if ! "$UV" --version >/dev/null 2>&1; then
    command -v python3 >/dev/null || { echo "Python 3 is needed to begin with; install it and run make again." >&2; exit 1; }
    echo "Installing uv into .cache/tools"
    mkdir -p .cache
    # Debian keeps venv's pip in a package of its own.
    if ! python3 -m venv --clear .cache/tools >/dev/null 2>&1; then
      if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-venv >/dev/null
        python3 -m venv --clear .cache/tools
      else
        echo "python3 cannot make an environment; on Debian and Ubuntu: sudo apt-get install python3-venv" >&2
        exit 1
      fi
    fi
    .cache/tools/bin/python -m pip install --quiet --disable-pip-version-check 'uv>=0.8'
  fi
fi
