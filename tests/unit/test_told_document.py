"""The bodies in a batch, as a leader tells them: the same values on both sides, and checked before they count."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from strandline.core.documents import json_text
from strandline.core.errors import FailedError
from strandline.core.forward_protocol import KeyIdentity, LaneName, RangeIdentity
from strandline.core.sites.replication import TakeoverCut
from strandline.core.sites.takeover_cuts import NumberedCut
from strandline.core.types import BlockHead, BlockId, BlockKind, DatasetId, Seq, SeqRange, ShardId
from strandline.ingest.resync.cuts import is_cut_out
from strandline.ledger.receive.announced_bodies import AnnouncedBatch, AnnouncedClaim, is_replaceable
from strandline.ledger.receive.receipts import Note, Receipt, ReceiptBody, TokenFingerprint
from strandline.replicate.follow.bodies_document import parse_bodies, to_document
from strandline.replicate.follow.fetch_bodies import check_bodies

OWNER = TokenFingerprint("shop", "0123456789abcdef")
LANE = LaneName("lake", "sink", 2, "default.there", "de")
AT = datetime(2026, 3, 2, 10, 0, 0, 5, UTC)


def span(lo: int, hi: int) -> SeqRange:
    return SeqRange(Seq(lo), Seq(hi))


def body(place: int, rows: int, identity: Any = None, owner: TokenFingerprint | None = OWNER) -> ReceiptBody:
    known = identity or KeyIdentity(f"key-{place}")
    return ReceiptBody(Note(known, owner, rows, f"sha256:{place}", 10), f"spool/{place}", 20, place, AT)


TOLD = AnnouncedBatch(
    span(101, 110),
    Receipt("received-a", (body(0, 4), body(4, 6, RangeIdentity(LANE, span(7, 30)), None))),
    (
        AnnouncedClaim("lake", "default.there", "sink", "u", 2, 17, OWNER),
        AnnouncedClaim("lake", "default.other", "sink", "u", 1, 1, None),
    ),
)
HEAD = BlockHead(
    BlockId(1), DatasetId(1), span(101, 110), BlockKind.BATCH, "received-a", None, AT, ShardId(0), offered=True
)


def document() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json_text(to_document(TOLD)))
    return found


def test_what_the_leader_tells_of_a_batch_arrives_as_it_was() -> None:
    assert parse_bodies(document()) == TOLD
    assert parse_bodies(json.loads(json_text(to_document(None)))) is None
    check_bodies(TOLD, HEAD)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.pop("batch"),
        lambda d: d["batch"].pop("claims"),
        lambda d: d["batch"].update(lo=200),
        lambda d: d["batch"]["receipt"].update(version=99),
        lambda d: d["batch"]["receipt"].update(bodies=[{}]),
        lambda d: d["batch"]["receipt"]["bodies"][0].update(key=7),
        lambda d: d["batch"]["receipt"]["bodies"][0].update(rows="4"),
        lambda d: d["batch"]["receipt"]["bodies"][0].update(size=2**63),
        lambda d: d["batch"]["receipt"]["bodies"][0].update(spool={}),
        lambda d: d["batch"]["receipt"]["bodies"][0].update(token=["shop", 1]),
        lambda d: d["batch"]["receipt"]["bodies"][0].update(at="2026-03-02T10:00:00"),
        lambda d: d["batch"]["receipt"]["bodies"][1].update(lane=["lake", "sink", "2", "default.there", "de"]),
        lambda d: d["batch"]["claims"][0].update(token=["one"]),
        lambda d: d["batch"]["claims"][0].update(generation=None),
    ],
)
def test_an_answer_that_no_leader_gives_is_refused(change: Any) -> None:
    wrong = document()
    change(wrong)
    with pytest.raises(FailedError, match="cannot be read"):
        parse_bodies(wrong)


@pytest.mark.parametrize(
    "bodies",
    [
        (body(0, 5), body(4, 6)),
        (body(4, 6), body(0, 4)),
        (body(0, 11),),
        (body(0, 0),),
        (body(0, 4, owner=None),),
    ],
)
def test_bodies_that_do_not_fit_their_batch_are_not_recorded(bodies: tuple[ReceiptBody, ...]) -> None:
    with pytest.raises(FailedError, match="contradicts itself"):
        check_bodies(replace(TOLD, receipt=Receipt("received-a", bodies)), HEAD)


@pytest.mark.parametrize(
    "told", [replace(TOLD, numbers=span(101, 111)), replace(TOLD, receipt=Receipt("received-b", ()))]
)
def test_bodies_of_another_batch_are_not_recorded(told: AnnouncedBatch) -> None:
    with pytest.raises(FailedError, match="contradicts itself"):
        check_bodies(told, HEAD)


def test_keys_that_the_leader_has_forgotten_leave_gaps() -> None:
    check_bodies(replace(TOLD, receipt=Receipt("received-a", (body(2, 2), body(6, 4)))), HEAD)
    check_bodies(replace(TOLD, receipt=Receipt("received-a", ())), HEAD)


def test_what_waits_makes_room_and_of_what_is_in_a_table_only_keys_do() -> None:
    by_range = RangeIdentity(LANE, span(1, 2))
    assert is_replaceable(by_range, is_ingested=False) and is_replaceable(KeyIdentity("a"), is_ingested=False)
    assert is_replaceable(KeyIdentity("a"), is_ingested=True) and not is_replaceable(by_range, is_ingested=True)


def test_a_batch_that_a_cut_removed_is_not_taken_back_from_history() -> None:
    cut = NumberedCut(Seq(1000), TakeoverCut(17, Seq(100), (span(111, 120),)))
    assert is_cut_out(span(101, 110), [cut]) and is_cut_out(span(121, 130), [cut])
    for stays in (span(91, 100), span(111, 120), span(105, 115), span(1001, 1002)):
        assert not is_cut_out(stays, [cut])
