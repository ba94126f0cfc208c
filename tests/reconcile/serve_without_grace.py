"""The command line with a grace window of none, as a process of its own: see `no_grace`."""

from __future__ import annotations

import sys

from strandline.cli.main import run
from tests.reconcile import no_grace  # noqa: F401

if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
