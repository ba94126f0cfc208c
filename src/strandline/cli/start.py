"""The shell command's entry point: it tunes the garbage collector before the imports, most of a short command."""

from __future__ import annotations

import gc
import os
import sys

# Python's default is 700: a command that lists much would search what it lists over and over
OBJECTS_BEFORE_A_SEARCH = 100_000
# pydantic searches all packages that are installed for plugins when it makes the first model. Settings need none.
_NO_PLUGINS = "PYDANTIC_DISABLE_PLUGINS"


def main() -> None:
    if sys.argv[1:] == ["--version"]:
        from strandline import __version__

        print(__version__)
        return
    gc.disable()  # modules are not garbage
    loads_plugins = _NO_PLUGINS not in os.environ
    os.environ.setdefault(_NO_PLUGINS, "__all__")
    from strandline.cli.main import main as run

    if loads_plugins:  # by models of others, and in other processes
        del os.environ[_NO_PLUGINS]
    gc.freeze()
    gc.set_threshold(OBJECTS_BEFORE_A_SEARCH)
    gc.enable()
    try:
        run()
    finally:
        gc.freeze()  # at its end Python searches all that is left, several times: a sixth of a short command
