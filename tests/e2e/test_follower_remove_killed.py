"""`strandline follower remove`, as a process that is killed at each of its named steps. Whatever the step, the follower
is no member any more; and while it is not removed, everything is kept for it, and the command can be repeated."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline import Lake
from strandline.core.errors import StrandlineError
from strandline.core.failpoints import POINTS
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.lake_admin import init_lake
from strandline.ledger.replicate import followers
from strandline.ledger.replicate.followers import Acknowledgement
from tests.conftest import MakeHome
from tests.processes import own_jvm

pytestmark = pytest.mark.timeout(300)

COLUMNS = [{"name": "id", "type": "long"}]


@pytest.fixture
def led(tmp_path: Path, make_home: MakeHome) -> Iterator[Lake]:
    """Follower `near` is a member."""
    (tmp_path / "arbiter").mkdir()
    make_home(tmp_path / "leader", {"replication": {"arbiter": f"file:{tmp_path / 'arbiter'}", "lease_seconds": 600}})
    with init_lake(tmp_path / "leader") as lake:
        lake.create_dataset("events", parse_columns(COLUMNS))
        added, _ = lake.followers.add("near")
        with lake.ledger.write() as connection:
            followers.acknowledge(connection, added, Acknowledgement(1, {}, {}, "instance", added.site_number))
        assert members(lake) == {1}
        yield lake


def members(lake: Lake) -> frozenset[int]:
    lease = lake.replication.lease
    assert lease is not None
    return lease.update_members()


def remove(lake: Lake, failpoint: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        own_jvm("strandline.cli.main", "follower", "remove", "near", "--yes", "--json"), check=False, text=True,
        capture_output=True, cwd=lake.config.home, env=os.environ | {"STRANDLINE_FAILPOINT": failpoint},
    )  # fmt: skip


@pytest.mark.parametrize("point", [p for p in POINTS if p.startswith("removal.")])
def test_a_removal_that_is_killed_leaves_no_member_and_goes_on(led: Lake, point: str) -> None:
    killed = remove(led, f"{point}=kill")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert members(led) == frozenset(), "nobody puts it back"
    known = [f.name for f in led.ledger.query(followers.list_followers)]
    again = remove(led)
    if point == "removal.after_commit":
        assert known == [] and again.returncode != 0, again
    else:
        assert known == ["near"], "it is waited for, and retention keeps everything for it"
        assert again.returncode == 0 and json.loads(again.stdout)["removed"] == "near", again
    assert led.ledger.query(followers.list_followers) == [] and members(led) == frozenset()
    with pytest.raises(StrandlineError):
        led.followers.get("near")
