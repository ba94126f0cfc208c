"""Parses the JSON document of a sink's definition: followers get it from their leader, and their ledgers store it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strandline.core.sites.replication import LaneDefinition, SinkDefinition
from strandline.core.types import DatasetUuid, Seq


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
        number_or_none(document["start"]),
        number_or_none(document["planned"]),
        text_or_none(document["peer"]),
        None if from_now is None else bool(from_now),
        bool(document["paused"]),
        tuple(
            LaneDefinition(str(lane["partition"]), number_or_none(lane["mark"]), number_or_none(lane["builds_on"]))
            for lane in document["lanes"]
        ),
        number_or_none(document["lowest"]),
        int(document["quarantined"]),
    )


def number_or_none(value: Any) -> Seq | None:
    return None if value is None else Seq(int(value))


def text_or_none(value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value
