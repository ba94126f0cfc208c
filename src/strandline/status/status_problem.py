"""One thing that is wrong: what, how bad it is, and what to do next."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

LONG_SECONDS = 600  # what has failed for longer does not heal by itself


class Severity(StrEnum):
    ERROR = "error"  # rows do not arrive, or are lost, until a person does something
    WARNING = "warning"  # a person should know; work goes on, or goes on by itself


class Subject(StrEnum):
    LAKE = "lake"
    DATASET = "dataset"
    SINK = "sink"
    QUARANTINE = "quarantine"  # of rows that a sink refused; `name` is the sink's
    FOLLOWER = "follower"
    LEADER = "leader"  # of a site that follows
    RECONCILER = "reconciler"


@dataclass(frozen=True, slots=True)
class StatusProblem:
    severity: Severity
    subject: Subject
    name: str | None  # of the dataset, sink or follower
    dataset: str | None  # the dataset that it concerns; None: the whole lake
    reason: str
    next_step: str | None = None  # None if there is nothing to do, or the reason says it

    @property
    def line(self) -> str:
        """In one sentence."""
        return self.reason if self.next_step is None else f"{self.reason}; {self.next_step}"
