"""What a measurement found, and whether it is good enough. Pure values: nothing here takes time or a clock."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Literal

SAMPLES_MIN = 5


@dataclass(frozen=True, slots=True)
class Goal:
    bound: float
    direction: Literal["at least", "at most", "exactly"]
    of: Literal["ratio", "ours"] = "ratio"

    def met_by(self, value: float) -> bool:
        match self.direction:
            case "at least":
                return value >= self.bound
            case "at most":
                return value <= self.bound
            case "exactly":
                return value == self.bound


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    unit: str
    peer_name: str | None
    goal: Goal | None
    """None: shown because it is worth knowing, good or bad."""
    counts: bool = False
    """How many of `size["rows"]` rows were lost or came twice. That is no time, and nothing is divided by it."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Taken in turn: ours, the peer's, ours, the peer's."""

    ours: Sequence[float]
    peer: Sequence[float] | None = None
    size: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """The median of what neighbours are to each other: a machine that is slow for a minute is slow for both."""
        if not self.peer or not self.ours or not all(self.peer):
            return None
        if len(self.peer) != len(self.ours):
            return median(self.ours) / median(self.peer)
        return median(ours / peer for ours, peer in zip(self.ours, self.peer, strict=True))

    @property
    def spread(self) -> tuple[float, float] | None:
        """Between these two lies the middle half: of the ratios, or of our own samples where there is no peer."""
        values = list(self.ours)
        if self.peer and len(self.peer) == len(self.ours) and all(self.peer):
            values = [ours / peer for ours, peer in zip(self.ours, self.peer, strict=True)]
        if len(values) < SAMPLES_MIN:
            return None
        low, _, high = quantiles(values, n=4, method="inclusive")
        return low, high

    @property
    def count(self) -> int:
        """Of the side that has fewer."""
        return len(self.ours) if self.peer is None else min(len(self.ours), len(self.peer))


def result(figure: Figure, group: str, samples: Samples | None, note: str | None = None) -> dict[str, Any]:
    """One entry of the results file. What was not measured, or not often enough, does not hold."""
    enough = samples is not None and samples.count >= SAMPLES_MIN
    ours = median(samples.ours) if samples is not None and samples.ours else None
    peer = median(samples.peer) if samples is not None and samples.peer else None
    ratio = None if samples is None or figure.counts else samples.ratio
    judged = ratio if figure.goal is None or figure.goal.of == "ratio" else ours
    if figure.counts and samples is not None:
        judged = max(samples.ours)  # once is too often
    holds = enough and (figure.goal is None or (judged is not None and figure.goal.met_by(judged)))
    if samples is not None and not enough:
        note = f"only {samples.count} samples"
    return {
        "figure": figure.name,
        "group": group,
        "ours": ours,
        "peer": peer,
        "peer_name": figure.peer_name,
        "unit": figure.unit,
        "counts": figure.counts,
        "ratio": ratio,
        "spread": None if samples is None or figure.counts else samples.spread,
        "goal": None if figure.goal is None else figure.goal.bound,
        "goal_is": None if figure.goal is None else figure.goal.direction,
        "goal_of": None if figure.goal is None else figure.goal.of,
        "holds": holds,
        "samples": 0 if samples is None else samples.count,
        "ours_samples": [] if samples is None else list(samples.ours),
        "peer_samples": None if samples is None or samples.peer is None else list(samples.peer),
        "size": None if samples is None else dict(samples.size),
        "note": note,
    }


def group_document(
    group: str, results: Sequence[Mapping[str, Any]], surroundings: Mapping[str, Any], *, quick: bool
) -> dict[str, Any]:
    """All that one run has found for a group. `surroundings`: the date, the machine and the versions."""
    return {
        "group": group,
        "command": f"make bench ONLY={group}",
        "quick": quick,
        **surroundings,
        "results": list(results),
    }


def write(document: Mapping[str, Any], folder: Path) -> Path:
    """Small sizes go beside the figures, because they must not pass for them."""
    path = folder / ("quick" if document["quick"] else "") / f"{document['group']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    return path


def read(folder: Path, groups: Iterable[str]) -> list[dict[str, Any]]:
    """The documents of these groups, as far as they were ever measured here."""
    paths = [folder / f"{group}.json" for group in groups]
    return [json.loads(path.read_text("utf-8")) for path in paths if path.exists()]
