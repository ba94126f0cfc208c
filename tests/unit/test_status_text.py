"""The text of a status is that of its document, whatever was spelled before."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from strandline.core.documents import json_text
from strandline.core.types import Seq, SeqRange
from strandline.ledger.deliver.delivery_report import ReportedIntent, UnderWay
from strandline.ledger.maintain.retention_holds import Hold
from strandline.ledger.maintain.runs import MaintenanceKind, MaintenanceOutcome, MaintenanceRun, MaintenanceRunId
from strandline.serve.snapshot import Spelling
from strandline.status.documents import lake_documents
from strandline.status.followers import FollowerStatus
from strandline.status.maintenance import DatasetMaintenance, MaintenanceStatus
from strandline.status.report import DatasetStatus, LakeStatus, OpenBlockStatus
from strandline.status.sinks import SinkStatus
from strandline.status.status_text import LakeStatusText

NOW = datetime(2026, 1, 1, 12, 30, tzinfo=UTC)
_T = TypeVar("_T")


class Dice:
    """Draws parts of a status, few different ones, so that many repeat."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def name(self) -> str:
        return self.random.choice(("a", "b", 'quote" \\', "umlaut ä €"))

    def number(self) -> int | None:
        return self.random.choice((None, 0, 7))

    def moment(self) -> datetime | None:
        return self.random.choice((None, NOW, NOW + timedelta(microseconds=3)))

    def dataset(self) -> DatasetStatus:
        block = OpenBlockStatus("1-7", "batch", self.name(), "reserved", NOW, self.moment())
        blocks = (block,) * self.random.choice((0, 1))
        number, problem = self.number, self.random.choice((None, "gone"))
        return DatasetStatus(self.name(), number(), number(), number(), 1, number(), number(), True, blocks, problem)

    def sink(self) -> SinkStatus:
        rows = SeqRange(Seq(1), Seq(7))
        opened = self.random.choice((None, UnderWay(rows, 2, 1, 3, NOW)))
        last = self.random.choice((None, ReportedIntent(rows, 7, NOW)))
        lag = self.random.choice((None, 0.0, 1.5))
        return SinkStatus(
            self.name(), "files", "a", None, 1, self.number(), self.number(), lag, "active", None, opened, 0, 0, 0,
            last, 0, self.moment(), "steady", 0, self.number(), lag,
        )  # fmt: skip

    def follower(self) -> FollowerStatus:
        number = self.number
        numbers = (number(), number(), number(), number())
        return FollowerStatus(self.name(), "a", 0, *numbers, 0.5, self.moment(), None, number(), NOW)

    def care(self) -> DatasetMaintenance:
        hold = Hold(1, self.name(), self.number(), NOW, Seq(7))  # type: ignore[arg-type]
        result = self.random.choice((None, {"files": 3}))
        run = MaintenanceRun(
            MaintenanceRunId(self.random.randrange(2)),
            self.name(),
            MaintenanceKind.COMPACT,
            "node",
            False,
            True,
            NOW,
            NOW,
            self.moment(),
            self.random.choice((None, MaintenanceOutcome.DONE)),
            None,
            result,
        )
        return DatasetMaintenance(self.name(), self.number(), (hold,), (run,) * self.random.choice((0, 1, 2)))

    def status(self) -> LakeStatus:
        care = MaintenanceStatus({"compact": "1h", "expire": None}, ("x",), (), self.some(self.care))
        return LakeStatus(
            "lake", self.random.randrange(2), self.number(), 1, None, self.some(self.dataset), self.some(self.sink),
            maintenance=self.random.choice((None, care)), followers=self.some(self.follower),
        )  # fmt: skip

    def some(self, draw: Callable[[], _T]) -> tuple[_T, ...]:
        return tuple(draw() for _ in range(self.random.randrange(4)))

    def changed(self, found: LakeStatus) -> LakeStatus:
        """Some parts of it are replaced, moved or left out."""
        other = self.status()
        lists = ("datasets", "sinks", "followers")
        mixed = {name: self._mixed(getattr(found, name), getattr(other, name)) for name in lists}
        care = self.random.choice((found.maintenance, other.maintenance))
        if care is not None and found.maintenance is not None:
            care = replace(care, datasets=self._mixed(found.maintenance.datasets, care.datasets))
        return replace(found, maintenance=care, **mixed)

    def _mixed(self, one: tuple[_T, ...], other: tuple[_T, ...]) -> tuple[_T, ...]:
        kept = [item for item in one if self.random.random() < 0.8]
        return tuple(kept if self.random.random() < 0.5 else [*other[:1], *kept])


def test_one_status_after_the_other_has_the_text_of_its_document() -> None:
    dice = Dice(seed=1)
    texts, found = LakeStatusText(), dice.status()
    seen = set[str]()
    for _ in range(300):
        expected = json_text(lake_documents.lake_status(found))
        assert texts.text(found) == expected
        assert json.loads(expected).keys() == json.loads(texts.text(found)).keys()
        seen.add(expected)
        found = dice.status() if dice.random.random() < 0.1 else dice.changed(found)
    assert len(seen) > 100


def test_what_nobody_changed_is_spelled_once() -> None:
    found, spelling = Dice(seed=2).status(), Spelling()
    text = spelling.text(found)
    assert spelling.text(replace(found)) is text
    assert spelling.text(replace(found, sequence=99)).version != text.version
    assert spelling.text(found) == text, "also after another one"
