"""What a receiver that runs in a thread of the tests reports: where it listens."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any


@dataclass
class ReceiverJournal:
    up: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    def listening(self, url: str, datasets: list[str]) -> None:
        self.url = url
        self.up.set()

    def batch(self, report: Any) -> None: ...
    def trouble(self, error: Any) -> None: ...
    def well(self) -> None: ...
