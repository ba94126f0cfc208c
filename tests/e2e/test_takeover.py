"""A take-over with processes of their own: the leader is stopped in the middle of a batch and goes on too late, and two
sites are promoted at the same time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from strandline.iceberg.schema.schema_file import parse_columns
from strandline.lake import open_lake
from strandline.lake_admin import follow_lake, init_lake
from tests.conftest import MakeHome
from tests.e2e.cli import TIMEOUT_SECONDS
from tests.fork_server import Forked
from tests.processes import start
from tests.spark.followed import SETTINGS, follow, table
from tests.spark.protocol import COLUMNS, frame

pytestmark = pytest.mark.timeout(900)

LEASE_SECONDS = 10


def _start(home: Path, *command: str, **environ: str) -> Forked:
    return start(  # type: ignore[return-value]
        command,
        cwd=home, env={**os.environ, **environ}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_a_leader_that_stood_still_commits_nothing_after_another_site_leads(
    tmp_path: Path, make_home: MakeHome, spark_started: object
) -> None:
    (tmp_path / "arbiter").mkdir()
    replication = {"arbiter": f"file:{tmp_path / 'arbiter'}", "lease_seconds": LEASE_SECONDS}
    settings = SETTINGS | {"replication": replication}
    make_home(tmp_path / "leader", settings)
    with ExitStack() as stack:
        leader = stack.enter_context(init_lake(tmp_path / "leader"))
        leader.create_dataset("events", parse_columns(COLUMNS))
        leader.append("events", frame(leader, 0, 5), batch_id="first")
        for name in ("f0", "f1"):
            (tmp_path / name).mkdir()
            (tmp_path / f"token-{name}").write_text(leader.followers.add(name)[1])
            make_home(tmp_path / name, settings)
            token = f"file:{tmp_path / f'token-{name}'}"
            with follow_lake(tmp_path / name, str(leader.config.home), token=token) as lake:
                follow(lake)
        lease = leader.replication.lease
        assert lease is not None and lease.update_members() == frozenset({1, 2})

    # In the main thread of the writer: a thread beside it would run on for a moment, perhaps past its commit point.
    late = _start(
        tmp_path / "leader", "tests.e2e.writer", ".", "append", "late", "100", "3",
        STRANDLINE_FAILPOINT="stage.before_mark=stop",
    )  # fmt: skip
    late.wait_until_stopped(TIMEOUT_SECONDS)

    promoted = {
        name: _start(tmp_path / name, "strandline.cli.main", "promote", "--yes", "--json") for name in ("f0", "f1")
    }
    said = {name: process.communicate(timeout=TIMEOUT_SECONDS) for name, process in promoted.items()}
    codes = {name: process.returncode for name, process in promoted.items()}
    assert sorted(codes.values()) == [0, 3], said
    [winner] = [name for name, code in codes.items() if code == 0]
    [loser] = [name for name, code in codes.items() if code == 3]
    assert "this promotion is over" in said[loser][0] or "take-over of term" in said[loser][0], said

    late.send_signal(signal.SIGCONT)
    out, _ = late.communicate(timeout=TIMEOUT_SECONDS)
    assert late.returncode == 3 and "accepts no more rows" in json.loads(out)["message"], out

    with open_lake(tmp_path / winner) as lake:
        lake.append("events", frame(lake, 100, 3), batch_id="late")
        ids = [row.id for row in lake.spark.table("lake.default.events").collect()]
        assert sorted(ids) == [*range(5), 100, 101, 102]
        assert not lake.replication.site.follows
    with open_lake(tmp_path / "leader") as old:
        assert len(table(old)) == 5 and old.replication.site.superseded_term is not None
