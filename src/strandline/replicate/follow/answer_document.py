"""Parses and checks the leader's answer, which comes over HTTP as JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from strandline.core.errors import FailedError
from strandline.core.sites.replication import DatasetTerms, Item, Offer, TakeoverCut
from strandline.core.sites.sink_document import number_or_none, sink_definition, text_or_none
from strandline.core.types import BlockKind, DatasetUuid, History, ItemKind, Seq, SeqRange, ShardId
from strandline.replicate.source import LeaderAnswer


def parse_answer(document: Mapping[str, Any]) -> LeaderAnswer:
    """Raises FailedError for a document that a leader of this version does not send."""
    try:
        return LeaderAnswer(
            str(document["lake"]),
            int(document["term"]),
            tuple(map(_offer, document["offers"])),
            tuple(map(_terms, document["made"])),
            tuple(DatasetUuid(str(id)) for id in document["dropped"]),
            {DatasetUuid(id): number_or_none(seal) for id, seal in document["seals"].items()},
            None if document["sinks"] is None else tuple(map(sink_definition, document["sinks"])),
            tuple(DatasetUuid(str(id)) for id in document["datasets"]),
            number_or_none(document["site_number"]),
            text_or_none(document["sinks_version"]),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as e:
        raise FailedError(
            f"the leader's answer cannot be read ({type(e).__name__}: {e})",
            hint="Check that leader and follower have the same version of Strandline.",
        ) from e


def _offer(document: Mapping[str, Any]) -> Offer:
    return Offer(
        str(document["lake"]),
        int(document["term"]),
        _terms(document["dataset"]),
        Seq(int(document["after"])),
        Seq(int(document["upto"])),
        tuple(map(_item, document["items"])),
        number_or_none(document.get("seal")),
        text_or_none(document.get("receiver_hold")),
    )


def _item(document: Mapping[str, Any]) -> Item:
    shard, rows = document["shard"], document["rows"]
    return Item(
        ItemKind(document["kind"]),
        Seq(int(document["lo"])),
        Seq(int(document["hi"])),
        None if shard is None else ShardId(int(shard)),
        None if rows is None else int(rows),
        text_or_none(document["batch_id"]),
        text_or_none(document["digest"]),
        BlockKind(document["source"]),
        _ranges(document["ranges"]),
        _cut(document["cut"]),
    )


def _cut(document: Mapping[str, Any] | None) -> TakeoverCut | None:
    if document is None:
        return None
    replaces = number_or_none(document.get("replaces"))
    return TakeoverCut(int(document["term"]), Seq(int(document["above"])), _ranges(document["keeps"]), replaces)


def _ranges(documents: Iterable[Mapping[str, Any]]) -> tuple[SeqRange, ...]:
    return tuple(SeqRange(Seq(int(r["lo"])), Seq(int(r["hi"]))) for r in documents)


def _terms(document: Mapping[str, Any]) -> DatasetTerms:
    return DatasetTerms(
        DatasetUuid(str(document["id"])),
        str(document["name"]),
        tuple(dict(c) for c in document["columns"]),
        tuple(str(c) for c in document["deliver_by"]),
        text_or_none(document["partition_by"]),
        ShardId(int(document["first_shard"])),
        int(document["shards"]),
        bool(document["adopted"]),
        History(document["history"]),
        int(document["first_term"]),
    )
