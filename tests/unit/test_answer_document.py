"""The leader's answer over HTTP is the same value on both sides."""

from __future__ import annotations

import json
from typing import Any

import pytest

from strandline.core.documents import json_text
from strandline.core.errors import FailedError
from strandline.core.sites.replication import DatasetTerms, Item, Offer, TakeoverCut
from strandline.core.types import BlockKind, DatasetUuid, ItemKind, Seq, SeqRange, ShardId
from strandline.replicate.follow.answer_document import parse_answer
from strandline.replicate.source import LeaderAnswer

TERMS = DatasetTerms(
    DatasetUuid("d"), "default.events", ({"id": 2, "name": "a", "type": "long", "required": False},), ("a",),
    "day(at)", ShardId(3), 2,
)  # fmt: skip
SEGMENT = Item(ItemKind.SEGMENT, Seq(1), Seq(5), ShardId(3), 5, "b", "digest", BlockKind.ADOPTED)
PURGE = Item(ItemKind.PURGE, Seq(6), Seq(6), None, None, None, None, ranges=(SeqRange(Seq(1), Seq(2)),))
CUT_AT = 17 * 2**40
CUT = Item(
    ItemKind.CUT,
    Seq(CUT_AT),
    Seq(CUT_AT),
    None,
    None,
    None,
    None,
    cut=TakeoverCut(17, Seq(6), (SeqRange(Seq(8), Seq(9)),), 1),
)
OFFER = Offer("lake", 1, TERMS, Seq(0), Seq(CUT_AT), (SEGMENT, PURGE, CUT), Seq(CUT_AT))
SEALS = {DatasetUuid("d"): Seq(CUT_AT), DatasetUuid("new"): None}
ANSWER = LeaderAnswer(
    "lake", 1, (OFFER,), (TERMS,), (DatasetUuid("gone"),), SEALS, datasets=(DatasetUuid("d"),), sinks_version="v"
)


def document() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json_text(ANSWER))
    return found


def test_what_the_leader_says_arrives_as_it_was() -> None:
    found = parse_answer(document())
    assert found == ANSWER


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.pop("offers"),
        lambda d: d.update(term="new"),
        lambda d: d["offers"][0].update(items=[{}]),
        lambda d: d["offers"][0]["items"][0].update(kind="other"),
        lambda d: d["offers"][0]["items"][0].update(lo=9),
        lambda d: d["offers"][0]["items"][0].update(shard=None),
        lambda d: d["offers"][0]["items"][0].update(batch_id=7),
        lambda d: d["offers"][0]["items"][1].update(ranges=[{"lo": 5, "hi": 1}]),
        lambda d: d["offers"][0]["items"][1].update(cut={"term": 17, "above": 0, "keeps": []}),
        lambda d: d["offers"][0]["items"][2].update(cut=None),
        lambda d: d["offers"][0]["items"][2].update(lo=9, hi=9),
        lambda d: d["offers"][0]["items"][2]["cut"].update(above=-1),
        lambda d: d["offers"][0]["items"][2]["cut"].update(keeps=[{"lo": 5, "hi": 7}]),
        lambda d: d["made"][0].update(columns=None),
        lambda d: d["made"][0].update(history="other"),
    ],
)
def test_an_answer_that_no_leader_gives_is_refused(change: Any) -> None:
    wrong = document()
    change(wrong)
    with pytest.raises(FailedError, match="cannot be read"):
        parse_answer(wrong)
