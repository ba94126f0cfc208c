"""The part of `strandline demo` with a second site that follows the first."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from strandline.cli.demo.delivery import rows_in_lake, rows_text
from strandline.cli.demo.forward import FRIDAY_ROWS
from strandline.cli.demo.scene import DATASET, Demo
from strandline.core.errors import NotLeader
from strandline.core.text.wording import plural
from strandline.core.types import SEQ_COLUMN
from strandline.lake import Lake, open_lake
from strandline.lake_admin import follow_lake

if TYPE_CHECKING:
    from strandline.status.followers import FollowerStatus

FOLLOWER = "second-site"
TOKEN = "STRANDLINE_DEMO_FOLLOWER_TOKEN"


def begin_to_follow(demo: Demo) -> None:
    with demo.step("A second site follows: the same rows and sequence numbers, in a warehouse and a ledger of its own"):
        _, os.environ[TOKEN] = demo.lake.followers.add(FOLLOWER)
        with follow_lake(demo.home / FOLLOWER, str(demo.lake.config.home), token=f"env:{TOKEN}") as site:
            before = _lag(demo)
            demo.say("The second site catches up")
            done = site.replication.follow_once()
            demo.note(f"{plural(len(done.applied), 'segment')} applied, from the leader's table as it is now", "dim")
            demo.claim("before it had said anything, its lag was unknown, and not 0", before.lag_rows is None)
            demo.claim(
                f"it has the {rows_text(rows_in_lake(demo))} that the leader has, and the same seal",
                rows_in(site) == rows_in(demo.lake) and site.sealed(DATASET) == demo.lake.sealed(DATASET),
            )


def go_on_following(demo: Demo) -> None:
    with open_lake(demo.home / FOLLOWER) as site:
        _keep_up(demo, site)
        _compare(demo, site)


def _keep_up(demo: Demo, site: Lake) -> None:
    with demo.step(f"Back to the second site: the leader has {FRIDAY_ROWS} new rows by now"):
        before = _lag(demo)
        demo.say("The second site keeps up")
        site.replication.follow_once()
        after = _lag(demo)
        demo.claim(
            f"it was {plural(before.lag_segments or 0, 'segment')} and {rows_text(before.lag_rows)} behind, "
            f"and now {rows_text(after.lag_rows)}",
            (before.lag_rows, after.lag_rows, after.lag_segments) == (FRIDAY_ROWS, 0, 0),
        )
        refusal = _write_there(demo, site)
        demo.note(f"a write at the second site: {refusal}", "dim")
        demo.claim("it takes no rows of its own, and names its leader", str(demo.home) in (refusal or ""))


def _write_there(demo: Demo, site: Lake) -> str | None:
    try:
        [done] = site.ingest(DATASET, [demo.home / "friday.jsonl"])
    except NotLeader as e:
        return e.message
    return None if done.error is None else done.error.message


def _compare(demo: Demo, site: Lake) -> None:
    with demo.step("Verify: compare every row of the second site with the leader's"):
        demo.say("Comparing both sites")
        [verdict] = site.replication.verify()
        demo.claim(
            f"{rows_text(verdict.rows)} agree with the leader's up to {verdict.sealed or 0:,}; missing "
            f"{verdict.missing}, different {verdict.different}, only there {verdict.extra}",
            verdict.ok and not verdict.extra and verdict.rows == rows_in_lake(demo),
        )


def rows_in(lake: Lake) -> tuple[int, int]:
    """How many rows a reader gets, and the sum of their sequence numbers."""
    found = lake.read_since(DATASET, internal=True).df.selectExpr("count(*)", f"sum({SEQ_COLUMN})").collect()[0]
    return int(found[0]), int(found[1])


def _lag(demo: Demo) -> FollowerStatus:
    [shard] = demo.lake.status().followers
    return shard
