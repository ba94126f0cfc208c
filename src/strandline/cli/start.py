"""The shell command's entry point: it tunes the garbage collector before the imports, most of a short command."""

from __future__ import annotations

import gc

# modules are not garbage, but by default Python searches them every 700 objects: a tenth of a start
OBJECTS_BEFORE_A_SEARCH = 100_000


def main() -> None:
    gc.set_threshold(OBJECTS_BEFORE_A_SEARCH)
    from strandline.cli.main import main as run

    run()
