"""The JSON text of one status after the other: `json_text(documents.lake_status(found))`, for less.

A server writes the status of a lake every few seconds, and few of its thousands of items have changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

from strandline.core.documents import json_array, json_object, json_text
from strandline.status.consumers import ConsumerStatus
from strandline.status.documents import lake_documents
from strandline.status.followers import FollowerStatus
from strandline.status.maintenance import DatasetMaintenance
from strandline.status.report import DatasetStatus, LakeStatus
from strandline.status.sinks import SinkStatus

_T = TypeVar("_T")


class LakeStatusText:
    """Keeps the texts of the last status. Several threads may use it: at worst, a text is made twice."""

    def __init__(self) -> None:
        self._datasets = _Items[DatasetStatus](lambda d: d)
        self._sinks = _Items[SinkStatus](lake_documents.sink_status)
        self._consumers = _Items[ConsumerStatus](lambda c: c)
        self._followers = _Items[FollowerStatus](lambda f: f)
        self._maintenance = _Items[DatasetMaintenance](lake_documents.dataset_maintenance)

    def text(self, found: LakeStatus) -> str:
        care = found.maintenance
        few = replace(
            found,
            datasets=(),
            sinks=(),
            followers=(),
            consumers=(),
            maintenance=None if care is None else replace(care, datasets=()),
        )
        document = lake_documents.lake_status(few) | {"problems": lake_documents.problems(found)}
        texts = {name: json_text(value) for name, value in document.items()} | {
            "datasets": self._datasets.text(found.datasets),
            "sinks": self._sinks.text(found.sinks),
            "consumers": self._consumers.text(found.consumers),
            "followers": self._followers.text(found.followers),
        }
        if care is not None:
            members = {name: json_text(value) for name, value in document["maintenance"].items()}
            texts["maintenance"] = json_object(members | {"datasets": self._maintenance.text(care.datasets)})
        return json_object(texts)


class _Items(Generic[_T]):
    """The texts of a list. An item that equals the one at the same place of the last list has the same text."""

    def __init__(self, document: Callable[[_T], Any]) -> None:
        self._document = document
        self._last: tuple[Sequence[_T], Sequence[str]] = ((), ())

    def text(self, items: Sequence[_T]) -> str:
        before, texts_before = self._last
        known = min(len(before), len(items))
        texts = [
            texts_before[n] if n < known and before[n] == item else json_text(self._document(item))
            for n, item in enumerate(items)
        ]
        self._last = items, texts
        return json_array(texts)
