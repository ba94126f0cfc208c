"""A process that does one task, to be killed: `HOME`. Its work leaves a file."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

from strandline.core import failpoints
from strandline.core.settings.lake_config import CONFIG_NAME, load_config
from strandline.jobs.tasks import Tasks
from strandline.ledger.engine import Ledger


def main(home: str) -> None:
    failpoints.arm_from(os.environ)
    tasks = Tasks(Ledger(load_config(Path(home) / CONFIG_NAME)), lease_seconds=60)

    def work(stopping: threading.Event) -> dict[str, Any]:
        (Path(home) / "worked").touch()
        return {"rows": 7}

    tasks.start("verify", "partner", work)
    if not tasks.close(seconds_max=60):
        raise RuntimeError("the task did not end")


if __name__ == "__main__":
    main(*sys.argv[1:])
