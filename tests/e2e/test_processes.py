"""Processes of tests share a JVM (tests/processes.py): what becomes of one must not reach the others."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import strandline
from tests.conftest import MakeHome
from tests.processes import start


def test_a_process_that_stands_still_while_its_job_ends_holds_up_nobody_else(
    tmp_path: Path, make_home: MakeHome, spark_started: Any
) -> None:
    make_home(tmp_path)
    strandline.init_lake(tmp_path).close()
    process = start(["tests.e2e.stands_still", str(tmp_path)], cwd=tmp_path, env=os.environ)
    process.wait_until_stopped(300)
    try:
        counted = spark_started.range(4).mapInArrow(lambda batches: batches, "id long").count()
    finally:
        process.send_signal(signal.SIGCONT)
    assert counted == 4
    assert process.wait(300) == 0
