"""Long campaigns: `make torture` runs them at full length, `make test` in a short form.

A test whose length can be chosen takes it from `scaled`. A test that has no short form is marked `torture` and runs
only there.
"""

from __future__ import annotations

import os

TORTURE = os.environ.get("STRANDLINE_TORTURE", "").lower() not in ("", "0", "false")


def scaled(short: int, long: int) -> int:
    """How many rounds, seeds or kills: `short` in `make test`, `long` in `make torture`."""
    return long if TORTURE else short
