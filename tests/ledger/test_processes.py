"""Several processes on one ledger, and processes that are killed while they reserve."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from strandline.core.errors import ResyncNeeded
from strandline.core.settings.lake_config import CONFIG_NAME
from strandline.core.types import SeqRange
from tests.campaign import scaled
from tests.ledger.conftest import LakeState

RESERVATIONS = scaled(150, 1_000)

RESERVER = """
import json, os, sys
from pathlib import Path
from strandline.core import failpoints
from strandline.core.settings.lake_config import load_config
from strandline.ledger.ingest import blocks
from strandline.ledger.engine import Ledger
from strandline.ledger.witness import open_witness

failpoints.arm_from(os.environ)
config = load_config(Path(sys.argv[1]))
ledger, witness = Ledger(config), open_witness(config)
name, count, dataset = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
got = []
for i in range(count):
    wanted = blocks.NewBlock(dataset, 1 + i % 7, f"{name}-{i}", None)
    block, new = blocks.reserve(ledger, witness, wanted, lease_seconds=60)
    got.append((block.head.rows.lo, block.head.rows.hi))
print(json.dumps(got))
"""


def start(lake: LakeState, name: str, count: int, **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", RESERVER, str(lake.config.home / CONFIG_NAME), name, str(count), str(lake.dataset.id)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | environ,
    )


@pytest.mark.timeout(900)
def test_two_processes_that_reserve_all_the_time_get_disjoint_ranges(lake: LakeState) -> None:
    running = [start(lake, name, RESERVATIONS) for name in ("left", "right")]
    ranges = [tuple(r) for p in running for r in json.loads(p.communicate()[0])]
    assert [p.returncode for p in running] == [0, 0] and len(ranges) == 2 * RESERVATIONS
    ordered = sorted(ranges)
    assert all(a[1] < b[0] for a, b in pairwise(ordered)), "two blocks share a number"
    assert ordered[-1][1] == lake.witness.read().highest


@pytest.mark.parametrize(
    ("point", "taken", "known"),
    [
        ("reserve.before_witness", False, False),
        ("reserve.after_witness", True, False),
        ("reserve.after_commit", True, True),
    ],
)
def test_a_process_killed_while_it_reserves_never_leaves_a_number_to_be_used_again(
    lake: LakeState, point: str, taken: bool, known: bool, tmp_path: Path
) -> None:
    before = lake.reserve("before", 10).head.rows
    killed = start(lake, "victim", 1, STRANDLINE_FAILPOINT=f"{point}=kill")
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL, "the failpoint did not fire"
    assert lake.witness.read().highest == before.hi + (1 if taken else 0)
    if taken and not known:
        with pytest.raises(ResyncNeeded):
            lake.reserve("after")
    else:
        assert lake.reserve("after").head.rows == SeqRange(
            before.hi + (2 if known else 1), before.hi + (11 if known else 10)
        )  # type: ignore[arg-type]
