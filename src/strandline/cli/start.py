"""What the shell calls: it sets the house in order before everything is imported, which is most of a short command."""

from __future__ import annotations

import gc

OBJECTS_BEFORE_A_SEARCH = 100_000
"""Modules are no garbage. By default Python looks for some among them every 700 objects: a tenth of a start."""


def main() -> None:
    gc.set_threshold(OBJECTS_BEFORE_A_SEARCH)
    from strandline.cli.main import main as run

    run()
