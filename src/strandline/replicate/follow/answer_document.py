"""The leader's answer as it comes over HTTP, back into values. Pure. What came over a network is checked here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from strandline.core.errors import FailedError
from strandline.core.sites.replication import DatasetTerms, Item, LaneDefinition, Offer, SinkDefinition, TakeoverCut
from strandline.core.types import BlockKind, DatasetUuid, History, ItemKind, Seq, SeqRange, ShardId
from strandline.replicate.source import LeaderSite, Polled


def parse_answer(document: Mapping[str, Any]) -> Polled:
    """Raises FailedError for anything that a leader of this version does not say."""
    try:
        return Polled(
            LeaderSite(str(document["lake"]), int(document["term"]), _site_number(document)),
            tuple(_offer(o) for o in document["offers"]),
            tuple(_terms(t) for t in document["made"]),
            tuple(DatasetUuid(str(id)) for id in document["dropped"]),
            None if document["sinks"] is None else tuple(map(sink_definition, document["sinks"])),
            {DatasetUuid(id): None if seal is None else Seq(int(seal)) for id, seal in document["seals"].items()},
            tuple(DatasetUuid(str(id)) for id in document["datasets"]),
            _text(document["sinks_version"]),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as e:
        raise FailedError(
            f"the leader's answer cannot be read ({type(e).__name__}: {e})",
            hint="Check that leader and follower have the same version of Strandline.",
        ) from e


def _site_number(document: Mapping[str, Any]) -> int | None:
    value = document["site_number"]
    return None if value is None else int(value)


def _offer(document: Mapping[str, Any]) -> Offer:
    seal = document.get("seal")
    return Offer(
        str(document["lake"]),
        int(document["term"]),
        _terms(document["dataset"]),
        Seq(int(document["after"])),
        Seq(int(document["upto"])),
        tuple(_item(i) for i in document["items"]),
        None if seal is None else Seq(int(seal)),
        _text(document.get("receiver_hold")),
    )


def _item(document: Mapping[str, Any]) -> Item:
    shard, rows = document["shard"], document["rows"]
    return Item(
        ItemKind(document["kind"]),
        Seq(int(document["lo"])),
        Seq(int(document["hi"])),
        None if shard is None else ShardId(int(shard)),
        None if rows is None else int(rows),
        _text(document["batch_id"]),
        _text(document["digest"]),
        BlockKind(document["source"]),
        _ranges(document["ranges"]),
        _cut(document["cut"]),
    )


def _cut(document: Mapping[str, Any] | None) -> TakeoverCut | None:
    if document is None:
        return None
    replaces = _number(document.get("replaces"))
    return TakeoverCut(int(document["term"]), Seq(int(document["above"])), _ranges(document["keeps"]), replaces)


def _ranges(documents: Iterable[Mapping[str, Any]]) -> tuple[SeqRange, ...]:
    return tuple(SeqRange(Seq(int(r["lo"])), Seq(int(r["hi"]))) for r in documents)


def _terms(document: Mapping[str, Any]) -> DatasetTerms:
    return DatasetTerms(
        DatasetUuid(str(document["id"])),
        str(document["name"]),
        tuple(dict(c) for c in document["columns"]),
        tuple(str(c) for c in document["deliver_by"]),
        _text(document["partition_by"]),
        ShardId(int(document["first_shard"])),
        int(document["shards"]),
        bool(document["adopted"]),
        History(document["history"]),
        int(document["first_term"]),
    )


def sink_definition(document: Mapping[str, Any]) -> SinkDefinition:
    from_now = document["from_now"]
    return SinkDefinition(
        DatasetUuid(str(document["dataset"])),
        str(document["name"]),
        str(document["kind"]),
        str(document["instance"]),
        int(document["generation"]),
        tuple((str(name), str(value)) for name, value in document["options"]),
        str(document["destination"]),
        _number(document["start"]),
        _number(document["planned"]),
        _text(document["peer"]),
        None if from_now is None else bool(from_now),
        bool(document["paused"]),
        tuple(
            LaneDefinition(str(lane["partition"]), _number(lane["mark"]), _number(lane["builds_on"]))
            for lane in document["lanes"]
        ),
        _number(document["lowest"]),
        int(document["quarantined"]),
    )


def _number(value: Any) -> Seq | None:
    return None if value is None else Seq(int(value))


def _text(value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value
