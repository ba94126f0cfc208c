"""The end of `strandline demo`: the second site takes over, and the first one comes back and follows it."""

from __future__ import annotations

import os

from strandline.cli.demo.delivery import SINKS, consumed, rows_in_lake, rows_text
from strandline.cli.demo.follower import FOLLOWER, rows_in
from strandline.cli.demo.scene import DATASET, Demo, events, ingest, write
from strandline.core.text.wording import plural
from strandline.lake import Lake, open_lake
from strandline.lake_admin import rejoin_lake
from strandline.status.replication import load_replication

OLD_LEADER = "first-site"
TOKEN = "STRANDLINE_DEMO_OLD_LEADER_TOKEN"
LATE_ROWS, LATE_ID = 20, 500_001  # the second site never hears of them
NEW_ROWS, NEW_ID = 100, 600_001


def take_over(demo: Demo) -> None:
    with open_lake(demo.home / FOLLOWER) as site:
        _promote(demo, site)
        _go_on(demo, site)
        _come_back(demo, site)
        _rejoin(demo, site)


def _promote(demo: Demo, site: Lake) -> None:
    with demo.step(f"The first site takes {LATE_ROWS} more rows and is lost: the second site takes over"):
        write(demo.home / "late.jsonl", events(LATE_ID, LATE_ROWS))
        demo.say("Ingesting rows that the second site never hears of")
        ingest(demo, "late.jsonl")
        before = rows_in(site)
        demo.say("Making the second site the leader")
        done = site.replication.promotion.run(leader_is_stopped=True)
        demo.note(f"the first site led in term 1; the second one leads in term {done.term}", "dim")
        demo.claim(
            "it leads, and a reader there has the same rows as before",
            not done.already and site.replication.site.leads and rows_in(site) == before,
        )


def _go_on(demo: Demo, site: Lake) -> None:
    with demo.step(f"{NEW_ROWS} new rows come in at the second site, and it continues to deliver to the sinks"):
        before = {name: sorted(consumed(demo, name)) for name in SINKS}
        path = write(demo.home / "new.jsonl", events(NEW_ID, NEW_ROWS))
        demo.say("Ingesting at the second site")
        done, again = site.ingest(DATASET, [path, demo.home / "friday.jsonl"])
        demo.claim(
            "it takes rows, and recognises a file that the first site had ingested",
            (done.rows, done.duplicate, again.duplicate) == (NEW_ROWS, False, True),
        )
        demo.say("Delivering")
        new = list(range(NEW_ID, NEW_ID + NEW_ROWS))
        for name in SINKS:
            site.tick(name)
            ids = sorted(consumed(demo, name))
            demo.claim(f"{name}: {plural(len(ids), 'row')}, each exactly once", ids == [*before[name], *new])


def _come_back(demo: Demo, site: Lake) -> None:
    with demo.step("The first site comes back and knows nothing of it: it delivers"):
        demo.say("Delivering from the first site")
        [report] = demo.lake.tick("archive").sinks
        demo.note(report.reason or report.did, "yellow")
        demo.claim(
            "the sink refuses it, and so the first site learns that it was replaced",
            report.rows == 0 and demo.lake.replication.site.superseded_term == site.replication.site.term,
        )


def _rejoin(demo: Demo, site: Lake) -> None:
    with demo.step("The first site follows the second one"):
        _, os.environ[TOKEN] = site.followers.add(OLD_LEADER)
        rejoin_lake(demo.lake.config, str(site.config.home), token=f"env:{TOKEN}")
        demo.say("The first site catches up")
        demo.lake.replication.follow_once()
        aside = load_replication(demo.lake.config, demo.lake.ledger, demo.lake.id).set_aside
        for one in aside:
            demo.note(f"{rows_text(one.rows)} of {one.dataset} set aside in {one.place}", "dim")
        demo.claim(
            f"the {LATE_ROWS} rows that only it had are in files, with their batch ids",
            [one.rows for one in aside] == [LATE_ROWS],
        )
        demo.say("Comparing both sites")
        [verdict] = demo.lake.replication.verify()
        demo.claim(
            f"verify: {rows_text(verdict.rows)} agree with the second site's; missing {verdict.missing}, different "
            f"{verdict.different}, only there {verdict.extra}",
            verdict.ok and not verdict.extra and verdict.rows == rows_in(site)[0] == rows_in_lake(demo),
        )
