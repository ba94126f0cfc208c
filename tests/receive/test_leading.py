"""Only the site that leads takes rows in. Others say so, and what to do; so does one that cannot show that it leads."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from strandline.core import forward_protocol
from strandline.core.settings.lake_config import LakeConfig
from strandline.core.settings.replication import ReplicationSettings
from strandline.ledger.receive import received
from strandline.ledger.receive.receipts import open_receipts
from strandline.ledger.replicate import sites
from strandline.ledger.witness import open_witness
from strandline.receive.intake import Intake, IntakeContext
from strandline.receive.spool import open_spool
from strandline.replicate.arbiter.arbiter import Arbiter
from strandline.replicate.arbiter.folder import FolderCell
from strandline.replicate.lead.lease import SiteLease
from tests.receive.conftest import Client, ReceivingLake, some, span

LAKE, LEASE = "lake-under-test", 30.0


def busy(answer: httpx.Response, *words: str) -> None:
    assert answer.status_code == 503 and answer.headers["retry-after"], answer.text
    assert answer.json()["outcome"] == forward_protocol.Answer.BUSY
    for said in (*words, "Nothing was taken", "replication status"):
        assert said in answer.json()["why"]


def replaced(lake: ReceivingLake) -> None:
    assert lake.ledger.change(sites.supersede, term=17, by="https://b")


def lead_again(lake: ReceivingLake) -> None:
    with lake.ledger.write() as connection:
        connection.exec_driver_sql(
            "UPDATE site SET role = 'leader', leader = NULL, superseded_term = NULL, superseded_by = NULL"
        )


def test_a_leader_that_another_site_has_replaced_takes_nothing_and_names_that_site(
    lake: ReceivingLake, client: Client
) -> None:
    assert client.send(some(1), "a").status_code == 202
    replaced(lake)
    for answer in (client.send(some(1), "b"), client.send(some(1), "a"), client.send(some(3), rows=span(1, 3))):
        busy(answer, "https://b leads this lake since term 17")
    # Found out by now also where no body is recorded.
    again = lake.serve()
    busy(again.send(some(1), "c"), "https://b leads this lake since term 17")
    busy(again.ask("held", lake="lake-a", instance="sink-1", generation=1, dataset="default.events", lanes=[]))
    assert len(lake.recorded()) == len(lake.files()) == 1, "nothing is left in the spool that could be ingested later"


def test_a_receiver_of_a_follower_says_so_and_takes_rows_as_soon_as_the_site_leads(lake: ReceivingLake) -> None:
    lake.ledger.change(sites.follow, leader="https://a", token=None, term=1)
    client = lake.serve()
    busy(client.send(some(1), "a"), "this site follows https://a,")
    stranger = Client(client.base, "sl_of_the_leader")
    busy(stranger.send(some(1), "a"), "this site follows another one,")
    stranger.http.close()
    lake.ledger.change(sites.follow, leader="/srv/secret/place/strandline.toml", token=None, term=1)
    busy(client.send(some(1), "a"), "this site follows another one,")
    lead_again(lake)
    assert client.send(some(1), "a").status_code == 202


def test_a_body_that_came_before_the_site_was_replaced_is_not_recorded_after_it(
    lake: ReceivingLake, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request was checked, and its body read and spooled, while this site led."""
    sync, spool = open_spool(lake.config).sync, type(open_spool(lake.config))

    def replaced_meanwhile(self: Any, names: Any) -> None:
        sync(names)
        if lake.ledger.query(sites.get).leads:
            replaced(lake)

    monkeypatch.setattr(spool, "sync", replaced_meanwhile)
    busy(client.send(some(1), "a"), "https://b leads this lake since term 17")
    assert lake.recorded() == [] and lake.files() == []


@dataclass
class Led:
    lake: ReceivingLake
    folder: Path
    now: float = 1000.0

    def lease(self) -> SiteLease:
        settings = ReplicationSettings(arbiter=f"file:{self.folder}", lease_seconds=LEASE, name="a")
        known = self.lake.config
        config = LakeConfig(known.settings.model_copy(update={"replication": settings}), known.home)
        arbiter = Arbiter(FolderCell(self.folder, LAKE), LAKE, call_seconds_max=20)
        return SiteLease(LAKE, config, self.lake.ledger, arbiter, clock=lambda: self.now)

    def cut_off(self) -> Callable[[], object]:
        """Nobody reaches the arbiter any more, until what is returned is called."""
        away = self.folder.with_name("away")
        shutil.move(self.folder, away)
        return lambda: shutil.move(away, self.folder)


def test_a_receiver_keeps_its_leases_word_and_takes_nothing_when_that_is_over(
    lake: ReceivingLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.receive.ledger_watch.CHECK_AGAIN_SECONDS", -1)
    (tmp_path / "arbiter").mkdir()
    led = Led(lake, tmp_path / "arbiter")
    lake.ledger.write_right = led.lease()
    client = lake.serve()
    assert client.send(some(1), "a").status_code == 202, "it asks for a lease by itself"
    back = led.cut_off()
    led.now += LEASE - 1
    assert client.send(some(1), "b").status_code == 202
    led.now += 2
    for key in ("c", "b"):
        busy(client.send(some(1), key), "cannot show that it still leads")
    assert str(tmp_path) not in client.send(some(1), "c").text
    back()
    assert client.send(some(1), "c").status_code == 202
    assert len(lake.recorded()) == len(lake.files()) == 3


def test_a_lease_that_ends_while_a_body_is_recorded_ends_that_too(
    lake: ReceivingLake, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "arbiter").mkdir()
    led = Led(lake, tmp_path / "arbiter")
    lake.ledger.write_right = led.lease()
    assert client.send(some(1), "a").status_code == 202
    inner = received._record

    def slow(*arguments: Any) -> Any:
        led.now += 2 * LEASE
        return inner(*arguments)

    monkeypatch.setattr(received, "_record", slow)
    busy(client.send(some(1), "b"), "cannot show that it still leads")
    assert len(lake.recorded()) == len(lake.files()) == 1


def test_an_intake_of_a_site_that_follows_leaves_the_spool_alone_until_it_leads(
    lake: ReceivingLake, client: Client, armed: Callable[[str], None]
) -> None:
    """A body that was spooled and never recorded lies there from the time when the site led."""
    armed("receive.before_commit=fail")
    assert client.send(some(1), "a").status_code == 503 and len(lake.files()) == 1
    armed("")
    lake.ledger.change(sites.follow, leader="https://a", token=None, term=1)

    class NothingToSettle:
        def catch_up(self) -> None:
            pass

    context = IntakeContext(
        lake.config, lake.ledger, open_spool(lake.config), cast(Any, None), cast(Any, NothingToSettle()),
        open_receipts(lake.config), open_witness(lake.config),
    )  # fmt: skip
    intake = Intake(context)
    assert intake.step() == [] and lake.recorded() == []
    lead_again(lake)
    intake._resync_if_due()
    assert len(lake.recorded()) == 1
